/* SPDX-License-Identifier: Apache-2.0 */
/* Training in bf16 and fp16 by real processes, with ps and without: what it
 * comes to, what is skipped, and that it goes on from its checkpoints. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/event_files.h"
#include "tests/lib/test.h"

#include <math.h>
#include <signal.h>

enum { FAILED = 1, CONFIG = 2 };

#define ADAM "optimizer={\"type\":\"Adam\",\"params\":{\"lr\":0.01}}"
#define FP16 "fp16.enabled=true"
#define BF16 "bf16.enabled=true"

/* The first steps overflow, and the scale goes up and down from then on. */
#define RESTLESS                                                               \
    "fp16={\"enabled\":true,\"initial_scale_power\":26,"                       \
    "\"loss_scale_window\":7,\"hysteresis\":2}"

/* A run of `capstan local` to its end with CODE; changes end with NULL. With no
 * ps it is all-reduce. */
#define RUN(run, num_ps, code, ...)                                            \
    run_local(run, num_ps, code, WORDS(__VA_ARGS__))

static struct cluster_process *run_local(struct cluster_run *run,
                                         unsigned num_ps, int code,
                                         const char *const *changes) {
    struct cluster_process *local =
        cluster_fixture_local(run, num_ps, 2, changes);
    cluster_run_expect_soon(local, code);
    return local;
}

static void expect_logged(const struct cluster_process *process,
                          const char *text) {
    if (!cluster_fixture_has_logged(process, text))
        fail_msg("nothing about \"%s\" in:\n%s", text,
                 cluster_run_errors(process));
}

/* Of the JSON object at the end; NAN: null or none. */
static double number(struct cluster_process *process, const char *key) {
    const json_t *object = cluster_run_json(process);
    const json_t *value = json_object_get(object, key);
    double found = json_is_number(value) ? json_number_value(value) : NAN;
    return found;
}

