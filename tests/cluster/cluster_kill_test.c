/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { KILLED = 128 + SIGKILL, RETRY = 138, MAXIMUM = 64 };
static const double PEER = 2; /* seconds of silence; timeouts.peer */
static const double SLACK = CLUSTER_RUN_DEADLINE;

/* Checkpoints follow each other closely, so that many a kill meets one. The
 * last kill comes after a fifth of the steps, so that it meets the run on a
 * busy machine too. */
static const char synchronous[] =
    "{\"model\": {\"layers\": [64, 256, 256, 10]}, \"steps\": 1200,"
    " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001}},"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2, \"chief\": 0},"
    " \"checkpoint\": {\"every_steps\": 25, \"keep\": 40}}";

/* The same with rows on the ps. */
static const char with_tables[] =
    "{" CLUSTER_CLICKS_DEEPFM ", \"epochs\": null, \"steps\": 1200,"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2},"
    " \"checkpoint\": {\"every_steps\": 25, \"keep\": 40}}";

/* Long enough for who comes back, and for a chief that counts the steps at
 * each heartbeat. */
static const char long_synchronous[] =
    "{\"model\": {\"layers\": [64, 512, 512, 10]}, \"steps\": 2400,"
    " \"steps_per_epoch\": 600,"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2},"
    " \"checkpoint\": {\"every_steps\": 100, \"keep\": 40}}";
static const char asynchronous[] =
    "{\"model\": {\"layers\": [64, 512, 512, 10]}, \"steps\": 4000,"
    " \"strategy\": {\"type\": \"ps\", \"staleness\": \"inf\"},"
    " \"steps_per_epoch\": 1000,"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2},"
    " \"checkpoint\": {\"every_steps\": 100, \"keep\": 40}}";

/* Waits for a random moment of the training: up to 20 ms after LEAST_SAVED to
 * MOST_SAVED checkpoints, or where these are 0 after its begin. */
static void await_moment(const struct cluster_fixture *fixture,
                         unsigned least_saved, unsigned most_saved,
                         uint64_t *seed) {
    struct cluster_process *chief = fixture->tasks[0].process;
    unsigned saved = least_saved + (unsigned)cluster_fixture_random(
                                       seed, most_saved - least_saved + 1);
    double after = (double)cluster_fixture_random(seed, 20000) * 1e-6;
    print_message("# %.1f ms after %u checkpoints\n", 1e3 * after, saved);
    cluster_run_await_soon(chief, "steps ");
    for (unsigned i = 0; i < saved; i++)
        cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_fixture_sleep(after);
}

/* Kills TYPE INDEX at such a moment. */
static unsigned kill_somewhere(struct cluster_fixture *fixture,
                               const char *type, unsigned index,
                               unsigned most_saved, uint64_t *seed) {
    unsigned victim = cluster_fixture_find(fixture, type, index);
    print_message("# %s %u is killed\n", type, index);
    await_moment(fixture, 0, most_saved, seed);
    cluster_run_signal(fixture->tasks[victim].process, SIGKILL);
    cluster_run_expect(fixture->tasks[victim].process, KILLED, SLACK);
    return victim;
}

static void begin_with(void **state, struct cluster_fixture *fixture,
                       const char *job, unsigned workers) {
    struct cluster_run *run = cluster_fixture_reset(state);
    cluster_run_job(run, job);
    cluster_clicks_write(run);
    cluster_fixture_next_transport();
    cluster_fixture_describe(fixture, run, 1, 2, workers);
    cluster_fixture_start_all(fixture);
}

static void begin(void **state, struct cluster_fixture *fixture,
                  const char *job) {
    begin_with(state, fixture, job, 2);
}

static unsigned newest(struct cluster_run *run, const char *dir,
                       uint64_t *step) {
    uint64_t steps[MAXIMUM];
    unsigned count = cluster_fixture_checkpoints(run, dir, steps, MAXIMUM);
    *step = count ? steps[count - 1] : 0;
    return count;
}

static double real_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

/* Samples that the trainers have reported, from the rates that the chief gives
 * at its end. */
static double samples_trained(const json_t *end) {
    return real_of(end, "examples_per_second") /
           real_of(end, "steps_per_second") * real_of(end, "steps");
}

