/* SPDX-License-Identifier: Apache-2.0 */
/* A ps, or a rank of all-reduce, dies, and the run goes back to its newest
 * checkpoint without ending: its weights are those of a run in which nothing
 * died. */
#define STATE struct cluster_run *run

#include "commands/launch/port.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/recording_proxy.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138, TERMINATED = 143, INTERRUPTED = 130 };
enum { LONG = 4 * CLUSTER_RUN_DEADLINE };

#define JOB                                                                    \
    "{\"epochs\": 200, \"steps_per_print\": 10, \"checkpoint\": "              \
    "{\"every_steps\": 250, \"keep\": 100}}"

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* Of ROLE ("ps 1"), which joins LOCAL's run next. */
static pid_t await_pid(struct cluster_process *local, const char *role) {
    const char *line =
        cluster_run_await_soon(local, textf("%s joined from ", role));
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen(", pid "));
}

struct pids {
    pid_t ps[2], workers[2];
};

/* Of the members of LOCAL, which join in any order. */
static struct pids await_pids(struct cluster_process *local) {
    struct pids pids = {0};
    cluster_run_await_soon(local, "chief: listening");
    for (int i = 0; i < 4; i++) {
        const char *line = cluster_run_await_soon(local, " joined from ");
        const char *pid = strstr(line, ", pid ");
        unsigned index;
        assert_non_null(pid);
        bool ps = sscanf(strstr(line, "chief: "), "chief: ps %u", &index) == 1;
        assert_true(ps || sscanf(strstr(line, "chief: "), "chief: worker %u",
                                 &index) == 1);
        assert_true(index < 2);
        (ps ? pids.ps : pids.workers)[index] =
            (pid_t)atoi(pid + strlen(", pid "));
    }
    return pids;
}

/* `capstan local` over 2 ps and 2 workers, which has steps enough to be
 * killed. */
static struct cluster_process *start(struct cluster_run *run, const char *name,
                                     const char *const *changes) {
    const char *words[40] = {"local",     "job.json", "--ps",  "2",
                             "--workers", "2",        "--json"};
    size_t count = 7;
    for (; *changes; changes++) {
        assert_true(count + 1 < sizeof words / sizeof *words);
        words[count++] = *changes;
    }
    return cluster_run_start(run, name, words, NULL);
}

static void undisturbed(struct cluster_run *run) {
    cluster_run_expect(start(run, "whole", WORDS("--set", "checkpoint.dir=a")),
                       0, LONG);
}

/* A run that gets SIGNAL at its process WHO ("ps 1") after a checkpoint. */
static struct cluster_process *start_and_signal(struct cluster_run *run,
                                                const char *const *changes,
                                                const char *who, int signal) {
    struct cluster_process *local = start(run, "disturbed", changes);
    pid_t pid = await_pid(local, who);
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, signal), 0);
    return local;
}

static void expect_rewinds(struct cluster_process *process, int rewinds) {
    const json_t *summary = cluster_run_json(process);
    assert_int_equal(json_integer_value(json_object_get(summary, "rewinds")),
                     rewinds);
    assert_true(json_integer_value(json_object_get(summary, "steps_again")) >=
                0);
}

static json_int_t untrained_samples(struct cluster_process *process) {
    return json_integer_value(
        json_object_get(cluster_run_json(process), "untrained_samples"));
}

static void expect_end(struct cluster_run *run, struct cluster_process *process,
                       int rewinds) {
    cluster_run_expect(process, 0, LONG);
    expect_rewinds(process, rewinds);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(each_ps_may_die_and_the_weights_are_those_of_an_undisturbed_run) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local =
        start(run, "killed", WORDS("--set", "checkpoint.dir=b"));
    struct pids pids = await_pids(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pids.ps[0], SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes back to its checkpoint");
    cluster_run_await_soon(local, "the run goes on after step ");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pids.ps[1], SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes on after step ");
    expect_end(run, local, 2);
}

/* Before there is a checkpoint. */
TEST(without_a_checkpoint_it_goes_back_to_its_start) {
    cluster_run_job(run, JOB);
    cluster_run_expect(start(run, "whole",
                             WORDS("--set", "checkpoint.dir=a", "--set",
                                   "checkpoint.every_steps=0")),
                       0, LONG);
    struct cluster_process *local =
        start(run, "killed",
              WORDS("--set", "checkpoint.dir=b", "--set",
                    "checkpoint.every_steps=0"));
    pid_t pid = await_pid(local, "ps 1");
    cluster_run_await_soon(local, "step 100/");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes back to its start");
    cluster_run_await_soon(local, "the run goes on after step 0");
    expect_end(run, local, 1);
}

TEST(a_ps_that_dies_while_the_run_goes_back_is_awaited_again) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local = start_and_signal(
        run, WORDS("--set", "checkpoint.dir=b"), "ps 1", SIGKILL);
    cluster_run_await_soon(local, "the run goes back to its checkpoint");
    pid_t pid = await_pid(local, "ps 1");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, "ps 1 was killed by signal 9");
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* A chief that goes back to what has just been written reads no shard: a ps
 * says so of its own, and the chief of the run after that reads all. */
