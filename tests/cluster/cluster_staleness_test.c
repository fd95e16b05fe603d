/* SPDX-License-Identifier: Apache-2.0 */
/* How far the others get ahead of a worker that is stopped, and workers beyond
 * the cluster's list, which join such runs (--join). Clocks are read
 * from the rows in checkpoints: a block's row has, for each rank, the clock of
 * its last contribution. Who has pushed clock c waits until it may read at c,
 * so it has pushed at most one more than it is ahead. */
#include "core/store/checkpoint_reader.h"
#include "ps/consistency/ledger.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { WORKERS = 3, STOPPED = 1, FAR = 100, HEARTBEATS = 8 };
enum { LISTED = 0, JOINER = 1, ENDLESS = 100000000 /* steps */, CONFIG = 2 };
enum { MAX_CHECKPOINTS = 200, SETTLED = 3 /* in a row */ };

struct stale_cluster {
    struct cluster_run *run;
    struct cluster_process *chief, *ps[2], *workers[WORKERS];
};

/* Over all blocks, of each rank. */
struct clocks {
    uint64_t lowest[WORKERS], highest[WORKERS];
    uint64_t apart;   /* the most that two ranks are, in one block */
    uint64_t updates; /* that were applied to a block, summed over blocks */
    uint64_t sum;     /* of all clocks */
};

/* With a checkpoint at every other moment. */
static void write_job(const struct cluster_run *run, const char *staleness,
                      unsigned steps) {
    cluster_run_job(
        run,
        textf("{\"model\": {\"layers\": [64, 512, 10]}, \"chief\":"
              " \"coordinate\", \"steps\": %u, \"workers\": %d, \"optimizer\":"
              " {\"params\": {\"lr\": 0.001}}, \"strategy\": {\"type\": \"ps\","
              " \"staleness\": %s}, \"checkpoint\": {\"every_seconds\": 0.2,"
              " \"keep\": 1000}, \"timeouts\": {\"peer\": 60, \"stop\": 1}}",
              steps, WORKERS, staleness));
}

/* Runs until it is told to end. */
static struct stale_cluster start(struct cluster_run *run,
                                  const char *staleness) {
    struct stale_cluster cluster = {.run = run};
    write_job(run, staleness, ENDLESS);
    cluster_run_describe(run, 1, 2, WORKERS);
    cluster.chief = cluster_run_task(run, "chief", 0, WORDS("job.json"));
    for (unsigned i = 0; i < 2; i++)
        cluster.ps[i] = cluster_run_task(run, "ps", i, NULL);
    for (unsigned i = 0; i < WORKERS; i++)
        cluster.workers[i] = cluster_run_task(run, "worker", i, NULL);
    return cluster;
}

static void add_row(struct clocks *clocks, const void *row, size_t bytes) {
    struct ledger_entry entries[WORKERS];
    uint64_t version, low = UINT64_MAX, high = 0;
    assert_int_equal(bytes, sizeof version + sizeof entries);
    memcpy(&version, row, sizeof version);
    memcpy(entries, (const char *)row + sizeof version, sizeof entries);
    clocks->updates += version;
    for (unsigned r = 0; r < WORKERS; r++) {
        uint64_t clock = entries[r].clock;
        clocks->sum += clock;
        low = clock < low ? clock : low;
        high = clock > high ? clock : high;
        if (clock < clocks->lowest[r])
            clocks->lowest[r] = clock;
        if (clock > clocks->highest[r])
            clocks->highest[r] = clock;
    }
    if (high - low > clocks->apart)
        clocks->apart = high - low;
}

static struct clocks read_clocks(const char *folder) {
    struct clocks clocks = {.apart = 0};
    struct manifest manifest;
    struct checkpoint_reader *reader;
    memset(clocks.lowest, 0xff, sizeof clocks.lowest);
    if (manifest_read(&manifest, folder, &failure) ||
        checkpoint_reader_open(&reader, folder, &manifest, &failure))
        fail_msg("%s", failure.text);
    for (uint32_t b = 0; b < manifest.layout->num_blocks; b++) {
        const void *row;
        size_t bytes;
        assert_ok(checkpoint_reader_row(reader, b, &row, &bytes, &failure));
        add_row(&clocks, row, bytes);
    }
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
    return clocks;
}

