/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronous runs of real processes end in the same bits, weights and state,
 * however the work was spread, slowed or interrupted. */
#define STATE struct cluster_run *run

#include "core/store/checkpoint.h"
#include "core/tensor/rule.h"
#include "tests/lib/test.h"

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/seed.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXIT_TERMINATED = 143, EXIT_RETRY = 138 };
enum { VALUES = 64 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10 };

/* 14 blocks, so that 3 ps have several each. */
#define MODEL "\"model\": {\"layers\": [64, 512, 256, 10]}"
#define SGD                                                                    \
    "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.02,"            \
    " \"momentum\": 0.9, \"nesterov\": true}}"

static const char short_job[] = "{" MODEL ", " SGD ", \"steps\": 40}";

/* Runs the job with 2 workers; its checkpoints go to FOLDER/DIR. */
static struct cluster_process *start_with(struct cluster_run *run,
                                          const char *dir, const char *num_ps,
                                          const char *const *environment) {
    char set[128];
    snprintf(set, sizeof set, "checkpoint.dir=%s", dir);
    return cluster_run_start(run, dir,
                             WORDS("local", "--ps", num_ps, "--workers", "2",
                                   "--max-restarts", "0", "--set", set, "--set",
                                   "strategy.recovery=end", "job.json"),
                             environment);
}

static struct cluster_process *start(struct cluster_run *run, const char *dir,
                                     const char *num_ps) {
    return start_with(run, dir, num_ps, NULL);
}

/* Weights and state of the last checkpoint in DIR go to DIR.safetensors. */
static void finish(struct cluster_run *run, struct cluster_process *process,
                   const char *dir) {
    const char *file = textf("%s.safetensors", dir);
    const char *const export[] = {"ckpt", "export", "--state", dir, file, NULL};
    cluster_run_expect(process, 0, 2 * CLUSTER_RUN_DEADLINE);
    cluster_run_expect_soon(cluster_run_start(run, "export", export, NULL), 0);
}

static void complete(struct cluster_run *run, const char *dir,
                     const char *num_ps) {
    finish(run, start(run, dir, num_ps), dir);
}

static char *read_whole(const struct cluster_run *run, const char *dir,
                        size_t *size) {
    struct stat about;
    const char *path = cluster_run_path(run, textf("%s.safetensors", dir));
    FILE *file = fopen(path, "r");
    if (!file || stat(path, &about))
        fail_msg("no file %s", path);
    char *bytes = malloc((size_t)about.st_size + 1);
    assert_non_null(bytes);
    *size = fread(bytes, 1, (size_t)about.st_size, file);
    fclose(file);
    return bytes;
}

static void expect_same_bits(const struct cluster_run *run, const char *a,
                             const char *b) {
    size_t size_a, size_b, first = 0;
    char *bytes_a = read_whole(run, a, &size_a);
    char *bytes_b = read_whole(run, b, &size_b);
    assert_true(size_a > sizeof(float) * VALUES);
    assert_int_equal(size_a, size_b);
    while (first < size_a && bytes_a[first] == bytes_b[first])
        first++;
    if (first < size_a)
        fail_msg("%s and %s differ, first in byte %zu of %zu", a, b, first,
                 size_a);
    free(bytes_a);
    free(bytes_b);
}

static void expect_other_bits(const struct cluster_run *run, const char *a,
                              const char *b) {
    size_t size_a, size_b;
    char *bytes_a = read_whole(run, a, &size_a);
    char *bytes_b = read_whole(run, b, &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_not_equal(bytes_a, bytes_b, size_a);
    free(bytes_a);
    free(bytes_b);
}

/* The process that plays WHO ("worker 1") below `capstan local`, as a pidfd of
 * the caller's. Lines before its own are passed over. */
static int find_process(struct cluster_process *local, const char *who) {
    const char *line =
        cluster_run_await_soon(local, textf("chief: %s joined", who));
    const char *pid = strstr(line, "pid ");
    assert_non_null(pid);
    int descriptor = pidfd_open((pid_t)atoi(pid + strlen("pid ")), 0);
    assert_true(descriptor >= 0);
    return descriptor;
}

/* Stops and continues the process until it ends, for up to 40 ms each. */
static void slow_at_random(int process) {
    struct pollfd end = {process, POLLIN, 0};
    struct philox_sequence random;
    bool stopped = false;
    seed_open(&random);
    while (poll(&end, 1, (int)philox_below(&random, 40)) == 0) {
        pidfd_send_signal(process, stopped ? SIGCONT : SIGSTOP, NULL, 0);
        stopped = !stopped;
    }
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(repeated_runs_end_in_the_same_bits) {
    unsigned count = cluster_fixture_repeats(1) + 1;
    char dir[32];
    cluster_run_job(run, short_job);
    complete(run, "first", "2");
    for (unsigned i = 1; i < count; i++) {
        snprintf(dir, sizeof dir, "again-%u", i);
        complete(run, dir, "2");
        expect_same_bits(run, "first", dir);
    }
}

TEST(any_number_of_ps_ends_in_the_same_bits) {
    cluster_run_job(run, short_job);
    struct cluster_process *one = start(run, "one", "1");
    struct cluster_process *two = start(run, "two", "2");
    struct cluster_process *three = start(run, "three", "3");
    finish(run, one, "one");
    finish(run, two, "two");
    finish(run, three, "three");
    expect_same_bits(run, "one", "two");
    expect_same_bits(run, "one", "three");
}

/* With a norm, so that all kinds of work on blocks are done. */
TEST(any_number_of_threads_ends_in_the_same_bits) {
    static const unsigned threads[] = {1, 2, 3, 7};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        const char *job =
            textf("{" MODEL ", " SGD ", \"steps\": 40,"
                  " \"gradient_clipping\": 0.5, \"checkpoint\":"
                  " {\"every_steps\": 7}, \"strategy\": {\"ps_threads\": %u}}",
                  threads[i]);
        const char *dir = textf("threads-%u", threads[i]);
        cluster_run_job(run, job);
        complete(run, dir, i % 2 ? "1" : "2");
        expect_same_bits(run, "threads-1", dir);
    }
}

TEST(any_number_of_readers_ends_in_the_same_bits) {
    static const unsigned readers[] = {1, 0, 3};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        const char *job = textf("{" MODEL ", " SGD ", \"steps\": 40,"
                                " \"data\": {\"num_workers\": %u}}",
                                readers[i]);
        const char *dir = textf("readers-%u", readers[i]);
        cluster_run_job(run, job);
        complete(run, dir, "1");
        expect_same_bits(run, "readers-1", dir);
    }
}

