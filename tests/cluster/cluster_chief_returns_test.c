/* SPDX-License-Identifier: Apache-2.0 */
/* A chief dies. One that coordinates is not missed: the run goes on, and the
 * one that takes its place adopts it. For another one the members wait, and go
 * back to the newest checkpoint. The weights are those of a run in which
 * nothing died. */
#define STATE struct cluster_run *run

#include "commands/launch/port.h"
#include "core/base/time.h"
#include "proto/messages/launch_record.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/paused_file.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138, TERMINATED = 143 };
enum { LONG = 4 * CLUSTER_RUN_DEADLINE };

#define JOB                                                                    \
    "{\"epochs\": 200, \"steps_per_print\": 10, \"checkpoint\": "              \
    "{\"every_steps\": 250, \"keep\": 100}}"

FIXTURE(cluster_run_setup, cluster_run_teardown);

static struct cluster_process *start_two_ps(struct cluster_run *run,
                                            const char *dir,
                                            const char *const *more) {
    const char *words[40] = {
        "local",  "job.json",  "--ps",
        "2",      "--workers", "2",
        "--json", "--set",     textf("checkpoint.dir=%s", dir)};
    size_t count = 9;
    for (; *more; more++) {
        assert_true(count + 1 < sizeof words / sizeof *words);
        words[count++] = *more;
    }
    return cluster_run_start(run, dir, words, NULL);
}

static pid_t pid_in(const char *line) {
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen(", pid "));
}

/* Of the chief that LOCAL starts next. */
static pid_t await_chief(struct cluster_process *local) {
    return pid_in(cluster_run_await_soon(local, "chief: host "));
}

static void kill_process(pid_t pid) {
    assert_int_equal(kill(pid, SIGKILL), 0);
}

static void expect_times_back(struct cluster_process *process, int times) {
    const json_t *summary = cluster_run_json(process);
    assert_int_equal(json_integer_value(json_object_get(summary, "rewinds")),
                     times);
    assert_true(json_integer_value(json_object_get(summary, "steps_again")) >=
                0);
}

/* TIMES by chiefs, while the run went on: nothing is computed twice. */
static void expect_adopted(struct cluster_process *process, int times) {
    const json_t *summary = cluster_run_json(process);
    assert_int_equal(json_integer_value(json_object_get(summary, "rewinds")),
                     0);
    assert_int_equal(
        json_integer_value(json_object_get(summary, "steps_again")), 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "adoptions")),
                     times);
}

static void run_undisturbed(struct cluster_run *run) {
    cluster_run_expect(start_two_ps(run, "a", WORDS("--json")), 0, LONG);
}