TEST(a_checkpoint_that_a_ps_finds_damaged_is_passed_over) {
    cluster_run_job(run, "{\"steps\": 12000, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 4000}}");
    undisturbed(run);
    struct cluster_process *local =
        start(run, "killed", WORDS("--set", "checkpoint.dir=b"));
    struct pids pids = await_pids(local);
    cluster_run_await(local, "/b/step-000008000: ", LONG);
    cluster_fixture_damage(run, "b", 8000);
    assert_int_equal(kill(pids.ps[1], SIGKILL), 0);
    cluster_run_await_soon(local, "the run cannot go on from the checkpoint");
    cluster_run_await_soon(local, "checkpoint of step 8000 passed over: ");
    cluster_run_await_soon(local, "the run goes on after step 4000");
    expect_end(run, local, 2);
}

/* Such a ps would not be started again. */
TEST(without_restarts_a_damaged_checkpoint_is_passed_over_too) {
    cluster_run_job(run, "{\"steps\": 12000, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 4000}}");
    undisturbed(run);
    struct cluster_process *local = start(
        run, "none", WORDS("--set", "checkpoint.dir=b", "--max-restarts", "0"));
    struct pids pids = await_pids(local);
    cluster_run_await(local, "/b/step-000008000: ", LONG);
    cluster_fixture_damage(run, "b", 8000);
    assert_int_equal(kill(pids.ps[1], SIGKILL), 0);
    cluster_run_await_soon(local, "the run goes on after step 4000");
    expect_end(run, local, 1);
}

/* A process that has left the run that was, and is not in the next one yet. */
TEST(a_ps_that_dies_between_two_runs_is_started_again) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local = start(
        run, "killed",
        WORDS("--set", "checkpoint.dir=b", "--set", "timeouts.recover=10"));
    struct pids pids = await_pids(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pids.ps[0], SIGKILL), 0);
    cluster_run_await_soon(local, "ps 1: the run is over: ");
    assert_int_equal(kill(pids.ps[1], SIGKILL), 0);
    cluster_run_await_soon(local, "ps 1 was killed by signal 9");
    expect_end(run, local, 1);
}

TEST(a_ps_that_is_stopped_for_too_long_is_ended_and_started_again) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local = start_and_signal(
        run,
        WORDS("--set", "checkpoint.dir=b", "--set", "timeouts.peer=1", "--set",
              "timeouts.recover=10"),
        "ps 1", SIGSTOP);
    cluster_run_await_soon(local, "ps 1 was killed by signal 9");
    expect_end(run, local, 1);
}

/* Nobody else takes its place while it stands still. */
TEST(a_worker_that_is_stopped_for_too_long_is_ended_and_started_again) {
    cluster_run_job(run, JOB);
    struct cluster_process *local = start_and_signal(
        run, WORDS("--set", "checkpoint.dir=b", "--set", "timeouts.peer=1"),
        "worker 1", SIGSTOP);
    cluster_run_await_soon(local, "worker 1 was killed by signal 9");
    cluster_run_expect(local, 0, LONG);
    expect_rewinds(local, 0);
}

TEST(with_staleness_it_goes_on_too) {
    cluster_run_job(run, JOB);
    struct cluster_process *local =
        start_and_signal(run,
                         WORDS("--set", "checkpoint.dir=b", "--set",
                               "strategy.staleness=\"inf\""),
                         "ps 1", SIGKILL);
    cluster_run_await_soon(local, "the run goes on after step ");
    cluster_run_expect(local, 0, LONG);
    expect_rewinds(local, 1);
}

