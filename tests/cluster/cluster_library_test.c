/* SPDX-License-Identifier: Apache-2.0 */
/* The library, as a program outside uses it: tests/library/caller.c in the
 * workers of `capstan local`, by ps and by all-reduce. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <unistd.h>

enum { CONFIG = 2, FAILED = 1, RETRY = 138, MAX_ARGUMENTS = 32 };

/* Without sets; NULL-ended, as the sets below. */
static const char *const clusters[] = {"1", "3", "0"};
enum { CLUSTERS = sizeof clusters / sizeof *clusters };

/* `capstan local --ps NUM_PS --workers WORKERS --set ... -- caller NAME`; of
 * SETS one that begins with "--" is a flag. */
static struct cluster_process *start(struct cluster_run *run,
                                     const char *num_ps, const char *workers,
                                     const char *name,
                                     const char *const *sets) {
    const char *arguments[MAX_ARGUMENTS] = {"local", "--ps", num_ps,
                                            "--workers", workers};
    char caller[PATH_MAX];
    unsigned count = 5;
    cluster_fixture_caller(caller);
    for (; sets && *sets; sets++) {
        if (strncmp(*sets, "--", 2))
            arguments[count++] = "--set";
        arguments[count++] = *sets;
    }
    arguments[count++] = "--";
    arguments[count++] = caller;
    arguments[count++] = name;
    return cluster_run_start(run, "local", arguments, NULL);
}

static struct cluster_process *play(void **state, const char *num_ps,
                                    const char *workers, const char *name,
                                    int code, const char *const *sets) {
    struct cluster_process *local =
        start(cluster_fixture_reset(state), num_ps, workers, name, sets);
    cluster_run_expect_soon(local, code);
    return local;
}

#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(weights_are_the_exact_sums_on_all_ranks) {
    for (unsigned c = 0; c < CLUSTERS; c++)
        (void)play(state, clusters[c], "2", "sums", 0,
                   SETS("optimizer.params.lr=1"));
    (void)play(state, "2", "4", "sums", 0, SETS("optimizer.params.lr=1"));
    (void)play(state, "0", "4", "sums", 0, SETS("optimizer.params.lr=1"));
}

TEST(zero_counts_and_empty_does_not) {
    const char *const *sets =
        SETS("optimizer.params.lr=1", "optimizer.params.momentum=0.5");
    for (unsigned c = 0; c < CLUSTERS; c++)
        (void)play(state, clusters[c], "2", "contributions", 0, sets);
    (void)play(state, "0", "2", "contributions", 0,
               SETS("optimizer.params.lr=1", "optimizer.params.momentum=0.5",
                    "zero_optimization.stage=2"));
}

TEST(averaged_and_assigned_values_are_exact) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        (void)play(state, clusters[c], "2", "kinds", 0, NULL);
        (void)play(state, clusters[c], "2", "kinds", 0,
                   SETS("gradient_clipping=0.1"));
    }
    (void)play(state, "2", "2", "kinds", 0, SETS("wire=bf16"));
    (void)play(state, "0", "2", "kinds", 0,
               SETS("optimizer.type=Adam", "zero_optimization.stage=1"));
}

TEST(a_round_uses_rank_0s_values_of_each_group) {
    for (unsigned c = 0; c < CLUSTERS; c++)
        (void)play(state, clusters[c], "2", "groups", 0, NULL);
}

TEST(ranks_may_push_in_different_orders) {
    for (unsigned c = 0; c < CLUSTERS; c++)
        (void)play(state, clusters[c], "3", "orders", 0,
                   SETS("optimizer.params.lr=1"));
}

TEST(two_runs_of_a_process_do_not_meet) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    struct cluster_process *two =
        cluster_run_program(run, "two", caller, SETS("two"), NULL);
    cluster_run_expect_soon(two, 0);
    assert_string_equal(cluster_run_errors(two), ""); /* it did not ask */
}

/* The ranks of NAME end with CODE, and each says TEXT. */
static void expect_on_every_rank(void **state, unsigned num_ps,
                                 const char *name, int code, const char *text) {
    struct cluster_run *run = cluster_fixture_reset(state);
    struct cluster_process *ranks[2];
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 0, num_ps, 2);
    for (unsigned p = 0; p < num_ps; p++)
        (void)cluster_run_task(run, "ps", p, NULL);
    for (unsigned r = 0; r < 2; r++)
        ranks[r] =
            cluster_run_task_program(run, "worker", r, caller, SETS(name));
    for (unsigned r = 0; r < 2; r++) {
        cluster_run_expect_soon(ranks[r], code);
        assert_contains(cluster_run_errors(ranks[r]), text);
    }
}