static void expect_the_same_end(struct cluster_run *run,
                                struct cluster_process *process, int times) {
    cluster_run_expect(process, 0, LONG);
    expect_times_back(process, times);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

static void expect_the_same_end_after(struct cluster_run *run,
                                      struct cluster_process *process,
                                      int adoptions) {
    cluster_run_expect(process, 0, LONG);
    expect_adopted(process, adoptions);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* Whatever checkpoint.resume says. */
TEST(local_starts_its_chief_again_and_the_run_has_gone_on) {
    cluster_run_job(run, JOB);
    run_undisturbed(run);
    struct cluster_process *local =
        start_two_ps(run, "b", WORDS("--set", "checkpoint.resume=never"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    kill_process(chief);
    cluster_run_await_soon(local,
                           "chief was killed by signal 9 (Killed): it is "
                           "started again (1 of 10)");
    cluster_run_await_soon(local, "has gone on without its chief");
    expect_the_same_end_after(run, local, 1);
}

TEST(a_chief_of_all_reduce_is_started_again_too) {
    cluster_run_job(run, JOB);
    for (unsigned i = 0; i < 2; i++) {
        const char *dir = i ? "b" : "a";
        struct cluster_process *local = cluster_run_start(
            run, dir,
            WORDS("local", "job.json", "--ps", "0", "--workers", "2", "--json",
                  "--set", "strategy.type=allreduce", "--set",
                  textf("checkpoint.dir=%s", dir)),
            NULL);
        pid_t chief = await_chief(local);
        cluster_run_await_soon(local, "chief: checkpoint ");
        if (i) {
            kill_process(chief);
            cluster_run_await_soon(local, "after the loss of its chief, whose");
            expect_the_same_end(run, local, 1);
        } else {
            cluster_run_expect(local, 0, LONG);
        }
    }
}

TEST(a_chief_may_die_before_the_first_checkpoint) {
    cluster_run_job(run, "{\"epochs\": 200, \"steps_per_print\": 10}");
    run_undisturbed(run);
    struct cluster_process *local = start_two_ps(run, "b", WORDS("--json"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, "step 100/");
    kill_process(chief);
    cluster_run_await_soon(local, "has gone on without its chief");
    expect_the_same_end_after(run, local, 1);
}

TEST(a_chief_may_die_while_its_members_join) {
    cluster_run_job(run, JOB);
    run_undisturbed(run);
    struct cluster_process *local = start_two_ps(run, "b", WORDS("--json"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, " joined from ");
    kill_process(chief);
    cluster_run_await_soon(local, "chief was killed by signal 9");
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* The second one has adopted nothing yet. */
TEST(a_chief_may_die_twice_in_a_row) {
    cluster_run_job(run, JOB);
    run_undisturbed(run);
    struct cluster_process *local = start_two_ps(run, "b", WORDS("--json"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    kill_process(chief);
    kill_process(await_chief(local));
    cluster_run_await_soon(local, "(2 of 10)");
    cluster_run_await_soon(local, "has gone on without its chief");
    expect_the_same_end_after(run, local, 1);
}

/* The next point of FILE that has a loss; 0: no more. */
static json_int_t next_loss(FILE *file, double *loss) {
    char line[65536];
    json_int_t step = 0;
    while (!step && fgets(line, sizeof line, file)) {
        json_t *point = json_loads(line, 0, NULL);
        assert_non_null(point);
        const json_t *value = json_object_get(point, "train_loss");
        if (value)
            step = json_integer_value(json_object_get(point, "step"));
        *loss = json_number_value(value);
        json_decref(point);
    }
    return step;
}

/* Has b.jsonl each point of a.jsonl once, with its loss, or not at all, as its
 * chief was away? */
static void expect_the_same_points(struct cluster_run *run) {
    FILE *a = fopen(cluster_run_path(run, "a.jsonl"), "re");
    FILE *b = fopen(cluster_run_path(run, "b.jsonl"), "re");
    assert_true(a && b);
    json_int_t last = 0, step, of_a;
    double loss, loss_of_a;
    while ((step = next_loss(b, &loss))) {
        assert_true(step > last);
        last = step;
        while ((of_a = next_loss(a, &loss_of_a)) && of_a < step)
            ;
        assert_int_equal(of_a, step);
        if (loss != loss_of_a)
            fail_msg("the loss of step %lld is %.9g and not %.9g",
                     (long long)step, loss, loss_of_a);
    }
    assert_true(last > 0);
    fclose(a);
    fclose(b);
}

TEST(a_chief_that_has_adopted_the_run_may_die_too) {
    cluster_run_job(run, JOB);
    cluster_run_expect(
        start_two_ps(run, "a", WORDS("--set", "metrics.jsonl=a.jsonl")), 0,
        LONG);
    struct cluster_process *local =
        start_two_ps(run, "b", WORDS("--set", "metrics.jsonl=b.jsonl"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    for (int i = 0; i < 2; i++) { /* a member knows its term */
        kill_process(chief);
        chief = await_chief(local);
        cluster_run_await_soon(local, "which has adopted the run");
    }
    expect_the_same_end_after(run, local, 2);
    expect_the_same_points(run);
}

/* Its members have left their run, and are in no other. */
TEST(a_chief_may_die_while_its_run_goes_back) {
    cluster_run_job(run, JOB);
    run_undisturbed(run);
    struct cluster_process *local = start_two_ps(run, "b", WORDS("--json"));
    pid_t chief = await_chief(local);
    pid_t ps = pid_in(cluster_run_await_soon(local, "ps 1 joined from "));
    cluster_run_await_soon(local, "chief: checkpoint ");
    kill_process(ps);
    cluster_run_await_soon(local, "the run goes back to its checkpoint");
    kill_process(chief);
    cluster_run_await_soon(local, "wait for its chief, which is gone");
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

TEST(a_chief_and_a_ps_may_die_at_once) {
    cluster_run_job(run, JOB);
    run_undisturbed(run);
    struct cluster_process *local = start_two_ps(run, "b", WORDS("--json"));
    pid_t chief = await_chief(local);
    pid_t ps = pid_in(cluster_run_await_soon(local, "ps 0 joined from "));
    cluster_run_await_soon(local, "chief: checkpoint ");
    kill_process(chief);
    kill_process(ps);
    cluster_run_await_soon(local, "wait for its chief, which is gone");
    expect_the_same_end(run, local, 1);
}

/* After the last checkpoint, whether its members have left or not. */
TEST(a_chief_may_die_when_its_run_is_over) {
    cluster_run_job(run, JOB);
    run_undisturbed(run);
    struct cluster_process *local =
        start_two_ps(run, "b", WORDS("--set", "timeouts.stop=1"));
    pid_t chief = await_chief(local);
    cluster_run_await(local, "/step-000006000", LONG);
    kill(chief, SIGKILL); /* it may be gone */
    cluster_run_expect(local, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* What the process of PID tells its launcher. */
static int open_record(pid_t pid) {
    enum { FIRST = 3, END = 256 };
    for (int fd = FIRST; fd < END; fd++) {
        char name[256] = "";
        const char *path = textf("/proc/%d/fd/%d", (int)pid, fd);
        if (readlink(path, name, sizeof name - 1) > 0 &&
            strstr(name, "memfd:capstan member"))
            return open(path, O_RDONLY | O_CLOEXEC);
    }
    fail_msg("process %d has no record", (int)pid);
    return -1;
}

/* All others have heard the end and are gone. It waits for a pipe that takes no
 * more points. */
TEST(a_chief_may_die_when_all_have_heard_the_end) {
    cluster_run_job(run, "{\"epochs\": 200, \"steps_per_print\": 1, "
                         "\"timeouts\": {\"stop\": 30}}");
    assert_int_equal(mkfifo(cluster_run_path(run, "points"), 0600), 0);
    struct cluster_process *local =
        start_two_ps(run, "b", WORDS("--set", "metrics.jsonl=points"));
    pid_t chief = await_chief(local);
    int record = open_record(chief);
    int64_t deadline = time_now() + LONG * TIME_S;
    while (!(launch_record_deaths(record) & LAUNCH_RECORD_DONE)) {
        assert_true(time_now() < deadline);
        cluster_fixture_sleep(0.01);
    }
    close(record);
    kill_process(chief);
    cluster_run_expect_soon(local, 0);
    cluster_fixture_expect_logged(
        local, "the chief was killed by signal 9 (Killed) once its run was");
    assert_int_equal(
        json_integer_value(json_object_get(cluster_run_json(local), "steps")),
        6000);
}

/* Others may have heard nothing of it. */
TEST(a_chief_of_all_reduce_may_die_when_a_rank_has_heard_the_end) {
    cluster_run_job(run, JOB);
    struct cluster_process *local = cluster_run_start(
        run, "b",
        WORDS("local", "job.json", "--ps", "0", "--workers", "3", "--json"),
        NULL);
    pid_t chief = await_chief(local);
    cluster_run_await(local, "the run is over: done", LONG);
    kill(chief, SIGKILL); /* it may be gone */
    cluster_run_expect(local, 0, LONG);
}

TEST(a_signal_while_the_chief_is_started_again_ends_all) {
    cluster_run_job(run, JOB);
    struct cluster_process *local = start_two_ps(run, "b", WORDS("--json"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, " joined from ");
    kill_process(chief);
    cluster_run_await_soon(local, "(1 of 10)");
    kill_process(await_chief(local));
    cluster_run_await_soon(local, "(2 of 10)");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, TERMINATED);
}

TEST(a_chief_whose_restarts_are_used_up_ends_the_run) {
    cluster_run_job(run, JOB);
    struct cluster_process *local =
        start_two_ps(run, "b", WORDS("--max-restarts", "1"));
    pid_t chief = await_chief(local);
    cluster_run_await_soon(local, "chief: checkpoint ");
    kill_process(chief);
    chief = await_chief(local);
    cluster_run_await_soon(local, "has gone on without its chief");
    kill_process(chief);
    cluster_run_await_soon(local, "(--max-restarts)");
    cluster_run_expect_soon(local, 128 + SIGKILL);
}

TEST(where_a_chief_is_not_awaited_its_death_ends_the_run) {
    static const char *const sets[] = {"timeouts.chief=0",
                                       "strategy.recovery=end"};
    for (unsigned i = 0; i < 2; i++) {
        cluster_run_job(run, JOB);
        struct cluster_process *local =
            start_two_ps(run, textf("c%u", i), WORDS("--set", sets[i]));
        pid_t chief = await_chief(local);
        cluster_run_await_soon(local, "chief: checkpoint ");
        kill_process(chief);
        cluster_run_expect_soon(local, 128 + SIGKILL);
    }
}

/* Of runs without a launcher. MORE is a part of it. */
static void job_by_hand(struct cluster_run *run, const char *dir,
                        const char *more) {
    cluster_run_job(run, textf("{\"epochs\": 200, \"steps_per_print\": 10, "
                               "\"checkpoint\": {\"every_steps\": 250, "
                               "\"keep\": 100, \"dir\": \"%s\"}, %s}",
                               dir, more));
}

static void start_by_hand(struct cluster_run *run,
                          struct cluster_fixture *fixture, const char *more) {
    job_by_hand(run, "b", more);
    cluster_fixture_describe(fixture, run, 1, 2, 2);
    cluster_fixture_start_all(fixture);
}

/* Of which some may be left out where the disk is slow. */
static void await_checkpoints(struct cluster_process *chief, int count) {
    while (count--)
        cluster_run_await_soon(chief, "chief: checkpoint ");
}

static void kill_chief_by_hand(const struct cluster_fixture *fixture) {
    struct cluster_process *chief = fixture->tasks[0].process;
    cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_run_signal(chief, SIGKILL);
    cluster_run_expect_soon(chief, 128 + SIGKILL);
}

static void kill_task(const struct cluster_fixture_task *task) {
    cluster_run_signal(task->process, SIGKILL);
    cluster_run_expect_soon(task->process, 128 + SIGKILL);
}

/* The last checkpoint is complete, what was to be exported is not, and some
 * members are gone. */
TEST(a_chief_may_die_before_the_weights_are_exported) {
    struct cluster_fixture fixture;
    struct paused_file held;
    cluster_run_job(run, "{\"epochs\": 10, \"chief\": \"coordinate\", "
                         "\"checkpoint\": {\"dir\": \"b\"}, "
                         "\"export\": {\"path\": \"out/b.npz\"}}");
    paused_file_open(&held, run, "out", "b.npz");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    paused_file_await(&held);
    cluster_run_await_soon(fixture.tasks[0].process, "chief: checkpoint ");
    unsigned left = cluster_fixture_find(&fixture, "ps", 0);
    for (unsigned t = 0; t < fixture.count; t++)
        if (t != left)
            kill_task(&fixture.tasks[t]);
    paused_file_resume(&held, true);
    paused_file_open(&held, run, "out", "b.npz");
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    paused_file_await(&held); /* and the chief answers */
    cluster_run_signal(chief, SIGQUIT);
    cluster_run_await_soon(chief, "chief (pid ");
    paused_file_resume(&held, true);
    cluster_run_await_soon(chief, "exported the weights of the last");
    cluster_run_expect_soon(chief, 0);
    cluster_run_expect_soon(fixture.tasks[left].process, 0);
    cluster_fixture_tool(run, 0, WORDS("ckpt", "export", "b", "c.npz"));
    assert_int_equal(
        system(textf("cmp '%s' '%s' >&2", cluster_run_path(run, "out/b.npz"),
                     cluster_run_path(run, "c.npz"))),
        0);
}

/* MORE is a part of the job; the chief's log and its members' have WORDS. */
static void expect_return_by_hand(struct cluster_run *run, const char *more,
                                  const char *chief_logs,
                                  const char *member_logs) {
    struct cluster_fixture fixture;
    job_by_hand(run, "a", more);
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    job_by_hand(run, "b", more);
    cluster_fixture_start_all(&fixture);
    kill_chief_by_hand(&fixture);
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    cluster_run_await_soon(chief, chief_logs);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
    for (unsigned t = 1; t < fixture.count; t++)
        cluster_fixture_expect_logged(fixture.tasks[t].process, member_logs);
}

TEST(a_chief_that_coordinates_is_started_again_by_hand) {
    expect_return_by_hand(run, "\"chief\": \"coordinate\"",
                          "has gone on without its chief",
                          "has been started again: this process goes on "
                          "without it");
}

TEST(a_chief_that_coordinates_is_started_again_with_clipping) {
    expect_return_by_hand(
        run, "\"chief\": \"coordinate\", \"gradient_clipping\": 0.5",
        "has gone on without its chief", "which has adopted the run");
}

TEST(a_chief_that_trains_is_started_again_by_hand) {
    expect_return_by_hand(
        run, "\"chief\": \"train\", \"train_batch_size\": 30",
        "wait for its chief, which is gone",
        "has been started again: this process leaves its run, keeps");
}

enum { ANY = 1000 };

/* Of callers' models: workers are NAME of tests/library/caller.c. MORE is a
 * part of the job. */
struct callers {
    const char *name, *more;
    unsigned kept;        /* files that ranks keep with a checkpoint; ANY */
    unsigned epoch_steps; /* 0: it has none */
};

static void start_caller(struct cluster_run *run,
                         struct cluster_fixture_task *task, const char *name) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    task->process = cluster_run_task_program(run, "worker", task->index, caller,
                                             WORDS(name));
}

static void start_as_caller(struct cluster_run *run,
                            struct cluster_fixture *fixture, unsigned place,
                            const struct callers *callers) {
    struct cluster_fixture_task *task = &fixture->tasks[place];
    if (!strcmp(task->type, "worker"))
        start_caller(run, task, callers->name);
    else
        cluster_fixture_start(fixture, place);
}

static void job_of_callers(struct cluster_run *run, const char *dir,
                           const struct callers *callers) {
    cluster_run_job(run, textf("{\"model\": {\"type\": \"external\"}, "
                               "\"data\": null, \"chief\": \"coordinate\", "
                               "\"checkpoint\": {\"every_steps\": 100, "
                               "\"keep\": 1000, \"dir\": \"%s\"}, %s}",
                               dir, callers->more));
}

static void start_callers(struct cluster_run *run,
                          struct cluster_fixture *fixture, const char *dir,
                          const struct callers *callers) {
    job_of_callers(run, dir, callers);
    for (unsigned t = 0; t < fixture->count; t++)
        start_as_caller(run, fixture, t, callers);
}

static unsigned number_in(const json_t *manifest, const char *key) {
    return (unsigned)json_integer_value(json_object_get(manifest, key));
}

/* Has each checkpoint in b what ranks keep, the place in the data, and no fewer
 * samples than the one before? */
static void expect_whole_manifests(struct cluster_run *run,
                                   const struct callers *callers) {
    enum { MOST = 512 };
    uint64_t steps[MOST];
    unsigned count = cluster_fixture_checkpoints(run, "b", steps, MOST);
    unsigned samples = 0;
    assert_true(count > 3);
    for (unsigned c = 0; c < count; c++) {
        unsigned step = (unsigned)steps[c], each = callers->epoch_steps;
        const char *path =
            cluster_run_path(run, textf("b/step-%09u/manifest.json", step));
        json_t *manifest = json_load_file(path, 0, NULL);
        assert_non_null(manifest);
        if (callers->kept != ANY)
            assert_int_equal(json_array_size(json_object_get(manifest, "kept")),
                             callers->kept);
        unsigned epochs = each ? step / each : 0;
        assert_int_equal(number_in(manifest, "epoch"), epochs);
        assert_int_equal(number_in(manifest, "epoch_step"),
                         step - epochs * each);
        assert_true(number_in(manifest, "samples") >= samples);
        samples = number_in(manifest, "samples");
        json_decref(manifest);
    }
}

/* It dies after the fifth checkpoint and is started again after the seventh, if
 * there is one without it. With staleness none has a number of its own. */
static void expect_callers_adopted(struct cluster_run *run,
                                   struct cluster_fixture *fixture,
                                   const struct callers *callers) {
    bool planned = !strstr(callers->more, "staleness");
    start_callers(run, fixture, "b", callers);
    if (planned)
        await_checkpoints(fixture->tasks[0].process, 4);
    kill_chief_by_hand(fixture);
    if (planned && !strstr(callers->more, "clipping"))
        cluster_fixture_await_file(run, "b/step-00000*[7-9]00/*of-2*", LONG);
    struct cluster_process *chief = cluster_fixture_start(fixture, 0);
    cluster_run_await_soon(chief, "has gone on without its chief");
    cluster_fixture_expect(fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(chief, 1);
}

#define STEPS "\"steps\": 1500, "
/* Others notice a death: three times as long as a busy machine may stand still.
 */
#define SOON "\"timeouts\": {\"peer\": 6}, "
#define STALE "\"steps\": 3000, \"strategy\": {\"staleness\": 2}, "
#define BOUNDLESS "\"steps\": 3000, \"strategy\": {\"staleness\": \"inf\"}, "
#define COPIES "\"strategy\": {\"replicas\": 1, \"buddy_steps\": 40}, "
#define MOMENTUM                                                               \
    "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, "            \
    "\"momentum\": 0.5}}"
#define PLAIN "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1}}"

/* Whether they go back with their run or not; by the ps's optimizer or their
 * own; with tables; with groups whose rates change; with copies in memory. */
TEST(callers_train_on_without_their_chief) {
    static const struct callers callers[] = {
        {"rewinds", STEPS MOMENTUM, 2, 370},
        {"rewinds-not", STEPS MOMENTUM, 2, 370},
        {"rewinds", STEPS "\"gradient_clipping\": 2, " MOMENTUM, 2, 370},
        {"own", "\"steps\": 6000", 3, 0},
        {"writes-long", STEPS PLAIN, 0, 0},
        {"groups-long", STEPS PLAIN, 0, 0},
        {"rewinds", STEPS COPIES MOMENTUM, 2, 370}};
    for (unsigned c = 0; c < sizeof callers / sizeof *callers; c++) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        cluster_fixture_describe(&fixture, run, 1, 2, 2);
        start_callers(run, &fixture, "a", &callers[c]);
        cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
        expect_callers_adopted(run, &fixture, &callers[c]);
        cluster_fixture_expect_same_checkpoints(run, "a", "b");
        expect_whole_manifests(run, &callers[c]);
    }
}

/* To a copy that the next chief has had made, or to a newer checkpoint. */
TEST(a_ps_of_callers_with_copies_may_die_after_the_chief) {
    static const struct callers callers = {
        "rewinds", "\"steps\": 3000, " COPIES MOMENTUM, 2, 370};
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_callers(run, &fixture, "a", &callers);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    start_callers(run, &fixture, "b", &callers);
    kill_chief_by_hand(&fixture);
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    cluster_run_await_soon(chief, "has gone on without its chief");
    await_checkpoints(chief, 2);
    unsigned place = cluster_fixture_find(&fixture, "ps", 1);
    kill_task(&fixture.tasks[place]);
    cluster_run_await_soon(chief, "the run goes back to ");
    cluster_fixture_start(&fixture, place);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_times_back(chief, 1);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* The second death is at once, while members join, or as the run goes on. */
TEST(a_chief_of_callers_may_die_while_their_run_goes_back) {
    static const struct callers callers = {
        "rewinds", "\"steps\": 3000, " MOMENTUM, ANY, 370};
    static const double after[] = {0.1, 0.5, 0.02, 0.25};
    unsigned cases = cluster_fixture_repeats(2);
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_callers(run, &fixture, "a", &callers);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    unsigned place = cluster_fixture_find(&fixture, "ps", 1);
    for (unsigned i = 0; i < cases; i++) {
        assert_int_equal(system(textf("rm -rf '%s/b'", run->folder)), 0);
        start_callers(run, &fixture, "b", &callers);
        struct cluster_process *chief = fixture.tasks[0].process;
        await_checkpoints(chief, 2);
        kill_task(&fixture.tasks[place]);
        cluster_run_await_soon(chief, "the run goes back to ");
        cluster_fixture_start(&fixture, place);
        cluster_fixture_sleep(after[i % 4]); /* when the second one dies */
        kill_task(&fixture.tasks[0]);
        cluster_fixture_start(&fixture, 0);
        cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
        cluster_fixture_expect_same_checkpoints(run, "a", "b");
    }
}

/* Rows and kept steps are checked by the callers. */
TEST(callers_with_staleness_train_on_without_their_chief) {
    static const struct callers callers[] = {
        {"rewinds-late", STALE MOMENTUM, 2, 0},
        {"rewinds-late", BOUNDLESS MOMENTUM, 2, 0},
        {"writes-long", STALE PLAIN, 0, 0},
        {"writes-long", BOUNDLESS PLAIN, 0, 0}};
    for (unsigned c = 0; c < sizeof callers / sizeof *callers; c++) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        cluster_fixture_describe(&fixture, run, 1, 2, 2);
        expect_callers_adopted(run, &fixture, &callers[c]);
        expect_whole_manifests(run, &callers[c]);
    }
}

/* They have the plan and no view, as a ps stands still: nothing is lost. */
TEST(callers_that_have_not_begun_join_the_next_chief) {
    static const struct callers callers = {"rewinds",
                                           "\"steps\": 600, " MOMENTUM, 2, 370};
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    job_of_callers(run, "b", &callers);
    struct cluster_fixture_task *tasks = fixture.tasks;
    unsigned still = cluster_fixture_find(&fixture, "ps", 1);
    for (unsigned t = 0; t < fixture.count; t++) {
        start_as_caller(run, &fixture, t, &callers);
        if (t != still)
            continue;
        cluster_run_await_soon(tasks[0].process, "ps 1 joined from");
        cluster_run_signal(tasks[still].process, SIGSTOP);
    }
    cluster_run_await_soon(tasks[0].process, "; steps 0 to 600");
    kill_task(&tasks[0]);
    cluster_run_signal(tasks[still].process, SIGCONT);
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(chief, 0);
    expect_whole_manifests(run, &callers);
}

/* As of a built-in model: the ps whose shard it is ends, and the chief passes
 * over the checkpoint. A worker that stands still holds the next run up. */
TEST(callers_pass_over_a_checkpoint_that_a_ps_finds_damaged) {
    static const struct callers callers = {
        "rewinds", "\"steps\": 2000, " MOMENTUM, 2, 370};
    struct cluster_fixture fixture;
    uint64_t steps[64];
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_callers(run, &fixture, "a", &callers);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    start_callers(run, &fixture, "b", &callers);
    struct cluster_process *chief = fixture.tasks[0].process;
    unsigned damaged = cluster_fixture_find(&fixture, "ps", 0),
             dies = cluster_fixture_find(&fixture, "ps", 1);
    struct cluster_process *still =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 0)].process;
    await_checkpoints(chief, 3);
    cluster_run_signal(still, SIGSTOP);
    kill_task(&fixture.tasks[dies]);
    cluster_run_await_soon(chief, "the run goes back to ");
    unsigned count = cluster_fixture_checkpoints(run, "b", steps, 64);
    assert_true(count > 1);
    cluster_fixture_damage(run, "b", (unsigned)steps[count - 1]);
    cluster_run_signal(still, SIGCONT);
    cluster_fixture_start(&fixture, dies);
    cluster_run_expect_soon(fixture.tasks[damaged].process, RETRY);
    cluster_run_await_soon(chief, " passed over: ");
    cluster_fixture_start(&fixture, damaged);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_times_back(chief, 2);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* What it kept after the last checkpoint is gone with it: the run goes back to
 * that, with it. */
TEST(the_last_caller_that_is_killed_joins_where_its_state_is) {
    static const struct callers callers = {
        "rewinds", "\"steps\": 2000, " MOMENTUM, 1, 370};
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, 2, 1);
    start_callers(run, &fixture, "a", &callers);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    start_callers(run, &fixture, "b", &callers);
    struct cluster_process *chief = fixture.tasks[0].process;
    await_checkpoints(chief, 2);
    struct cluster_fixture_task *worker =
        &fixture.tasks[cluster_fixture_find(&fixture, "worker", 0)];
    kill_task(worker);
    cluster_run_await_soon(chief, "worker 0 on host");
    start_caller(run, worker, callers.name);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_times_back(chief, 1);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
    expect_whole_manifests(run, &callers);
}

/* Has each checkpoint in b up to STEP what both ranks keep? */
static void expect_kept_until(struct cluster_run *run, uint64_t step) {
    enum { MOST = 64 };
    uint64_t steps[MOST];
    unsigned count = cluster_fixture_checkpoints(run, "b", steps, MOST);
    for (unsigned c = 0; c < count && steps[c] <= step; c++) {
        const char *path = cluster_run_path(
            run, textf("b/step-%09u/manifest.json", (unsigned)steps[c]));
        json_t *manifest = json_load_file(path, 0, NULL);
        assert_int_equal(json_array_size(json_object_get(manifest, "kept")), 2);
        json_decref(manifest);
    }
}

/* Checkpoints that may lack what it has kept are none, whether others keep
 * anything or not; while its death is known it may even be out of the run. */
TEST(a_caller_may_die_while_the_chief_is_away) {
    static const char more[] = "\"steps\": 2000, " MOMENTUM;
    static const struct {
        struct callers callers;
        bool before; /* it dies before the chief */
    } cases[] = {
        {{"rewinds", more, ANY, 370}, false},
        {{"rewinds", "\"steps\": 2000, " SOON MOMENTUM, ANY, 370}, true},
        {{"learns-slowly", more, 0, 0}, false}};
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct callers *callers = &cases[c].callers;
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        cluster_fixture_describe(&fixture, run, 1, 2, 2);
        start_callers(run, &fixture, "b", callers);
        struct cluster_fixture_task *worker =
            &fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)];
        await_checkpoints(fixture.tasks[0].process, 4);
        if (cases[c].before)
            kill_task(worker);
        if (cases[c].before)
            cluster_run_await_soon(fixture.tasks[0].process,
                                   "worker 1 on host");
        kill_chief_by_hand(&fixture);
        if (!cases[c].before) {
            cluster_fixture_await_file(run, "b/step-000000[7-9]00/*of-2*",
                                       LONG);
            kill_task(worker);
        }
        start_caller(run, worker, callers->name); /* the run may end soon */
        struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
        cluster_run_await_soon(chief, "has gone on without its chief");
        cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
        expect_adopted(chief, 1);
        if (callers->kept && !cases[c].before)
            expect_kept_until(run, 700);
        expect_whole_manifests(run, callers);
    }
}

/* Worker 1 of FIXTURE is killed and started again, as NAME of the callers
 * (NULL: a worker of capstan), while HELD stands still. Once worker
 * 1 has logged WORDS it stands still, and the chief dies and returns. */
static struct cluster_process *lose_chief_while_joining(
    struct cluster_run *run, struct cluster_fixture *fixture,
    struct cluster_process *held, const char *name, const char *words) {
    unsigned place = cluster_fixture_find(fixture, "worker", 1);
    struct cluster_fixture_task *worker = &fixture->tasks[place];
    cluster_run_await_soon(fixture->tasks[0].process, "chief: checkpoint ");
    kill_task(worker);
    cluster_run_signal(held, SIGSTOP);
    if (name)
        start_caller(run, worker, name);
    else
        cluster_fixture_start(fixture, place);
    cluster_run_await_soon(worker->process, words);
    cluster_run_signal(worker->process, SIGSTOP);
    kill_task(&fixture->tasks[0]);
    struct cluster_process *chief = cluster_fixture_start(fixture, 0);
    cluster_run_signal(held, SIGCONT);
    return chief;
}

static void let_joiner_go_on(const struct cluster_fixture *fixture) {
    unsigned place = cluster_fixture_find(fixture, "worker", 1);
    cluster_run_signal(fixture->tasks[place].process, SIGCONT);
}

/* It waits for a checkpoint that lacks what worker 0 keeps, and that nobody
 * completes. */
TEST(a_caller_that_joins_with_what_others_keep_goes_back_without_the_chief) {
    static const struct callers callers = {"rewinds", STEPS MOMENTUM, 2, 370};
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_callers(run, &fixture, "b", &callers);
    unsigned held = cluster_fixture_find(&fixture, "worker", 0);
    struct cluster_process *chief =
        lose_chief_while_joining(run, &fixture, fixture.tasks[held].process,
                                 callers.name, "worker 1: ps 1: over");
    let_joiner_go_on(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_times_back(chief, 1);
}

/* No view lists it, as a ps does not answer. */
TEST(a_worker_that_joins_when_the_chief_dies_joins_the_next) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture, "\"chief\": \"coordinate\"");
    unsigned held = cluster_fixture_find(&fixture, "ps", 1);
    struct cluster_process *other =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 0)].process;
    struct cluster_process *chief =
        lose_chief_while_joining(run, &fixture, fixture.tasks[held].process,
                                 NULL, "worker 1: joined the chief");
    cluster_run_await_soon(chief, "has gone on without its chief");
    cluster_run_signal(other, SIGSTOP); /* the run may end before it */
    let_joiner_go_on(&fixture);
    cluster_run_await_soon(chief, "worker 1 joined from");
    cluster_run_signal(other, SIGCONT);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(chief, 1);
}

/* A chief that adopts the run has had no word of the first rank 0, and the
 * second one has begun no epoch. */
TEST(a_caller_may_be_replaced_before_the_chief_dies) {
    static const struct callers callers = {
        "rewinds", "\"steps\": 4000, " MOMENTUM, ANY, 370};
    struct cluster_fixture fixture;
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_callers(run, &fixture, "b", &callers);
    struct cluster_process *chief = fixture.tasks[0].process;
    struct cluster_fixture_task *worker =
        &fixture.tasks[cluster_fixture_find(&fixture, "worker", 0)];
    await_checkpoints(chief, 9);
    kill_task(worker);
    start_caller(run, worker, callers.name);
    cluster_run_await(worker->process, "goes on from step", LONG);
    kill_task(&fixture.tasks[0]);
    chief = cluster_fixture_start(&fixture, 0);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(chief, 1);
    expect_whole_manifests(run, &callers);
}

/* They have noticed its silence before it is there again. */
TEST(members_wait_for_a_chief_that_is_long_away) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture,
                  "\"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2}");
    kill_chief_by_hand(&fixture);
    for (unsigned t = 1; t < fixture.count; t++) {
        const char *line = cluster_run_await_soon(
            fixture.tasks[t].process, "was silent for 2 s (timeouts.peer)");
        assert_contains(line, "waits up to 300 s (timeouts.chief)");
    }
    cluster_fixture_start(&fixture, 0);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(fixture.tasks[0].process, 1);
}

/* Nobody computes anything twice with staleness either. */
TEST(a_run_with_staleness_goes_on_without_its_chief) {
    static const char *const staleness[] = {"2", "\"inf\""};
    for (unsigned s = 0; s < 2; s++) {
        struct cluster_fixture fixture;
        run = cluster_fixture_reset(state);
        start_by_hand(run, &fixture,
                      textf("\"chief\": \"coordinate\", \"strategy\": "
                            "{\"staleness\": %s}",
                            staleness[s]));
        kill_chief_by_hand(&fixture);
        cluster_fixture_start(&fixture, 0);
        cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
        expect_adopted(fixture.tasks[0].process, 1);
    }
}

/* What it was late with, and has left out, is not forgotten with the chief. */
TEST(a_worker_may_leave_before_the_chief_dies) {
    struct cluster_fixture fixture;
    start_by_hand(
        run, &fixture,
        "\"chief\": \"coordinate\", \"strategy\": {\"backup_workers\": 1}");
    struct cluster_process *chief = fixture.tasks[0].process;
    unsigned place = cluster_fixture_find(&fixture, "worker", 1);
    await_checkpoints(chief, 2);
    cluster_run_signal(fixture.tasks[place].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[place].process, TERMINATED);
    cluster_run_await_soon(chief, "worker 1 said goodbye");
    kill_task(&fixture.tasks[0]);
    chief = cluster_fixture_start(&fixture, 0);
    cluster_fixture_expect(&fixture, place, 0, LONG);
    expect_adopted(chief, 1);
    const json_t *late =
        json_array_get(json_object_get(cluster_run_json(chief), "late"), 1);
    assert_int_equal(number_in(late, "rank"), 1);
    assert_true(number_in(late, "late") + number_in(late, "missed") > 0);
}

/* Of an evaluation whose parts the chief before had in part nobody waits for
 * the rest. */
TEST(epochs_may_end_while_the_chief_is_away) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture,
                  "\"chief\": \"coordinate\", \"data\": {\"test\": null}");
    kill_chief_by_hand(&fixture);
    cluster_fixture_await_file(run, "b/step-00000[3-5]*/*of-2*", LONG);
    cluster_fixture_start(&fixture, 0);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(fixture.tasks[0].process, 1);
}

/* All of its members wait at the end. */
TEST(a_run_may_end_while_its_chief_is_away) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture, "\"chief\": \"coordinate\"");
    kill_chief_by_hand(&fixture);
    cluster_fixture_await_file(run, "b/step-000006000/*of-2*", LONG);
    cluster_fixture_start(&fixture, 0);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(fixture.tasks[0].process, 1);
}