/* Each step has one line with a loss, in order, in the JSON lines. */
TEST(an_outlet_has_each_step_once) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local =
        start_and_signal(run,
                         WORDS("--set", "checkpoint.dir=b", "--set",
                               "metrics.jsonl=points.jsonl", "--set",
                               "tensorboard.enabled=true"),
                         "ps 1", SIGKILL);
    expect_end(run, local, 1);
    FILE *file = fopen(cluster_run_path(run, "points.jsonl"), "re");
    assert_non_null(file);
    char line[65536];
    json_int_t last = 0, points = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *point = json_loads(line, 0, NULL);
        assert_non_null(point);
        if (json_object_get(point, "train_loss")) {
            json_int_t step =
                json_integer_value(json_object_get(point, "step"));
            assert_true(step > last);
            last = step;
            points++;
        }
        json_decref(point);
    }
    fclose(file);
    assert_int_equal(last, 6000);
    assert_int_equal(points, 600);
}

/* Starts a cluster without a launcher, and kills its member INDEX of TYPE after
 * a checkpoint: its place. */
static unsigned kill_by_hand(struct cluster_run *run,
                             struct cluster_fixture *fixture, unsigned num_ps,
                             unsigned num_workers, const char *type,
                             unsigned index) {
    cluster_fixture_describe(fixture, run, 1, num_ps, num_workers);
    cluster_fixture_start_all(fixture);
    unsigned member = cluster_fixture_find(fixture, type, index);
    cluster_run_await_soon(fixture->tasks[0].process, "chief: checkpoint ");
    cluster_run_signal(fixture->tasks[member].process, SIGKILL);
    return member;
}

/* No launcher: a person starts the ps again, by the same command. */
TEST(a_ps_that_is_started_again_by_hand_takes_its_place) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 200, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 250}, "
                         "\"timeouts\": {\"peer\": 2}}");
    unsigned ps = kill_by_hand(run, &fixture, 2, 2, "ps", 0);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_fixture_start(&fixture, ps);
    cluster_run_await_soon(leader, "the run goes on after step ");
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_rewinds(leader, 1);
}

/* Its kernel closes its connection, and its port refuses. */
TEST(without_a_launcher_the_death_of_a_ps_is_known_at_once) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 200, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 250}, "
                         "\"timeouts\": {\"peer\": 600}}");
    unsigned ps = kill_by_hand(run, &fixture, 2, 2, "ps", 0);
    struct cluster_process *leader = fixture.tasks[0].process;
    const char *line =
        cluster_run_await_soon(leader, "chief: warning: ps 0 on");
    assert_contains(line, "its connection is closed, and ");
    assert_contains(line, " refuses");
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_fixture_start(&fixture, ps);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_rewinds(leader, 1);
}

/* Nobody waits for timeouts.peer. */
TEST(without_a_launcher_the_death_of_a_worker_is_known_at_once) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 200, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 250}, "
                         "\"timeouts\": {\"peer\": 600}}");
    unsigned worker = kill_by_hand(run, &fixture, 2, 2, "worker", 1);
    struct cluster_process *leader = fixture.tasks[0].process;
    const char *line =
        cluster_run_await_soon(leader, "chief: warning: worker 1 on");
    assert_contains(line, "its connection is closed, and ");
    assert_contains(line, " refuses");
    cluster_fixture_start(&fixture, worker);
    cluster_run_await_soon(leader, "worker 1 joined from ");
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_rewinds(leader, 0);
}

/* Makes the address of task INDEX of TYPE in CLUSTER one of PORT. */
static void move_task(json_t *cluster, const char *type, size_t index,
                      uint16_t port) {
    json_array_set_new(json_object_get(cluster, type), index,
                       json_string(textf("127.0.0.1:%u", port)));
}

/* The chief's list has another port of worker 1, which nobody listens on, as
 * that of a container is not published: its refusal shows nothing. */