TEST(a_wrong_call_is_named_on_every_rank) {
    static const struct {
        const char *name, *text;
        int code;
    } cases[] = {
        {"twice", "tensor \"w\" is pushed twice in step 10", CONFIG},
        {"undeclared", "a push of a tensor that was not declared", CONFIG},
        {"never", "tensor \"w\" was not pushed in step 10", CONFIG},
        {"size", "in step 10 has 4 bytes, expected are 12", CONFIG},
        {"differ",
         "number 0 is \"w\" [4] float32 trained of group 0, rank 0's "
         "is \"w\" [3]",
         CONFIG},
        {"name", "\"w\" is listed twice", CONFIG},
        {"group", "group 4294967295 of the optimizer", CONFIG},
        {"rules",
         "has the optimizer SGD with 1 groups, rank 0 None with 1; all ranks "
         "have the same",
         CONFIG},
        {"soon", "a step before the start", CONFIG},
        {"nan", "the loss is nan at step 10", FAILED},
        {"gradient",
         "the gradient of \"w\" is NaN or infinite in its update 10", FAILED},
        {"ends", "worker 1 has ended after step 9, and worker 0 is in step",
         FAILED},
        {"fails", "worker 1 on host ", FAILED},
        {"retries", "worker 1 on host ", RETRY},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (unsigned num_ps = 0; num_ps < 2; num_ps++)
            expect_on_every_rank(state, num_ps, cases[i].name, cases[i].code,
                                 cases[i].text);
}

static double counted(const json_t *late, unsigned rank, const char *key) {
    const json_t *one = json_array_get(late, rank);
    const json_t *number = json_object_get(one, key);
    assert_true(json_is_integer(number));
    return (double)json_integer_value(number);
}

/* Of rank RANK, as it prints at its end. */
struct backed {
    unsigned long long taken, missed, updates;
    double applied; /* half the sum */
};

static void read_backed(const struct cluster_process *local, unsigned rank,
                        struct backed *found) {
    const char *line =
        strstr(cluster_run_output(local), textf("rank %u: ", rank));
    assert_non_null(line);
    assert_int_equal(sscanf(line, "rank %*u: %llu %llu %llu %lf", &found->taken,
                            &found->missed, &found->updates, &found->applied),
                     4);
}

/* `caller NAME` of three ranks, one of which a step does not await; the
 * caller's: what the summary says of each. */
static json_t *play_backed(void **state, const char *name,
                           struct cluster_process **local) {
    struct cluster_run *run = cluster_fixture_reset(state);
    const char *path = cluster_run_path(run, "summary.json");
    setenv("CAPSTAN_SUMMARY", path, 1);
    *local = start(run, "2", "3", name,
                   SETS("optimizer.params.lr=1", "steps=100",
                        "strategy.backup_workers=1"));
    cluster_run_expect_soon(*local, 0);
    unsetenv("CAPSTAN_SUMMARY");
    json_t *summary = json_load_file(path, 0, NULL);
    json_t *late = json_incref(json_object_get(summary, "late"));
    assert_int_equal(json_array_size(late), 3);
    json_decref(summary);
    return late;
}

/* Each step applies two of the three gradients, each of them once. */
TEST(a_late_rank_goes_on_with_the_present_step) {
    struct cluster_process *local;
    json_t *late = play_backed(state, "backed", &local);
    double sum = 0;
    for (unsigned r = 0; r < 3; r++) {
        struct backed found;
        read_backed(local, r, &found);
        double lacks = counted(late, r, "missed") + counted(late, r, "late");
        unsigned long long applied = (unsigned long long)found.applied;
        unsigned long long own = applied >> (8 * r) & 0xff;
        assert_true((double)applied == found.applied);
        assert_true(counted(late, r, "missed") == (double)found.missed);
        assert_int_equal(found.taken + found.missed, 100);
        assert_true((double)own == 100 - lacks);
        assert_true(r < 2 || found.missed >= 10);
        sum += (double)own;
    }
    assert_true(sum == 200);
    json_decref(late);
}

/* Of a step without a batch of one rank the other's gradient counts twice; one
 * that overflowed applies none. */
TEST(a_late_rank_shares_means_and_overflows) {
    struct cluster_process *local;
    json_decref(play_backed(state, "backed-kinds", &local));
    for (unsigned r = 0; r < 3; r++) {
        struct backed found;
        read_backed(local, r, &found);
        unsigned long long applied = (unsigned long long)found.applied;
        assert_true((double)applied == found.applied);
        assert_in_range(found.updates, 95, 100);
        assert_int_equal((applied & 0xff) + (applied >> 8 & 0xff) +
                             (applied >> 16),
                         2 * found.updates);
    }
}

TEST(what_does_not_go_with_backup_workers_is_named) {
    static const char *const cases[][2] = {
        {"backed-not", "has not called capstan_backup_workers"},
        {"backed-means", "with optimizer None"},
        {"backed-keeps", "kept \"state\" with strategy.backup_workers"},
        {"backed-rewinds", "capstan_rewinds with strategy.backup_workers"},
        {"backed-epoch", "has begun before step 0"},
        {"backed-asks", "capstan_had_batch with strategy.backup_workers"},
    };
    setenv("CAPSTAN_SET", "strategy.backup_workers=1\n", 1);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_on_every_rank(state, 1, cases[i][0], CONFIG, cases[i][1]);
    unsetenv("CAPSTAN_SET");
}

/* Nobody else is started. */
TEST(a_call_before_the_join_is_named_at_once) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *rank =
        cluster_run_task_program(run, "worker", 0, caller, SETS("unjoined"));
    cluster_run_expect_soon(rank, CONFIG);
    assert_contains(cluster_run_errors(rank), "before capstan_join");
}

