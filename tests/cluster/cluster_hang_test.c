/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for whom: what a run that stands still tells on SIGQUIT, to
 * `capstan status`, and at a deadline. A process is made to hang by SIGSTOP. */
#include "commands/launch/port.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FAILED = 1, USAGE = 2, RETRY = 138 };

/* The limits are longer than any test of a hang takes. */
static const char endless[] =
    "{\"steps\": 1000000000, \"steps_per_epoch\": 1000000,"
    " \"steps_per_print\": 500, \"chief\": \"coordinate\","
    " \"timeouts\": {\"peer\": 300, \"step\": 300, \"stop\": 1}}";

struct hang {
    struct cluster_fixture fixture;
    struct cluster_process *chief, *ps, *worker;
    int held;
    unsigned port; /* of the chief's report */
};

/* A chief, a ps and two workers, which train; WORKER is the second one. */
static void start_hang(struct hang *hang, struct cluster_run *run,
                       const char *job) {
    uint16_t port;
    assert_ok(port_reserve(&port, &hang->held, &failure));
    hang->port = port;
    cluster_run_job(run, job);
    cluster_fixture_describe(&hang->fixture, run, 1, 1, 2);
    hang->chief = hang->fixture.tasks[0].process = cluster_run_task(
        run, "chief", 0,
        WORDS("--metrics-port", textf("%u", hang->port), "job.json"));
    for (unsigned i = 1; i < hang->fixture.count; i++)
        cluster_fixture_start(&hang->fixture, i);
    hang->ps =
        hang->fixture.tasks[cluster_fixture_find(&hang->fixture, "ps", 0)]
            .process;
    hang->worker =
        hang->fixture.tasks[cluster_fixture_find(&hang->fixture, "worker", 1)]
            .process;
    cluster_run_await_soon(hang->chief, "%)");
}

