/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster with a network between its processes: each on a host of its own,
 * told by TF_CONFIG, or by its rank, alone. Hosts are network namespaces
 * (tests/cluster/net/hosts.sh), which need root. */
#define STATE struct net_hosts *net

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/net_hosts.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { NUM_PS = NET_HOSTS_PS, HOSTS = NET_HOSTS };
enum { EXIT_RETRY = 138, PEER = 3 /* timeouts.peer */ };

/* 14 blocks; a round takes some 56 ms at 100 Mbit/s. */
#define LAYERS "\"model\": {\"layers\": [64, 512, 256, 10]}"
#define MODEL LAYERS ", \"timeouts\": {\"peer\": 3, \"chief\": 0}"

static void expect_all(struct cluster_process *tasks[HOSTS], int code) {
    for (int i = 0; i < HOSTS; i++)
        cluster_run_expect(tasks[i], code, 2 * CLUSTER_RUN_DEADLINE);
}

static char *read_whole(const struct net_hosts *net, const char *name,
                        size_t *size) {
    const char *path = cluster_run_path(net->run, name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("no file %s", path);
    char *bytes = malloc(4 << 20);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 4 << 20, file);
    fclose(file);
    return bytes;
}

static void expect_same_bytes(const struct net_hosts *net, const char *a,
                              const char *b) {
    size_t size_a, size_b;
    char *bytes_a = read_whole(net, a, &size_a);
    char *bytes_b = read_whole(net, b, &size_b);
    assert_true(size_a > 600000);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(bytes_a, bytes_b, size_a);
    free(bytes_a);
    free(bytes_b);
}

static void expect_no_rate(struct cluster_process *chief) {
    const json_t *summary = cluster_run_json(chief);
    assert_true(json_is_null(json_object_get(summary, "link_gbits")));
    assert_true(json_is_null(json_object_get(summary, "share_of_bound")));
}

static void run_on_loopback(struct net_hosts *net) {
    const char *const local[] = {"local",
                                 "--ps",
                                 "2",
                                 "--workers",
                                 "2",
                                 "--set",
                                 "export.path=loopback.npz",
                                 "--set",
                                 "checkpoint.dir=loopback",
                                 "--json",
                                 "job.json",
                                 NULL};
    struct cluster_process *all =
        cluster_run_start(net->run, "local", local, NULL);
    cluster_run_expect(all, 0, 2 * CLUSTER_RUN_DEADLINE);
    expect_no_rate(all);
}

FIXTURE(net_hosts_setup, net_hosts_teardown);

/* A link that is away for less than timeouts.peer is made good. */
TEST(a_run_across_hosts_recovers_and_ends_as_on_loopback) {
    struct cluster_process *tasks[HOSTS];
    net_hosts_require(net);
    cluster_run_job(net->run, "{" MODEL ", \"steps\": 100,"
                              " \"export\": {\"path\": \"net.npz\"}}");
    const char *const arguments[] = {"job.json", NULL};
    net_hosts_start(net, tasks, arguments);
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
    net_hosts_set_link_down(net, 1, true);
    cluster_fixture_sleep(0.5); /* how long the link is away */
    net_hosts_set_link_down(net, 1, false);
    expect_all(tasks, 0);
    run_on_loopback(net);
    expect_same_bytes(net, "net.npz", "loopback.npz");
}

/* The link of ps 1 is away for SECONDS in a run that can go back, which it does
 * TIMES: it ends as on loopback. */
static void expect_cut_is_made_good(struct net_hosts *net, double seconds,
                                    int times) {
    struct cluster_process *tasks[HOSTS];
    net_hosts_require(net);
    cluster_run_job(net->run, "{" LAYERS ", \"steps\": 100, \"timeouts\": "
                              "{\"peer\": 8, \"spare\": 100}, \"checkpoint\": "
                              "{\"every_steps\": 20}, "
                              "\"export\": {\"path\": \"net.npz\"}}");
    const char *const arguments[] = {"job.json", "--json", NULL};
    net_hosts_start(net, tasks, arguments);
    cluster_run_await_soon(tasks[NUM_PS], "chief: checkpoint ");
    net_hosts_set_link_down(net, 1, true);
    cluster_fixture_sleep(seconds); /* how long the link is away */
    net_hosts_set_link_down(net, 1, false);
    expect_all(tasks, 0);
    assert_int_equal(json_integer_value(json_object_get(
                         cluster_run_json(tasks[NUM_PS]), "rewinds")),
                     times);
    run_on_loopback(net);
    expect_same_bytes(net, "net.npz", "loopback.npz");
}

TEST(a_link_cut_for_a_second_does_not_take_the_run_back) {
    expect_cut_is_made_good(net, 1, 0);
}

TEST(a_link_cut_for_less_than_timeouts_peer_does_not_take_the_run_back) {
    expect_cut_is_made_good(net, 5, 0);
}

TEST(a_link_cut_for_longer_takes_the_run_back_once) {
    expect_cut_is_made_good(net, 14, 1);
}