TEST(an_early_end_leaves_the_others_training) {
    const char *text =
        cluster_run_errors(play(state, "1", "2", "early", 0, NULL));
    assert_contains(text, " 40 steps in ");
    text = cluster_run_errors(play(state, "0", "2", "early", CONFIG, NULL));
    assert_contains(text, "all-reduce does not go on without a rank");
}

TEST(local_has_the_code_of_a_rank_that_does_not_close) {
    static const struct {
        const char *name, *workers, *says;
        int code;
    } cases[] = {
        {"gone-signal", "2", "was killed by signal 11 (Segmentation fault)",
         128 + SIGSEGV},
        {"gone-0", "2", "ended with exit code 0", 1},
        {"gone-3", "2", "ended with exit code 3", 3},
        {"gone-3", "3", "ended with exit code 4", 4}, /* before rank 1 */
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text =
            cluster_run_errors(play(state, "1", cases[i].workers, cases[i].name,
                                    cases[i].code, SETS("--max-restarts=0")));
        assert_contains(
            text, textf("%s before it had closed its run", cases[i].says));
        assert_contains(text, " 40 steps in "); /* the run went on */
    }
    const char *text =
        cluster_run_errors(play(state, "1", "2", "gone-leader", 1, NULL));
    assert_contains(text, "worker 0 ended the run: it ended with exit "
                          "code 0 before it had closed its run");
}

/* It would be awaited for timeouts.join, ten minutes. Whether the chief has its
 * run by then, or later, as the leader waits here. */
TEST(local_does_not_await_a_rank_that_ends_before_it_joins) {
    static const char *const waits[] = {":", "until [ -e gone ]; do :; done"};
    char caller[PATH_MAX], line[PATH_MAX + 256];
    cluster_fixture_caller(caller);
    for (unsigned i = 0; i < 2; i++) {
        run = cluster_fixture_reset(state);
        snprintf(line, sizeof line,
                 "case $TF_CONFIG in *'\"index\":1}}') touch gone; exit 0;; "
                 "*'\"worker\",\"index\":0}}') %s;; esac; exec %s learns",
                 waits[i], caller);
        struct cluster_process *local =
            cluster_run_start(run, "local",
                              SETS("local", "--ps", "1", "--workers", "2", "--",
                                   "sh", "-c", line),
                              NULL);
        cluster_run_expect_soon(local, FAILED);
        assert_contains(cluster_run_errors(local),
                        "worker 1 ended the run: before it had joined "
                        "it ended with exit code 0");
    }
}

TEST(local_forgives_a_rank_that_comes_back) {
    const char *text = cluster_run_errors(
        play(state, "1", "2", "joins-heir", 0, SETS("--max-restarts=0")));
    assert_contains(text, "was killed by signal 9 (Killed) before it "
                          "had closed its run");
}

/* The last line of standard output. */
static const char *weights_of(const struct cluster_process *local) {
    const char *text = strstr(cluster_run_output(local), "from ");
    assert_non_null(text);
    return strchr(text, ' ') + 1;
}

/* NAME with OPTIMIZER, whole and in two parts. */
static void expect_same_bits(void **state, const char *num_ps, const char *name,
                             const char *optimizer) {
    char whole[64], parts[64];
    snprintf(whole, sizeof whole, "%s",
             weights_of(play(state, num_ps, "2", name, 0,
                             SETS(optimizer, "steps=40"))));
    struct cluster_run *run = cluster_fixture_reset(state);
    for (int half = 1; half <= 2; half++) {
        struct cluster_process *local =
            start(run, num_ps, "2", name,
                  SETS(optimizer, half == 1 ? "steps=17" : "steps=40",
                       "checkpoint.dir=kept", "checkpoint.every_steps=5"));
        cluster_run_expect_soon(local, 0);
        snprintf(parts, sizeof parts, "%s", weights_of(local));
    }
    assert_int_equal(whole[0], '0'); /* not resumed */
    assert_int_equal(parts[0], '1');
    assert_string_equal(parts + 1, whole + 1);
}

TEST(a_resumed_run_has_the_same_bits) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        expect_same_bits(state, clusters[c], "resume",
                         "optimizer.params.momentum=0.9");
        expect_same_bits(state, clusters[c], "resume", "optimizer.type=Adam");
        expect_same_bits(state, clusters[c], "own", "seed=1");
    }
}