/* Half the samples of a step are worker INDEX's, SHARE of them. In a
 * synchronous run what is said to be untrained and what the trainers have
 * reported are all that there are, but for what the dead one had not reported
 * in its last half second. The steps after its return. */
static double expect_untrained(struct cluster_process *chief, unsigned index,
                               double share) {
    const json_t *end = cluster_run_json(chief), *list, *one;
    assert_non_null(list = json_object_get(end, "untrained"));
    assert_int_equal(json_array_size(list), 1);
    one = json_array_get(list, 0);
    assert_string_equal(json_string_value(json_object_get(one, "role")),
                        "worker");
    assert_true(real_of(one, "index") == index);
    double steps = real_of(one, "steps"), samples = real_of(one, "samples");
    assert_true(samples == share * steps);
    assert_true(samples == real_of(end, "untrained_samples"));
    double missing = 20 * real_of(end, "steps") - samples_trained(end) -
                     samples; /* not reported */
    print_message("# %.0f steps without it, %.0f samples not reported\n", steps,
                  missing);
    if (!json_is_null(json_object_get(end, "rounds"))) {
        assert_true(missing > -25); /* of the round in which it was killed */
        assert_true(missing < real_of(end, "examples_per_second"));
    }
    double back = real_of(end, "steps") - real_of(one, "since_step") - steps;
    return back;
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(an_asynchronous_run_continues_without_a_killed_worker) {
    uint64_t seed = cluster_fixture_seed(), step;
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, asynchronous);
        unsigned index = (unsigned)cluster_fixture_random(&seed, 2);
        unsigned dead = kill_somewhere(&fixture, "worker", index, 2, &seed);
        cluster_fixture_expect_soon(&fixture, dead, 0);
        assert_true(newest(fixture.run, "checkpoint", &step) > 0);
        assert_true(step >= 4000);
        assert_true(expect_untrained(fixture.tasks[0].process, index, 5) == 0);
    }
}

static void expect_done_without_a_worker(void **state, const char *job) {
    uint64_t seed = cluster_fixture_seed(), step;
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, job);
        unsigned index = (unsigned)cluster_fixture_random(&seed, 2);
        unsigned dead = kill_somewhere(&fixture, "worker", index, 10, &seed);
        cluster_run_await(fixture.tasks[0].process, "is gone", PEER + SLACK);
        cluster_fixture_expect_soon(&fixture, dead, 0);
        assert_true(newest(fixture.run, "checkpoint", &step) > 0);
        assert_int_equal(step, 1200);
        if (job == synchronous)
            assert_true(expect_untrained(fixture.tasks[0].process, index, 10) ==
                        0);
    }
}

TEST(a_synchronous_round_closes_without_a_worker_killed_in_it) {
    expect_done_without_a_worker(state, synchronous);
}

TEST(a_round_with_rows_closes_without_a_worker_killed_in_it) {
    expect_done_without_a_worker(state, with_tables);
}

/* The kill falls into the first quarter of the run. */
TEST(a_restarted_worker_joins_later_rounds) {
    uint64_t seed = cluster_fixture_seed();
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, long_synchronous);
        unsigned index = (unsigned)cluster_fixture_random(&seed, 2);
        unsigned back = kill_somewhere(&fixture, "worker", index, 4, &seed);
        cluster_fixture_start(&fixture, back);
        cluster_run_await(fixture.tasks[back].process, "joined", PEER + SLACK);
        cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
        double steps = expect_untrained(fixture.tasks[0].process, index, 10);
        if (!(steps > 600))
            fail_msg("it came back, but took part in %.0f steps", steps);
    }
}

static void move_data(const struct cluster_run *run, const char *from,
                      const char *to) {
    static const char *const kinds[] = {"images", "labels"};
    const char *old;
    const char *new;
    char name[64];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s-%s", from, kinds[i]);
        old = cluster_run_path(run, name);
        snprintf(name, sizeof name, "%s-%s", to, kinds[i]);
        new = cluster_run_path(run, name);
        assert_int_equal(rename(old, new), 0);
    }
}

/* Its data are others than the run's, then there are none: either way its
 * mistake is its own. */
