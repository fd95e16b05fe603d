/* SPDX-License-Identifier: Apache-2.0 */
/* `--interface`: every socket of every process listens on its address, and
 * every connection is between such addresses. The whole 127.0.0.0/8 is local
 * without root. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

enum { MAX_SOCKETS = 512, LISTENING = 0x0a, TERMINATED = 143, REFUSED = 2 };

static const char endless[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"timeouts\": {\"stop\": 1}}";

struct sockets {
    unsigned long inodes[MAX_SOCKETS];
    unsigned count, listening, connected;
};

static void add_sockets(struct sockets *sockets, const char *pid) {
    char target[64];
    const char *path = textf("/proc/%.16s/fd", pid);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        ssize_t length = readlink(textf("%s/%.32s", path, entry->d_name),
                                  target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (sockets->count < MAX_SOCKETS &&
            sscanf(target, "socket:[%lu]", &sockets->inodes[sockets->count]) ==
                1)
            sockets->count++;
    }
    if (folder)
        closedir(folder);
}

/* The sockets of the processes that PARENT has started. */
static void find_sockets(struct sockets *sockets, int parent) {
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        int found = 0;
        FILE *file = atoi(entry->d_name)
                         ? fopen(textf("/proc/%.16s/stat", entry->d_name), "re")
                         : NULL;
        if (!file)
            continue;
        if (fscanf(file, "%*d (%*[^)]) %*c %d", &found) == 1 && found == parent)
            add_sockets(sockets, entry->d_name);
        fclose(file);
    }
    closedir(folder);
}

static bool has_inode(const struct sockets *sockets, unsigned long inode) {
    for (unsigned i = 0; i < sockets->count; i++)
        if (sockets->inodes[i] == inode)
            return true;
    return false;
}

/* The last eight digits of an address are those of IPv4, also in IPv6. */
static void check_table(struct sockets *sockets, const char *table,
                        const char *address) {
    char line[512], local[40], remote[40];
    FILE *file = fopen(table, "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned state;
        unsigned long inode;
        if (sscanf(line,
                   " %*d: %39[0-9A-F]:%*x %39[0-9A-F]:%*x %x %*s %*s %*s %*s "
                   "%*s %lu",
                   local, remote, &state, &inode) != 4 ||
            !has_inode(sockets, inode))
            continue;
        bool listens = state == LISTENING;
        sockets->listening += listens;
        sockets->connected += !listens;
        if (strcmp(local + strlen(local) - 8, address) ||
            (!listens && strcmp(remote + strlen(remote) - 8, address)))
            fail_msg("a socket is not at %s: %s", address, line);
    }
    if (file)
        fclose(file);
}

/* Trains by STRATEGY with two workers, whose sockets are all at the ADDRESS of
 * INTERFACE, which is given if it is not NULL. */
static void train_there(struct cluster_run *run, const char *ps,
                        const char *strategy, const char *interface,
                        const char *address) {
    struct sockets sockets = {0};
    const char *words[] = {"local",  "--ps", ps,      "--workers", "2",
                           "--lane", "tcp",  "--set", strategy,    "job.json",
                           NULL,     NULL,   NULL};
    if (interface) {
        words[10] = "--interface";
        words[11] = interface;
    }
    cluster_run_job(run, endless);
    struct cluster_process *local =
        cluster_run_start(run, "local", words, NULL);
    cluster_run_await_soon(local, "steps 0 to");
    find_sockets(&sockets, cluster_run_pid(local));
    check_table(&sockets, "/proc/net/tcp", address);
    check_table(&sockets, "/proc/net/tcp6", address);
    assert_true(sockets.listening >= 3);
    assert_true(sockets.connected >= 4);
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, TERMINATED);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(processes_with_a_ps_use_one_address) {
    train_there(run, "1", "strategy.type=ps", "127.0.0.2/32", "0200007F");
}

TEST(ranks_of_all_reduce_use_one_address) {
    train_there(run, "0", "strategy.type=allreduce", "127.0.0.2/32",
                "0200007F");
}

/* Nobody outside this machine can reach them. */
TEST(processes_of_local_use_the_loopback_address) {
    train_there(run, "2", "strategy.type=ps", NULL, "0100007F");
}

TEST(ranks_of_local_use_the_loopback_address) {
    train_there(run, "0", "strategy.type=allreduce", NULL, "0100007F");
}

/* The command's processes too. */
TEST(a_command_of_local_uses_the_loopback_address) {
    static const char *const num_ps[] = {"2", "0"};
    char caller[PATH_MAX];
    const char *capstan = getenv("CAPSTAN");
    assert_non_null(realpath(capstan ? capstan : "build/capstan", caller));
    strcpy(strrchr(caller, '/'), "/tests/caller");
    for (int i = 0; i < 2; i++) {
        struct sockets sockets = {0};
        struct cluster_process *local = cluster_run_start(
            run, "local",
            WORDS("local", "--ps", num_ps[i], "--workers", "2", "--lane", "tcp",
                  "--set", "steps=1000000", "--set", "timeouts.stop=1", "--",
                  caller, "resume"),
            NULL);
        cluster_run_await_soon(local, "examples/s");
        find_sockets(&sockets, cluster_run_pid(local));
        check_table(&sockets, "/proc/net/tcp", "0100007F");
        check_table(&sockets, "/proc/net/tcp6", "0100007F");
        assert_true(sockets.listening >= 3);
        assert_true(sockets.connected >= 4);
        cluster_run_signal(local, SIGTERM);
        cluster_run_expect_soon(local, TERMINATED);
        cluster_fixture_reset(state);
        run = run;
    }
}

TEST(an_unknown_network_is_refused_with_those_there_are) {
    static const char *const unknown[] = {"ib7", "203.0.113.0/24", "10.0.0.0/x",
                                          "127.0.0.1/33"};
    cluster_run_job(run, NULL);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        struct cluster_process *process = cluster_fixture_tool(
            run, REFUSED,
            WORDS("local", "--interface", unknown[i], "job.json"));
        assert_contains(cluster_run_errors(process), unknown[i]);
        assert_contains(cluster_run_errors(process), "lo 127.0.0.1/8");
    }
}

TEST(the_variable_does_as_the_flag) {
    cluster_run_job(run, NULL);
    struct cluster_process *process =
        cluster_run_start(run, "alone", WORDS("run", "--alone", "job.json"),
                          WORDS("CAPSTAN_INTERFACE=ib7"));
    cluster_run_expect_soon(process, REFUSED);
    assert_contains(cluster_run_errors(process), "CAPSTAN_INTERFACE: 'ib7'");
}
