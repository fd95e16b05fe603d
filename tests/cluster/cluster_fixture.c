/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_fixture.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <glob.h>
#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

uint64_t cluster_fixture_random(uint64_t *seed, uint64_t below) {
    *seed += 0x9e3779b97f4a7c15; /* splitmix64, Steele et al. 2014 */
    uint64_t z = *seed;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % below;
}

uint64_t cluster_fixture_seed(void) {
    const char *given = getenv("SOAK_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10)
                          : (uint64_t)time_now() / TIME_MS % 1000000;
    print_message("# seed %llu; SOAK_SEED=%llu draws the same moments\n",
                  (unsigned long long)seed, (unsigned long long)seed);
    return seed;
}

unsigned cluster_fixture_repeats(unsigned each) {
    const char *given = getenv("SOAK_COUNT");
    unsigned count = given ? (unsigned)strtoul(given, NULL, 10) : 1;
    return each * (count ? count : 1);
}

void cluster_fixture_sleep(double seconds) {
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    int64_t time = time_from_seconds(seconds) + 1; /* zero disarms */
    struct itimerspec when = {.it_value = {time / TIME_S, time % TIME_S}};
    struct pollfd item = {timer, POLLIN, 0};
    assert_int_equal(timerfd_settime(timer, 0, &when, NULL), 0);
    assert_int_equal(poll(&item, 1, -1), 1);
    close(timer);
}

void cluster_fixture_await_file(const struct cluster_run *run,
                                const char *pattern, double seconds) {
    int64_t deadline = time_now() + time_from_seconds(seconds);
    glob_t found;
    const char *path = cluster_run_path(run, pattern);
    while (glob(path, 0, NULL, &found)) {
        assert_true(time_now() < deadline);
        cluster_fixture_sleep(0.001);
    }
    globfree(&found);
}

void cluster_fixture_caller(char path[PATH_MAX]) {
    const char *capstan = getenv("CAPSTAN");
    char folder[PATH_MAX];
    assert_non_null(realpath(capstan ? capstan : "build/capstan", folder));
    *strrchr(folder, '/') = 0;
    snprintf(path, PATH_MAX, "%.4000s/tests/caller", folder);
    if (access(path, X_OK))
        fail_msg("no program %s: make build-tests", path);
}

struct cluster_run *cluster_fixture_reset(void **state) {
    const struct cluster_run *before = *state;
    bool in_memory = before->in_memory;
    cluster_run_teardown(state);
    assert_int_equal(in_memory ? cluster_run_setup_in_memory(state)
                               : cluster_run_setup(state),
                     0);
    return *state;
}

static void add(struct cluster_fixture *fixture, const char *type,
                unsigned index) {
    assert_true(fixture->count < CLUSTER_FIXTURE_TASKS);
    fixture->tasks[fixture->count++] =
        (struct cluster_fixture_task){type, index, NULL};
}

void cluster_fixture_describe(struct cluster_fixture *fixture,
                              struct cluster_run *run, unsigned num_chiefs,
                              unsigned num_ps, unsigned num_workers) {
    *fixture = (struct cluster_fixture){.run = run};
    cluster_run_describe(run, num_chiefs, num_ps, num_workers);
    for (unsigned i = 0; i < num_chiefs; i++)
        add(fixture, "chief", i);
    for (unsigned i = 0; i < num_workers; i++)
        add(fixture, "worker", i);
    for (unsigned i = 0; i < num_ps; i++)
        add(fixture, "ps", i);
}

void cluster_fixture_next_transport(void) {
    static unsigned turn;
    const char *lane = turn++ % 2 ? "tcp" : "auto";
    print_message("# --lane %s\n", lane);
    setenv("CAPSTAN_LANE", lane, 1);
}

struct cluster_process *cluster_fixture_start(struct cluster_fixture *fixture,
                                              unsigned i) {
    static const char *const leads[] = {"job.json", "--json", NULL};
    struct cluster_fixture_task *task = &fixture->tasks[i];
    task->process = cluster_run_task(fixture->run, task->type, task->index,
                                     i == 0 ? leads : NULL);
    return task->process;
}

void cluster_fixture_start_all(struct cluster_fixture *fixture) {
    for (unsigned i = 0; i < fixture->count; i++)
        cluster_fixture_start(fixture, i);
}

void cluster_fixture_start_staggered(struct cluster_fixture *fixture,
                                     double seconds, uint64_t *seed) {
    unsigned order[CLUSTER_FIXTURE_TASKS] = {0};
    double left = seconds * (double)cluster_fixture_random(seed, 1001) / 1000;
    for (unsigned i = 0; i < fixture->count; i++) {
        unsigned j = (unsigned)cluster_fixture_random(seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (unsigned i = 0; i < fixture->count; i++) {
        double part = (double)cluster_fixture_random(seed, 1001) / 1000;
        if (i)
            cluster_fixture_sleep(left * part);
        left -= i ? left * part : 0;
        cluster_fixture_start(fixture, order[i]);
    }
}

unsigned cluster_fixture_find(const struct cluster_fixture *fixture,
                              const char *type, unsigned index) {
    for (unsigned i = 0; i < fixture->count; i++)
        if (!strcmp(fixture->tasks[i].type, type) &&
            fixture->tasks[i].index == index)
            return i;
    fail_msg("no %s %u in this cluster", type, index);
    return CLUSTER_FIXTURE_TASKS;
}

void cluster_fixture_expect(const struct cluster_fixture *fixture, unsigned but,
                            int code, double seconds) {
    int64_t end = time_now() + time_from_seconds(seconds);
    for (unsigned i = 0; i < fixture->count; i++) {
        double left = time_to_seconds(end - time_now());
        if (i != but)
            cluster_run_expect(fixture->tasks[i].process, code,
                               left > 0 ? left : 0);
    }
}

struct cluster_process *cluster_fixture_local(struct cluster_run *run,
                                              unsigned num_ps,
                                              unsigned num_workers,
                                              const char *const *changes) {
    char ps[32], workers[32];
    const char *arguments[32] = {"local", ps, workers, "--json", "job.json"};
    snprintf(ps, sizeof ps, "--ps=%u", num_ps);
    snprintf(workers, sizeof workers, "--workers=%u", num_workers);
    for (size_t i = 0; changes && changes[i]; i++) {
        assert_true(2 * i + 7 < sizeof arguments / sizeof *arguments);
        arguments[2 * i + 5] = "--set";
        arguments[2 * i + 6] = changes[i];
    }
    return cluster_run_start(run, "local", arguments, NULL);
}

struct cluster_process *cluster_fixture_run(struct cluster_run *run,
                                            unsigned num_ps,
                                            unsigned num_workers, int code,
                                            const char *const *changes) {
    struct cluster_process *local =
        cluster_fixture_local(run, num_ps, num_workers, changes);
    cluster_run_expect_soon(local, code);
    return local;
}

struct cluster_process *cluster_fixture_tool(struct cluster_run *run, int code,
                                             const char *const *arguments) {
    struct cluster_process *tool =
        cluster_run_start(run, arguments[0], arguments, NULL);
    cluster_run_expect_soon(tool, code);
    return tool;
}

unsigned cluster_fixture_checkpoints(struct cluster_run *run, const char *dir,
                                     uint64_t *steps, unsigned max) {
    const char *ls[] = {"ckpt", "ls", "--json", dir, NULL};
    const char *verify[] = {"ckpt", "verify", "--json", dir, NULL};
    const char *path = cluster_run_path(run, dir);
    if (access(path, F_OK))
        return 0; /* no run has come so far */
    const json_t *all = cluster_run_json(cluster_fixture_tool(run, 0, ls));
    json_t *list = json_object_get(all, "checkpoints"), *one;
    unsigned count = 0;
    size_t i;
    json_array_foreach(list, i, one) {
        assert_true(count < max);
        steps[count++] =
            (uint64_t)json_integer_value(json_object_get(one, "step"));
    }
    if (count)
        cluster_fixture_tool(run, 0, verify);
    return count;
}

/* Writes the newest checkpoint in DIR to NAME; reads that whole. */
static char *export(struct cluster_run *run, const char *dir, const char *name,
                    long *size) {
    const char *path = cluster_run_path(run, name);
    cluster_fixture_tool(run, 0, WORDS("ckpt", "export", "--state", dir, name));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)*size, file), *size);
    fclose(file);
    return bytes;
}

