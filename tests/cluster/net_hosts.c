/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/net_hosts.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The keeper ends, and the hosts with it, when this process does. */
static bool start_holder(struct net_hosts *net) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        return false;
    net->holder_pid = fork();
    if (net->holder_pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl("tests/cluster/net/hosts.sh", "hosts.sh", "4", "100mbit",
              (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    net->hold = in[1];
    net->said = fdopen(out[0], "r");
    return net->holder_pid > 0 && net->said;
}

int net_hosts_setup(void **state) {
    struct net_hosts *net = calloc(1, sizeof *net);
    void *run = NULL;
    char word[16] = "", path[128];
    if (!net || cluster_run_setup(&run) || !start_holder(net))
        return -1;
    net->run = run;
    *state = net;
    if (fscanf(net->said, "%15s %63s", word, net->name) != 2)
        return -1;
    if (strcmp(word, "ready"))
        snprintf(net->skipped, sizeof net->skipped, "%s", net->name);
    for (int i = 0; i < NET_HOSTS && !net->skipped[0]; i++) {
        snprintf(path, sizeof path, "/run/netns/%s-%d", net->name, i);
        net->hosts[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (net->hosts[i] < 0)
            return -1;
    }
    return 0;
}

int net_hosts_teardown(void **state) {
    struct net_hosts *net = *state;
    void *run = net->run;
    int status, failed = cluster_run_teardown(&run);
    for (int i = 0; i < NET_HOSTS; i++)
        if (net->hosts[i] > 0)
            close(net->hosts[i]);
    close(net->hold);
    fclose(net->said);
    waitpid(net->holder_pid, &status, 0);
    free(net);
    return failed;
}

void net_hosts_require(const struct net_hosts *net) {
    if (net->skipped[0])
        skip_test("no hosts as network namespaces, without %s", net->skipped);
}

void net_hosts_set_link_down(const struct net_hosts *net, int host, bool down) {
    assert_int_equal(system(textf("ip -n %s-switch link set host-%d %s",
                                  net->name, host, down ? "down" : "up")),
                     0);
}

void net_hosts_block(const struct net_hosts *net, int at, int from,
                     const char *verdict) {
    static const char rules[] =
        "ip netns exec %s-%d nft 'table inet wall { chain in { type filter "
        "hook input priority 0; ip saddr 10.0.0.%d meta l4proto tcp %s; }; };'";
    char command[512];
    if (system("command -v nft > /dev/null"))
        skip_test("no firewall, without %s", "nftables");
    snprintf(command, sizeof command, rules, net->name, at, from + 1, verdict);
    assert_int_equal(system(command), 0);
}

void net_hosts_unblock(const struct net_hosts *net, int at) {
    assert_int_equal(
        system(textf("ip netns exec %s-%d nft delete table inet wall",
                     net->name, at)),
        0);
}

void net_hosts_set_rate(const struct net_hosts *net, int host,
                        const char *rate) {
    static const char change[] =
        "tc -n %s-%s qdisc change dev %s root tbf rate %s burst 32kb limit "
        "512kb";
    char command[256];
    const char *number = textf("%d", host);
    const char *port = textf("host-%d", host);
    snprintf(command, sizeof command, change, net->name, number, "eth0", rate);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, change, net->name, "switch", port, rate);
    assert_int_equal(system(command), 0);
}

struct cluster_process *net_hosts_task(struct net_hosts *net, int host,
                                       const char *type, unsigned index,
                                       const char *const *arguments) {
    net->run->network = net->hosts[host];
    struct cluster_process *task =
        cluster_run_task(net->run, type, index, arguments);
    net->run->network = 0;
    return task;
}

void net_hosts_describe(struct net_hosts *net) {
    net->run->cluster =
        json_pack("{s:[s, s], s:[s, s]}", "ps", "10.0.0.1:2222",
                  "10.0.0.2:2222", "worker", "10.0.0.3:2222", "10.0.0.4:2223");
}

void net_hosts_start(struct net_hosts *net,
                     struct cluster_process *tasks[NET_HOSTS],
                     const char *const *arguments) {
    net_hosts_describe(net);
    for (int i = 0; i < NET_HOSTS; i++) {
        bool ps = i < NET_HOSTS_PS;
        tasks[i] = net_hosts_task(net, i, ps ? "ps" : "worker",
                                  (unsigned)(ps ? i : i - NET_HOSTS_PS),
                                  i == NET_HOSTS_PS ? arguments : NULL);
    }
}