/* Of `resume` in a run of 6 steps that all ranks leave after the third. */
static void expect_goes_on(void **state, const char *num_ps, const char *name,
                           const char *every) {
    char whole[64];
    uint64_t steps[8];
    snprintf(
        whole, sizeof whole, "%s",
        weights_of(play(state, num_ps, "2", "resume", 0, SETS("steps=6"))));
    struct cluster_run *run = cluster_fixture_reset(state);
    const char *const *sets = SETS("steps=6", "checkpoint.dir=kept", every);
    struct cluster_process *local = start(run, num_ps, "2", name, sets);
    cluster_run_expect_soon(local, 0);
    unsigned count = cluster_fixture_checkpoints(run, "kept", steps, 8);
    assert_int_equal(steps[count - 1], 3);
    local = start(run, num_ps, "2", "resume", sets);
    cluster_run_expect_soon(local, 0);
    assert_string_equal(whole + 1, weights_of(local) + 1);
    assert_int_equal(weights_of(local)[0], '1'); /* resumed */
}

TEST(a_run_that_all_ranks_end_before_its_last_step_goes_on) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        expect_goes_on(state, clusters[c], "short", "seed=0");
        expect_goes_on(state, clusters[c], "short", "checkpoint.every_steps=2");
        expect_goes_on(state, clusters[c], "short", "checkpoint.every_steps=3");
        if (*clusters[c] != '0')
            expect_goes_on(state, clusters[c], "short-early", "seed=0");
    }
    (void)play(state, "1", "2", "short", 0, SETS("checkpoint.dir=kept"));
}

/* Neither weights nor checkpoints change with its starts. */
TEST(a_complete_run_takes_no_step_when_started_again) {
    static const char *const stalenesses[] = {"0", "\"inf\""};
    for (unsigned c = 0; c < 2 * CLUSTERS; c++) {
        const char *num_ps = clusters[c / 2];
        char first[64];
        uint64_t steps[8], complete = 0;
        if (c % 2 && !strcmp(num_ps, "0"))
            continue; /* all-reduce is synchronous */
        const char *staleness =
            textf("strategy.staleness=%s", stalenesses[c % 2]);
        run = cluster_fixture_reset(state);
        for (int s = 0; s < 3; s++) {
            struct cluster_process *local =
                start(run, num_ps, "2", "resume",
                      SETS("steps=6", staleness, "checkpoint.dir=kept"));
            cluster_run_expect_soon(local, 0);
            assert_int_equal(cluster_fixture_checkpoints(run, "kept", steps, 8),
                             1);
            if (!s) {
                complete = steps[0];
                snprintf(first, sizeof first, "%s", weights_of(local));
                continue;
            }
            assert_int_equal(steps[0], complete);
            if (c % 2 == 0) /* else rank 0 may not have had the last weights */
                assert_string_equal(weights_of(local) + 1, first + 1);
        }
    }
}

/* The caller checks rows and weights, and that rows take no memory. */
TEST(a_complete_run_takes_no_rows_when_started_again) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        run = cluster_fixture_reset(state);
        for (int s = 0; s < 3; s++) {
            uint64_t steps[8];
            cluster_run_expect_soon(start(run, clusters[c], "2", "rows",
                                          SETS("steps=6", "checkpoint.dir=kept",
                                               "optimizer.params.lr=1")),
                                    0);
            assert_int_equal(cluster_fixture_checkpoints(run, "kept", steps, 8),
                             1);
            assert_int_equal(steps[0], 6);
        }
    }
}

TEST(written_rows_are_exact) {
    static const char *const staleness[] = {"strategy.staleness=0",
                                            "strategy.staleness=2",
                                            "strategy.staleness=\"inf\""};
    for (unsigned c = 0; c < CLUSTERS; c++)
        for (unsigned s = 0; s < 3 && (s == 0 || *clusters[c] != '0'); s++)
            (void)play(state, clusters[c], "2", "writes", 0,
                       SETS("optimizer.params.lr=1", staleness[s]));
}

/* What each rank and the lowest one keeps is of the checkpoint's step. The run
 * is long enough that one that is asked for is not its last. */
TEST(a_requested_checkpoint_has_what_ranks_keep) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        const char *const *sets = SETS("steps=12000", "checkpoint.dir=kept");
        uint64_t steps[8];
        char first[64];
        run = cluster_fixture_reset(state);
        struct cluster_process *local =
            start(run, clusters[c], "2", "own-asks", sets);
        cluster_run_expect_soon(local, 0);
        snprintf(first, sizeof first, "%s", weights_of(local));
        assert_int_equal(cluster_fixture_checkpoints(run, "kept", steps, 8), 2);
        assert_true(steps[0] >= 7 && steps[0] < 12000);
        local = start(run, clusters[c], "2", "own-asks",
                      SETS("steps=12000", "checkpoint.dir=kept",
                           textf("checkpoint.resume=%llu",
                                 (unsigned long long)steps[0])));
        cluster_run_expect_soon(local, 0);
        assert_int_equal(cluster_fixture_checkpoints(run, "kept", steps, 8), 3);
        assert_string_equal(weights_of(local) + 1, first + 1);
    }
}

/* The sums are those of `own`, by its own check. */
TEST(an_optimizer_of_ones_own_gets_exact_means) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        (void)play(state, clusters[c], "2", "own", 0, SETS("steps=40"));
        (void)play(state, clusters[c], "4", "own", 0, SETS("steps=40"));
    }
    (void)play(state, "0", "3", "own", 0, SETS("steps=40"));
    setenv("CAPSTAN_SET", "strategy.staleness=\"inf\"", 1);
    expect_on_every_rank(state, 1, "own", CONFIG,
                         "SGD, Adagrad, RMSprop, Adam, AdamW, Ftrl");
    unsetenv("CAPSTAN_SET");
}