void cluster_fixture_damage(struct cluster_run *run, const char *dir,
                            unsigned step) {
    glob_t shards;
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s/step-%09u/ps-*", dir, step);
    assert_int_equal(glob(cluster_run_path(run, pattern), 0, NULL, &shards), 0);
    FILE *file = fopen(shards.gl_pathv[0], "r+");
    assert_non_null(file);
    fseek(file, 5000, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, 5000, SEEK_SET);
    fputc(byte ^ 4, file);
    assert_int_equal(fclose(file), 0);
    globfree(&shards);
}

void cluster_fixture_expect_same_checkpoints(struct cluster_run *run,
                                             const char *a, const char *b) {
    enum { MAXIMUM = 64 };
    uint64_t steps_a[MAXIMUM], steps_b[MAXIMUM];
    unsigned num_a = cluster_fixture_checkpoints(run, a, steps_a, MAXIMUM);
    unsigned num_b = cluster_fixture_checkpoints(run, b, steps_b, MAXIMUM);
    long size_a, size_b;
    assert_true(num_a && num_b);
    assert_int_equal(steps_a[num_a - 1], steps_b[num_b - 1]);
    char *bytes_a = export(run, a, "a.safetensors", &size_a);
    char *bytes_b = export(run, b, "b.safetensors", &size_b);
    assert_int_equal(size_a, size_b);
    if (memcmp(bytes_a, bytes_b, (size_t)size_a))
        fail_msg("the last weights in %s and %s differ", a, b);
    free(bytes_a);
    free(bytes_b);
}

bool cluster_fixture_has_logged(const struct cluster_process *process,
                                const char *text) {
    return strstr(cluster_run_errors(process), text) != NULL;
}

void cluster_fixture_expect_logged(const struct cluster_process *process,
                                   const char *text) {
    if (cluster_fixture_has_logged(process, text))
        return;
    /* cmocka cuts a long message. */
    fprintf(stderr, "%s\n", cluster_run_errors(process));
    fail_msg("nothing about \"%s\" in the log above", text);
}