/* Those in the next checkpoint. */
static struct clocks next_clocks(const struct stale_cluster *cluster) {
    const char *line =
        cluster_run_await_soon(cluster->chief, "chief: checkpoint ");
    const char *start = strchr(line, '/'), *end = strrchr(line, ':');
    assert_non_null(start);
    assert_non_null(end);
    return read_clocks(textf("%.*s", (int)(end - start), start));
}

/* Are all others in all blocks AHEAD of the one that is stopped? */
static bool others_are(const struct clocks *now, uint64_t ahead) {
    bool there = true;
    for (unsigned r = 0; r < WORKERS; r++)
        if (r != STOPPED)
            there &= now->lowest[r] == now->lowest[STOPPED] + ahead &&
                     now->highest[r] == now->lowest[r];
    return there;
}

/* They get there, however slow the machine, and no further. What is read first
 * may be from before the stop: only a checkpoint that others follow and that
 * nothing has moved since is where they wait. */
static void others_wait_at(struct stale_cluster *cluster, uint64_t staleness) {
    struct clocks now = next_clocks(cluster), before;
    unsigned same = 0;
    cluster_run_signal(cluster->workers[STOPPED], SIGSTOP);
    for (unsigned i = 0; same < SETTLED || !others_are(&now, staleness + 1);
         i++) {
        before = now;
        now = next_clocks(cluster);
        same = memcmp(&now, &before, sizeof now) ? 0 : same + 1;
        assert_in_range(now.apart, 0, staleness + 1);
        assert_true(i < MAX_CHECKPOINTS);
    }
    before = now;
    cluster_run_signal(cluster->workers[STOPPED], SIGCONT);
    while (now.lowest[STOPPED] < before.highest[STOPPED] + FAR) {
        now = next_clocks(cluster);
        assert_in_range(now.apart, 0, staleness + 1);
    }
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(with_staleness_1_the_others_wait_1_clock_ahead) {
    struct stale_cluster cluster = start(*state, "1");
    others_wait_at(&cluster, 1);
}

TEST(with_staleness_3_the_others_wait_3_clocks_ahead) {
    struct stale_cluster cluster = start(*state, "3");
    others_wait_at(&cluster, 3);
}

/* Stops one; in the checkpoint that is returned it stands, as it has in some
 * before, while the others went on: the first ones may be from before the stop.
 */
static struct clocks stop_one(struct stale_cluster *cluster) {
    struct clocks now = next_clocks(cluster);
    cluster_run_signal(cluster->workers[STOPPED], SIGSTOP);
    for (unsigned stands = 0, i = 0; stands < SETTLED; i++) {
        struct clocks before = now;
        now = next_clocks(cluster);
        bool others_go = now.highest[0] > before.highest[0];
        if (now.highest[STOPPED] != before.highest[STOPPED])
            stands = 0;
        else if (others_go)
            stands++;
        assert_true(i < MAX_CHECKPOINTS);
    }
    return now;
}

/* Stops one, and the others go far on. */
static void leave_behind(struct stale_cluster *cluster) {
    struct clocks first = stop_one(cluster), now;
    do
        now = next_clocks(cluster);
    while (now.lowest[0] < first.highest[0] + FAR ||
           now.lowest[2] < first.highest[2] + FAR);
    assert_int_equal(now.highest[STOPPED], first.highest[STOPPED]);
}

TEST(without_a_bound_no_worker_waits) {
    struct stale_cluster cluster = start(*state, "\"inf\"");
    leave_behind(&cluster);
}

TEST(a_stopped_worker_does_not_block_the_last_checkpoint) {
    struct stale_cluster cluster = start(*state, "\"inf\"");
    leave_behind(&cluster);
    for (unsigned i = 0; i < HEARTBEATS;
         i++) /* an evaluation has been ordered */
        next_clocks(&cluster);
    cluster_run_signal(cluster.chief, SIGTERM);
    cluster_run_await(cluster.chief, "the same command resumes from",
                      CLUSTER_RUN_DEADLINE / 2);
    cluster_run_expect_soon(cluster.chief, 128 + SIGTERM);
}

static struct cluster_process *lead(struct cluster_run *run) {
    return cluster_run_task(
        run, "chief", 0,
        WORDS("--join", "--secret-file", "secret", "--json", "job.json"));
}

/* Of one worker that is listed. */
static struct stale_cluster start_with_room(struct cluster_run *run,
                                            const char *staleness,
                                            unsigned steps) {
    struct stale_cluster cluster = {.run = run};
    cluster_fixture_tool(run, 0, WORDS("keygen", "secret"));
    write_job(run, staleness, steps);
    cluster_run_describe(run, 1, 2, 1);
    cluster.chief = lead(run);
    for (unsigned i = 0; i < 2; i++)
        cluster.ps[i] =
            cluster_run_task(run, "ps", i, WORDS("--secret-file", "secret"));
    cluster.workers[LISTED] = cluster_run_task(
        run, "worker", LISTED, WORDS("--secret-file", "secret"));
    return cluster;
}

static struct cluster_process *join_as(const struct stale_cluster *cluster,
                                       unsigned index) {
    return cluster_run_task(cluster->run, "worker", index,
                            WORDS("--join", "--secret-file", "secret"));
}

/* The clocks of a checkpoint in which worker INDEX has pushed all blocks more
 * than MORE times. */
static struct clocks clocks_after(const struct stale_cluster *cluster,
                                  unsigned index, uint64_t more) {
    struct clocks now = next_clocks(cluster);
    for (unsigned i = 0; now.lowest[index] <= more; i++) {
        now = next_clocks(cluster);
        assert_true(i < MAX_CHECKPOINTS);
    }
    return now;
}

/* It joins while the one that is listed stands still, so that the run does not
 * end before. Each push is an update, and counts once. */
static void joins_and_trains(struct cluster_run *run, const char *staleness) {
    enum { STEPS = 20000 };
    struct stale_cluster cluster = start_with_room(run, staleness, STEPS);
    clocks_after(&cluster, LISTED, 0);
    cluster_run_signal(cluster.workers[LISTED], SIGSTOP);
    cluster.workers[JOINER] = join_as(&cluster, JOINER);
    struct clocks first = clocks_after(&cluster, JOINER, 0);
    cluster_run_signal(cluster.workers[LISTED], SIGCONT);
    struct clocks later =
        clocks_after(&cluster, LISTED, first.highest[LISTED] + FAR);
    assert_true(later.lowest[JOINER] > first.lowest[JOINER]);
    assert_int_equal(later.updates - first.updates, later.sum - first.sum);
    struct cluster_process *all[] = {cluster.chief, cluster.ps[0],
                                     cluster.ps[1], cluster.workers[LISTED],
                                     cluster.workers[JOINER]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cluster_run_expect(all[i], 0, 4 * CLUSTER_RUN_DEADLINE);
    const json_t *end = cluster_run_json(cluster.chief);
    assert_int_equal(json_integer_value(json_object_get(end, "joined_workers")),
                     1);
    assert_true(json_integer_value(json_object_get(end, "steps")) >= STEPS);
}

TEST(a_worker_beyond_the_list_joins_and_each_push_counts_once) {
    joins_and_trains(*state, "4");
}

TEST(a_worker_beyond_the_list_joins_without_a_bound) {
    joins_and_trains(*state, "\"inf\"");
}

/* Each record has an id of its own, and so makes a row: what the two read in as
 * many steps as an epoch has is most of it, but for what the first has read
 * before the other came, once. */
TEST(a_joined_worker_reads_other_samples_than_the_one_whose_share_it_has) {
    enum { RECORDS = 40000, BATCH = 4, MOST = RECORDS * 17 / 20 };
    struct cluster_run *run = *state;
    FILE *file = cluster_run_create(run, "ids.csv");
    fputs("label,user\n", file);
    for (unsigned i = 0; i < RECORDS; i++)
        fprintf(file, "%u,u%u\n", i % 2, i);
    fclose(file);
    cluster_run_job(
        run, "{\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"
             " \"ids.csv\", \"test\": null}, \"features\": {\"user\":"
             " {\"type\": \"hash_bucket\"}}, \"model\": {\"type\": \"linear\","
             " \"features\": [\"user\"]}, \"epochs\": 1, \"workers\": 2,"
             " \"train_micro_batch_size_per_gpu\": 4, \"chief\":"
             " \"coordinate\", \"strategy\": {\"staleness\": 1}}");
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *chief = cluster_run_task(
        run, "chief", 0, WORDS("--join", "--json", "job.json"));
    cluster_run_task(run, "ps", 0, NULL);
    cluster_run_task(run, "worker", JOINER, WORDS("--join"));
    cluster_run_await_soon(chief, "ps 0 joined");
    cluster_run_task(run, "worker", LISTED, NULL);
    cluster_run_expect_soon(chief, 0);
    const json_t *end = cluster_run_json(chief);
    assert_in_range(json_integer_value(json_object_get(end, "steps")),
                    RECORDS / BATCH, RECORDS / BATCH + 1);
    assert_in_range(json_integer_value(json_object_get(
                        json_object_get(end, "table_rows"), "user")),
                    MOST, RECORDS);
}

/* Within the bound the others wait for it until another one has its place. */
TEST(a_joined_worker_that_is_killed_ends_nothing) {
    struct stale_cluster cluster = start_with_room(*state, "4", ENDLESS);
    cluster.workers[JOINER] = join_as(&cluster, JOINER);
    struct clocks joined = clocks_after(&cluster, JOINER, 0);
    cluster_run_signal(cluster.workers[JOINER], SIGKILL);
    cluster_run_expect_soon(cluster.workers[JOINER], 128 + SIGKILL);
    cluster.workers[JOINER] = join_as(&cluster, JOINER);
    struct clocks again =
        clocks_after(&cluster, JOINER, joined.highest[JOINER] + FAR);
    assert_true(again.lowest[LISTED] > joined.highest[LISTED]);
    cluster_run_expect_soon(join_as(&cluster, WORKERS), CONFIG);
    cluster_run_signal(cluster.chief, SIGTERM);
    cluster_run_expect_soon(cluster.chief, 128 + SIGTERM);
    assert_int_equal(json_integer_value(json_object_get(
                         cluster_run_json(cluster.chief), "untrained_samples")),
                     0);
}

/* The chief that adopts the run takes over a joined worker and a place that
 * nobody has. When the run goes back, the joined worker joins again. */
TEST(a_joined_worker_stays_when_the_chief_or_a_ps_returns) {
    struct stale_cluster cluster = start_with_room(*state, "\"inf\"", ENDLESS);
    clocks_after(&cluster, LISTED, 0);
    cluster.workers[JOINER] = join_as(&cluster, JOINER);
    struct clocks before = clocks_after(&cluster, JOINER, 0);
    cluster_run_signal(cluster.chief, SIGKILL);
    cluster_run_expect_soon(cluster.chief, 128 + SIGKILL);
    cluster.chief = lead(cluster.run);
    struct clocks now =
        clocks_after(&cluster, JOINER, before.highest[JOINER] + FAR);
    assert_true(now.lowest[LISTED] > before.highest[LISTED]);
    assert_int_equal(now.updates - before.updates, now.sum - before.sum);
    cluster_run_signal(cluster.ps[0], SIGKILL);
    cluster_run_expect_soon(cluster.ps[0], 128 + SIGKILL);
    cluster.ps[0] = cluster_run_task(cluster.run, "ps", 0,
                                     WORDS("--secret-file", "secret"));
    cluster_run_await_soon(cluster.chief, "the run goes on after step");
    clocks_after(&cluster, JOINER, 0);
    cluster_run_signal(cluster.chief, SIGTERM);
    cluster_run_expect_soon(cluster.chief, 128 + SIGTERM);
}

TEST(a_run_that_no_worker_may_join_refuses_it) {
    struct cluster_run *run = *state;
    cluster_run_job(run, "{\"strategy\": {\"staleness\": 4}}");
    cluster_run_describe(run, 1, 1, 1);
    cluster_run_task(run, "chief", 0, WORDS("job.json"));
    struct cluster_process *worker =
        cluster_run_task(run, "worker", 1, WORDS("--join"));
    cluster_run_expect_soon(worker, CONFIG);
    cluster_fixture_expect_logged(worker, "--join");
}

TEST(a_run_that_workers_cannot_join_does_not_begin_with_join) {
    static const struct {
        const char *job, *words;
    } cases[] = {
        {"\"workers\": 3", "strategy.staleness is 0"},
        {"\"workers\": 3, \"strategy\": {\"type\": \"allreduce\"}",
         "by all-reduce, whose ranks are fixed"},
        {"\"strategy\": {\"staleness\": 4}", "is 0 (not given)"},
        {"\"workers\": 1, \"strategy\": {\"staleness\": \"inf\"}",
         "is 1; allowed"},
        {"\"workers\": 1024, \"strategy\": {\"staleness\": 4}",
         "which trains, are more than 1024"},
    };
    cluster_run_describe(*state, 1, 1, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cluster_run_job(
            *state, textf("{%s, \"timeouts\": {\"stop\": 0.1}}", cases[i].job));
        struct cluster_process *chief =
            cluster_run_task(*state, "chief", 0, WORDS("--join", "job.json"));
        cluster_run_expect_soon(chief, CONFIG);
        cluster_fixture_expect_logged(chief, cases[i].words);
    }
}

/* Half a second, a heartbeat's time, is several hundred steps here. A
 * checkpoint takes a few, or hundreds where others use the disk: those
 * multiples are left out. */
TEST(checkpoints_follow_the_steps_closely) {
    enum { EVERY = 100, STEPS = 6000, CLOSE = 20, FEWEST = 7 };
    struct cluster_run *run = *state;
    uint64_t steps[STEPS / EVERY + 1];
    unsigned close = 0;
    cluster_run_job(run,
                    "{\"model\": {\"layers\": [64, 512, 10]}, \"steps\": 6000,"
                    " \"train_micro_batch_size_per_gpu\": 300,"
                    " \"strategy\": {\"type\": \"ps\", \"staleness\": 4},"
                    " \"checkpoint\": {\"every_steps\": 100, \"keep\": 80}}");
    cluster_run_expect_soon(cluster_fixture_local(run, 2, 2, NULL), 0);
    unsigned count = cluster_fixture_checkpoints(run, "checkpoint", steps,
                                                 STEPS / EVERY + 1);
    for (unsigned i = 0; i + 1 < count; i++)
        close += steps[i] % EVERY < CLOSE;
    if (count < FEWEST || close < count / 2)
        fail_msg("%u checkpoints, %u of them close to a multiple of %d", count,
                 close, EVERY);
}

/* Weights that are far off compute one class, or no number. */
TEST(a_diverging_run_reports_it_and_suggests_a_rate) {
    static const struct {
        const char *rate, *words;
        int code;
    } cases[] = {
        {"optimizer.params.lr=10", "diverged: train loss", 0},
        {"optimizer.params.lr=1e30", "diverged: the loss is NaN", 1},
        {"optimizer.params.lr=0.05", "train loss", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
        struct cluster_process *local =
            CLUSTER_FIXTURE_RUN(*state, 1, 2, cases[i].code, cases[i].rate,
                                "strategy.staleness=inf", "steps_per_print=5");
        cluster_fixture_expect_logged(local, cases[i].words);
        assert_int_equal(cluster_fixture_has_logged(local, "diverged"), i < 2);
        if (i == 0)
            cluster_fixture_expect_logged(
                local, "try optimizer.params.lr 5, which is 10 over 2");
    }
}