/* Starts a run by hand, whose job has MORE, and kills its chief and task 1 of
 * TYPE: FIXTURE. Returns the place of that task. */
static unsigned kill_both_by_hand(struct cluster_run *run,
                                  struct cluster_fixture *fixture,
                                  const char *type, const char *more) {
    start_by_hand(run, fixture,
                  textf(SOON "\"chief\": \"coordinate\"%s", more));
    kill_chief_by_hand(fixture);
    unsigned place = cluster_fixture_find(fixture, type, 1);
    cluster_run_signal(fixture->tasks[place].process, SIGKILL);
    cluster_run_expect_soon(fixture->tasks[place].process, 128 + SIGKILL);
    return place;
}

/* It has trained its share until then. */
TEST(a_worker_may_die_while_the_chief_is_away) {
    const int its_share = 60000; /* of the run's samples */
    struct cluster_fixture fixture;
    unsigned worker = kill_both_by_hand(run, &fixture, "worker",
                                        ", \"strategy\": {\"staleness\": 2}");
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    cluster_run_await_soon(chief, "has gone on without its chief");
    cluster_run_await_soon(chief, "worker 1 on host (unknown) (pid 0) is gone");
    cluster_fixture_expect(&fixture, worker, 0, LONG);
    assert_false(cluster_fixture_has_logged(chief, "joining, step 0"));
    expect_adopted(chief, 1);
    const json_t *samples =
        json_object_get(cluster_run_json(chief), "untrained_samples");
    assert_true(json_integer_value(samples) > 0);
    assert_true(json_integer_value(samples) < its_share);
}

