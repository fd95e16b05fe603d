/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { RETRY = 138, PS = 2, WORKERS = 2, MOST = 8 };
static const double SOON = 5; /* seconds; far below grace and peer */

/* A run that only a signal ends, and whose only checkpoint is the signal's. */
static const char endless[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"chief\": \"coordinate\", \"timeouts\": {\"stop\": 1}}";
static const char endless_asynchronous[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"strategy\": {\"type\": \"ps\", \"staleness\": \"inf\"},"
    " \"chief\": \"coordinate\", \"timeouts\": {\"stop\": 1}}";

static void begin(struct cluster_play *play, struct cluster_run *run,
                  const char *job) {
    cluster_run_job(run, job);
    cluster_play_describe(play, run, 1, PS, WORKERS);
    cluster_play_start_all(play);
    cluster_run_await(play->tasks[0].process, "steps 0 to",
                      CLUSTER_RUN_DEADLINE);
}

/* A stop takes effect when each thread has come to it: on a busy machine what
 * is sent afterwards may be there before. */
static void stop(const struct cluster_process *process) {
    siginfo_t found = {0};
    cluster_run_signal(process, SIGSTOP);
    for (int tries = 0; !found.si_pid && tries < 500; tries++) {
        assert_int_equal(waitid(P_PID, (id_t)cluster_run_pid(process), &found,
                                WSTOPPED | WNOHANG | WNOWAIT),
                         0);
        cluster_play_pass(0.01);
    }
    assert_int_equal(found.si_pid, cluster_run_pid(process));
}

/* The signal's checkpoint, the only one there is. */
static uint64_t only_checkpoint(struct cluster_run *run) {
    uint64_t steps[MOST];
    assert_int_equal(cluster_play_checkpoints(run, "checkpoint", steps, MOST),
                     1);
    return steps[0];
}

/* The job with 20 steps to go after STEP. */
static void shorten(struct cluster_run *run, uint64_t step,
                    const char *strategy) {
    char job[512];
    snprintf(job, sizeof job,
             "{\"steps\": %llu, \"steps_per_epoch\": 1000000,"
             " \"chief\": \"coordinate\","
             " \"strategy\": {\"type\": \"ps\", \"staleness\": %s}}",
             (unsigned long long)step + 20, strategy);
    cluster_run_job(run, job);
}

static void expect_goes_on(struct cluster_process *chief, uint64_t step) {
    char text[64];
    snprintf(text, sizeof text, "step-%09llu, epoch", (unsigned long long)step);
    cluster_run_await(chief, text, CLUSTER_RUN_DEADLINE);
    snprintf(text, sizeof text, "; steps %llu to %llu",
             (unsigned long long)step, (unsigned long long)step + 20);
    cluster_run_await(chief, text, CLUSTER_RUN_DEADLINE);
}

struct signal_case {
    const char *type;
    unsigned index;
    int number;
    const char *job, *strategy;
};

static void signal_once(struct cluster_run *run, const struct signal_case *one,
                        uint64_t *seed) {
    struct cluster_play play;
    begin(&play, run, one->job);
    unsigned taker = cluster_play_find(&play, one->type, one->index);
    cluster_run_await(play.tasks[0].process, "%)", CLUSTER_RUN_DEADLINE);
    cluster_play_pass((double)cluster_play_random(seed, 100) * 1e-3);
    cluster_run_signal(play.tasks[taker].process, one->number);
    cluster_run_expect(play.tasks[taker].process, 128 + one->number, SOON);
    cluster_play_expect(&play, taker, RETRY, SOON);
    uint64_t step = only_checkpoint(run);
    assert_true(step > 0);
    shorten(run, step, one->strategy);
    cluster_play_start_all(&play);
    expect_goes_on(play.tasks[0].process, step);
    cluster_play_expect(&play, CLUSTER_PLAY_TASKS, 0, CLUSTER_RUN_DEADLINE);
}

static void a_signal_at_chief_or_ps_leaves_one_checkpoint_that_is_gone_on_from(
    void **state) {
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
    uint64_t seed = cluster_play_seed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("# signal %d at %s %u\n", cases[i].number, cases[i].type,
                      cases[i].index);
        signal_once(cluster_play_renew(state), &cases[i], &seed);
    }
}

/* Rounds stand frozen meanwhile, with the pushes of the next one waiting. */
static void a_chief_that_pauses_while_it_saves_names_the_right_step(
    void **state) {
    for (unsigned i = cluster_play_repeats(2); i > 0; i--) {
        struct cluster_play play;
        begin(&play, cluster_play_renew(state), endless);
        struct cluster_process *chief = play.tasks[0].process;
        cluster_run_await(chief, "%)", CLUSTER_RUN_DEADLINE);
        cluster_run_signal(chief, SIGTERM);
        cluster_run_await(chief, "one checkpoint, then all end", SOON);
        cluster_run_signal(chief, SIGSTOP);
        cluster_play_pass(0.1);
        cluster_run_signal(chief, SIGCONT);
        cluster_run_expect(chief, 128 + SIGTERM, SOON);
        cluster_play_expect(&play, 0, RETRY, SOON);
        assert_true(only_checkpoint(play.run) > 0);
    }
}

static void the_run_goes_on_without_a_worker_that_had_a_signal(void **state) {
    struct cluster_play play;
    cluster_run_job(*state, "{\"steps\": 8000, \"steps_per_epoch\": 8000,"
                            " \"chief\": \"coordinate\"}");
    cluster_play_describe(&play, *state, 1, PS, WORKERS);
    cluster_play_start_all(&play);
    unsigned left = cluster_play_find(&play, "worker", 0);
    cluster_run_await(play.tasks[left].process, "joined", SOON);
    cluster_run_await(play.tasks[0].process, "%)", CLUSTER_RUN_DEADLINE);
    cluster_run_signal(play.tasks[left].process, SIGTERM);
    cluster_run_expect(play.tasks[left].process, 128 + SIGTERM, SOON);
    cluster_run_await(play.tasks[0].process, "worker 0 said goodbye", SOON);
    cluster_play_expect(&play, left, 0, CLUSTER_RUN_DEADLINE);
    assert_int_equal(only_checkpoint(*state), 8000);
    assert_false(cluster_play_said(play.tasks[0].process, "a message of run"));
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

static void a_signal_at_capstan_local_goes_the_chiefs_way(void **state) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct cluster_run *run = cluster_play_renew(state);
        cluster_run_job(run, endless);
        struct cluster_process *local =
            cluster_play_local(run, PS, WORKERS, NULL);
        cluster_run_await(local, "%)", CLUSTER_RUN_DEADLINE);
        cluster_run_signal(local, numbers[i]);
        cluster_run_expect(local, 128 + numbers[i], SOON);
        expect_one_cause(local, " chief: error: ended by a signal");
        uint64_t step = only_checkpoint(run);
        shorten(run, step, "0");
        local = cluster_play_local(run, PS, WORKERS, NULL);
        expect_goes_on(local, step);
        cluster_run_expect(local, 0, CLUSTER_RUN_DEADLINE);
    }
}

