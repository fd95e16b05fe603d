/* SPDX-License-Identifier: Apache-2.0 */
/* A job that is too large for those who are to hold it ends before anything is
 * had or touched; and activations that are computed anew change no bit. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_CONFIG = 2 };

/* No deadline here reaches it. */
#define PEER "\"timeouts\": {\"peer\": 600}"

/* A sanitizer has memory of its own, and terabytes of addresses. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static const long resident_kib = 512 << 10; /* of the largest process */

static struct cluster_process *start_local(struct cluster_run *run,
                                           const char *name) {
    return cluster_run_start(
        run, name, WORDS("local", "--ps", "1", "--workers", "2", "job.json"),
        NULL);
}

/* `capstan local` after COMMAND in the same shell. */
static struct cluster_process *start_after(struct cluster_run *run,
                                           const char *name,
                                           const char *command) {
    return cluster_run_program(
        run, name, "/bin/sh",
        WORDS("-c",
              textf("%s && exec \"$CAPSTAN\" local --ps 1 --workers 2 job.json",
                    command)),
        NULL);
}

static void expect_logged(const struct cluster_process *process,
                          const char *text) {
    assert_contains(cluster_run_errors(process), text);
}

static time_t changed(const struct cluster_run *run, const char *name) {
    struct stat about;
    assert_int_equal(stat(cluster_run_path(run, name), &about), 0);
    return about.st_mtime;
}

static long largest_child(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &usage), 0);
    return usage.ru_maxrss;
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* A terabyte of weights, and more beside; "never" would set the checkpoint of
 * the first run aside. */
TEST(a_model_larger_than_any_machine_is_refused_at_once) {
    cluster_run_job(run, "{\"epochs\": 1}");
    cluster_run_expect_soon(start_local(run, "small"), 0);
    time_t before = changed(run, "checkpoint/step-000000030");
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 524288, 524288, 10]},"
                         " \"checkpoint\": {\"resume\": \"never\"}, " PEER "}");
    struct cluster_process *large = start_local(run, "large");
    cluster_run_expect_soon(large, EXIT_CONFIG);
    expect_logged(large, "memory: the job takes ");
    expect_logged(large, "(free memory)");
    expect_logged(large, "worker 0 and 1 more take ");
    expect_logged(large, "ps 0 takes 1024 GB: weights 1024 GB");
    assert_int_equal(changed(run, "checkpoint/step-000000030"), before);
    print_message("the largest process had %ld MiB\n", largest_child() >> 10);
    assert_true(sanitized || largest_child() < resident_kib);
}

/* Near 4 GB for a trainer, most of it activations of an evaluation. */
static const char medium[] =
    "{\"model\": {\"layers\": [64, 1048576, 10]}, " PEER "}";

TEST(ulimit_limits_the_memory_plan) {
    if (sanitized)
        skip_test("a sanitizer takes more than ulimit -v leaves");
    cluster_run_job(run, medium);
    struct cluster_process *refused =
        start_after(run, "refused", "ulimit -v 2097152");
    cluster_run_expect_soon(refused, EXIT_CONFIG);
    expect_logged(refused, "left to the process by ulimit -v");
    expect_logged(refused, "worker ");
    cluster_run_job(run, "{\"epochs\": 1}");
    cluster_run_expect_soon(start_after(run, "taken", "ulimit -v 2097152"), 0);
}

enum {
    WIDE_IDS = 10000, /* with rows of 32 KB, 320 MB in all */
    MANY_IDS = 400000 /* with rows of some 270 bytes, 108 MB */
};

/* Each record has an id of its own. */
static void write_ids(const struct cluster_run *run, int ids) {
    FILE *file = cluster_run_create(run, "train.csv");
    fputs("label,user\n", file);
    for (int i = 0; i < ids; i++)
        fprintf(file, "%d,u%d\n", i % 2, i);
    fclose(file);
}

static const char wide_rows[] =
    "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"
    " \"train.csv\", \"test\": null}, \"features\": {\"user\":"
    " {\"type\": \"hash_bucket\"}}, \"model\": {\"type\": \"fm\","
    " \"features\": [\"user\"], \"dim\": 4096}, \"optimizer\":"
    " {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}, \"epochs\": 1,"
    " \"train_micro_batch_size_per_gpu\": 25}";

/* `capstan local` within LIMIT, over NUM_PS. */
static struct cluster_process *start_limited(struct cluster_run *run,
                                             const char *limit,
                                             const char *num_ps,
                                             const char *staleness) {
    return cluster_run_program(
        run, "limited", "/bin/sh",
        WORDS(
            "-c",
            textf(
                "ulimit %s && exec \"$CAPSTAN\" local --ps %s --workers 2 --set"
                " strategy.staleness=%s job.json",
                limit, num_ps, staleness)),
        NULL);
}