TEST(every_rule_ends_in_the_same_bits_with_1_and_2_ps) {
    static const char *const rules[] = {"Adagrad", "RMSprop", "Adam", "AdamW",
                                        "Ftrl"};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *changes =
            textf("{" MODEL ", \"steps\": 15, \"optimizer\": {\"type\": \"%s\","
                  " \"params\": {\"lr\": 0.01}}}",
                  rules[i]);
        const char *one = textf("%s-1", rules[i]);
        const char *two = textf("%s-2", rules[i]);
        cluster_run_job(run, changes);
        struct cluster_process *with_one = start(run, one, "1");
        struct cluster_process *with_two = start(run, two, "2");
        finish(run, with_one, one);
        finish(run, with_two, two);
        expect_same_bits(run, one, two);
    }
}

TEST(a_slow_worker_changes_no_bits) {
    char dir[32];
    cluster_run_job(run, short_job);
    complete(run, "even", "2");
    for (unsigned i = 0; i < cluster_fixture_repeats(1); i++) {
        snprintf(dir, sizeof dir, "slowed-%u", i);
        struct cluster_process *local = start(run, dir, "2");
        int worker = find_process(local, "worker 1");
        slow_at_random(worker);
        close(worker);
        finish(run, local, dir);
        expect_same_bits(run, "even", dir);
    }
}

/* Adam with a global norm: all loops that have variants, of rules, sums and,
 * in bf16, of the wire. */
static void expect_same_bits_of_variants(struct cluster_run *run,
                                         const char *wire) {
    size_t count;
    const struct rule_loops *const *variants = rule_variants(&count);
    cluster_run_job(
        run, textf("{" MODEL ", \"steps\": 40, \"gradient_clipping\": 0.5,"
                   " \"wire\": \"%s\", \"optimizer\": {\"type\": \"Adam\","
                   " \"params\": {\"lr\": 0.01}}}",
                   wire));
    complete(run, "chosen-by-itself", "2");
    for (size_t v = 0; v < count; v++) {
        const char *name = rule_variant_name(variants[v]);
        char variable[64];
        const char *const environment[] = {variable, "CAPSTAN_JSON_LOG=1",
                                           NULL};
        snprintf(variable, sizeof variable, "CAPSTAN_CPU=%s", name);
        const char *said = textf("cpu (%s)", name);
        struct cluster_process *local = start_with(run, name, "2", environment);
        for (int process = 0; process < 5; process++)
            cluster_run_await_soon(local, said);
        finish(run, local, name);
        expect_same_bits(run, "chosen-by-itself", name);
    }
}

TEST(every_variant_of_the_loops_ends_in_the_same_bits) {
    expect_same_bits_of_variants(run, "float32");
}

TEST(every_variant_ends_in_the_same_bits_in_bf16) {
    expect_same_bits_of_variants(run, "bf16");
}

TEST(an_unknown_variant_is_refused) {
    const char *const environment[] = {"CAPSTAN_CPU=sse9", NULL};
    const char *const info[] = {"info", NULL};
    cluster_run_job(run, short_job);
    struct cluster_process *refused[] = {
        start_with(run, "refused", "2", environment),
        cluster_run_start(run, "info", info, environment)};
    for (int i = 0; i < 2; i++) {
        cluster_run_expect_soon(refused[i], 2);
        assert_contains(cluster_run_errors(refused[i]),
                        "allowed are plain, avx2, avx512");
    }
}

