/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/network.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

/* Hosts 0 .. HOSTS - 1, a connection from each to each. */
enum { HOSTS = 6, CONNECTIONS = HOSTS * HOSTS, MAXIMUM = 400 };
static const double RATE = 1e9; /* bytes a second: 1 ns a byte */
static const uint64_t MB = 1 << 20;

static struct philox_sequence chance;

struct test_packet {
    struct network_message message; /* first: one address for both */
    uint32_t connection;
    uint64_t bytes;
    int64_t came;
    unsigned order;
};

struct site {
    struct timeline *timeline;
    struct network *network;
    struct test_packet test_packets[MAXIMUM];
    unsigned sent, came;
};

static void take(void *context, struct network_message *message) {
    struct site *site = context;
    struct test_packet *packet = (struct test_packet *)message;
    packet->came = timeline_now(site->timeline);
    packet->order = site->came++;
}

static void open_network(struct site *site, double rate, int64_t latency) {
    struct network_settings settings = {.hosts = HOSTS,
                                        .connections = CONNECTIONS,
                                        .rate = rate,
                                        .latency = latency,
                                        .deliver = take,
                                        .context = site};
    *site = (struct site){.timeline = timeline_open()};
    assert_non_null(site->timeline);
    site->network = network_open(site->timeline, &settings);
    assert_non_null(site->network);
    for (uint32_t c = 0; c < CONNECTIONS; c++)
        network_connect(site->network, c, c / HOSTS, c % HOSTS);
}

static struct test_packet *post(struct site *site, uint32_t from, uint32_t to,
                                uint64_t bytes) {
    struct test_packet *packet = &site->test_packets[site->sent++];
    *packet =
        (struct test_packet){.connection = from * HOSTS + to, .bytes = bytes};
    network_send(site->network, packet->connection, bytes, &packet->message);
    return packet;
}

static void play(struct site *site) {
    while (timeline_step(site->timeline))
        ;
    assert_int_equal(site->came, site->sent);
}

static void close_network(struct site *site) {
    network_close(&site->network);
    network_close(&site->network);
    timeline_close(&site->timeline);
}

static void expect(const struct test_packet *packet, double ns) {
    assert_float_equal((double)packet->came, ns, 0.02 * ns + 2);
}

TEST(a_message_takes_latency_plus_transfer_time) {
    static struct site site;
    open_network(&site, RATE, 5000);
    const struct test_packet *one = post(&site, 0, 1, MB);
    const struct test_packet *small = post(&site, 2, 3, 100);
    play(&site);
    expect(one, 5000 + (double)MB);
    expect(small, 5100);
    close_network(&site);
}

/* A round trip of 2 ms at 1 GB/s has 2 MB under way. */
TEST(a_long_link_is_kept_busy) {
    static struct site site;
    open_network(&site, RATE, 1000000);
    const struct test_packet *one = post(&site, 0, 1, 64 * MB);
    play(&site);
    expect(one, 1e6 + 64.0 * (double)MB);
    close_network(&site);
}

TEST(connections_of_a_sender_share_its_link) {
    static struct site site;
    open_network(&site, RATE, 0);
    const struct test_packet *short_one = post(&site, 0, 1, 10 * MB);
    const struct test_packet *long_one = post(&site, 0, 2, 20 * MB);
    play(&site);
    expect(short_one, 20.0 * (double)MB);
    expect(long_one, 30.0 * (double)MB);
    assert_float_equal(network_busy(site.network, 0, NETWORK_OUT),
                       30e-9 * (double)MB, 1e-6);
    assert_float_equal(network_busy(site.network, 2, NETWORK_IN),
                       20e-9 * (double)MB, 1e-6);
    close_network(&site);
}

TEST(senders_to_one_receiver_get_equal_rates) {
    static struct site site;
    const struct test_packet *all[4];
    open_network(&site, RATE, 0);
    for (uint32_t i = 0; i < 4; i++)
        all[i] = post(&site, 1 + i, 0, 10 * MB);
    play(&site);
    for (int i = 0; i < 4; i++)
        expect(all[i], 40.0 * (double)MB);
    close_network(&site);
}

/* Hosts 1, 2 and 3 crowd host 0, so host 1 gets a third of its link there: the
 * rest of its own is free for host 4, which has its message soon. */
TEST(a_congested_receiver_does_not_delay_others) {
    static struct site site;
    open_network(&site, RATE, 0);
    for (uint32_t i = 1; i < 4; i++)
        post(&site, i, 0, 10 * MB);
    const struct test_packet *other = post(&site, 1, 4, 10 * MB);
    play(&site);
    assert_true(other->came < 16 * (int64_t)MB);
    close_network(&site);
}

TEST(both_directions_are_busy_at_once) {
    static struct site site;
    open_network(&site, RATE, 0);
    const struct test_packet *there = post(&site, 0, 1, 10 * MB);
    const struct test_packet *back = post(&site, 1, 0, 10 * MB);
    play(&site);
    expect(there, 10.0 * (double)MB);
    expect(back, 10.0 * (double)MB);
    close_network(&site);
}

TEST(without_a_rate_only_latency_counts) {
    static struct site site;
    open_network(&site, 0, 700);
    const struct test_packet *one = post(&site, 0, 1, 64 * MB);
    play(&site);
    assert_int_equal(one->came, 700);
    close_network(&site);
}

/* No link is faster than its rate, and a connection keeps its order. */
TEST(random_traffic_keeps_order_and_bounds) {
    static struct site site;
    uint64_t out[HOSTS] = {0}, in[HOSTS] = {0};
    seed_open(&chance);
    open_network(&site, RATE, philox_below(&chance, 10000));
    for (int i = 0; i < MAXIMUM; i++) {
        uint32_t from = philox_below(&chance, HOSTS);
        uint32_t to = (from + 1 + philox_below(&chance, (HOSTS - 1))) % HOSTS;
        uint64_t bytes = 1 + philox_below(&chance, 300000);
        post(&site, from, to, bytes);
        out[from] += bytes;
        in[to] += bytes;
    }
    play(&site);
    for (int h = 0; h < HOSTS; h++) {
        assert_true((uint64_t)timeline_now(site.timeline) >= out[h]);
        assert_true((uint64_t)timeline_now(site.timeline) >= in[h]);
    }
    for (int i = 0; i < MAXIMUM; i++)
        for (int k = i + 1; k < MAXIMUM; k++)
            assert_true(site.test_packets[i].connection !=
                            site.test_packets[k].connection ||
                        site.test_packets[i].order <
                            site.test_packets[k].order);
    close_network(&site);
}

static unsigned dropped;

static void drop(struct network_message *message) {
    (void)message;
    dropped++;
}

TEST(messages_in_flight_at_close_are_dropped) {
    struct timeline *timeline = timeline_open();
    struct network_settings settings = {
        .hosts = 2, .connections = 1, .rate = RATE, .drop = drop};
    struct network *network = network_open(timeline, &settings);
    assert_non_null(network);
    network_connect(network, 0, 0, 1);
    struct network_message small, large;
    network_send(network, 0, 100, &small);
    network_send(network, 0, MB, &large);
    network_close(&network);
    assert_int_equal(dropped, 2);
    timeline_close(&timeline);
}