/* Beside a checkpoint one ps has room for some 180 MB of rows. */
TEST(a_ps_full_of_rows_saves_and_the_run_goes_on_with_more_ps) {
    static const char *const cases[][2] = {
        {"-d 400000", "0"}, {"-v 1200000", "0"}, {"-d 400000", "inf"}};
    static const char *const undisturbed[] = {"checkpoint.dir=undisturbed",
                                              NULL};
    if (sanitized)
        skip_test("a sanitizer has memory of its own");
    for (int i = 0; i < 3; i++) {
        run = cluster_fixture_reset(state);
        write_ids(run, WIDE_IDS);
        cluster_run_job(run, wide_rows);
        struct cluster_process *full =
            start_limited(run, cases[i][0], "1", cases[i][1]);
        cluster_run_expect(full, EXIT_FAILED, 2 * CLUSTER_RUN_DEADLINE);
        expect_logged(full, "ps 0: warning: ");
        expect_logged(full, " rows of tables take ");
        expect_logged(full, "left to the process by ulimit");
        expect_logged(full, "error: ps 0 on host ");
        expect_logged(full, "; the same command resumes from ");
        struct cluster_process *more =
            start_limited(run, cases[i][0], "3", cases[i][1]);
        cluster_run_expect(more, 0, 2 * CLUSTER_RUN_DEADLINE);
        expect_logged(more, "resuming from ");
        if (strcmp(cases[i][1], "0"))
            continue;
        cluster_run_expect(cluster_fixture_local(run, 2, 2, undisturbed), 0,
                           2 * CLUSTER_RUN_DEADLINE);
        cluster_clicks_expect_same_rows(run, "checkpoint", "undisturbed",
                                        "user");
    }
}

/* A control group, of whichever generation there is. */
struct group {
    char path[128], limit[192];
};

static bool set(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fputs(text, file);
    return fclose(file) == 0;
}

static bool try_group(struct group *group, const char *bytes) {
    static const char *const folders[][2] = {
        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
        {"/sys/fs/cgroup", "memory.max"}};
    for (int i = 0; i < 2; i++) {
        snprintf(group->path, sizeof group->path, "%s/capstan-test-%d",
                 folders[i][0], (int)getpid());
        snprintf(group->limit, sizeof group->limit, "%s/%s", group->path,
                 folders[i][1]);
        if (mkdir(group->path, 0755))
            continue;
        if (!access(group->limit, W_OK) && set(group->limit, bytes))
            return true;
        rmdir(group->path);
    }
    return false;
}

static void make_group(struct group *group, const char *bytes) {
    if (sanitized)
        skip_test("a sanitizer takes more than the control group leaves");
    if (!try_group(group, bytes))
        skip_test("no control group with a limit of memory can be made here");
}

TEST(a_control_group_limits_the_memory_plan) {
    struct group group;
    make_group(&group, "536870912\n");
    const char *enter = textf("echo $$ > %s/cgroup.procs", group.path);
    cluster_run_job(run, medium);
    struct cluster_process *refused = start_after(run, "refused", enter);
    int code = cluster_run_exit(refused, CLUSTER_RUN_DEADLINE);
    cluster_run_job(run, "{\"epochs\": 1}");
    struct cluster_process *taken = start_after(run, "taken", enter);
    int other = cluster_run_exit(taken, CLUSTER_RUN_DEADLINE);
    rmdir(group.path);
    assert_int_equal(code, EXIT_CONFIG);
    expect_logged(refused, "left by control group /");
    expect_logged(refused, "capstan-test-");
    assert_int_equal(other, 0);
}

static const char many_rows[] =
    "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"
    " \"train.csv\", \"test\": null}, \"features\": {\"user\":"
    " {\"type\": \"hash_bucket\"}}, \"model\": {\"type\": \"fm\","
    " \"features\": [\"user\"], \"dim\": 64}, \"optimizer\":"
    " {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}, \"epochs\": 1,"
    " \"train_micro_batch_size_per_gpu\": 2048}";

/* The kernel kills it at the limit: it cannot be told of a failed allocation.
 * With 32768 samples a batch a round brings 39 MB of new rows; with 65536 one
 * round is more than there is. */