TEST(a_worker_that_does_not_listen_where_it_is_listed_is_dead_by_silence) {
    struct cluster_fixture fixture;
    uint16_t proxied, own;
    int holder;
    cluster_run_job(run, "{\"epochs\": 100000, \"timeouts\": {\"peer\": 3}}");
    cluster_fixture_describe(&fixture, run, 1, 1, 2);
    const char *chief = json_string_value(
        json_array_get(json_object_get(run->cluster, "chief"), 0));
    struct recording_proxy *proxy =
        recording_proxy_open((uint16_t)atoi(strchr(chief, ':') + 1), &proxied);
    assert_int_equal(port_reserve(&own, &holder, NULL), 0);
    json_t *listed = json_deep_copy(run->cluster);
    unsigned worker = cluster_fixture_find(&fixture, "worker", 1);
    for (unsigned i = 0; i < fixture.count; i++)
        if (i != worker)
            cluster_fixture_start(&fixture, i);
    move_task(run->cluster, "chief", 0, proxied);
    move_task(run->cluster, "worker", 1, own);
    cluster_fixture_start(&fixture, worker);
    json_object_update(run->cluster, listed);
    json_decref(listed);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "%)");
    recording_proxy_close(&proxy); /* the kernel closes its connection */
    assert_contains(
        cluster_run_await_soon(leader, "chief: warning: worker 1 on"),
        "silent for");
    close(holder);
}

static void write_spare_job(struct cluster_run *run, const char *dir,
                            double spare, const char *more) {
    cluster_run_job(
        run, textf("{\"epochs\": 400, \"steps_per_print\": 10, \"checkpoint\": "
                   "{\"dir\": \"%s\", \"every_steps\": 250, \"keep\": 100}, "
                   "\"timeouts\": {\"peer\": 2, \"spare\": %g}%s}",
                   dir, spare, more));
}

/* The one in `a`, with the same trainers as those that are started by hand. */
static void undisturbed_by_hand(struct cluster_run *run, const char *more) {
    write_spare_job(run, "a", 10, more);
    cluster_run_expect(cluster_run_start(run, "whole",
                                         WORDS("local", "job.json", "--ps", "3",
                                               "--workers", "3"),
                                         NULL),
                       0, LONG);
}

TEST(another_ps_takes_over_from_one_that_does_not_come_back) {
    static const char *const mores[] = {
        ", \"gradient_clipping\": 0.5",
        ", \"optimizer\": {\"type\": \"Adam\"}"};
    for (unsigned dies = 0; dies < 2; dies++) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        undisturbed_by_hand(run, mores[dies]);
        write_spare_job(run, "b", 0.3 * dies, mores[dies]);
        unsigned ps = kill_by_hand(run, &fixture, 3, 2, "ps", dies);
        struct cluster_process *leader = fixture.tasks[0].process;
        cluster_run_await_soon(leader, "so that the run goes on with 2 ps");
        cluster_run_await_soon(
            leader, textf("after the loss of ps %u, without it: ", dies));
        cluster_fixture_expect(&fixture, ps, 0, LONG);
        expect_rewinds(leader, 1);
        cluster_fixture_expect_same_checkpoints(run, "a", "b");
    }
}

/* Also where the copies that it goes back to are of other ps than those that
 * the plan has then. */
TEST(a_ps_that_comes_late_has_its_place_the_next_time) {
    static const char *const mores[] = {
        "", ", \"strategy\": {\"replicas\": 1, \"buddy_steps\": 100}, "
            "\"optimizer\": {\"type\": \"Adam\"}"};
    for (unsigned copies = 0; copies < 2; copies++) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        undisturbed_by_hand(run, mores[copies]);
        write_spare_job(run, "b", 0.3, mores[copies]);
        unsigned ps = kill_by_hand(run, &fixture, 2 + copies, 2, "ps", 0);
        unsigned other = cluster_fixture_find(&fixture, "ps", 1);
        struct cluster_process *leader = fixture.tasks[0].process;
        cluster_run_await_soon(leader, textf("goes on with %u ps", 1 + copies));
        cluster_run_await_soon(leader, "the run goes on after step ");
        cluster_fixture_start(&fixture, ps);
        cluster_run_await_soon(leader, " is back: it waits");
        if (copies) /* no checkpoint follows it soon */
            cluster_run_await_soon(leader, "is in the memory of two ps each");
        cluster_run_signal(fixture.tasks[other].process, SIGKILL);
        if (copies)
            cluster_run_await_soon(leader, "goes back to the copy of step ");
        cluster_run_await_soon(leader, "ps 0 joined");
        cluster_run_await_soon(leader, "after the loss of ps 1, without it: ");
        cluster_fixture_expect(&fixture, other, 0, LONG);
        expect_rewinds(leader, 2);
        cluster_fixture_expect_same_checkpoints(run, "a", "b");
    }
}

