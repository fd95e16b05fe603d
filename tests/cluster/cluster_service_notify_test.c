/* SPDX-License-Identifier: Apache-2.0 */
/* What processes of a run tell a service manager (sd_notify(3)): here the test
 * has the socket, and systemd itself is that of tests/check_systemd.sh. */
#include "commands/service_notify.h"
#include "core/base/time.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONFIG = 2 };

struct manager {
    int socket;
    char variable[200]; /* NOTIFY_SOCKET=... */
    char last[4096];    /* the message read last */
};

/* NAME: a path, or "@" and a name without a file. */
static void open_manager(struct manager *manager, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    assert_true(length < sizeof address.sun_path);
    memcpy(address.sun_path, name, length);
    if (*name == '@')
        address.sun_path[0] = 0;
    manager->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(
        bind(manager->socket, (const struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
        0);
    snprintf(manager->variable, sizeof manager->variable, "NOTIFY_SOCKET=%s",
             name);
}

static void open_abstract(struct manager *manager) {
    open_manager(manager, textf("@capstan-test-%d", getpid()));
}

static void close_manager(struct manager *manager) {
    close(manager->socket);
}

/* The next message before UNTIL, or NULL. */
static const char *next_message(struct manager *manager, int64_t until) {
    struct pollfd item = {manager->socket, POLLIN, 0};
    if (poll(&item, 1, time_poll_ms(time_now(), until)) <= 0)
        return NULL;
    ssize_t length =
        recv(manager->socket, manager->last, sizeof manager->last - 1, 0);
    assert_true(length > 0);
    manager->last[length] = 0;
    return manager->last;
}

/* Reads until a message has TEXT; counts in *OTHERS (may be NULL) the messages
 * before it that have OTHER. */
static const char *await_message(struct manager *manager, const char *text,
                                 const char *other, unsigned *others) {
    int64_t until = time_now() + CLUSTER_RUN_DEADLINE * TIME_S;
    const char *message;
    while ((message = next_message(manager, until))) {
        if (strstr(message, text))
            return message;
        if (others && strstr(message, other))
            ++*others;
    }
    fail_msg("no message with '%s'; the last was: %s", text, manager->last);
    return NULL;
}

/* How many messages of the next SECONDS have TEXT. */
static unsigned count_messages(struct manager *manager, const char *text,
                               double seconds) {
    int64_t until = time_now() + time_from_seconds(seconds);
    unsigned count = 0;
    const char *message;
    while ((message = next_message(manager, until)))
        count += strstr(message, text) != NULL;
    return count;
}

static const char long_job[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"chief\": \"coordinate\", \"timeouts\": {\"stop\": 1}}";

static struct cluster_process *start_alone(struct cluster_run *run,
                                           const struct manager *manager) {
    return cluster_run_start(run, "alone", WORDS("run", "job.json"),
                             WORDS(manager->variable, "WATCHDOG_USEC=2000000"));
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(a_process_tells_of_its_start_its_life_and_its_end) {
    struct manager manager;
    unsigned fed = 0;
    cluster_run_job(*state, long_job);
    open_abstract(&manager);
    struct cluster_process *alone = start_alone(*state, &manager);
    assert_contains(await_message(&manager, "READY=1\n", "", NULL), "STATUS=");
    await_message(&manager, "STATUS=training, step ", "", NULL);
    assert_true(count_messages(&manager, "WATCHDOG=1\n", 4.5) >= 3);
    cluster_run_signal(alone, SIGTERM);
    const char *end = await_message(&manager, "STOPPING=1\n", "READY", &fed);
    assert_contains(end, "EXTEND_TIMEOUT_USEC=");
    assert_int_equal(fed, 0);
    cluster_run_expect_soon(alone, 128 + SIGTERM);
    assert_int_equal(count_messages(&manager, "STOPPING=1\n", 0), 0);
    close_manager(&manager);
}

/* As of a complete run that is started again, which may end between two looks
 * at its roles. */
TEST(a_process_that_succeeds_was_ready) {
    struct manager manager;
    const char *path = cluster_run_path(*state, "notify");
    open_manager(&manager, path);
    for (int succeeds = 0; succeeds < 2; succeeds++) {
        struct service_notify *notify;
        assert_int_equal(setenv("NOTIFY_SOCKET", path, 1), 0);
        assert_ok(service_notify_open(&notify, &failure));
        assert_null(getenv("NOTIFY_SOCKET"));
        service_notify_close(&notify, succeeds);
        assert_non_null(next_message(&manager, time_now()));
        assert_string_equal(manager.last, succeeds ? "READY=1\nSTOPPING=1\n"
                                                   : "STOPPING=1\n");
    }
    close_manager(&manager);
}

/* Starts the first task of ROLE for MANAGER, whose watchdog waits for 2 s. */
static struct cluster_process *start_watched(struct cluster_fixture *fixture,
                                             const char *role,
                                             const struct manager *manager) {
    unsigned task = cluster_fixture_find(fixture, role, 0);
    const char *equals = strchr(manager->variable, '=');
    assert_int_equal(setenv("NOTIFY_SOCKET", equals + 1, 1), 0);
    assert_int_equal(setenv("WATCHDOG_USEC", "2000000", 1), 0);
    cluster_fixture_start(fixture, task);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    return fixture->tasks[task].process;
}

TEST(a_ps_is_ready_once_it_has_joined) {
    struct cluster_fixture fixture;
    struct manager manager;
    unsigned fed = 0;
    cluster_run_job(*state, long_job);
    cluster_fixture_describe(&fixture, *state, 1, 1, 1);
    open_abstract(&manager);
    start_watched(&fixture, "ps", &manager);
    const char *start =
        await_message(&manager, "EXTEND_TIMEOUT_USEC=", "READY", &fed);
    assert_contains(start, "STATUS=joining");
    await_message(&manager, "STATUS=joining, waiting for ", "READY", &fed);
    await_message(&manager, "WATCHDOG=1\n", "READY", &fed);
    assert_int_equal(fed, 0);
    cluster_fixture_start(&fixture, cluster_fixture_find(&fixture, "chief", 0));
    await_message(&manager, "READY=1\n", "", NULL);
    cluster_fixture_start(&fixture,
                          cluster_fixture_find(&fixture, "worker", 0));
    await_message(&manager, "STATUS=training, step ", "", NULL);
    close_manager(&manager);
}

/* The thread that a process of one role started first, for it. */
static pid_t thread_of_role(const struct cluster_process *process) {
    int pid = cluster_run_pid(process), found = 0;
    struct dirent *entry;
    DIR *tasks = opendir(textf("/proc/%d/task", pid));
    assert_non_null(tasks);
    while ((entry = readdir(tasks))) {
        int task = atoi(entry->d_name);
        if (task > pid && (!found || task < found))
            found = task;
    }
    closedir(tasks);
    assert_true(found > 0);
    return found;
}

/* A wait for a peer, however long, is no standstill: here of a ps for a worker
 * that is stopped. */
TEST(a_role_that_stands_still_feeds_no_watchdog) {
    struct cluster_fixture fixture;
    struct manager manager;
    cluster_run_job(*state, long_job);
    cluster_fixture_describe(&fixture, *state, 1, 1, 1);
    open_abstract(&manager);
    struct cluster_process *ps = start_watched(&fixture, "ps", &manager);
    cluster_fixture_start(&fixture, cluster_fixture_find(&fixture, "chief", 0));
    unsigned worker = cluster_fixture_find(&fixture, "worker", 0);
    cluster_fixture_start(&fixture, worker);
    await_message(&manager, "STATUS=training, step ", "", NULL);
    cluster_run_signal(fixture.tasks[worker].process, SIGSTOP);
    assert_true(count_messages(&manager, "WATCHDOG=1\n", 4.5) >= 3);
    pid_t thread = thread_of_role(ps);
    assert_int_equal(ptrace(PTRACE_SEIZE, thread, 0, 0), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, thread, 0, 0), 0);
    assert_int_equal(waitpid(thread, NULL, __WALL), thread);
    count_messages(&manager, "", 1.25); /* half of the watchdog's time */
    unsigned fed = count_messages(&manager, "WATCHDOG=1\n", 4);
    assert_int_equal(ptrace(PTRACE_DETACH, thread, 0, 0), 0);
    assert_int_equal(fed, 0);
    cluster_run_signal(fixture.tasks[worker].process, SIGCONT);
    await_message(&manager, "WATCHDOG=1\n", "", NULL);
    close_manager(&manager);
}

TEST(variables_that_no_manager_sets_end_with_2) {
    static const char *const wrong[][2] = {
        {"NOTIFY_SOCKET=relative", "NOTIFY_SOCKET is 'relative'"},
        {"NOTIFY_SOCKET=vsock:2:1", "NOTIFY_SOCKET is 'vsock:2:1'"},
        {"WATCHDOG_USEC=soon", "WATCHDOG_USEC is 'soon'"},
        {"WATCHDOG_USEC=-1", "WATCHDOG_USEC is '-1'"},
    };
    cluster_run_job(*state, long_job);
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct cluster_process *alone = cluster_run_start(
            *state, "alone", WORDS("run", "job.json"),
            WORDS(i < 2 ? "A=" : "NOTIFY_SOCKET=/nowhere", wrong[i][0]));
        cluster_run_expect_soon(alone, CONFIG);
        cluster_fixture_expect_logged(alone, wrong[i][1]);
    }
}