TEST(a_ps_in_a_small_control_group_writes_its_last_checkpoint) {
    static const struct {
        const char *staleness, *batch, *says;
    } cases[] = {
        {"strategy.staleness=0", "2048", "; the same command resumes from "},
        {"strategy.staleness=inf", "2048", "; the same command resumes from "},
        {"strategy.staleness=0", "32768", "; the same command resumes from "},
        {"strategy.staleness=0", "65536", "a step of all trainers reads"},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    struct group group;
    char batch[64];
    make_group(&group, "125829120\n");
    const char *line =
        textf("echo $$ > %s/cgroup.procs && exec \"$CAPSTAN\" run", group.path);
    int codes[CASES];
    for (int i = 0; i < CASES; i++) {
        run = cluster_fixture_reset(state);
        snprintf(batch, sizeof batch, "train_micro_batch_size_per_gpu=%s",
                 cases[i].batch);
        const char *const job[] = {"job.json", "--set", cases[i].staleness,
                                   "--set",    batch,   NULL};
        write_ids(run, MANY_IDS);
        cluster_run_job(run, many_rows);
        cluster_run_describe(run, 1, 1, 1);
        struct cluster_process *ps = cluster_run_task_program(
            run, "ps", 0, "/bin/sh", WORDS("-c", line));
        struct cluster_process *chief = cluster_run_task(run, "chief", 0, job);
        (void)cluster_run_task(run, "worker", 0, NULL);
        codes[i] = cluster_run_exit(ps, 2 * CLUSTER_RUN_DEADLINE);
        if (codes[i] == EXIT_FAILED) {
            cluster_run_expect_soon(chief, EXIT_FAILED);
            expect_logged(chief, cases[i].says);
            expect_logged(chief, "left by control group /");
        }
    }
    rmdir(group.path);
    for (int i = 0; i < CASES; i++)
        assert_int_equal(codes[i], EXIT_FAILED);
}

/* Fills 352 MB of GROUP from a process of its own, until it is killed. */
static pid_t occupy(const struct group *group) {
    enum { HELD = 352 << 20 };
    char path[256], pid[32];
    int filled[2];
    assert_int_equal(pipe(filled), 0);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails kills nobody */
        snprintf(path, sizeof path, "%s/cgroup.procs", group->path);
        snprintf(pid, sizeof pid, "%d\n", (int)getpid());
        char *held = set(path, pid) ? malloc(HELD) : NULL;
        if (held && write(filled[1], memset(held, 1, HELD), 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    close(filled[1]);
    assert_int_equal(read(filled[0], pid, 1), 1);
    close(filled[0]);
    return child;
}

/* 270 MB for all; killed processes give theirs back some time later. */
TEST(the_chief_waits_for_memory_to_become_free) {
    struct group group;
    make_group(&group, "536870912\n");
    pid_t held = occupy(&group);
    const char *enter = textf("echo $$ > %s/cgroup.procs", group.path);
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 32768, 10]},"
                         " \"steps\": 2, \"timeouts\": {\"peer\": 2}}");
    struct cluster_process *refused = start_after(run, "refused", enter);
    int code = cluster_run_exit(refused, CLUSTER_RUN_DEADLINE);
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 32768, 10]},"
                         " \"steps\": 2}");
    struct cluster_process *taken = start_after(run, "taken", enter);
    cluster_run_await_soon(taken,
                           "waiting up to 30 s (timeouts.peer): memory: ");
    kill(held, SIGKILL);
    waitpid(held, NULL, 0);
    int other = cluster_run_exit(taken, CLUSTER_RUN_DEADLINE);
    rmdir(group.path);
    assert_int_equal(code, EXIT_CONFIG);
    expect_logged(refused, "waiting up to 2 s (timeouts.peer): memory: ");
    expect_logged(refused, ", as others hold the rest of 512 MB: ");
    assert_int_equal(other, 0);
}

static char *read_export(const struct cluster_run *run, const char *name,
                         size_t *size) {
    struct stat about;
    const char *path = cluster_run_path(run, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(stat(path, &about), 0);
    char *bytes = malloc((size_t)about.st_size);
    assert_non_null(bytes);
    *size = fread(bytes, 1, (size_t)about.st_size, file);
    assert_int_equal(*size, about.st_size);
    fclose(file);
    return bytes;
}

/* Trains with KEPT outputs and STRATEGY, as NAME, which its weights go to. */
static void train_deep(struct cluster_run *run, const char *name,
                       const char *kept, const char *strategy) {
    cluster_run_job(
        run,
        textf("{\"model\": {\"layers\": [64, 96, 130, 7, 200, 64, 33, 10],"
              " \"activation\": \"tanh\"}, \"gradient_accumulation_steps\": 3,"
              " \"activation_checkpointing\": {\"number_checkpoints\": %s},"
              " \"strategy\": {\"type\": \"%s\"}, \"checkpoint\": {\"dir\":"
              " \"%s\"}, \"export\": {\"path\": \"%s.safetensors\"}}",
              kept, strategy, name, name));
    cluster_run_expect_soon(start_local(run, name), 0);
}

static void expect_same_with(struct cluster_run *run, const char *strategy) {
    static const char *const kept[] = {"null", "1", "2"};
    char *first = NULL;
    size_t expected = 0;
    for (int i = 0; i < 3; i++) {
        size_t size;
        const char *name = textf("%s-%s", strategy, kept[i]);
        const char *file = textf("%s.safetensors", name);
        train_deep(run, name, kept[i], strategy);
        char *bytes = read_export(run, file, &size);
        if (!first) {
            first = bytes;
            expected = size;
            continue;
        }
        assert_int_equal(size, expected);
        assert_memory_equal(bytes, first, size);
        free(bytes);
    }
    free(first);
}

TEST(recomputed_activations_end_in_the_same_bits) {
    expect_same_with(run, "ps");
    expect_same_with(run, "allreduce");
}

TEST(the_plan_logs_its_memory) {
    cluster_run_job(run, "{\"epochs\": 1}");
    struct cluster_process *local = start_local(run, "local");
    cluster_run_await_soon(local, "memory: a trainer ");
    cluster_run_expect_soon(local, 0);
}