TEST(a_joiner_that_does_not_fit_ends_alone) {
    struct cluster_fixture fixture;
    begin(state, &fixture, long_synchronous);
    unsigned joiner = cluster_fixture_find(&fixture, "worker", 1);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[joiner].process, SIGTERM);
    cluster_run_exit(fixture.tasks[joiner].process, SLACK);
    move_data(fixture.run, "train", "kept");
    move_data(fixture.run, "test", "train");
    move_data(fixture.run, "kept", "test");
    cluster_run_expect_soon(cluster_fixture_start(&fixture, joiner), 2);
    cluster_fixture_expect_logged(
        fixture.tasks[joiner].process,
        "reads 200 training and 600 test samples, rank 0 "
        "reads 600 and 200");
    move_data(fixture.run, "train", "gone");
    cluster_run_expect_soon(cluster_fixture_start(&fixture, joiner), 2);
    cluster_run_await(chief, "the run goes on without it", SLACK);
    cluster_run_await(chief, "the run goes on without it", SLACK);
    cluster_fixture_expect_soon(&fixture, joiner, 0);
}

/* A run ends where one does that nobody disturbed. */
static void expect_undisturbed(const struct cluster_fixture *fixture) {
    const char *elsewhere[] = {"checkpoint.dir=undisturbed", NULL};
    unsigned workers = 0;
    for (unsigned i = 0; i < fixture->count; i++)
        workers += !strcmp(fixture->tasks[i].type, "worker");
    cluster_run_expect_soon(
        cluster_fixture_local(fixture->run, 1, workers, elsewhere), 0);
    cluster_fixture_expect_same_checkpoints(fixture->run, "checkpoint",
                                            "undisturbed");
}

/* The same commands go on from the newest checkpoint, if there is one, and end
 * where a run ends that nobody disturbed. */
static void resume(struct cluster_fixture *fixture) {
    uint64_t step;
    char from[64];
    unsigned count = newest(fixture->run, "checkpoint", &step);
    snprintf(from, sizeof from, "checkpoint/step-%09llu, epoch",
             (unsigned long long)step);
    cluster_fixture_start_all(fixture);
    if (count)
        cluster_run_await_soon(fixture->tasks[0].process, from);
    cluster_fixture_expect_soon(fixture, CLUSTER_FIXTURE_TASKS, 0);
    if (!count)
        assert_false(cluster_fixture_has_logged(fixture->tasks[0].process,
                                                "resuming from"));
    expect_undisturbed(fixture);
}

static void expect_same_rows(struct cluster_run *run) {
    static const char *const tables[] = {"user", "item", "user/factors",
                                         "item/factors"};
    for (int i = 0; i < 4; i++)
        cluster_clicks_expect_same_rows(run, "checkpoint", "undisturbed",
                                        tables[i]);
}

/* Is NAME in a line of PROCESS that begins with "error: "? */
static bool blames(const struct cluster_process *process, const char *name) {
    const char *line = cluster_run_errors(process);
    while ((line = strstr(line, "error: "))) {
        const char *found = strstr(line, name), *end = strchr(line, '\n');
        if (found && end && found < end)
            return true;
        line++;
    }
    return false;
}

/* Who is left ends within the deadline, with an error that has NAME in it. */
static void expect_named(const struct cluster_fixture *fixture, unsigned dead,
                         const char *name) {
    cluster_fixture_expect(fixture, dead, RETRY, PEER + SLACK);
    for (unsigned i = 0; i < fixture->count; i++)
        if (i != dead && !blames(fixture->tasks[i].process, name))
            fail_msg("%s %u does not name %s; it said:\n%s",
                     fixture->tasks[i].type, fixture->tasks[i].index, name,
                     cluster_run_errors(fixture->tasks[i].process));
}

static void expect_resumed_after_a_ps(void **state, const char *job) {
    uint64_t seed = cluster_fixture_seed();
    setenv("CAPSTAN_RESTARTS", "0", 1);
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, job);
        unsigned index = (unsigned)cluster_fixture_random(&seed, 2);
        unsigned dead = kill_somewhere(&fixture, "ps", index, 10, &seed);
        expect_named(&fixture, dead, textf("ps %u on host", index));
        resume(&fixture);
        if (job == with_tables)
            expect_same_rows(fixture.run);
    }
    unsetenv("CAPSTAN_RESTARTS");
}

