/* SPDX-License-Identifier: Apache-2.0 */
/* How far the others get ahead of a worker that is stopped. Clocks are read
 * from the rows in checkpoints: a block's row has, for each rank, the clock of
 * its last contribution. Who has pushed clock c waits until it may read at c,
 * so it has pushed at most one more than it is ahead. */
#include "core/store/checkpoint_reader.h"
#include "ps/consistency/ledger.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { WORKERS = 3, STOPPED = 1, FAR = 100, HEARTBEATS = 8 };
enum { MAX_CHECKPOINTS = 200, SETTLED = 3 /* in a row */ };

struct stale_cluster {
    struct cluster_run *run;
    struct cluster_process *chief, *workers[WORKERS];
};

/* Over all blocks, of each rank. */
struct clocks {
    uint64_t lowest[WORKERS], highest[WORKERS];
    uint64_t apart; /* the most that two ranks are, in one block */
};

/* Runs until it is told to end, with a checkpoint at every other moment. */
static struct stale_cluster start(struct cluster_run *run,
                                  const char *staleness) {
    struct stale_cluster cluster = {.run = run};
    cluster_run_job(
        run,
        textf("{\"model\": {\"layers\": [64, 512, 10]}, \"chief\":"
              " \"coordinate\", \"steps\": 100000000, \"optimizer\":"
              " {\"params\": {\"lr\": 0.001}}, \"strategy\": {\"type\": \"ps\","
              " \"staleness\": %s}, \"checkpoint\": {\"every_seconds\": 0.2,"
              " \"keep\": 1000}, \"timeouts\": {\"peer\": 60, \"stop\": 1}}",
              staleness));
    cluster_run_describe(run, 1, 2, WORKERS);
    cluster.chief = cluster_run_task(run, "chief", 0, WORDS("job.json"));
    for (unsigned i = 0; i < 2; i++)
        cluster_run_task(run, "ps", i, NULL);
    for (unsigned i = 0; i < WORKERS; i++)
        cluster.workers[i] = cluster_run_task(run, "worker", i, NULL);
    return cluster;
}

static void add_row(struct clocks *clocks, const void *row, size_t bytes) {
    struct ledger_entry entries[WORKERS];
    uint64_t version, low = UINT64_MAX, high = 0;
    assert_int_equal(bytes, sizeof version + sizeof entries);
    memcpy(entries, (const char *)row + sizeof version, sizeof entries);
    for (unsigned r = 0; r < WORKERS; r++) {
        uint64_t clock = entries[r].clock;
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
