/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/wait.h>

enum { RETRY = 138, PS = 2, WORKERS = 2, MAXIMUM = 8 };

/* No deadline here reaches grace or peer. */
#define TIMEOUTS "\"timeouts\": {\"stop\": 1, \"grace\": 600, \"peer\": 600}"

/* A run that only a signal ends, and whose only checkpoint is the signal's. */
static const char endless[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"chief\": \"coordinate\", " TIMEOUTS "}";
static const char endless_asynchronous[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"strategy\": {\"type\": \"ps\", \"staleness\": \"inf\"},"
    " \"chief\": \"coordinate\", " TIMEOUTS "}";

static void begin(struct cluster_fixture *fixture, struct cluster_run *run,
                  const char *job) {
    cluster_run_job(run, job);
    cluster_fixture_describe(fixture, run, 1, PS, WORKERS);
    cluster_fixture_start_all(fixture);
    cluster_run_await_soon(fixture->tasks[0].process, "steps 0 to");
}

/* A stop takes effect when each thread has come to it: on a busy machine what
 * is sent afterwards may be there before. */
static void freeze_process(const struct cluster_process *process) {
    siginfo_t found = {0};
    cluster_run_signal(process, SIGSTOP);
    for (int tries = 0; !found.si_pid && tries < 500; tries++) {
        assert_int_equal(waitid(P_PID, (id_t)cluster_run_pid(process), &found,
                                WSTOPPED | WNOHANG | WNOWAIT),
                         0);
        cluster_fixture_sleep(0.01);
    }
    assert_int_equal(found.si_pid, cluster_run_pid(process));
}

/* The signal's checkpoint, the only one there is. */
static uint64_t only_checkpoint(struct cluster_run *run) {
    uint64_t steps[MAXIMUM];
    assert_int_equal(
        cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM), 1);
    return steps[0];
}

/* The job with 20 steps to go after STEP. */
static void shorten(struct cluster_run *run, uint64_t step,
                    const char *strategy) {
    cluster_run_job(
        run, textf("{\"steps\": %llu, \"steps_per_epoch\": 1000000,"
                   " \"chief\": \"coordinate\","
                   " \"strategy\": {\"type\": \"ps\", \"staleness\": %s}}",
                   (unsigned long long)step + 20, strategy));
}

static void expect_continues(struct cluster_process *chief, uint64_t step) {
    char text[64];
    snprintf(text, sizeof text, "step-%09llu, epoch", (unsigned long long)step);
    cluster_run_await_soon(chief, text);
    snprintf(text, sizeof text, "; steps %llu to %llu",
             (unsigned long long)step, (unsigned long long)step + 20);
    cluster_run_await_soon(chief, text);
}

struct signal_case {
    const char *type;
    unsigned index;
    int number;
    const char *job, *strategy;
};

static void signal_once(struct cluster_run *run, const struct signal_case *one,
                        uint64_t *seed) {
    struct cluster_fixture fixture;
    begin(&fixture, run, one->job);
    unsigned taker = cluster_fixture_find(&fixture, one->type, one->index);
    cluster_run_await_soon(fixture.tasks[0].process, "%)");
    cluster_fixture_sleep((double)cluster_fixture_random(seed, 100) * 1e-3);
    cluster_run_signal(fixture.tasks[taker].process, one->number);
    cluster_run_expect_soon(fixture.tasks[taker].process, 128 + one->number);
    cluster_fixture_expect_soon(&fixture, taker, RETRY);
    uint64_t step = only_checkpoint(run);
    assert_true(step > 0);
    shorten(run, step, one->strategy);
    cluster_fixture_start_all(&fixture);
    expect_continues(fixture.tasks[0].process, step);
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(a_signal_to_chief_or_ps_leaves_one_resumable_checkpoint) {
    static const struct signal_case cases[] = {
        {"chief", 0, SIGTERM, endless, "0"},
        {"chief", 0, SIGINT, endless, "0"},
        {"ps", 0, SIGTERM, endless, "0"},
        {"ps", 1, SIGINT, endless, "0"},
        {"chief", 0, SIGTERM, endless_asynchronous, "\"inf\""},
        {"ps", 1, SIGTERM, endless_asynchronous, "\"inf\""},
        {"chief", 0, SIGHUP, endless, "0"},
        {"ps", 1, SIGHUP, endless, "0"},
    };
    uint64_t seed = cluster_fixture_seed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("# signal %d at %s %u\n", cases[i].number, cases[i].type,
                      cases[i].index);
        signal_once(cluster_fixture_reset(state), &cases[i], &seed);
    }
}

/* Rounds stand frozen meanwhile, with the pushes of the next one waiting. */
TEST(a_chief_paused_during_a_save_names_the_right_step) {
    for (unsigned i = cluster_fixture_repeats(2); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(&fixture, cluster_fixture_reset(state), endless);
        struct cluster_process *chief = fixture.tasks[0].process;
        cluster_run_await_soon(chief, "%)");
        cluster_run_signal(chief, SIGTERM);
        cluster_run_await_soon(chief, "one checkpoint, then all end");
        cluster_run_signal(chief, SIGSTOP);
        cluster_fixture_sleep(0.1);
        cluster_run_signal(chief, SIGCONT);
        cluster_run_expect_soon(chief, 128 + SIGTERM);
        cluster_fixture_expect_soon(&fixture, 0, RETRY);
        assert_true(only_checkpoint(fixture.run) > 0);
    }
}

TEST(the_run_continues_without_a_signalled_worker) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, "{\"steps\": 8000, \"steps_per_epoch\": 8000,"
                            " \"chief\": \"coordinate\"}");
    cluster_fixture_describe(&fixture, *state, 1, PS, WORKERS);
    cluster_fixture_start_all(&fixture);
    unsigned left = cluster_fixture_find(&fixture, "worker", 0);
    cluster_run_await_soon(fixture.tasks[left].process, "joined");
    cluster_run_await_soon(fixture.tasks[0].process, "%)");
    cluster_run_signal(fixture.tasks[left].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[left].process, 128 + SIGTERM);
    cluster_run_await_soon(fixture.tasks[0].process, "worker 0 said goodbye");
    cluster_fixture_expect_soon(&fixture, left, 0);
    assert_int_equal(only_checkpoint(*state), 8000);
    assert_false(cluster_fixture_has_logged(fixture.tasks[0].process,
                                            "a message of run"));
}