static bool in_events(const struct cluster_run *run, const char *tag) {
    struct event_point points[1000];
    return event_files_read(cluster_run_path(run, "events"), tag, points, 1000);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(half_precision_reaches_the_loss_of_float32) {
    static const char *const halves[] = {BF16, FP16,
                                         "fp16={\"enabled\":true,"
                                         "\"loss_scale\":1000}"};
    for (unsigned num_ps = 0; num_ps <= 2; num_ps += 2) {
        cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
        double whole = number(RUN(*state, num_ps, 0, "seed=3"), "train_loss");
        assert_true(whole > 0);
        for (int h = 0; h < 3; h++) {
            struct cluster_process *local =
                RUN(*state, num_ps, 0, "seed=3", halves[h]);
            double loss = number(local, "train_loss");
            if (!(fabs(loss - whole) < 0.03 * whole))
                fail_msg("%u ps, %s: loss %g, in float32 %g", num_ps, halves[h],
                         loss, whole);
            assert_true(loss != whole);
            assert_true(h == 0 || number(local, "skipped_steps") == 0);
        }
    }
}

TEST(a_loss_scale_that_is_too_high_falls_until_steps_apply) {
    for (unsigned num_ps = 0; num_ps <= 2; num_ps += 2) {
        cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
        double fits = number(RUN(*state, num_ps, 0, FP16), "train_loss");
        struct cluster_process *local =
            RUN(*state, num_ps, 0, FP16, "fp16.initial_scale_power=36",
                "fp16.hysteresis=1", "epochs=4");
        double skipped = number(local, "skipped_steps");
        assert_true(skipped >= 5 && skipped < 30);
        assert_true(number(local, "loss_scale") == exp2(36 - skipped));
        assert_true(number(local, "train_loss") < fits);
        expect_logged(local,
                      "step 1 is skipped: its gradients overflow at loss "
                      "scale 6.87195e+10");
        expect_logged(local,
                      "loss scale 3.43597e+10 from step 2 on; skipped so "
                      "far: 1");
        expect_logged(local, "steps skipped because of overflowed gradients: ");
    }
}

TEST(the_same_run_ends_in_the_same_bits) {
    cluster_run_job(*state, NULL);
    RUN(*state, 1, 0, ADAM, RESTLESS, "checkpoint.dir=one");
    struct cluster_process *two =
        RUN(*state, 2, 0, ADAM, RESTLESS, "checkpoint.dir=two");
    assert_true(number(two, "skipped_steps") > 6);
    cluster_fixture_expect_same_checkpoints(*state, "one", "two");
    RUN(*state, 0, 0, ADAM, RESTLESS, "checkpoint.dir=first");
    RUN(*state, 0, 0, ADAM, RESTLESS, "checkpoint.dir=again");
    cluster_fixture_expect_same_checkpoints(*state, "first", "again");
    RUN(*state, 0, 0, ADAM, RESTLESS, "checkpoint.dir=stage-2",
        "zero_optimization={\"stage\":2,\"reduce_bucket_size\":300}");
    cluster_fixture_expect_same_checkpoints(*state, "first", "stage-2");
    RUN(*state, 1, 0, BF16, "checkpoint.dir=b");
    RUN(*state, 2, 0, BF16, "checkpoint.dir=c");
    cluster_fixture_expect_same_checkpoints(*state, "b", "c");
    RUN(*state, 1, 0, RESTLESS, "wire=bf16", "checkpoint.dir=d");
    RUN(*state, 2, 0, RESTLESS, "wire=bf16", "checkpoint.dir=e");
    cluster_fixture_expect_same_checkpoints(*state, "d", "e");
}

/* Where it is cut, the scale is neither its first nor at the beginning of a
 * window. */
TEST(a_resumed_run_keeps_its_loss_scale) {
    for (unsigned num_ps = 0; num_ps <= 2; num_ps += 2) {
        cluster_run_job(*state, NULL);
        struct cluster_process *whole =
            RUN(*state, num_ps, 0, ADAM, RESTLESS, "checkpoint.dir=whole",
                "checkpoint.resume=never");
        RUN(*state, num_ps, 0, ADAM, RESTLESS, "epochs=null", "steps=32",
            "checkpoint.resume=never");
        struct cluster_process *rest =
            RUN(*state, num_ps ? 1 : 0, 0, ADAM, RESTLESS);
        expect_logged(rest, "resuming from");
        cluster_fixture_expect_same_checkpoints(*state, "checkpoint", "whole");
        assert_true(number(rest, "skipped_steps") ==
                    number(whole, "skipped_steps"));
        assert_true(number(rest, "loss_scale") == number(whole, "loss_scale"));
    }
}

/* All-reduce, ps, all-reduce: the scale goes along. */
TEST(a_run_switches_mode_and_keeps_its_loss_scale) {
    cluster_run_job(*state, NULL);
    struct cluster_process *one =
        RUN(*state, 0, 0, FP16, "epochs=1", "fp16.initial_scale_power=30");
    struct cluster_process *two = RUN(*state, 2, 0, FP16, "epochs=2");
    struct cluster_process *three = RUN(*state, 0, 0, FP16, "epochs=3");
    double skipped = number(one, "skipped_steps");
    assert_true(skipped > 3);
    assert_true(number(two, "skipped_steps") == skipped);
    assert_true(number(three, "skipped_steps") == skipped);
    assert_true(number(three, "loss_scale") == number(one, "loss_scale"));
}

TEST(tensorboard_shows_the_loss_scale_and_skipped_steps) {
    struct cluster_run *run = *state;
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
                         " \"steps_per_print\": 100,"
                         " \"fp16\": {\"enabled\": true}, \"tensorboard\":"
                         " {\"enabled\": true, \"output_path\": \"events\"}}");
    const char *changes[] = {"checkpoint.every_seconds=3", NULL};
    struct cluster_process *local = cluster_fixture_local(run, 1, 2, changes);
    cluster_run_await_soon(local, "checkpoint /");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
    assert_true(in_events(run, "train/loss_scale"));
    assert_true(in_events(run, "train/skipped_steps"));
}

TEST(with_staleness_overflows_are_skipped_too) {
    static const char *const each[] = {"strategy.staleness=inf",
                                       "strategy.staleness=2"};
    for (int s = 0; s < 2; s++) {
        cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
        struct cluster_process *local =
            RUN(*state, 2, 0, each[s], FP16, "fp16.initial_scale_power=34",
                "fp16.hysteresis=1");
        double skipped = number(local, "skipped_steps");
        assert_true(skipped >= 3 && skipped < 90);
        assert_true(number(local, "train_loss") < 2.4);
        /* Two that overflow at one scale halve it once. */
        assert_true(number(local, "loss_scale") >= 0x1p10);
    }
}