TEST(a_resumed_run_knows_its_place_in_the_data) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        run = cluster_fixture_reset(state);
        for (int half = 1; half <= 2; half++) {
            struct cluster_process *local =
                start(run, clusters[c], "2", "epochs",
                      SETS(half == 1 ? "steps=10" : "steps=20",
                           "checkpoint.dir=kept"));
            cluster_run_expect_soon(local, 0);
            assert_contains(cluster_run_output(local),
                            half == 1 ? "epoch 0, 0 steps"
                                      : "epoch 2, 2 steps");
        }
    }
}

/* Its port and its directory lock are free at once. */
TEST(an_orphan_of_a_killed_process_keeps_nothing) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 0, 1, 1);
    for (int life = 0; life < 2; life++) {
        setenv("CAPSTAN_SET", "checkpoint.dir=kept\noptimizer.params.lr=1", 1);
        struct cluster_process *worker = cluster_run_task_program(
            run, "worker", 0, caller, SETS(life ? "sums" : "orphan"));
        unsetenv("CAPSTAN_SET");
        struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
        cluster_run_expect_soon(worker, life ? 0 : 128 + SIGKILL);
        if (life)
            cluster_run_expect_soon(ps, 0);
        else
            cluster_run_signal(ps, SIGKILL);
        (void)cluster_run_exit(ps, CLUSTER_RUN_DEADLINE);
    }
}

TEST(a_signal_leaves_a_checkpoint) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        uint64_t steps[8];
        (void)play(state, clusters[c], "2", "interrupt", 128 + SIGTERM,
                   SETS("checkpoint.dir=kept"));
        assert_int_equal(cluster_fixture_checkpoints(run, "kept", steps, 8), 1);
        assert_true(steps[0] > 0);
    }
}

/* The ps may not have all of its first values yet. */
TEST(rank_0_is_needed_until_the_first_step) {
    struct cluster_process *others[3];
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 1, 2);
    others[1] = cluster_run_task(run, "ps", 0, NULL);
    setenv("CAPSTAN_SET", "chief=coordinate\ntimeouts.peer=2", 1);
    others[0] = cluster_run_task_program(run, "chief", 0, caller, SETS("none"));
    for (unsigned r = 2; r-- > 0;) {
        struct cluster_process *worker = cluster_run_task_program(
            run, "worker", r, caller, SETS("die-first"));
        if (r)
            others[2] = worker;
        else
            cluster_run_expect_soon(worker, 128 + SIGKILL);
    }
    unsetenv("CAPSTAN_SET");
    for (unsigned i = 0; i < 3; i++)
        cluster_run_expect_soon(others[i], RETRY);
}

/* Each task of a chief, two ps and three workers that play NAME; the chief
 * and the last worker. */
static void play_tasks(struct cluster_run *run, const char *name,
                       const char *sets, struct cluster_process *ends[2]) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 2, 3);
    setenv("CAPSTAN_SET", sets, 1);
    ends[0] = cluster_run_task_program(run, "chief", 0, caller, SETS(name));
    for (unsigned p = 0; p < 2; p++)
        (void)cluster_run_task(run, "ps", p, NULL);
    for (unsigned r = 0; r < 3; r++)
        ends[1] =
            cluster_run_task_program(run, "worker", r, caller, SETS(name));
    unsetenv("CAPSTAN_SET");
}

/* Of 40 steps rank 0 has done 20; how many samples those had, nobody told. */
static void expect_half_untrained(const char *path) {
    json_t *end = json_load_file(path, 0, NULL), *expected;
    assert_non_null(end);
    expected =
        json_pack("[{s:s, s:i, s:i, s:i, s:i, s:n}]", "role", "worker", "index",
                  0, "rank", 0, "since_step", 20, "steps", 20, "samples");
    if (!json_equal(json_object_get(end, "untrained"), expected))
        fail_msg("%s",
                 json_dumps(json_object_get(end, "untrained"), JSON_COMPACT));
    assert_true(json_is_null(json_object_get(end, "untrained_samples")));
    json_decref(expected);
    json_decref(end);
}

/* Rank 0 is killed with the weights that the checkpoint of step 20 needs. */
TEST(another_rank_has_the_weights_of_a_checkpoint) {
    struct cluster_process *ends[2];
    char whole[64];
    snprintf(
        whole, sizeof whole, "%s",
        weights_of(play(state, "2", "3", "own-plain", 0, SETS("steps=20"))));
    run = cluster_fixture_reset(state);
    const char *path = cluster_run_path(run, "summary.json");
    setenv("CAPSTAN_SUMMARY", path, 1);
    play_tasks(run, "own-dies",
               "chief=coordinate\ntimeouts.peer=2\nsteps=40\n"
               "checkpoint.dir=kept\ncheckpoint.every_steps=10",
               ends);
    unsetenv("CAPSTAN_SUMMARY");
    for (int i = 0; i < 2; i++)
        cluster_run_expect_soon(ends[i], 0);
    expect_half_untrained(path);
    struct cluster_process *local =
        start(run, "1", "3", "own-plain",
              SETS("steps=20", "checkpoint.dir=kept", "checkpoint.resume=20"));
    cluster_run_expect_soon(local, 0);
    assert_string_equal(weights_of(local) + 1, whole + 1);
}