TEST(a_link_that_stays_down_ends_all_and_names_the_host) {
    struct cluster_process *tasks[HOSTS];
    net_hosts_require(net);
    cluster_run_job(net->run, "{" MODEL ", \"steps\": 100000,"
                              " \"strategy\": {\"recovery\": \"end\"}}");
    const char *const arguments[] = {"job.json", NULL};
    net_hosts_start(net, tasks, arguments);
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
    net_hosts_set_link_down(net, 1, true);
    for (int i = 0; i < HOSTS; i++)
        cluster_run_expect(tasks[i], EXIT_RETRY, PEER + CLUSTER_RUN_DEADLINE);
    for (int i = 0; i < HOSTS; i++)
        if (i != 1)
            assert_contains(cluster_run_errors(tasks[i]), "ps 1");
    assert_contains(cluster_run_errors(tasks[1]), "10.0.0.3:2222");
}

/* Worker 1's connection ends by keepalive, which tells nothing of its process:
 * it keeps its slot beside a second one, and says so once it is back. */
TEST(a_worker_behind_a_cut_link_keeps_its_slot) {
    struct cluster_process *tasks[HOSTS];
    net_hosts_require(net);
    cluster_run_job(net->run, "{" LAYERS ", \"steps\": 100000,"
                              " \"timeouts\": {\"peer\": 60}}");
    const char *const arguments[] = {"job.json", NULL};
    net_hosts_start(net, tasks, arguments);
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
    net_hosts_set_link_down(net, HOSTS - 1, true);
    struct cluster_process *second = net_hosts_task(net, 0, "worker", 1, NULL);
    cluster_run_await_soon(tasks[NUM_PS], "no heartbeat from worker 1");
    net_hosts_set_link_down(net, HOSTS - 1, false);
    cluster_run_expect_soon(second, 2);
    cluster_run_await_soon(tasks[NUM_PS], "examples/s");
    cluster_run_signal(tasks[NUM_PS], SIGTERM);
    cluster_run_expect_soon(tasks[NUM_PS], 128 + SIGTERM);
    cluster_run_expect_soon(tasks[HOSTS - 1], EXIT_RETRY);
    assert_null(strstr(cluster_run_errors(tasks[NUM_PS]), "is gone"));
}

enum { BLOCKED = 10 /* timeouts.peer */ };

/* Every host trains by all-reduce; rank 0 leads. The first step is done. */
static void start_all_reduce(struct net_hosts *net,
                             struct cluster_process *tasks[HOSTS]) {
    const char *const arguments[] = {"job.json", NULL};
    net_hosts_require(net);
    cluster_run_job(
        net->run,
        "{" LAYERS
        ", \"steps\": 100000, \"timeouts\": {\"peer\": 10, \"chief\": 0}}");
    json_decref(net->run->cluster);
    net->run->cluster =
        json_pack("{s:[s, s, s, s]}", "worker", "10.0.0.1:2222",
                  "10.0.0.2:2222", "10.0.0.3:2222", "10.0.0.4:2222");
    for (int i = 0; i < HOSTS; i++)
        tasks[i] =
            net_hosts_task(net, i, "worker", (unsigned)i, i ? NULL : arguments);
    cluster_run_await_soon(tasks[0], "examples/s");
}

/* The line of SAID that says why all end names both ranks. */
static void expect_both_named(const char *said) {
    const char *end = strstr(said, "every trainer still sends heartbeats");
    const char *from = end;
    char line[1024] = "";
    assert_non_null(end);
    while (from > said && from[-1] != '\n')
        from--;
    snprintf(line, sizeof line, "%.*s", (int)(end - from), from);
    if (!(strstr(line, "rank 2") || strstr(line, "worker 2 on host")) ||
        !(strstr(line, "rank 3") || strstr(line, "worker 3 on host")))
        fail_msg("%s", line);
}

/* Ranks 2 and 3 lose each other by a firewall, as in expect_cut_off. */
static void expect_parted(void **state, int at, int from, const char *verdict) {
    struct net_hosts *net = *state;
    struct cluster_process *tasks[HOSTS];
    start_all_reduce(net, tasks);
    net_hosts_block(net, at, from, verdict);
    for (int i = 0; i < HOSTS; i++)
        cluster_run_expect(tasks[i], EXIT_RETRY,
                           BLOCKED + CLUSTER_RUN_DEADLINE);
    for (int i = 0; i < HOSTS; i++)
        expect_both_named(cluster_run_errors(tasks[i]));
}

TEST(ranks_of_which_one_drops_the_others_packets_are_named) {
    expect_parted(state, 2, 3, "drop");
}

TEST(ranks_of_which_the_next_drops_packets_are_named) {
    expect_parted(state, 3, 2, "drop");
}

TEST(ranks_of_which_one_rejects_the_other_are_named) {
    expect_parted(state, 3, 2, "reject with tcp reset");
}

TEST(ranks_that_a_firewall_prohibits_are_named) {
    expect_parted(state, 2, 3, "reject with icmpx type admin-prohibited");
}

/* As where an MTU is too large and nobody says so. */
TEST(ranks_whose_large_packets_are_dropped_are_named) {
    expect_parted(state, 3, 2, "meta length > 600 drop");
}