/* One process says why the run ended, and the LAST line has it, or its name. */
static void expect_one_cause(const struct cluster_process *local,
                             const char *last) {
    const char *said = cluster_run_errors(local);
    const char *error = strstr(said, " chief: error: ");
    const char *end = strstr(said, last);
    if (!error || strstr(error, "error: ") != strstr(said, "error: ") ||
        strstr(error + strlen(" chief: error: "), "error: ") || !end ||
        strchr(end, '\n')[1])
        fail_msg("not one cause, with %s in the last line:\n%s", last, said);
}

TEST(a_signal_to_capstan_local_goes_through_the_chief) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct cluster_run *run = cluster_fixture_reset(state);
        cluster_run_job(run, endless);
        struct cluster_process *local =
            cluster_fixture_local(run, PS, WORKERS, NULL);
        cluster_run_await_soon(local, "%)");
        cluster_run_signal(local, numbers[i]);
        cluster_run_expect_soon(local, 128 + numbers[i]);
        expect_one_cause(local, " chief: error: ended by a signal");
        uint64_t step = only_checkpoint(run);
        shorten(run, step, "0");
        local = cluster_fixture_local(run, PS, WORKERS, NULL);
        expect_continues(local, step);
        cluster_run_expect_soon(local, 0);
    }
}

/* The checkpoint cannot be completed: a ps is stopped. */
TEST(a_second_signal_to_the_chief_does_not_wait_for_the_checkpoint) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, endless);
    struct cluster_process *chief = fixture.tasks[0].process;
    unsigned stopped = cluster_fixture_find(&fixture, "ps", 1);
    cluster_run_await_soon(chief, "%)");
    freeze_process(fixture.tasks[stopped].process);
    cluster_run_signal(chief, SIGINT);
    cluster_run_await_soon(chief, "one checkpoint, then all end");
    cluster_run_signal(chief, SIGINT);
    cluster_run_expect_soon(chief, 128 + SIGINT);
    const char *silent = strstr(cluster_run_errors(chief), "no goodbye");
    if (!silent || !strstr(silent, "ps 1"))
        fail_msg("ps 1 is not named:\n%s", cluster_run_errors(chief));
}

/* The terminal's hang-up comes from the kernel and from the shell. */
TEST(a_second_sighup_still_waits_for_the_checkpoint) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, endless);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_await_soon(chief, "%)");
    struct cluster_process *ps =
        fixture.tasks[cluster_fixture_find(&fixture, "ps", 1)].process;
    freeze_process(ps);
    cluster_run_signal(chief, SIGHUP);
    cluster_run_await_soon(chief, "one checkpoint, then all end");
    cluster_run_signal(chief, SIGHUP);
    cluster_fixture_sleep(0.3);
    cluster_run_signal(ps, SIGCONT);
    cluster_run_expect_soon(chief, 128 + SIGHUP);
    assert_true(only_checkpoint(*state) > 0);
}