/* As the others do. */
TEST(a_ps_that_comes_late_ends_with_the_run) {
    for (int is_done = 0; is_done < 2; is_done++) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        write_spare_job(run, "b", 0, "");
        unsigned ps = kill_by_hand(run, &fixture, 2, 2, "ps", 0);
        struct cluster_process *leader = fixture.tasks[0].process;
        cluster_run_await_soon(leader, "the run goes on after step ");
        cluster_fixture_start(&fixture, ps);
        cluster_run_await_soon(leader, " is back: it waits");
        if (!is_done)
            cluster_run_signal(leader, SIGTERM);
        cluster_run_expect(leader, is_done ? 0 : TERMINATED, LONG);
        cluster_run_expect_soon(fixture.tasks[ps].process, is_done ? 0 : RETRY);
    }
}

TEST(a_ps_that_does_not_come_back_ends_the_run_by_name) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 100000, \"checkpoint\": "
                         "{\"every_steps\": 50}, "
                         "\"timeouts\": {\"peer\": 2, \"recover\": 2, "
                         "\"spare\": 100}}");
    unsigned ps = kill_by_hand(run, &fixture, 2, 1, "ps", 0);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_fixture_expect(&fixture, ps, RETRY, CLUSTER_RUN_DEADLINE);
    const char *text = strstr(cluster_run_errors(leader), "did not join");
    assert_non_null(text);
    assert_contains(text, "ps 0");
    assert_contains(text, "timeouts.recover");
    /* The summary has the checkpoint that the same command resumes from. */
    cluster_fixture_expect_logged(leader, "chief: checkpoint: ");
}

/* It was declared dead, and its run has gone back without it. */
TEST(a_ps_that_was_stopped_while_the_run_went_back_may_join_anew) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 200, \"checkpoint\": "
                         "{\"every_steps\": 250}, "
                         "\"timeouts\": {\"peer\": 2}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    unsigned ps = cluster_fixture_find(&fixture, "ps", 0);
    struct cluster_process *leader = fixture.tasks[0].process,
                           *old = fixture.tasks[ps].process;
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(old, SIGSTOP);
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_run_await_soon(leader, "worker 0 joined");
    cluster_run_signal(old, SIGCONT);
    cluster_run_expect_soon(old, RETRY);
    const char *text = cluster_run_errors(old); /* by the old run, or the new */
    assert_true(strstr(text, "has declared this process dead") ||
                strstr(text, "without this process"));
    cluster_fixture_start(&fixture, ps);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_rewinds(leader, 1);
}

TEST(a_signal_between_two_runs_ends_all) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 100000, \"checkpoint\": "
                         "{\"every_steps\": 50}, \"timeouts\": {\"peer\": 2}}");
    unsigned ps = kill_by_hand(run, &fixture, 2, 1, "ps", 0);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_run_signal(leader, SIGTERM);
    cluster_run_expect_soon(leader, TERMINATED);
    for (unsigned i = 1; i < fixture.count; i++)
        if (i != ps)
            cluster_run_expect_soon(fixture.tasks[i].process, RETRY);
}

/* Nobody starts it again, or (COMES) somebody does later. */
static void lose_worker_and_ps(struct cluster_run *run, bool comes) {
    struct cluster_fixture fixture;
    /* Seconds, as a disk may take them for the first checkpoint. */
    cluster_run_job(run, "{\"epochs\": 900, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 250}, "
                         "\"timeouts\": {\"peer\": 2}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    unsigned ps = cluster_fixture_find(&fixture, "ps", 0);
    unsigned worker = cluster_fixture_find(&fixture, "worker", 1);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[worker].process, SIGKILL);
    cluster_run_await_soon(leader, "nothing of worker 1's share");
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_fixture_start(&fixture, ps);
    cluster_run_await_soon(leader, "the run goes on after step ");
    if (comes)
        cluster_fixture_start(&fixture, worker);
    cluster_fixture_expect(&fixture, comes ? CLUSTER_FIXTURE_TASKS : worker, 0,
                           LONG);
    expect_rewinds(leader, 1);
    assert_true(untrained_samples(leader) > 0);
}

TEST(a_worker_that_was_gone_before_is_not_awaited) {
    lose_worker_and_ps(run, false);
}

TEST(a_worker_that_was_gone_before_may_join_after) {
    lose_worker_and_ps(run, true);
}