/* Of two ranks that play NAME, rank DIES is killed and started again. */
static void play_joiner(struct cluster_run *run, const char *name,
                        unsigned dies, const char *sets,
                        struct cluster_process **ranks) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 1, 2);
    setenv("CAPSTAN_SET", textf("chief=coordinate\ntimeouts.peer=2\n%s", sets),
           1);
    (void)cluster_run_task_program(run, "chief", 0, caller, SETS("none"));
    (void)cluster_run_task(run, "ps", 0, NULL);
    for (unsigned r = 0; r < 2; r++)
        ranks[r] =
            cluster_run_task_program(run, "worker", r, caller, SETS(name));
    cluster_run_expect_soon(ranks[dies], 128 + SIGKILL);
    ranks[dies] =
        cluster_run_task_program(run, "worker", dies, caller, SETS(name));
    unsetenv("CAPSTAN_SET");
}

static const char saves[] = "checkpoint.dir=kept\ncheckpoint.every_steps=10";

TEST(a_rank_that_joins_has_the_state_of_the_others) {
    static const struct {
        const char *name, *sets;
        unsigned dies;
    } cases[] = {{"joins", saves, 1},
                 {"joins-lead", saves, 0},
                 {"joins-plain", "", 1},
                 {"joins-plain", saves, 1}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster_process *ranks[2];
        play_joiner(cluster_fixture_reset(state), cases[i].name, cases[i].dies,
                    cases[i].sets, ranks);
        for (unsigned r = 0; r < 2; r++)
            cluster_run_expect_soon(ranks[r], 0);
        assert_string_equal(weights_of(ranks[0]), weights_of(ranks[1]));
    }
}

/* Each step adds 3 to weights of 1. */
static void expect_changes(struct cluster_run *run, const char *staleness) {
    uint64_t kept[8];
    assert_int_not_equal(cluster_fixture_checkpoints(run, "kept", kept, 8), 0);
    struct cluster_process *again =
        start(run, "1", "2", "changes",
              SETS("steps=100", staleness, "checkpoint.dir=kept"));
    cluster_run_expect_soon(again, 0);
    double sum = 1 + 3 * (double)kept[0];
    assert_contains(cluster_run_output(again),
                    textf("begins: %.9g %.9g", sum, sum));
}

TEST(changes_of_an_optimizer_of_its_own_add_up_with_staleness) {
    static const char *const settings[] = {"1", "4", "\"inf\""};
    for (unsigned s = 0; s < 3; s++) {
        const char *staleness = textf("strategy.staleness=%s", settings[s]);
        (void)play(state, "2", "3", "changes", 0,
                   SETS("steps=100", staleness, "checkpoint.dir=kept"));
        expect_changes(run, staleness);
        struct cluster_process *ranks[2];
        play_joiner(cluster_fixture_reset(state), "changes-dies", 1,
                    textf("steps=100\ncheckpoint.dir=kept\n%s", staleness),
                    ranks);
        for (unsigned r = 0; r < 2; r++)
            cluster_run_expect_soon(ranks[r], 0);
        expect_changes(run, staleness);
    }
}

/* What was trained one way goes on the other way. */
TEST(an_optimizer_of_its_own_goes_on_with_staleness_and_without) {
    (void)play(state, "1", "2", "own-plain", 0,
               SETS("steps=20", "checkpoint.dir=kept"));
    cluster_run_expect_soon(
        start(run, "1", "2", "changes",
              SETS("steps=60", "strategy.staleness=4", "checkpoint.dir=kept")),
        0);
    struct cluster_process *local = start(
        run, "1", "2", "own-plain", SETS("steps=80", "checkpoint.dir=kept"));
    cluster_run_expect_soon(local, 0);
    assert_contains(cluster_run_output(local), "from 1 to 80");
}

TEST(changes_are_not_taken_for_gradients) {
    static const struct {
        const char *name, *sets, *text;
        int code;
    } cases[] = {
        {"own-plain", "strategy.staleness=4", "no mean of gradients comes",
         CONFIG},
        {"changes", "strategy.staleness=4\ngradient_clipping=1",
         "gradient_clipping with strategy.staleness", CONFIG},
        {"changes", "steps=4", "no memory for the mean", CONFIG},
        {"changes-first", "strategy.staleness=4", "and rank 0 pushes gradients",
         FAILED},
        {"changes-second", "strategy.staleness=4",
         "and this rank pushes gradients", FAILED},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("CAPSTAN_SET", cases[i].sets, 1);
        expect_on_every_rank(state, 1, cases[i].name, cases[i].code,
                             cases[i].text);
        unsetenv("CAPSTAN_SET");
    }
}

