/* SPDX-License-Identifier: Apache-2.0 */
/* What `capstan compare` names as the limit of a cluster, moved on purpose:
 * hosts whose links are made slower, batches made larger, data made dearer. */
#define STATE struct net_hosts *net

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/net_hosts.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

enum { PS = 2, TIMEOUT = 120 /* seconds */ };

/* 0.67 MB of weights: 57 ms at 100 Mbit/s. */
#define MODEL "\"model\": {\"layers\": [64, 512, 256, 10]}"

/* ps 0 and 1 on the first two hosts, worker 0, which leads, and worker 1 on the
 * others; what worker 0 says at the end. */
static const json_t *play(struct net_hosts *net, const char *changes) {
    static const char *const leads[] = {"job.json", "--json", NULL};
    struct cluster_process *tasks[NET_HOSTS];
    cluster_run_job(net->run, changes);
    net->run->cluster =
        json_pack("{s:[s, s], s:[s, s]}", "ps", "10.0.0.1:2222",
                  "10.0.0.2:2222", "worker", "10.0.0.3:2222", "10.0.0.4:2222");
    for (int i = 0; i < NET_HOSTS; i++)
        tasks[i] = net_hosts_task(net, i, i < PS ? "ps" : "worker",
                                  (unsigned)(i < PS ? i : i - PS),
                                  i == PS ? leads : NULL);
    for (int i = 0; i < NET_HOSTS; i++)
        cluster_run_expect(tasks[i], 0, TIMEOUT);
    return cluster_run_json(tasks[PS]);
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

FIXTURE(net_hosts_setup, net_hosts_teardown);

/* 0.1 Gbit/s, measured at the start. */
TEST(a_run_reports_the_rate_of_its_links) {
    net_hosts_require(net);
    const json_t *object = play(net, "{" MODEL ", \"steps\": 20}");
    double gbits = number(object, "link_gbits");
    double share = number(object, "share_of_bound");
    if (!(gbits > 0.05 && gbits < 0.11))
        fail_msg("%g Gbit/s", gbits);
    /* Of the link as it is, whatever a loaded host measures at the start. */
    assert_true(share > 0 && share * gbits < 1.1 * 0.1);
}

/* Of the case with so many ps, 0: all-reduce. */
static void expect_limit(const json_t *object, const char *mode, int ps,
                         const char *limit) {
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(object, "cases"), i, one) {
        const char *its = json_string_value(json_object_get(one, "mode"));
        if (!its || strcmp(its, mode) ||
            json_integer_value(json_object_get(one, "ps")) != ps)
            continue;
        const char *found = json_string_value(json_object_get(one, "limit"));
        char *text = json_dumps(one, JSON_COMPACT);
        print_message("# %s\n", text);
        free(text);
        if (!found || strcmp(found, limit))
            fail_msg("%s with %d ps is limited by %s, not %s", mode, ps,
                     found ? found : "nothing", limit);
        return;
    }
    fail_msg("no case %s with %d ps", mode, ps);
}

/* A comparison takes up to a minute: make check has the one of slow input. */
static void need_soak(void) {
    if (cluster_fixture_repeats(1) <= 1)
        skip_test("make soak runs it");
}

static void limit_all(const struct net_hosts *net, int from, int to,
                      const char *rate) {
    for (int i = from; i < to; i++)
        net_hosts_set_rate(net, i, rate);
}

/* With all links alike 2 workers fill the link of one ps, and 2 ps those of
 * the workers. */
TEST(small_batches_are_limited_by_links) {
    need_soak();
    net_hosts_require(net);
    const json_t *object = play(net, "{" MODEL ", \"compare\": {\"steps\": 20,"
                                     " \"repeats\": 1}}");
    expect_limit(object, "allreduce", 0, "worker link");
    expect_limit(object, "ps", 1, "ps link");
    expect_limit(object, "ps", 2, "worker link");
}

/* Medians of three: where the machine stands still for half a second, five
 * steps of one run are not limited by a link. */
TEST(slower_links_of_ps_are_named) {
    need_soak();
    net_hosts_require(net);
    limit_all(net, 0, PS, "20mbit");
    const json_t *object = play(net, "{" MODEL ", \"compare\": {\"steps\": 5,"
                                     " \"repeats\": 3}}");
    expect_limit(object, "allreduce", 0, "worker link");
    expect_limit(object, "ps", 1, "ps link");
    expect_limit(object, "ps", 2, "ps link");
}

TEST(slower_links_of_workers_are_named) {
    need_soak();
    net_hosts_require(net);
    limit_all(net, PS, NET_HOSTS, "20mbit");
    const json_t *object = play(net, "{" MODEL ", \"compare\": {\"steps\": 5,"
                                     " \"repeats\": 1}}");
    expect_limit(object, "allreduce", 0, "worker link");
    expect_limit(object, "ps", 1, "worker link");
    expect_limit(object, "ps", 2, "worker link");
}

/* Of enough steps that the wait for the first samples is little of all. */
TEST(large_batches_are_limited_by_compute) {
    need_soak();
    net_hosts_require(net);
    limit_all(net, 0, NET_HOSTS, "1gbit");
    const json_t *object =
        play(net, "{" MODEL ", \"train_micro_batch_size_per_gpu\": 300,"
                  " \"gradient_accumulation_steps\": 16,"
                  " \"data\": {\"prefetch_factor\": 32},"
                  " \"compare\": {\"ps\": 2, \"steps\": 20,"
                  " \"repeats\": 1}}");
    expect_limit(object, "allreduce", 0, "compute");
    expect_limit(object, "ps", 2, "compute");
}

static void write_bytes(const struct net_hosts *net, const char *name,
                        const unsigned char *head, size_t head_size,
                        size_t count) {
    FILE *file = fopen(cluster_run_path(net->run, name), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(head, 1, head_size, file), head_size);
    for (size_t i = 0; i < count; i++)
        fputc((int)(i & 1), file);
    assert_int_equal(fclose(file), 0);
}

/* 4000000 images of one pixel: "many" and their labels, as IDX files. */
static void write_many(const struct net_hosts *net) {
    enum { MANY = 4000000 };
#define BIG_ENDIAN_BYTES(n)                                                    \
    (n) >> 24 & 0xff, (n) >> 16 & 0xff, (n) >> 8 & 0xff, (n)&0xff
    static const unsigned char images[] = {
        0, 0, 8, 3, BIG_ENDIAN_BYTES(MANY), 0, 0, 0, 1, 0, 0, 0, 1};
    static const unsigned char labels[] = {0, 0, 8, 1, BIG_ENDIAN_BYTES(MANY)};
    write_bytes(net, "many", images, sizeof images, MANY);
    write_bytes(net, "labels", labels, sizeof labels, MANY);
}

/* Each batch is an epoch, for which the order of 4000000 samples is drawn; a
 * quarter of them is computed on, by a model of 4 values. */
TEST(slow_input_is_named) {
    net_hosts_require(net);
    limit_all(net, 0, NET_HOSTS, "1gbit");
    write_many(net);
    const json_t *object =
        play(net, "{\"model\": {\"layers\": [1, 2], \"loss\": \"mse\"},"
                  " \"data\": {\"train\": [\"many\", \"labels\"],"
                  " \"test\": null, \"drop_last\": true},"
                  " \"train_micro_batch_size_per_gpu\": 1000001,"
                  " \"compare\": {\"ps\": 2, \"steps\": 5,"
                  " \"repeats\": 1}}");
    expect_limit(object, "allreduce", 0, "input");
    expect_limit(object, "ps", 2, "input");
}