TEST(a_firewall_for_four_seconds_harms_no_rank) {
    struct cluster_process *tasks[HOSTS];
    start_all_reduce(net, tasks);
    net_hosts_block(net, 3, 2, "drop");
    cluster_fixture_sleep(4); /* how long it stays */
    net_hosts_unblock(net, 3);
    cluster_run_await_soon(tasks[0], "examples/s");
    cluster_run_signal(tasks[0], SIGTERM);
    cluster_run_expect_soon(tasks[0], 128 + SIGTERM);
    for (int i = 1; i < HOSTS; i++)
        cluster_run_expect_soon(tasks[i], EXIT_RETRY);
    assert_null(strstr(cluster_run_errors(tasks[0]), "do not reach"));
}

/* Ranks 2 and 3 are ps: others reach them where they joined from. */
TEST(ranks_need_only_the_address_of_rank_0) {
    struct cluster_process *tasks[HOSTS];
    char rank[16], name[16];
    net_hosts_require(net);
    cluster_run_job(net->run, "{" MODEL ", \"steps\": 20}");
    for (int i = HOSTS - 1; i >= 0; i--) {
        snprintf(rank, sizeof rank, "RANK=%d", i);
        snprintf(name, sizeof name, "rank-%d", i);
        net->run->network = net->hosts[i];
        tasks[i] = cluster_run_start(
            net->run, name, WORDS("run", "--num-ps", "2", "job.json"),
            WORDS(rank, "WORLD_SIZE=4", "MASTER_ADDR=10.0.0.1",
                  "MASTER_PORT=2222"));
    }
    net->run->network = 0;
    expect_all(tasks, 0);
    assert_contains(cluster_run_errors(tasks[3]), "ps 1: joined");
}

/* Gives each host 10.1.0.1, ... on eth1, behind a switch of its own. */
static void add_second_network(const struct net_hosts *net) {
    static const char build[] =
        "ip -n %1$s-switch link add second type bridge && "
        "ip -n %1$s-switch link set second up && "
        "for i in 0 1 2 3; do ip -n %1$s-switch link add other-$i type veth "
        "peer name eth1 netns %1$s-$i && "
        "ip -n %1$s-switch link set other-$i master second up && "
        "ip -n %1$s-$i addr add 10.1.0.$((i + 1))/24 dev eth1 && "
        "ip -n %1$s-$i link set eth1 up || exit 1; done";
    assert_int_equal(system(textf(build, net->name)), 0);
}

/* Bytes that HOST has received and sent on INTERFACE. */
static unsigned long long bytes_on(const struct net_hosts *net, int host,
                                   const char *interface) {
    unsigned long long received = 0, sent = 0;
    FILE *said =
        popen(textf("ip netns exec %s-%d awk '$1 == \"%s:\" {print $2, $10}' "
                    "/proc/net/dev",
                    net->name, host, interface),
              "r");
    assert_non_null(said);
    assert_int_equal(fscanf(said, "%llu %llu", &received, &sent), 2);
    pclose(said);
    return received + sent;
}

/* Runs on all hosts with NUM_PS ps, by the second network: the leader's address
 * is of it, those of the others are not. */
static void expect_second_network(struct net_hosts *net, int num_ps) {
    static const char *const leads[] = {"--interface", "10.1.0.0/24",
                                        "job.json", NULL};
    static const char *const joins[] = {"--interface", "eth1", NULL};
    struct cluster_process *tasks[HOSTS];
    unsigned long long before = bytes_on(net, HOSTS - 1, "eth0");
    unsigned long long second = bytes_on(net, HOSTS - 1, "eth1");
    json_decref(net->run->cluster);
    net->run->cluster =
        num_ps ? json_pack("{s:[s, s], s:[s, s]}", "ps", "10.0.0.1:2222",
                           "10.0.0.2:2222", "worker", "10.1.0.3:2222",
                           "10.0.0.4:2222")
               : json_pack("{s:[s, s, s, s]}", "worker", "10.1.0.1:2222",
                           "10.0.0.2:2222", "10.0.0.3:2222", "10.0.0.4:2222");
    for (int i = 0; i < HOSTS; i++)
        tasks[i] = net_hosts_task(net, i, i < num_ps ? "ps" : "worker",
                                  (unsigned)(i < num_ps ? i : i - num_ps),
                                  i == num_ps ? leads : joins);
    expect_all(tasks, 0);
    assert_true(bytes_on(net, HOSTS - 1, "eth0") - before < 20000);
    assert_true(bytes_on(net, HOSTS - 1, "eth1") - second > 10000000);
}

TEST(the_chosen_interface_carries_all_traffic) {
    net_hosts_require(net);
    add_second_network(net);
    cluster_run_job(net->run, "{" MODEL ", \"steps\": 30}");
    expect_second_network(net, NUM_PS);
    cluster_run_job(net->run, "{" MODEL ", \"steps\": 30,"
                              " \"checkpoint\": {\"dir\": \"other\"}}");
    expect_second_network(net, 0);
}