/* It has no checkpoint of its own otherwise. */
TEST(sigusr1_between_two_runs_writes_a_checkpoint) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 100000, \"checkpoint\": "
                         "{\"every_steps\": 0}, \"timeouts\": {\"peer\": 2}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 1);
    cluster_fixture_start_all(&fixture);
    unsigned ps = cluster_fixture_find(&fixture, "ps", 0);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "%)");
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_run_await_soon(leader, "the run goes back to its start");
    cluster_run_signal(leader, SIGUSR1);
    cluster_run_await_soon(leader, "SIGUSR1: one checkpoint, and the run");
    cluster_fixture_start(&fixture, ps);
    cluster_run_await_soon(leader, "the run goes on after step 0");
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(leader, SIGTERM);
    cluster_run_expect_soon(leader, TERMINATED);
}

TEST(recovery_end_ends_the_run) {
    cluster_run_job(run, JOB);
    struct cluster_process *local = start(
        run, "ended",
        WORDS("--set", "checkpoint.dir=b", "--set", "strategy.recovery=end"));
    pid_t pid = await_pid(local, "ps 1");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_expect_soon(local, RETRY);
    cluster_fixture_expect_logged(local, "resumes from ");
}

/* Each time after its first checkpoint. */
static void lose_twice(struct cluster_process *local, const char *role) {
    for (int i = 0; i < 2; i++) {
        pid_t pid = await_pid(local, role);
        cluster_run_await_soon(local, "chief: checkpoint ");
        assert_int_equal(kill(pid, SIGKILL), 0);
    }
}

/* There is none, or no other that may take over. */
TEST(a_run_whose_ps_is_not_started_again_ends) {
    cluster_run_job(run, JOB);
    struct cluster_process *local =
        cluster_run_start(run, "none",
                          WORDS("local", "job.json", "--ps", "1", "--workers",
                                "2", "--max-restarts", "0"),
                          NULL);
    pid_t pid = await_pid(local, "ps 0");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_expect_soon(local, RETRY);
    local = cluster_run_start(run, "one",
                              WORDS("local", "job.json", "--ps", "1",
                                    "--workers", "2", "--set",
                                    "checkpoint.dir=c", "--max-restarts", "1"),
                              NULL);
    lose_twice(local, "ps 0");
    cluster_run_expect_soon(local, RETRY);
    cluster_fixture_expect_logged(local, "(--max-restarts)");
}

/* They are used up: nobody awaits it. */
TEST(a_ps_that_local_does_not_start_again_is_replaced_at_once) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local =
        start(run, "one",
              WORDS("--set", "checkpoint.dir=b", "--max-restarts", "1", "--set",
                    "timeouts.spare=600"));
    lose_twice(local, "ps 1");
    cluster_run_await_soon(local, "ps 1: not back and not started again");
    expect_end(run, local, 2);
}

TEST(without_restarts_a_ps_of_local_is_replaced_at_once) {
    cluster_run_job(run, JOB);
    undisturbed(run);
    struct cluster_process *local =
        start(run, "none",
              WORDS("--set", "checkpoint.dir=b", "--max-restarts", "0", "--set",
                    "timeouts.spare=600"));
    pid_t pid = await_pid(local, "ps 1");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, "ps 1: not back and not started again");
    expect_end(run, local, 1);
}

/* Rank 0 is awaited, and nothing starts it: nobody waits for timeouts.recover.
 */
TEST(without_restarts_a_ps_ends_the_run_that_worker_0_has_left) {
    cluster_run_job(run, JOB);
    struct cluster_process *local = start(
        run, "none", WORDS("--set", "checkpoint.dir=b", "--max-restarts", "0"));
    struct pids pids = await_pids(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pids.workers[0], SIGKILL), 0);
    cluster_run_await_soon(local, "nothing of worker 0's share");
    assert_int_equal(kill(pids.ps[1], SIGKILL), 0);
    cluster_run_expect_soon(local, RETRY);
}