TEST(a_rank_that_cannot_join_gets_the_reason) {
    struct cluster_process *ranks[2];
    play_joiner(run, "joins-full", 1, saves, ranks);
    cluster_run_expect_soon(ranks[1], FAILED);
    assert_contains(cluster_run_errors(ranks[1]),
                    "and there is no checkpoint of it: what rank 0 "
                    "keeps: ");
}

/* The ps have the mean of the gradients only. */
TEST(the_last_rank_takes_weights_of_its_own_along) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 1, 1);
    setenv("CAPSTAN_SET",
           "chief=coordinate\ntimeouts.peer=2\nsteps=40\ncheckpoint.dir=kept\n"
           "checkpoint.every_steps=10",
           1);
    struct cluster_process *chief =
        cluster_run_task_program(run, "chief", 0, caller, SETS("none"));
    (void)cluster_run_task(run, "ps", 0, NULL);
    (void)cluster_run_task_program(run, "worker", 0, caller, SETS("own-dies"));
    unsetenv("CAPSTAN_SET");
    cluster_run_expect_soon(chief, RETRY);
    assert_contains(cluster_run_errors(chief), "and its weights with it");
}

TEST(what_cannot_be_kept_is_said_at_once) {
    for (unsigned c = 0; c < CLUSTERS; c++) {
        struct cluster_process *local =
            play(state, clusters[c], "2", "own-full", FAILED,
                 SETS("steps=20", "checkpoint.dir=kept"));
        assert_contains(cluster_run_errors(local),
                        "the last checkpoint was not written: what rank "
                        "1 keeps: ");
    }
}

/* Each rank keeps the state of its own step, also with the last checkpoint,
 * which is taken after it has ended. */
TEST(with_staleness_each_rank_has_its_own_state_back) {
    static const char *const settings[] = {"2", "\"inf\""};
    uint64_t steps[8];
    for (unsigned s = 0; s < 2; s++) {
        const char *staleness = textf("strategy.staleness=%s", settings[s]);
        (void)play(state, "1", "2", "learns-keeps", 0,
                   SETS(staleness, "checkpoint.dir=kept", "steps=2000",
                        "checkpoint.every_steps=500"));
        assert_true(cluster_fixture_checkpoints(run, "kept", steps, 8) > 1);
        cluster_run_expect_soon(
            start(run, "1", "2", "learns-keeps",
                  SETS(staleness, "checkpoint.dir=kept", "steps=2020")),
            0);
    }
}

/* A checkpoint without that would begin again from none. */
TEST(the_last_worker_that_is_killed_takes_what_it_keeps_with_it) {
    char caller[PATH_MAX];
    uint64_t steps[8];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 1, 1);
    setenv("CAPSTAN_SET",
           "chief=coordinate\ntimeouts.peer=2\nstrategy.staleness=\"inf\"\n"
           "steps=1000000\ncheckpoint.dir=kept\ncheckpoint.every_steps=500",
           1);
    struct cluster_process *chief =
        cluster_run_task_program(run, "chief", 0, caller, SETS("none"));
    (void)cluster_run_task(run, "ps", 0, NULL);
    struct cluster_process *worker = cluster_run_task_program(
        run, "worker", 0, caller, SETS("learns-keeps"));
    unsetenv("CAPSTAN_SET");
    cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_run_signal(worker, SIGKILL);
    cluster_run_expect_soon(chief, RETRY);
    assert_contains(cluster_run_errors(chief), "no trainer is left");
    unsigned count = cluster_fixture_checkpoints(run, "kept", steps, 8);
    for (unsigned c = 0; c < count; c++) {
        json_t *manifest = json_load_file(
            cluster_run_path(
                run, textf("kept/step-%09u/manifest.json", (unsigned)steps[c])),
            0, NULL);
        assert_int_equal(json_array_size(json_object_get(manifest, "kept")), 1);
        json_decref(manifest);
    }
}

/* The caller's line is not there. */
TEST(json_gives_the_summary_and_nothing_else) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    for (unsigned c = 0; c < CLUSTERS; c++) {
        struct cluster_process *local =
            cluster_run_start(run, "local",
                              SETS("local", "--json", "--ps", clusters[c],
                                   "--workers", "2", "--", caller, "learns"),
                              NULL);
        cluster_run_expect_soon(local, 0);
        const char *output = cluster_run_output(local);
        assert_ptr_equal(strchr(output, '\n') + 1, strchr(output, 0));
        const json_t *object = cluster_run_json(local);
        assert_int_equal(json_integer_value(json_object_get(object, "steps")),
                         40);
        assert_true(json_real_value(json_object_get(object, "train_loss")) > 0);
        assert_contains(cluster_run_errors(local), "rank 0 learns\n");
    }
}

TEST(a_command_without_a_run_has_no_summary) {
    struct cluster_process *local = cluster_run_start(
        run, "local", SETS("local", "--json", "--ps", "0", "--", "true"), NULL);
    cluster_run_expect_soon(local, FAILED);
    assert_string_equal(cluster_run_output(local), "");
    assert_contains(cluster_run_errors(local), "true has ended without a run");
}