/* The checkpoint cannot be completed: a ps is stopped. */
static void a_second_signal_at_the_chief_does_not_wait_for_the_checkpoint(
    void **state) {
    struct cluster_play play;
    begin(&play, *state, endless);
    struct cluster_process *chief = play.tasks[0].process;
    unsigned stopped = cluster_play_find(&play, "ps", 1);
    cluster_run_await(chief, "%)", CLUSTER_RUN_DEADLINE);
    stop(play.tasks[stopped].process);
    cluster_run_signal(chief, SIGINT);
    cluster_run_await(chief, "one checkpoint, then all end", SOON);
    cluster_run_signal(chief, SIGINT);
    cluster_run_expect(chief, 128 + SIGINT, SOON);
    const char *silent = strstr(cluster_run_errors(chief), "no goodbye");
    if (!silent || !strstr(silent, "ps 1"))
        fail_msg("ps 1 is not named:\n%s", cluster_run_errors(chief));
}

/* The terminal's hang-up comes from the kernel and from the shell. */
static void a_second_hang_up_does_not_end_the_wait_for_the_checkpoint(
    void **state) {
    struct cluster_play play;
    begin(&play, *state, endless);
    struct cluster_process *chief = play.tasks[0].process;
    cluster_run_await(chief, "%)", CLUSTER_RUN_DEADLINE);
    struct cluster_process *ps =
        play.tasks[cluster_play_find(&play, "ps", 1)].process;
    stop(ps);
    cluster_run_signal(chief, SIGHUP);
    cluster_run_await(chief, "one checkpoint, then all end", SOON);
    cluster_run_signal(chief, SIGHUP);
    cluster_play_pass(0.3);
    cluster_run_signal(ps, SIGCONT);
    cluster_run_expect(chief, 128 + SIGHUP, SOON);
    assert_true(only_checkpoint(*state) > 0);
}