/* At once, or while the others join again. */
TEST(without_restarts_a_worker_that_dies_with_a_ps_is_not_awaited) {
    static const char *const waits[] = {"after the loss of", "ps 0 joined"};
    for (unsigned i = 0; i < 2; i++) {
        run = cluster_fixture_reset(state);
        cluster_run_job(run, JOB);
        struct cluster_process *local =
            start(run, "none",
                  WORDS("--set", "checkpoint.dir=b", "--max-restarts", "0",
                        "--set", "timeouts.peer=3"));
        struct pids pids = await_pids(local);
        cluster_run_await_soon(local, "chief: checkpoint ");
        if (!i)
            assert_int_equal(kill(pids.workers[1], SIGKILL), 0);
        assert_int_equal(kill(pids.ps[1], SIGKILL), 0);
        if (i) {
            cluster_run_await_soon(local, "the run goes back to its");
            assert_int_equal(kill(pids.workers[1], SIGKILL), 0);
        }
        cluster_run_await_soon(local, waits[i]);
        cluster_run_expect(local, 0, LONG);
        expect_rewinds(local, 1);
    }
}

TEST(a_worker_of_local_is_started_again_and_trains_on) {
    cluster_run_job(run, JOB);
    struct cluster_process *local =
        start(run, "worker", WORDS("--set", "checkpoint.dir=b"));
    pid_t pid = await_pid(local, "worker 1");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, "worker 1 was killed by signal 9");
    cluster_run_await_soon(local, "worker 1 joined from ");
    cluster_run_expect(local, 0, LONG);
    expect_rewinds(local, 0);
}

/* A checkpoint is requested while no trainer is there. */
TEST(the_only_worker_is_started_again_during_a_checkpoint) {
    cluster_run_job(run, "{\"epochs\": 300, \"checkpoint\": "
                         "{\"every_seconds\": 0.02}}");
    struct cluster_process *local =
        cluster_run_start(run, "only",
                          WORDS("local", "job.json", "--workers", "1", "--json",
                                "--set", "checkpoint.dir=b"),
                          NULL);
    pid_t pid = await_pid(local, "worker 0");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, "worker 0 joined from ");
    cluster_run_expect_soon(local, 0);
}

/* Steps that lack a worker's share are not computed again, if they are before
 * the checkpoint that the run goes back to. */
TEST(what_was_untrained_before_the_checkpoint_stays_counted) {
    cluster_run_job(run, JOB);
    struct cluster_process *local =
        start(run, "untrained", WORDS("--set", "checkpoint.dir=b"));
    struct pids pids = await_pids(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pids.workers[1], SIGKILL), 0);
    cluster_run_await_soon(local, "nothing of worker 1's share");
    cluster_run_await_soon(local, "worker 1 joined from ");
    for (int i = 0; i < 2; i++) /* it trains from one of them on */
        cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pids.ps[0], SIGKILL), 0);
    cluster_run_expect(local, 0, LONG);
    expect_rewinds(local, 1);
    assert_true(untrained_samples(local) > 0);
}

/* `capstan local` over 3 ranks, without ps. */
static struct cluster_process *start_allreduce(struct cluster_run *run,
                                               const char *name,
                                               const char *dir,
                                               const char *change) {
    return cluster_run_start(
        run, name,
        WORDS("local", "job.json", "--ps", "0", "--workers", "3", "--json",
              "--set", textf("checkpoint.dir=%s", dir), "--set", change,
              "--set", "epochs=600"), /* seconds, also where a disk is slow */
        NULL);
}

/* Of RANK of LOCAL, which joins next; rank 0 holds the weights for snapshots.
 */
static void kill_rank(struct cluster_process *local, pid_t pid, unsigned rank) {
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_await_soon(local, textf("worker %u was killed", rank));
    cluster_run_await_soon(local, "the run goes on after step ");
}

TEST(each_rank_of_all_reduce_may_die) {
    static const char *const changes[] = {
        "strategy.algorithm=ring",
        "optimizer={\"type\":\"Adam\",\"params\":{\"lr\":0.001}}",
        "zero_optimization={\"stage\":2,\"reduce_bucket_size\":300}"};
    for (size_t c = 0; c < sizeof changes / sizeof *changes; c++) {
        run = cluster_fixture_reset(state);
        cluster_run_job(run, JOB);
        cluster_run_expect(start_allreduce(run, "whole", "a", changes[c]), 0,
                           LONG);
        struct cluster_process *local =
            start_allreduce(run, "killed", "b", changes[c]);
        pid_t pids[3];
        cluster_run_await_soon(local, "chief: listening");
        for (int i = 0; i < 3; i++) {
            unsigned index = 3;
            const char *line = cluster_run_await_soon(local, " joined from ");
            assert_int_equal(
                sscanf(strstr(line, "worker "), "worker %u", &index), 1);
            assert_true(index < 3);
            pids[index] = (pid_t)atoi(strstr(line, ", pid ") + 6);
        }
        for (unsigned rank = 0; rank < 3; rank++) {
            cluster_run_await_soon(local, "chief: checkpoint ");
            kill_rank(local, pids[rank], rank);
        }
        expect_end(run, local, 3);
    }
}