static void end_hang(struct hang *hang) {
    cluster_run_signal(hang->chief, SIGTERM);
    cluster_run_expect_soon(hang->chief, 128 + SIGTERM);
    cluster_fixture_expect_soon(&hang->fixture, 0, RETRY);
    close(hang->held);
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

/* The report is asked for again until it says so: what stops is noticed a
 * second later. */
static const char *await_line(struct cluster_process *process,
                              const char *start, const char *part) {
    enum { TRIES = 40 };
    const char *line = "";
    for (int i = 0; i < TRIES; i++) {
        cluster_run_signal(process, SIGQUIT);
        line = cluster_run_await_soon(process, start);
        if (strstr(line, part))
            return line;
        cluster_fixture_sleep(0.2);
    }
    fail_msg("no '%s' in '%s'", part, line);
    return NULL;
}

TEST(a_stopped_ps_is_who_did_not_answer_and_the_run_goes_on) {
    struct hang hang;
    start_hang(&hang, *state, endless);
    cluster_run_signal(hang.ps, SIGSTOP);
    const char *line =
        await_line(hang.chief, ": worker 0 (", "for ps 0 at 127.0.0.1:");
    assert_contains(line, "(rank 0, 127.0.0.1");
    assert_contains(line, ": training, step ");
    assert_contains(line, " s (timeouts.step); last: ");
    assert_contains(line, "began to push step ");
    line = cluster_run_await_soon(hang.chief, ": ps 0 (127.0.0.1:");
    assert_contains(line, textf("pid %d", cluster_run_pid(hang.ps)));
    assert_contains(line, ": did not answer within 2");
    assert_contains(line, "last heard from ");
    line = await_line(hang.worker, ": worker 1 (rank 1, pid ", "for ps 0 at");
    cluster_run_signal(hang.ps, SIGCONT);
    cluster_run_await_soon(hang.chief, "%)");
    end_hang(&hang);
}

/* Also between the ps's answers to its questions, one a second. */
static void assert_waits_for_ps(const struct hang *hang) {
    unsigned i = cluster_fixture_find(&hang->fixture, "worker", 0);
    struct cluster_process *other = hang->fixture.tasks[i].process;
    cluster_fixture_sleep(2);
    for (i = 0; i < 10; i++) {
        double seconds = 0;
        cluster_run_signal(other, SIGQUIT);
        const char *line =
            cluster_run_await_soon(other, ": worker 0 (rank 0, ");
        assert_contains(line, " s for ps 0 at 127.0.0.1:");
        assert_int_equal(
            sscanf(strstr(line, "waiting "), "waiting %lf", &seconds), 1);
        assert_true(seconds >= 2);
        cluster_fixture_sleep(0.23);
    }
}

TEST(a_stopped_worker_is_whom_the_ps_waits_for) {
    struct hang hang;
    start_hang(&hang, *state, endless);
    cluster_run_signal(hang.worker, SIGSTOP);
    await_line(hang.chief, ": worker 1 (rank 1, ", ": did not answer within ");
    const char *line =
        await_line(hang.chief, ": ps 0 (", "the pushes of rank 1 for");
    assert_contains(line, "s for the pushes of rank 1 for round ");
    assert_contains(line, "got the first push of step ");
    assert_waits_for_ps(&hang);
    cluster_run_signal(hang.worker, SIGCONT);
    cluster_run_await_soon(hang.chief, "%)");
    end_hang(&hang);
}

/* Worker 0 goes on until it is two steps ahead. */
TEST(with_staleness_the_ps_tells_who_waits_for_the_stopped_worker) {
    struct hang hang;
    start_hang(&hang, *state,
               "{\"steps\": 1000000000, \"steps_per_epoch\": 1000000,"
               " \"steps_per_print\": 500, \"chief\": \"coordinate\","
               " \"strategy\": {\"staleness\": 2},"
               " \"timeouts\": {\"peer\": 300, \"step\": 300, \"stop\": 1}}");
    cluster_run_signal(hang.worker, SIGSTOP);
    const char *line =
        await_line(hang.chief, ": ps 0 (", "the pushes of rank 1 for step ");
    assert_contains(line, "; strategy.staleness holds back rank 0, ");
    await_line(hang.chief, ": worker 0 (rank 0, ", "for ps 0 at 127.0.0.1:");
    cluster_run_signal(hang.worker, SIGCONT);
    cluster_run_await_soon(hang.chief, "%)");
    end_hang(&hang);
}

static const json_t *process_at(const json_t *object, const char *name) {
    size_t i;
    json_t *each;
    json_array_foreach(
        json_object_get(object, "processes"), i,
        each) if (!strcmp(json_string_value(json_object_get(each, "process")),
                          name)) return each;
    fail_msg("no process '%s'", name);
    return NULL;
}

TEST(capstan_status_asks_all_processes) {
    struct hang hang;
    start_hang(&hang, *state, endless);
    cluster_run_signal(hang.worker, SIGSTOP);
    const char *port = textf("127.0.0.1:%u", hang.port);
    char address[64];
    snprintf(address, sizeof address, "%s", port);
    struct cluster_process *tool =
        cluster_fixture_tool(*state, 0, WORDS("status", address));
    const char *text = cluster_run_output(tool);
    assert_contains(text, "chief (pid ");
    assert_contains(text, "\nworker 0 (rank 0, ");
    assert_contains(text, "\nworker 1 (rank 1, ");
    assert_contains(text, "): did not answer within ");
    assert_contains(text, "\nps 0 (127.0.0.1:");
    tool = cluster_fixture_tool(*state, 0, WORDS("status", "--json", address));
    const json_t *object = cluster_run_json(tool);
    assert_int_equal(json_array_size(json_object_get(object, "processes")), 4);
    const json_t *ps = process_at(object, "ps 0");
    assert_int_equal(json_array_size(json_object_get(ps, "events")), 64);
    assert_true(json_is_null(json_object_get(ps, "missing")));
    const json_t *stopped = process_at(object, "worker 1");
    assert_true(json_is_string(json_object_get(stopped, "missing")));
    assert_int_equal(json_integer_value(json_object_get(stopped, "pid")),
                     cluster_run_pid(hang.worker));
    assert_null(json_object_get(stopped, "state"));
    cluster_run_signal(hang.worker, SIGCONT);
    end_hang(&hang);
}

TEST(capstan_status_says_who_does_not_answer) {
    int held;
    uint16_t port;
    char address[32];
    assert_ok(port_reserve(&port, &held, &failure));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    struct cluster_process *tool =
        cluster_fixture_tool(*state, RETRY, WORDS("status", address));
    cluster_fixture_expect_logged(tool, "refused");
    assert_int_equal(listen(held, 1), 0); /* and nobody accepts */
    tool = cluster_fixture_tool(*state, RETRY, WORDS("status", address));
    cluster_fixture_expect_logged(tool, "has not answered within ");
    cluster_fixture_tool(*state, USAGE, WORDS("status", "here"));
    cluster_fixture_tool(*state, USAGE, WORDS("status"));
    close(held);
}

TEST(capstan_status_does_not_wait_for_a_name_server) {
    char built[PATH_MAX];
    assert_true(build_folder_find(built));
    const char *library = textf("%s/fake/slow_names.so", built);
    assert_int_equal(access(library, R_OK), 0);
    struct cluster_process *tool = cluster_run_start(
        *state, "status", WORDS("status", "slow.invalid:2290"),
        WORDS(textf("LD_PRELOAD=%s", library),
              "ASAN_OPTIONS=verify_asan_link_order=0"));
    cluster_run_expect(tool, RETRY, 5);
    cluster_fixture_expect_logged(tool, "no address is known for slow.invalid: "
                                        "its name server has not answered "
                                        "within 2 s");
}

/* The members give up as well, each with a line of its own. */
TEST(a_deadline_that_passes_leaves_the_report_before_the_end) {
    struct hang hang;
    start_hang(&hang, *state,
               "{\"steps\": 1000000000, \"steps_per_epoch\": 1000000,"
               " \"steps_per_print\": 500, \"chief\": \"coordinate\","
               " \"timeouts\": {\"peer\": 300, \"step\": 12, \"stop\": 1}}");
    cluster_run_signal(hang.ps, SIGSTOP);
    cluster_run_expect_soon(hang.chief, RETRY);
    cluster_run_expect_soon(hang.worker, RETRY);
    const char *log = cluster_run_errors(hang.chief);
    const char *line = strstr(log, ": did not answer within ");
    assert_non_null(line);
    assert_contains(line, "error: "); /* behind it */
    assert_null(strstr(line + 1, ": did not answer within "));
    assert_contains(log, ": worker 0 (rank 0, ");
    log = cluster_run_errors(hang.worker);
    line = strstr(log, "warning: worker 1 (rank 1, pid ");
    assert_non_null(line);
    assert_contains(line, "for ps 0 at 127.0.0.1:");
    cluster_run_signal(hang.ps, SIGKILL); /* it would wait for the chief */
    cluster_run_expect_soon(hang.ps, 128 + SIGKILL);
    close(hang.held);
}

TEST(local_reports_and_goes_on) {
    cluster_run_job(*state, endless);
    struct cluster_process *local = cluster_run_start(
        *state, "local",
        WORDS("local", "--ps", "1", "--workers", "1", "job.json"), NULL);
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGQUIT);
    cluster_run_await_soon(local, "chief: warning: chief (pid ");
    cluster_run_await_soon(local, "chief: warning: worker 0 (rank 0, ");
    cluster_run_await_soon(local, "chief: warning: ps 0 (");
    cluster_run_await_soon(local, "%)");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
}

/* Its program would end by the signal's default. */
TEST(a_command_without_a_handler_is_not_killed) {
    struct cluster_process *local = cluster_run_start(
        *state, "local",
        WORDS("local", "--ps", "1", "--workers", "1", "--", "sleep", "600"),
        NULL);
    cluster_run_await_soon(local, "ps 0: waiting for the chief");
    cluster_run_signal(local, SIGQUIT);
    cluster_run_await_soon(local, "is not asked: its program has no handler");
    cluster_run_await_soon(local, "ps 0: warning: ps 0 (pid ");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
}