/* As a scheduler ends a job: every process at once, in either order. */
static void a_signal_to_every_process_leaves_one_checkpoint(void **state) {
    for (int order = 0; order < 2; order++) {
        struct cluster_play play;
        struct cluster_run *run = cluster_play_renew(state);
        begin(&play, run, endless);
        struct cluster_process *chief = play.tasks[0].process;
        cluster_run_await(chief, "%)", CLUSTER_RUN_DEADLINE);
        for (unsigned i = 0; i < play.count; i++) {
            unsigned task = order ? play.count - 1 - i : i;
            cluster_run_signal(play.tasks[task].process, SIGTERM);
        }
        for (unsigned i = 0; i < play.count; i++)
            cluster_run_expect(play.tasks[i].process, 128 + SIGTERM, SOON);
        uint64_t step = only_checkpoint(run);
        assert_true(step > 0);
        shorten(run, step, "0");
        cluster_play_start_all(&play);
        expect_goes_on(play.tasks[0].process, step);
        cluster_play_expect(&play, CLUSTER_PLAY_TASKS, 0, CLUSTER_RUN_DEADLINE);
    }
}

/* Nobody is there to see to a checkpoint, or to close the round. */
static void a_second_signal_at_ps_or_worker_ends_it_at_once(void **state) {
    struct cluster_play play;
    begin(&play, *state, endless);
    struct cluster_process *chief = play.tasks[0].process;
    struct cluster_process *ps =
        play.tasks[cluster_play_find(&play, "ps", 0)].process;
    struct cluster_process *worker =
        play.tasks[cluster_play_find(&play, "worker", 1)].process;
    cluster_run_await(chief, "%)", CLUSTER_RUN_DEADLINE);
    stop(chief);
    cluster_run_signal(ps, SIGTERM);
    cluster_run_await(ps, "asking the chief", SOON);
    cluster_run_signal(ps, SIGTERM);
    cluster_run_expect(ps, 128 + SIGTERM, SOON);
    cluster_run_signal(worker, SIGINT);
    cluster_run_await(worker, "goodbye", SOON);
    cluster_run_signal(worker, SIGINT);
    cluster_run_expect(worker, 128 + SIGINT, SOON);
}

static void a_signal_before_the_training_ends_who_has_it_at_once(void **state) {
    struct cluster_play play;
    cluster_run_job(*state, endless);
    cluster_play_describe(&play, *state, 1, PS, WORKERS);
    unsigned ps = cluster_play_find(&play, "ps", 0);
    unsigned worker = cluster_play_find(&play, "worker", 0);
    cluster_run_await(cluster_play_start(&play, ps), "listening", SOON);
    cluster_run_signal(play.tasks[ps].process, SIGINT);
    cluster_run_expect(play.tasks[ps].process, 128 + SIGINT, SOON);
    cluster_run_await(cluster_play_start(&play, worker), "pid", SOON);
    cluster_run_signal(play.tasks[worker].process, SIGTERM);
    cluster_run_expect(play.tasks[worker].process, 128 + SIGTERM, SOON);
    cluster_run_await(cluster_play_start(&play, 0), "listening", SOON);
    cluster_run_await(cluster_play_start(&play, ps), "joined", SOON);
    cluster_run_signal(play.tasks[0].process, SIGTERM);
    cluster_run_expect(play.tasks[0].process, 128 + SIGTERM, SOON);
    cluster_run_expect(play.tasks[ps].process, RETRY, SOON);
    uint64_t steps[MOST];
    assert_int_equal(
        cluster_play_checkpoints(*state, "checkpoint", steps, MOST), 0);
}

static void a_worker_that_leaves_before_the_training_may_come_back(
    void **state) {
    struct cluster_play play;
    cluster_run_job(*state, NULL);
    cluster_play_describe(&play, *state, 1, 1, 1);
    unsigned worker = cluster_play_find(&play, "worker", 0);
    cluster_play_start(&play, 0);
    cluster_run_await(cluster_play_start(&play, worker), "joined", SOON);
    cluster_run_signal(play.tasks[worker].process, SIGTERM);
    cluster_run_expect(play.tasks[worker].process, 128 + SIGTERM, SOON);
    cluster_play_start(&play, worker);
    cluster_play_start(&play, cluster_play_find(&play, "ps", 0));
    cluster_play_expect(&play, CLUSTER_PLAY_TASKS, 0, CLUSTER_RUN_DEADLINE);
}

