/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench` with real processes: what its object promises, what many
 * requests and gigabytes of weights cost a ps in memory. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { TIMEOUT = 900 /* seconds, for gigabytes */, LOOK_MS = 5 };
enum { INTERRUPTED = 130, PEER_FAILED = 138 };
static const double mib = 1 << 20, allowed_share = 1.15, credit = 64 << 20;
static const double in_flight = 1000 << 10; /* of requests: bench_client.c */
/* Code, libraries and what a ps needs besides: docs/bench.md. */
static const double besides = 64 << 20;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const bool judged = false; /* they keep what is freed */
#else
static const bool judged = true;
#endif

static const json_t *measure(struct cluster_run *run,
                             const char *const *arguments) {
    struct cluster_process *bench =
        cluster_run_start(run, "bench", arguments, NULL);
    cluster_run_expect(bench, 0, TIMEOUT);
    return cluster_run_json(bench);
}

static void expect_figure(const json_t *figure) {
    assert_true(number_at(figure, "gb_s") > 0);
    assert_true(number_at(figure, "requests_s") > 0);
    assert_true(number_at(figure, "messages_s") > 0);
    assert_true(number_at(figure, "p50_us") > 0);
    assert_true(number_at(figure, "p99_us") >= number_at(figure, "p50_us"));
}

static void expect_size(const json_t *size, double bytes) {
    static const char *const kinds[] = {"push", "pull", "push_pull"};
    assert_true(number_at(size, "bytes") == bytes);
    assert_true(number_at(size, "memcpy_gb_s") > 0);
    for (int k = 0; k < 3; k++) {
        const json_t *kind = json_object_get(size, kinds[k]);
        expect_figure(json_object_get(kind, "lane"));
        expect_figure(json_object_get(kind, "socket"));
        expect_figure(json_object_get(kind, "zmq"));
        assert_true(number_at(kind, "of_socket") > 0);
        assert_true(number_at(kind, "of_zmq") > 0);
    }
}

static void expect_object(struct cluster_run *run, const char *lane) {
    const char *const arguments[] = {
        "bench", "--json", "--sizes", "64,100K", "--repeats", "2", "--seconds",
        "0.02",  "--ps",   "2",       "--lane",  lane,        NULL};
    const json_t *object = measure(run, arguments);
    const json_t *sizes = json_object_get(object, "sizes");
    const json_t *batched = json_object_get(object, "batched");
    assert_string_equal(json_string_value(json_object_get(object, "lane")),
                        lane);
    assert_true(number_at(object, "ps") == 2);
    assert_true(number_at(object, "repeats") == 2);
    assert_true(number_at(object, "cores") >= 1);
    assert_int_equal(json_array_size(sizes), 2);
    expect_size(json_array_get(sizes, 0), 64);
    expect_size(json_array_get(sizes, 1), 100 << 10);
    assert_true(number_at(batched, "bytes") == 64);
    assert_true(number_at(batched, "together") == 1024);
    expect_figure(json_object_get(batched, "push"));
    expect_figure(json_object_get(batched, "pull"));
    expect_figure(json_object_get(batched, "push_pull"));
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(the_json_has_every_documented_figure) {
    expect_object(run, "tcp");
}

TEST(the_json_over_shared_memory_has_every_figure) {
    expect_object(run, "shm");
}

/* What the project aims at is its own affair: `make bench` has it. */
TEST(without_json_bench_prints_only_a_table) {
    struct cluster_process *bench = cluster_run_start(
        run, "bench",
        WORDS("bench", "--sizes", "4K", "--repeats", "1", "--seconds", "0.01"),
        NULL);
    cluster_run_expect_soon(bench, 0);
    const char *output = cluster_run_output(bench);
    assert_int_equal(strncmp(output + 3, ", 1 ps, ", 8), 0); /* tcp, shm */
    assert_contains(output, "\n4 KB     push ");
    assert_contains(output, "\n         push-pull ");
    const char *last =
        strstr(output, "\n1024 vectors of 64 B in one message: ");
    assert_non_null(last);
    assert_string_equal(strchr(last + 1, '\n'), "\n");
    assert_string_equal(cluster_run_errors(bench), "");
}

/* A copy of the program, without plugins beside it. */
TEST(without_its_plugin_bench_measures_capstan_alone) {
    char built[PATH_MAX], copy[PATH_MAX + 32];
    assert_true(build_folder_find(built));
    const char *program = textf("%s/capstan", built);
    snprintf(copy, sizeof copy, "%s/capstan", run->folder);
    cluster_run_expect_soon(
        cluster_run_program(run, "copy", "/bin/cp", WORDS(program, copy), NULL),
        0);
    struct cluster_process *bench = cluster_run_program(
        run, "bench", copy,
        WORDS("bench", "--json", "--sizes", "4K", "--seconds", "0.01"), NULL);
    cluster_run_expect_soon(bench, 0);
    const json_t *object = cluster_run_json(bench);
    const json_t *push = json_object_get(
        json_array_get(json_object_get(object, "sizes"), 0), "push");
    expect_figure(json_object_get(push, "lane"));
    assert_true(
        json_is_null(json_object_get(json_object_get(push, "zmq"), "gb_s")));
    assert_true(json_is_null(json_object_get(push, "of_socket")));
    assert_contains(
        json_string_value(json_object_get(object, "baselines_missing")),
        "/capstan-bench.so");
}

/* Starts task INDEX of TYPE of the described cluster. */
static struct cluster_process *start_task(struct cluster_run *run,
                                          const char *type, unsigned index,
                                          const char *const *arguments) {
    char *cluster = json_dumps(run->cluster, JSON_COMPACT);
    const char *name = textf("%s-%u", type, index);
    const char *config =
        textf("TF_CONFIG={\"cluster\":%s,\"task\":{\"type\":\"%s\","
              "\"index\":%u}}",
              cluster, type, index);
    free(cluster);
    return cluster_run_start(run, name, arguments, WORDS(config));
}

/* The same words in each place of a described cluster: chief, two ps or one,
 * worker. */
static void start_tasks(struct cluster_run *run, unsigned num_ps,
                        const char *const *arguments,
                        struct cluster_process **processes) {
    cluster_run_describe(run, 1, num_ps, 1);
    for (unsigned i = 0; i < num_ps + 2; i++) {
        bool ps = i > 0 && i <= num_ps;
        processes[i] = start_task(run,
                                  i == 0 ? "chief"
                                  : ps   ? "ps"
                                         : "worker",
                                  ps ? i - 1 : 0, arguments);
    }
}

/* As over a network. */
TEST(each_process_plays_its_role_in_a_described_cluster) {
    static const char *const arguments[] = {"bench",     "--json",    "--sizes",
                                            "4K",        "--repeats", "1",
                                            "--seconds", "0.01",      NULL};
    struct cluster_process *processes[4];
    start_tasks(run, 2, arguments, processes);
    for (int i = 0; i < 4; i++)
        cluster_run_expect_soon(processes[i], 0);
    for (int i = 0; i < 3; i++)
        assert_string_equal(cluster_run_output(processes[i]), "");
    const json_t *object = cluster_run_json(processes[3]);
    expect_size(json_array_get(json_object_get(object, "sizes"), 0), 4096);
    assert_true(number_at(object, "ps") == 2);
}

/* What PROCESS waits for, WHOM at an address, is said and ends it. */
static void expect_given_up(struct cluster_process *process, const char *whom,
                            const char *end) {
    const char *line = cluster_run_await_soon(
        process, textf("waiting for %s at 127.0.0.1:", whom));
    assert_contains(line, " for 5 s; gives up in 2 s (timeouts.join");
    cluster_run_expect_soon(process, PEER_FAILED);
    assert_contains(cluster_run_errors(process), end);
}

/* Without --verbose. */
TEST(a_task_that_waits_for_others_names_them) {
    static const char *const arguments[] = {"bench",          "--sizes", "64",
                                            "--join-timeout", "7",       NULL};
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *ps = start_task(run, "ps", 0, arguments);
    struct cluster_process *worker = start_task(run, "worker", 0, arguments);
    expect_given_up(ps, "the chief", " did not answer within 7 s (");
    expect_given_up(worker, "the chief", " did not answer within 7 s (");
    expect_given_up(start_task(run, "chief", 0, arguments), "worker 0",
                    "did not join within 7 s (timeouts.join): worker 0 at ");
}

TEST(a_client_that_waits_for_a_ps_names_it) {
    static const char *const arguments[] = {
        "bench",      "--sizes",   "64", "--requests",
        "1000000000", "--verbose", NULL};
    struct cluster_process *processes[3];
    start_tasks(run, 1, arguments, processes);
    cluster_run_await_soon(processes[2], "bench 0: ps 0: over ");
    cluster_run_signal(processes[1], SIGSTOP);
    const char *line = cluster_run_await_soon(
        processes[2], "warning: waiting for ps 0 at 127.");
    assert_contains(line,
                    " for 5 s; gives up in 25 s (the limit of capstan bench)");
    cluster_run_signal(processes[1], SIGCONT);
    cluster_run_signal(processes[2], SIGINT);
    cluster_run_expect_soon(processes[2], INTERRUPTED);
}

/* THOUSANDS times SOAK_COUNT. Of a thousand requests in flight the ps holds as
 * many at once as its share of the cores leaves: the room for them, up to 1 KiB
 * each, is kept, and may be taken after the warm-up. 32 bytes kept of each
 * request would be 30 MiB of a million. */
static void expect_no_growth(struct cluster_run *run, unsigned thousands,
                             const char *lane, const char *flag) {
    char count[32];
    snprintf(count, sizeof count, "%llu",
             1000ull * thousands * cluster_fixture_repeats(1));
    const char *const arguments[] = {"bench",      "--json", "--sizes", "64",
                                     "--requests", count,    "--lane",  lane,
                                     flag,         NULL};
    const json_t *object = measure(run, arguments);
    const json_t *requests = json_object_get(object, "requests");
    double start = number_at(requests, "ps_memory_start");
    double end = number_at(requests, "ps_memory_end");
    print_message("%s requests, %.0f/s: %.2f MiB, then %.2f MiB\n", count,
                  number_at(requests, "requests_s"), start / mib, end / mib);
    assert_true(number_at(requests, "count") >=
                1e3 * thousands * cluster_fixture_repeats(1));
    assert_true(start > 0 && (!judged || end <= start + mib + in_flight));
}

TEST(many_requests_leave_nothing_at_a_ps) {
    expect_no_growth(run, 1000, "tcp", NULL);
}

TEST(many_requests_over_shared_memory_leave_nothing) {
    expect_no_growth(run, 1000, "auto", NULL);
}

TEST(many_requests_a_message_leave_nothing_at_a_ps) {
    expect_no_growth(run, 10000, "tcp", "--batched");
}

/* The most that PROCESS has held, in bytes; 0 when it is gone. */
static double most_resident(const struct cluster_process *process) {
    char line[256];
    unsigned long kib = 0;
    FILE *file = fopen(textf("/proc/%d/status", cluster_run_pid(process)), "r");
    while (file && !kib && fgets(line, sizeof line, file))
        sscanf(line, "VmHWM: %lu kB", &kib);
    if (file)
        fclose(file);
    return 1024.0 * (double)kib;
}

/* The same of all its life. */
static double watch_memory(const struct cluster_process *process) {
    double most = 0;
    struct pollfd end = {pidfd_open(cluster_run_pid(process), 0), POLLIN, 0};
    do {
        double now = most_resident(process);
        most = now > most ? now : most;
    } while (poll(&end, 1, LOOK_MS) == 0);
    close(end.fd);
    return most;
}

/* There is room for BYTES of weights in memory, and twice on the disk. */
static bool has_room(const struct cluster_run *run, double bytes) {
    struct statvfs disk;
    double page = (double)sysconf(_SC_PAGESIZE);
    double memory = page * (double)sysconf(_SC_AVPHYS_PAGES);
    assert_int_equal(statvfs(run->folder, &disk), 0);
    return memory > 1.5 * bytes + 1024 * mib &&
           (double)disk.f_bavail * (double)disk.f_frsize > 2 * bytes;
}

/* Over TCP: resident memory counts what a ps shows its client as the client's
 * too. In soak 8 GB where there is room. */
TEST(a_ps_serves_and_saves_within_its_memory) {
    bool large = cluster_fixture_repeats(1) >= 10 && has_room(run, 8192 * mib);
    double bytes = large ? 8192 * mib : 512 * mib;
    double limit = allowed_share * bytes + credit + besides;
    const char *const arguments[] = {
        "bench",     "--json", "--sizes",          large ? "8G" : "512M",
        "--repeats", "1",      "--seconds",        "0.01",
        "--lane",    "tcp",    "--checkpoint-dir", "saved",
        NULL};
    static const char *const verify[] = {"ckpt", "verify", "saved", NULL};
    struct cluster_process *processes[3];
    start_tasks(run, 1, arguments, processes);
    double most = watch_memory(processes[1]);
    for (int i = 0; i < 3; i++)
        cluster_run_expect(processes[i], 0, TIMEOUT);
    print_message("%.0f MiB of weights: %.0f MiB of %.0f allowed\n",
                  bytes / mib, most / mib, limit / mib);
    assert_true(most > bytes);
    assert_true(!judged || most <= limit);
    cluster_run_expect(cluster_run_start(run, "verify", verify, NULL), 0,
                       TIMEOUT);
}

TEST(ctrl_c_ends_bench_at_once) {
    struct cluster_process *bench = cluster_run_start(
        run, "bench",
        WORDS("bench", "--sizes", "64", "--seconds", "1000", "--verbose"),
        NULL);
    cluster_run_interrupt(bench, "measuring, 1 of 5");
}