TEST(accumulated_and_clipped_steps_are_skipped_as_a_whole) {
    for (unsigned num_ps = 0; num_ps <= 2; num_ps += 2) {
        cluster_run_job(*state, "{\"checkpoint\": {\"resume\": \"never\"}}");
        struct cluster_process *local =
            RUN(*state, num_ps, 0, FP16, "fp16.initial_scale_power=32",
                "fp16.hysteresis=1", "gradient_clipping=1",
                "gradient_accumulation_steps=3", "train_batch_size=null",
                "epochs=5");
        double skipped = number(local, "skipped_steps");
        assert_true(skipped >= 3 && skipped < 20);
        assert_true(number(local, "train_loss") < 2.4);
    }
}

TEST(an_overflow_at_the_least_scale_ends_the_run) {
    for (unsigned num_ps = 0; num_ps <= 1; num_ps++) {
        cluster_run_job(*state, NULL);
        struct cluster_process *local =
            RUN(*state, num_ps, FAILED, FP16, "fp16.initial_scale_power=60",
                "fp16.min_loss_scale=1e15", "checkpoint.dir=none");
        expect_logged(local, "gradients overflow at the least loss scale");
    }
}

TEST(stage_2_with_offload_and_fp16_loads_unchanged) {
    FILE *file = cluster_run_create(*state, "ds.json");
    fputs("{\"fp16\": {\"enabled\": true, \"loss_scale\": 0,"
          " \"initial_scale_power\": 16}, \"zero_optimization\": {\"stage\": 2,"
          " \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true},"
          " \"allgather_partitions\": true, \"allgather_bucket_size\": 2e8,"
          " \"overlap_comm\": true, \"reduce_scatter\": true,"
          " \"reduce_bucket_size\": 2e8, \"contiguous_gradients\": true},"
          " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
          " \"train_batch_size\": 64}",
          file);
    fclose(file);
    cluster_run_job(*state, "{\"optimizer\": null,"
                            " \"train_micro_batch_size_per_gpu\": null}");
    struct cluster_process *local = cluster_run_start(
        *state, "local",
        WORDS("local", "--ps", "0", "--workers", "2", "--json", "job.json",
              "--deepspeed_config", "ds.json"),
        NULL);
    cluster_run_expect_soon(local, 0);
    expect_logged(local, "ZeRO stage 2");
    assert_true(number(local, "loss_scale") >= 0x1p10);
    assert_true(number(local, "train_loss") < 2.4);
}

/* It begins neither with the run's first scale nor with steps that overflow. */
TEST_WITH(cluster_run_setup_in_memory, cluster_run_teardown,
          a_restarted_worker_has_the_runs_loss_scale) {
    struct cluster_fixture fixture;
    cluster_run_job(
        *state,
        "{\"model\": {\"layers\": [64, 512, 512, 10]}, \"steps\": 2400,"
        " \"steps_per_epoch\": 600, \"timeouts\": {\"peer\": 2},"
        " \"chief\": \"coordinate\", \"checkpoint\": {\"every_steps\": 100},"
        " \"fp16\": {\"enabled\": true, \"initial_scale_power\": 30,"
        " \"loss_scale_window\": 100000}}");
    cluster_fixture_describe(&fixture, *state, 1, 2, 2);
    cluster_fixture_start_all(&fixture);
    unsigned victim = cluster_fixture_find(&fixture, "worker", 0);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[victim].process, SIGKILL);
    cluster_run_expect_soon(fixture.tasks[victim].process, 128 + SIGKILL);
    expect_logged(fixture.tasks[victim].process,
                  "loss scale 1.07374e+09 from step");
    cluster_run_await_soon(chief, "is gone");
    struct cluster_process *again = cluster_fixture_start(&fixture, victim);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0,
                           2 * CLUSTER_RUN_DEADLINE);
    expect_logged(again, "skipped so far: ");
    assert_false(cluster_fixture_has_logged(again, "skipped so far: 0"));
    assert_false(cluster_fixture_has_logged(again, "loss scale 1.07374e+09"));
    assert_false(cluster_fixture_has_logged(again, "its gradients overflow"));
}

TEST(bf16_and_fp16_together_are_refused) {
    cluster_run_job(*state, NULL);
    expect_logged(RUN(*state, 1, CONFIG, FP16, BF16), "beside bf16.enabled");
}