/* The others have not come far enough to know a chief, or have just joined. */
static void a_chief_that_cannot_begin_is_the_only_cause(void **state) {
    const char *const changes[] = {"checkpoint.dir=/proc/x", NULL};
    cluster_run_job(*state, NULL);
    struct cluster_process *local =
        cluster_play_local(*state, PS, WORKERS, changes);
    cluster_run_expect(local, 2, SOON);
    expect_one_cause(local, " local: chief ended the run");
}

static void who_falls_silent_is_named_before_it_counts_as_lost(void **state) {
    struct cluster_play play;
    cluster_run_job(*state, "{\"steps\": 1000000, \"timeouts\": {\"peer\": 18,"
                            " \"stop\": 1}, \"chief\": \"coordinate\"}");
    cluster_play_describe(&play, *state, 1, PS, WORKERS);
    unsigned worker = cluster_play_find(&play, "worker", 1);
    cluster_play_start_all(&play);
    cluster_run_await(play.tasks[0].process, "%)", CLUSTER_RUN_DEADLINE);
    cluster_run_signal(play.tasks[worker].process, SIGSTOP);
    const char *line;
    do
        line = cluster_run_await(play.tasks[0].process,
                                 "has not been heard of for",
                                 CLUSTER_RUN_DEADLINE);
    while (!strstr(line, "worker 1 on host"));
    cluster_run_signal(play.tasks[worker].process, SIGCONT);
    cluster_run_await(play.tasks[0].process, "is heard of again",
                      CLUSTER_RUN_DEADLINE);
    cluster_run_signal(play.tasks[0].process, SIGTERM);
    cluster_run_expect(play.tasks[0].process, 128 + SIGTERM,
                       CLUSTER_RUN_DEADLINE);
}

static void without_a_checkpoint_folder_a_signal_ends_the_run_at_once(
    void **state) {
    struct cluster_play play;
    char path[PATH_MAX];
    cluster_run_job(*state, endless);
    cluster_run_path(*state, "job.json", path);
    json_t *job = json_load_file(path, 0, NULL);
    json_object_del(job, "checkpoint");
    assert_int_equal(json_dump_file(job, path, 0), 0);
    json_decref(job);
    cluster_play_describe(&play, *state, 1, PS, WORKERS);
    cluster_play_start_all(&play);
    cluster_run_await(play.tasks[0].process, "%)", CLUSTER_RUN_DEADLINE);
    cluster_run_signal(play.tasks[0].process, SIGTERM);
    cluster_run_expect(play.tasks[0].process, 128 + SIGTERM, SOON);
    cluster_play_expect(&play, 0, RETRY, SOON);
    assert_false(cluster_play_said(play.tasks[0].process, "resumes"));
}

#define SIGNAL_TEST(name)                                                      \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup_in_memory,         \
                                    cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        SIGNAL_TEST(
            a_signal_at_chief_or_ps_leaves_one_checkpoint_that_is_gone_on_from),
        SIGNAL_TEST(a_chief_that_pauses_while_it_saves_names_the_right_step),
        SIGNAL_TEST(the_run_goes_on_without_a_worker_that_had_a_signal),
        SIGNAL_TEST(who_falls_silent_is_named_before_it_counts_as_lost),
        SIGNAL_TEST(a_signal_at_capstan_local_goes_the_chiefs_way),
        SIGNAL_TEST(
            a_second_signal_at_the_chief_does_not_wait_for_the_checkpoint),
        SIGNAL_TEST(a_second_hang_up_does_not_end_the_wait_for_the_checkpoint),
        SIGNAL_TEST(a_signal_to_every_process_leaves_one_checkpoint),
        SIGNAL_TEST(a_second_signal_at_ps_or_worker_ends_it_at_once),
        SIGNAL_TEST(a_signal_before_the_training_ends_who_has_it_at_once),
        SIGNAL_TEST(a_worker_that_leaves_before_the_training_may_come_back),
        SIGNAL_TEST(a_chief_that_cannot_begin_is_the_only_cause),
        SIGNAL_TEST(without_a_checkpoint_folder_a_signal_ends_the_run_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