TEST(a_rank_of_all_reduce_that_dies_while_the_run_goes_back_is_awaited_again) {
    cluster_run_job(run, JOB);
    cluster_run_expect(start_allreduce(run, "whole", "a", "seed=1"), 0, LONG);
    struct cluster_process *local =
        start_allreduce(run, "killed", "b", "seed=1");
    pid_t pid = await_pid(local, "worker 1");
    cluster_run_await_soon(local, "chief: checkpoint ");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kill(pid, SIGKILL), 0);
        cluster_run_await_soon(local, "worker 1 was killed by signal 9");
        pid = await_pid(local, "worker 1");
    }
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* There is always one under way. */
TEST(a_rank_of_all_reduce_may_die_while_a_checkpoint_is_written) {
    static const char every[] = "checkpoint.every_steps=1";
    cluster_run_job(run, "{\"epochs\": 40, \"checkpoint\": {\"keep\": 3}}");
    cluster_run_expect(start_allreduce(run, "whole", "a", every), 0, LONG);
    struct cluster_process *local = start_allreduce(run, "killed", "b", every);
    pid_t pid = await_pid(local, "worker 0");
    for (int i = 0; i < 3; i++) {
        cluster_run_await_soon(local, "chief: checkpoint ");
        assert_int_equal(kill(pid, SIGKILL), 0);
        pid = await_pid(local, "worker 0");
        cluster_run_await_soon(local, "the run goes on after step ");
    }
    expect_end(run, local, 3);
}

/* The others lose its connections, and the chief does not wait for
 * timeouts.peer. */
TEST(a_rank_of_all_reduce_that_is_started_again_by_hand_takes_its_place) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 200, \"steps_per_print\": 10, "
                         "\"checkpoint\": {\"every_steps\": 250}, "
                         "\"timeouts\": {\"peer\": 600}}");
    unsigned worker = kill_by_hand(run, &fixture, 0, 3, "worker", 1);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_fixture_start(&fixture, worker);
    cluster_run_await_soon(leader, "the loss of worker 1, whose place pid ");
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_rewinds(leader, 1);
}

TEST(a_rank_of_all_reduce_that_does_not_come_back_ends_the_run_by_name) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 100000, \"checkpoint\": "
                         "{\"every_steps\": 50}, "
                         "\"timeouts\": {\"peer\": 2, \"recover\": 2}}");
    unsigned worker = kill_by_hand(run, &fixture, 0, 3, "worker", 1);
    cluster_fixture_expect(&fixture, worker, RETRY, CLUSTER_RUN_DEADLINE);
    const char *text = strstr(cluster_run_errors(fixture.tasks[0].process),
                              "did not join within 2 s (timeouts.recover)");
    assert_non_null(text);
    assert_contains(text, "worker 1");
}

TEST(all_reduce_without_checkpoint_dir_ends_when_a_rank_dies) {
    cluster_run_job(run, "{\"epochs\": 100000, \"steps_per_print\": 10}");
    struct cluster_process *local =
        cluster_run_start(run, "ends",
                          WORDS("local", "job.json", "--ps", "0", "--workers",
                                "3", "--set", "checkpoint=null"),
                          NULL);
    pid_t pid = await_pid(local, "worker 1");
    cluster_run_await_soon(local, "step ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_expect_soon(local, RETRY);
    cluster_fixture_expect_logged(local, "all-reduce cannot go on without it");
}

TEST(what_cannot_go_back_is_refused_by_name) {
    cluster_run_job(run, "{\"checkpoint\": null, \"strategy\": "
                         "{\"recovery\": \"rewind\"}}");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG, WORDS("local", "job.json")),
        "checkpoint.dir");
    cluster_run_job(run, "{\"strategy\": {\"recovery\": \"rewind\"}}");
    cluster_fixture_expect_logged(
        cluster_fixture_tool(run, CONFIG,
                             WORDS("local", "job.json", "--ps", "0",
                                   "--workers", "2", "--max-restarts", "0")),
        "strategy.recovery: found \"rewind\"");
}