/* A caller without a handler dies of the launcher's signal before the library
 * gives it the reason. */
TEST(the_reason_why_a_run_cannot_begin_is_said_first) {
    struct cluster_process *local =
        start(run, "1", "2", "learns",
              SETS("strategy.type=allreduce", "checkpoint.dir=/dev/null/a"));
    cluster_run_expect_soon(local, CONFIG);
    assert_contains(cluster_run_errors(local),
                    "chief: warning: checkpoint.dir");
    assert_null(strstr(cluster_run_errors(local), "was killed"));
}

TEST(a_model_of_ones_own_and_a_built_in_job_do_not_go_together) {
    char caller[PATH_MAX];
    cluster_run_job(run, NULL);
    cluster_fixture_caller(caller);
    struct cluster_process *local = cluster_run_start(
        run, "local", SETS("local", "job.json", "--", caller, "sums"), NULL);
    cluster_run_expect_soon(local, CONFIG);
    assert_contains(cluster_run_errors(local), "model.type is external");
    local = cluster_run_start(run, "program",
                              SETS("local", "--set",
                                   "model={\"type\": \"external\"}", "--set",
                                   "data=null", "job.json"),
                              NULL);
    cluster_run_expect_soon(local, CONFIG);
    assert_contains(cluster_run_errors(local), "declares the model");
}

enum { REWINDS_LONG = 4 * CLUSTER_RUN_DEADLINE };

/* A caller that takes its steps again, with its checkpoints in DIR. */
static struct cluster_process *start_rewinds(struct cluster_run *run,
                                             const char *name, const char *dir,
                                             const char *more) {
    static const char common[] = "optimizer.params={\"lr\": 0.1, "
                                 "\"momentum\": 0.5}";
    return start(run, "2", "2", name,
                 SETS(common, "steps=1200", "checkpoint.every_steps=200",
                      "checkpoint.keep=100", textf("checkpoint.dir=%s", dir),
                      more));
}

/* Of ROLE ("ps 1"), which joins LOCAL's run next. */
static pid_t await_member(struct cluster_process *local, const char *role) {
    const char *line =
        cluster_run_await_soon(local, textf("%s joined from ", role));
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen(", pid "));
}

TEST(a_caller_goes_back_with_the_run_when_a_ps_dies) {
    static const char *const names[] = {"rewinds", "rewinds-late"};
    static const char *const more[] = {NULL, "strategy.staleness=2"};
    for (unsigned m = 0; m < 2; m++) {
        run = cluster_fixture_reset(state);
        cluster_run_expect(start_rewinds(run, names[m], "a", more[m]), 0,
                           REWINDS_LONG);
        struct cluster_process *local =
            start_rewinds(run, names[m], "b", more[m]);
        pid_t pid = await_member(local, "ps 1");
        for (int kills = 0; kills < 3; kills++) {
            cluster_run_await_soon(local, "chief: checkpoint ");
            assert_int_equal(kill(pid, SIGKILL), 0);
            cluster_run_await_soon(local, "the run goes back to its "
                                          "checkpoint");
            pid = await_member(local, "ps 1");
            cluster_run_await_soon(local, "the run goes on after step ");
        }
        cluster_run_expect(local, 0, REWINDS_LONG);
        if (!more[m])
            cluster_fixture_expect_same_checkpoints(run, "a", "b");
    }
}

/* Its first bytes come while a checkpoint is on its way, which waits for them
 * only if the rank has been told of it. */
TEST(with_staleness_a_rank_may_begin_to_keep_during_a_checkpoint) {
    for (unsigned i = 0; i < 5; i++) {
        run = cluster_fixture_reset(state);
        cluster_run_expect_soon(
            start(run, "2", "2", "rewinds-late",
                  SETS("checkpoint.dir=a", "checkpoint.every_steps=1",
                       "steps=40", "strategy.staleness=\"inf\"")),
            0);
    }
}

TEST(a_caller_that_does_not_say_so_ends_with_its_ps) {
    struct cluster_process *local =
        start_rewinds(run, "rewinds-not", "a", NULL);
    pid_t pid = await_member(local, "ps 1");
    cluster_run_await_soon(local, "the program of worker 1 does not go back");
    cluster_run_await_soon(local, "chief: checkpoint ");
    assert_int_equal(kill(pid, SIGKILL), 0);
    cluster_run_expect_soon(local, RETRY);
}

TEST(a_call_for_what_was_kept_returns_while_the_run_goes_back) {
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 0, 1, 1);
    setenv("CAPSTAN_SET", "checkpoint.dir=kept", 1);
    struct cluster_process *worker =
        cluster_run_task_program(run, "worker", 0, caller, SETS("asks-behind"));
    unsetenv("CAPSTAN_SET");
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await_soon(worker, "chief: checkpoint ");
    cluster_run_signal(ps, SIGKILL);
    cluster_run_expect_soon(worker, 0);
}