/* As a scheduler ends a job: every process at once, in either order. */
TEST(a_signal_to_every_process_leaves_one_checkpoint) {
    for (int order = 0; order < 2; order++) {
        struct cluster_fixture fixture;
        struct cluster_run *run = cluster_fixture_reset(state);
        begin(&fixture, run, endless);
        struct cluster_process *chief = fixture.tasks[0].process;
        cluster_run_await_soon(chief, "%)");
        for (unsigned i = 0; i < fixture.count; i++) {
            unsigned task = order ? fixture.count - 1 - i : i;
            cluster_run_signal(fixture.tasks[task].process, SIGTERM);
        }
        for (unsigned i = 0; i < fixture.count; i++)
            cluster_run_expect_soon(fixture.tasks[i].process, 128 + SIGTERM);
        uint64_t step = only_checkpoint(run);
        assert_true(step > 0);
        shorten(run, step, "0");
        cluster_fixture_start_all(&fixture);
        expect_continues(fixture.tasks[0].process, step);
        cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    }
}

/* The others have closed the round in which it died. */
TEST(a_death_long_before_costs_no_checkpoint) {
    struct cluster_fixture fixture;
    begin(&fixture, *state,
          "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
          " \"chief\": \"coordinate\","
          " \"timeouts\": {\"stop\": 1, \"grace\": 600, \"peer\": 2}}");
    struct cluster_process *chief = fixture.tasks[0].process;
    unsigned dead = cluster_fixture_find(&fixture, "worker", 1);
    cluster_run_signal(fixture.tasks[dead].process, SIGKILL);
    cluster_run_expect_soon(fixture.tasks[dead].process, 128 + SIGKILL);
    cluster_run_await_soon(chief, "worker 1");
    for (int line = 0; line < 3; line++)
        cluster_run_await_soon(chief, "%)");
    for (unsigned i = 0; i < fixture.count; i++)
        if (i != dead)
            cluster_run_signal(fixture.tasks[i].process, SIGTERM);
    for (unsigned i = 0; i < fixture.count; i++)
        if (i != dead)
            cluster_run_expect_soon(fixture.tasks[i].process, 128 + SIGTERM);
    assert_true(only_checkpoint(*state) > 0);
}

/* A signal to all may reach the chief after a ps has told it of its own. */
TEST(the_chief_ends_by_its_own_signal_after_anothers) {
    struct cluster_fixture fixture;
    begin(&fixture, *state,
          "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
          " \"chief\": \"coordinate\", \"checkpoint\": null,"
          " \"timeouts\": {\"stop\": 600, \"grace\": 600, \"peer\": 600}}");
    struct cluster_process *chief = fixture.tasks[0].process;
    struct cluster_process *ps =
        fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process;
    struct cluster_process *worker =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)].process;
    freeze_process(worker);
    cluster_run_signal(ps, SIGTERM);
    cluster_run_expect_soon(ps, 128 + SIGTERM);
    cluster_run_signal(chief, SIGTERM);
    cluster_run_signal(worker, SIGCONT);
    cluster_run_expect_soon(worker, RETRY);
    cluster_run_expect_soon(chief, 128 + SIGTERM);
}

/* Nobody is there to see to a checkpoint, or to close the round. */
TEST(a_second_signal_to_ps_or_worker_ends_it_at_once) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, endless);
    struct cluster_process *chief = fixture.tasks[0].process;
    struct cluster_process *ps =
        fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process;
    struct cluster_process *worker =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)].process;
    cluster_run_await_soon(chief, "%)");
    freeze_process(chief);
    cluster_run_signal(ps, SIGTERM);
    cluster_run_await_soon(ps, "asking the chief");
    cluster_run_signal(ps, SIGTERM);
    cluster_run_expect_soon(ps, 128 + SIGTERM);
    cluster_run_signal(worker, SIGINT);
    cluster_run_await_soon(worker, "leaving");
    cluster_run_signal(worker, SIGINT);
    cluster_run_expect_soon(worker, 128 + SIGINT);
}

/* Long before timeouts.peer, after which they would know of it by themselves:
 * it bounds neither the checkpoint that a ps asks for nor the round that a
 * worker waits for. */
TEST(a_signal_ends_ps_and_worker_after_the_chiefs_death) {
    static const char *const jobs[] = {
        endless, endless_asynchronous,
        "{\"steps\": 1000000, \"steps_per_epoch\": 1000000, \"strategy\":"
        " {\"type\": \"allreduce\"}, \"chief\": \"coordinate\", " TIMEOUTS "}"};
    for (int i = 0; i < 3; i++) {
        struct cluster_fixture fixture;
        struct cluster_run *run = cluster_fixture_reset(state);
        cluster_run_job(run, jobs[i]);
        cluster_fixture_describe(&fixture, run, 1, i < 2 ? PS : 0, WORKERS);
        cluster_fixture_start_all(&fixture);
        struct cluster_process *chief = fixture.tasks[0].process;
        cluster_run_await_soon(chief, "%)");
        cluster_run_signal(chief, SIGKILL);
        for (unsigned t = 1; t < fixture.count; t++)
            cluster_run_signal(fixture.tasks[t].process, SIGTERM);
        for (unsigned t = 1; t < fixture.count; t++)
            cluster_run_expect_soon(fixture.tasks[t].process, 128 + SIGTERM);
    }
}