/* The ps is started again while the others go on. */
static void expect_rewound_after_a_ps(void **state, const char *job) {
    uint64_t seed = cluster_fixture_seed();
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, job);
        unsigned index = (unsigned)cluster_fixture_random(&seed, 2);
        unsigned dead = kill_somewhere(&fixture, "ps", index, 10, &seed);
        cluster_fixture_start(&fixture, dead);
        cluster_run_await(fixture.tasks[0].process,
                          "the run goes on after step ", PEER + SLACK);
        cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, 4 * SLACK);
        expect_undisturbed(&fixture);
        if (job == with_tables)
            expect_same_rows(fixture.run);
    }
}

TEST(a_killed_ps_ends_the_run_which_resumes_to_the_same_bits) {
    expect_resumed_after_a_ps(state, synchronous);
}

TEST(a_killed_ps_ends_the_run_which_resumes_to_the_same_rows) {
    expect_resumed_after_a_ps(state, with_tables);
}

TEST(a_run_goes_on_after_a_killed_ps_to_the_same_bits) {
    expect_rewound_after_a_ps(state, synchronous);
}

TEST(a_run_goes_on_after_a_killed_ps_to_the_same_rows) {
    expect_rewound_after_a_ps(state, with_tables);
}

TEST(a_terminated_run_resumes_to_the_same_rows) {
    uint64_t seed = cluster_fixture_seed(), step;
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, with_tables);
        /* Before the first step there is nothing to save. */
        await_moment(&fixture, 1, 10, &seed);
        cluster_run_signal(fixture.tasks[0].process, SIGTERM);
        cluster_run_expect(fixture.tasks[0].process, 128 + SIGTERM, SLACK);
        cluster_fixture_expect(&fixture, 0, RETRY, SLACK);
        assert_true(newest(fixture.run, "checkpoint", &step) > 0);
        resume(&fixture);
        expect_same_rows(fixture.run);
    }
}

/* The step that it had done is saved, of which no checkpoint is planned; a
 * synchronous one that is killed may leave a part of a step. */
TEST(a_last_worker_that_goes_leaves_its_last_step) {
    static const char none_planned[] =
        "{\"model\": {\"layers\": [64, 256, 256, 10]}, \"steps\": 2400,"
        " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 2}}";
    static const char asynchronous_too[] =
        "{\"steps\": 1000000, \"chief\": \"coordinate\","
        " \"strategy\": {\"type\": \"ps\", \"staleness\": \"inf\"},"
        " \"timeouts\": {\"peer\": 2}}";
    for (int i = 0; i < 3; i++) {
        struct cluster_fixture fixture;
        uint64_t step;
        begin_with(state, &fixture, i == 2 ? asynchronous_too : none_planned,
                   1);
        struct cluster_process *chief = fixture.tasks[0].process;
        unsigned worker = cluster_fixture_find(&fixture, "worker", 0);
        cluster_run_await_soon(chief, "%)");
        cluster_run_signal(fixture.tasks[worker].process,
                           i ? SIGKILL : SIGTERM);
        cluster_run_expect_soon(fixture.tasks[worker].process,
                                128 + (i ? SIGKILL : SIGTERM));
        cluster_fixture_expect(&fixture, worker, RETRY, PEER + SLACK);
        unsigned count = newest(fixture.run, "checkpoint", &step);
        assert_int_equal(count, i != 1);
        if (count)
            assert_true(real_of(cluster_run_json(chief), "steps") ==
                        (double)step);
        if (!i)
            resume(&fixture);
    }
}

TEST(a_killed_chief_ends_the_run_which_resumes_to_the_same_bits) {
    uint64_t seed = cluster_fixture_seed();
    for (unsigned i = cluster_fixture_repeats(1); i > 0; i--) {
        struct cluster_fixture fixture;
        begin(state, &fixture, synchronous);
        unsigned dead = kill_somewhere(&fixture, "chief", 0, 10, &seed);
        expect_named(&fixture, dead, "the chief at 127.0.0.1:");
        resume(&fixture);
    }
}