/* A job with MORE keys and a checkpoint every now and then. */
static void write_long_job(const struct cluster_run *run, const char *more,
                           uint64_t steps) {
    cluster_run_job(run, textf("{" MODEL ", " SGD ", \"steps\": %" PRIu64
                               ", \"checkpoint\": {\"every_steps\": 40},"
                               " \"timeouts\": {\"peer\": 10}%s}",
                               steps, more));
}

static uint64_t last_step(const struct cluster_run *run, const char *dir) {
    uint64_t *steps;
    size_t count;
    assert_ok(
        checkpoint_list(cluster_run_path(run, dir), &steps, &count, &failure));
    assert_true(count > 0);
    uint64_t last = steps[count - 1];
    free(steps);
    return last;
}

/* NUMBER goes to WHO or, when that is NULL, to `capstan local`, which ends with
 * CODE. */
struct interruption {
    const char *who;
    int number, code;
};
static const struct interruption kill_of_a_ps = {"ps 1", SIGKILL, EXIT_RETRY};
static const struct interruption termination = {NULL, SIGTERM, EXIT_TERMINATED};

/* Soon after the first checkpoint of a run of 2 ps. */
static void interrupt(struct cluster_run *run, const char *dir,
                      struct interruption by) {
    struct cluster_process *local = start(run, dir, "2");
    int process = by.who ? find_process(local, by.who)
                         : pidfd_open(cluster_run_pid(local), 0);
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(pidfd_send_signal(process, by.number, NULL, 0), 0);
    close(process);
    cluster_run_expect(local, by.code, 2 * CLUSTER_RUN_DEADLINE);
}

static void resume(struct cluster_run *run, const char *dir,
                   const char *num_ps) {
    struct cluster_process *local = start(run, dir, num_ps);
    cluster_run_await_soon(local, "resuming from ");
    finish(run, local, dir);
}

/* A run of the job with MORE keys that would not end by itself, and is gone on
 * with by NUM_PS, does as many steps as one that nobody interrupts. Returns
 * these. */
static uint64_t expect_same_bits_after(struct cluster_run *run,
                                       const char *more, struct interruption by,
                                       const char *num_ps) {
    enum { ENDLESS = 1000000, FURTHER = 100 };
    write_long_job(run, more, ENDLESS);
    interrupt(run, "interrupted", by);
    uint64_t steps = last_step(run, "interrupted") + FURTHER;
    write_long_job(run, more, steps);
    complete(run, "whole", "2");
    resume(run, "interrupted", num_ps);
    expect_same_bits(run, "whole", "interrupted");
    return steps;
}

TEST(a_run_killed_and_resumed_ends_in_the_same_bits) {
    expect_same_bits_after(run, "", kill_of_a_ps, "3");
}

TEST(a_run_terminated_and_resumed_ends_in_the_same_bits) {
    expect_same_bits_after(run, "", termination, "1");
}

/* From step 0 too, whose weights one run computes and the other reads. */
TEST(bf16_on_the_wire_ends_in_the_same_bits) {
    cluster_run_job(run, "{" MODEL ", " SGD ", \"steps\": 40,"
                         " \"wire\": \"bf16\"}");
    complete(run, "first", "2");
    complete(run, "again", "2");
    expect_same_bits(run, "first", "again");
    complete(run, "one", "1");
    expect_same_bits(run, "first", "one");
    complete(run, "three", "3");
    expect_same_bits(run, "first", "three");
    cluster_run_job(run, "{" MODEL ", " SGD ", \"steps\": 0,"
                         " \"wire\": \"bf16\"}");
    complete(run, "begun", "2");
    cluster_run_job(run, "{" MODEL ", " SGD ", \"steps\": 40,"
                         " \"wire\": \"bf16\"}");
    resume(run, "begun", "3");
    expect_same_bits(run, "first", "begun");
    cluster_run_job(run, "{" MODEL ", " SGD ", \"steps\": 40}");
    complete(run, "float32", "2");
    expect_other_bits(run, "first", "float32");
}

TEST(a_bf16_run_killed_and_resumed_ends_in_the_same_bits) {
    expect_same_bits_after(run, ", \"wire\": \"bf16\"", kill_of_a_ps, "3");
}

/* The loss scale rises and falls all the time, so that any round at which the
 * run is cut is within a window of it. */
static const char fp16[] =
    ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 24,"
    " \"loss_scale_window\": 11}";

TEST(an_fp16_run_killed_and_resumed_ends_in_the_same_bits) {
    uint64_t steps = expect_same_bits_after(run, fp16, kill_of_a_ps, "3");
    write_long_job(run, "", steps);
    complete(run, "float32", "2");
    expect_other_bits(run, "whole", "float32");
}

TEST(an_fp16_run_terminated_and_resumed_ends_in_the_same_bits) {
    expect_same_bits_after(run, fp16, termination, "1");
}