TEST(a_signal_before_training_ends_its_process_at_once) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, endless);
    cluster_fixture_describe(&fixture, *state, 1, PS, WORKERS);
    unsigned ps = cluster_fixture_find(&fixture, "ps", 0);
    unsigned worker = cluster_fixture_find(&fixture, "worker", 0);
    cluster_run_await_soon(cluster_fixture_start(&fixture, ps), "listening");
    cluster_run_signal(fixture.tasks[ps].process, SIGINT);
    cluster_run_expect_soon(fixture.tasks[ps].process, 128 + SIGINT);
    cluster_run_await_soon(cluster_fixture_start(&fixture, worker), "pid");
    cluster_run_signal(fixture.tasks[worker].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[worker].process, 128 + SIGTERM);
    cluster_run_await_soon(cluster_fixture_start(&fixture, 0), "listening");
    cluster_run_await_soon(cluster_fixture_start(&fixture, ps), "joined");
    cluster_run_signal(fixture.tasks[0].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[0].process, 128 + SIGTERM);
    cluster_run_expect_soon(fixture.tasks[ps].process, RETRY);
    uint64_t steps[MAXIMUM];
    assert_int_equal(
        cluster_fixture_checkpoints(*state, "checkpoint", steps, MAXIMUM), 0);
}

TEST(a_worker_that_leaves_before_training_may_rejoin) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, NULL);
    cluster_fixture_describe(&fixture, *state, 1, 1, 1);
    unsigned worker = cluster_fixture_find(&fixture, "worker", 0);
    cluster_fixture_start(&fixture, 0);
    cluster_run_await_soon(cluster_fixture_start(&fixture, worker), "joined");
    cluster_run_signal(fixture.tasks[worker].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[worker].process, 128 + SIGTERM);
    cluster_fixture_start(&fixture, worker);
    cluster_fixture_start(&fixture, cluster_fixture_find(&fixture, "ps", 0));
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
}

/* The others have not come far enough to know a chief, or have just joined. */
TEST(a_chief_that_cannot_start_is_the_only_reported_cause) {
    const char *const changes[] = {"checkpoint.dir=/proc/x", NULL};
    cluster_run_job(*state, NULL);
    struct cluster_process *local =
        cluster_fixture_local(*state, PS, WORKERS, changes);
    cluster_run_expect_soon(local, 2);
    expect_one_cause(local, " local: chief ended the run");
}

TEST(a_silent_process_is_named_before_it_is_declared_dead) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, "{\"steps\": 1000000, \"timeouts\": {\"peer\": 18,"
                            " \"stop\": 1}, \"chief\": \"coordinate\"}");
    cluster_fixture_describe(&fixture, *state, 1, PS, WORKERS);
    unsigned worker = cluster_fixture_find(&fixture, "worker", 1);
    cluster_fixture_start_all(&fixture);
    cluster_run_await_soon(fixture.tasks[0].process, "%)");
    cluster_run_signal(fixture.tasks[worker].process, SIGSTOP);
    const char *line;
    do
        line = cluster_run_await_soon(fixture.tasks[0].process,
                                      "no heartbeat from");
    while (!strstr(line, "worker 1 on host"));
    cluster_run_signal(fixture.tasks[worker].process, SIGCONT);
    cluster_run_await_soon(fixture.tasks[0].process, "resumed");
    cluster_run_signal(fixture.tasks[0].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[0].process, 128 + SIGTERM);
}

TEST(without_a_checkpoint_folder_a_signal_ends_the_run_at_once) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, endless);
    const char *path = cluster_run_path(*state, "job.json");
    json_t *job = json_load_file(path, 0, NULL);
    json_object_del(job, "checkpoint");
    assert_int_equal(json_dump_file(job, path, 0), 0);
    json_decref(job);
    cluster_fixture_describe(&fixture, *state, 1, PS, WORKERS);
    cluster_fixture_start_all(&fixture);
    cluster_run_await_soon(fixture.tasks[0].process, "%)");
    cluster_run_signal(fixture.tasks[0].process, SIGTERM);
    cluster_run_expect_soon(fixture.tasks[0].process, 128 + SIGTERM);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
    assert_false(
        cluster_fixture_has_logged(fixture.tasks[0].process, "resumes"));
}