TEST(a_worker_that_is_started_again_meanwhile_joins_after_it) {
    struct cluster_fixture fixture;
    unsigned worker = kill_both_by_hand(run, &fixture, "worker", "");
    cluster_fixture_start(&fixture, worker); /* it asks before the members do */
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    cluster_run_await_soon(chief, "worker 1 joined from");
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(chief, 1);
}

TEST(a_ps_may_die_while_the_chief_is_away) {
    struct cluster_fixture fixture;
    unsigned ps = kill_both_by_hand(run, &fixture, "ps", "");
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    cluster_run_await_soon(chief, "as ps 1 has not answered");
    cluster_fixture_start(&fixture, ps);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_times_back(chief, 1);
}

TEST(a_chief_that_does_not_come_back_ends_its_members_by_name) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture,
                  "\"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2, "
                  "\"chief\": 1}");
    kill_chief_by_hand(&fixture);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
    for (unsigned t = 1; t < fixture.count; t++)
        cluster_fixture_expect_logged(
            fixture.tasks[t].process,
            "did not answer within 1 s (timeouts.chief)");
}

TEST(a_chief_with_another_job_is_refused_by_name) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture,
                  "\"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2}");
    kill_chief_by_hand(&fixture);
    cluster_run_job(run, "{\"epochs\": 2, \"chief\": \"coordinate\", "
                         "\"checkpoint\": {\"dir\": \"c\"}}");
    struct cluster_process *chief = cluster_fixture_start(&fixture, 0);
    for (unsigned t = 1; t < fixture.count; t++) {
        cluster_run_expect_soon(fixture.tasks[t].process, RETRY);
        cluster_fixture_expect_logged(fixture.tasks[t].process,
                                      "this chief has another job than that "
                                      "one had");
    }
    cluster_run_signal(chief, SIGTERM);
    cluster_run_expect_soon(chief, TERMINATED);
}

/* Beside it, on its port, or on another one with its checkpoint directory. */
TEST(a_second_chief_beside_a_living_one_is_refused) {
    struct cluster_fixture fixture;
    job_by_hand(run, "a", "\"chief\": \"coordinate\"");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    job_by_hand(run, "b", "\"chief\": \"coordinate\"");
    cluster_fixture_start_all(&fixture);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_await_soon(chief, "chief: checkpoint ");
    struct cluster_process *held = fixture.tasks[1].process;
    cluster_run_signal(held, SIGSTOP); /* the run does not end before them */
    struct cluster_process *second = cluster_fixture_start(&fixture, 0);
    json_array_set_new(json_object_get(run->cluster, "chief"), 0,
                       json_string("localhost:0"));
    struct cluster_process *third = cluster_fixture_start(&fixture, 0);
    cluster_run_expect_soon(third, CONFIG);
    cluster_fixture_expect_logged(third, "another run is using");
    cluster_run_expect_soon(second, RETRY);
    cluster_fixture_expect_logged(second, "is in use on this machine (pid");
    cluster_run_signal(held, SIGCONT);
    fixture.tasks[0].process = chief;
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    expect_adopted(chief, 0);
    cluster_fixture_expect_same_checkpoints(run, "a", "b");
}

/* It is stopped, and its members leave it meanwhile. */
TEST(a_chief_that_stood_still_has_its_members_back) {
    struct cluster_fixture fixture;
    start_by_hand(run, &fixture,
                  "\"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2}");
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_run_signal(chief, SIGSTOP);
    for (unsigned t = 1; t < fixture.count; t++)
        cluster_run_await_soon(fixture.tasks[t].process,
                               "waits up to 300 s (timeouts.chief)");
    cluster_run_signal(chief, SIGCONT);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
}

/* The process of rank 0 leads and trains. */
TEST(launch_starts_the_process_that_leads_again) {
    uint16_t number;
    int holder;
    cluster_run_job(run, JOB);
    assert_int_equal(port_reserve(&number, &holder, NULL), 0);
    for (unsigned i = 0; i < 2; i++) {
        const char *dir = i ? "b" : "a";
        struct cluster_process *node = cluster_run_start(
            run, dir,
            WORDS("launch", "--nproc_per_node", "3", "--master_port",
                  textf("%u", number), getenv("CAPSTAN"), "run", "--json",
                  "--num-ps", "1", "job.json", "--set",
                  textf("checkpoint.dir=%s", dir)),
            NULL);
        pid_t leader =
            pid_in(cluster_run_await_soon(node, "worker 0 joined from "));
        cluster_run_await_soon(node, "chief: checkpoint ");
        if (!i) {
            cluster_run_expect(node, 0, LONG);
            continue;
        }
        kill_process(leader);
        cluster_run_await_soon(node, "rank 0 was killed by signal 9");
        cluster_run_await_soon(node, "after the loss of its chief, whose");
        expect_the_same_end(run, node, 1);
    }
    close(holder);
}
