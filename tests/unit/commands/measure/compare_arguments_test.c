/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_arguments.h"

#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

/* All words of one with spaces between. */
static void spell(const struct options *flags,
                  struct compare_arguments_request request, char text[4096]) {
    struct compare_arguments command;
    size_t used = 0;
    compare_arguments_build(&command, flags, &request);
    assert_null(command.argv[command.count]);
    for (unsigned i = 0; i < command.count; i++)
        used +=
            (size_t)snprintf(text + used, 4096 - used, "%s ", command.argv[i]);
    compare_arguments_free(&command);
}

static void expect(const char *text, const char *part) {
    assert_contains(text, part);
}

TEST(each_mode_has_its_strategy_and_the_same_batch) {
    char text[4096];
    struct options flags = {.job = "-job.json"};
    struct compare_arguments_request request = {
        .spec = {.mode = COST_MODEL_PS, .workers = 3, .ps = 2},
        .batch = {16, 2},
        .steps = 20};
    spell(&flags, request, text);
    expect(text, "capstan local --json --ps=2 --workers=3 ");
    expect(text, "strategy.type=ps --set strategy.staleness=0 ");
    expect(text, "--set train_batch_size=null --set "
                 "train_micro_batch_size_per_gpu=16 --set "
                 "gradient_accumulation_steps=2 ");
    expect(text, "--set steps=20 --set data.test=null ./-job.json ");
    request.spec.mode = COST_MODEL_PS_ASYNC;
    spell(&flags, request, text);
    expect(text, "strategy.staleness=inf ");
    expect(text, "train_micro_batch_size_per_gpu=16 ");
    request.spec =
        (struct aggregate_runs_case){.mode = COST_MODEL_RING, .workers = 3};
    spell(&flags, request, text);
    expect(text, "--ps=0 --workers=3 ");
    expect(text, "strategy.type=allreduce --set strategy.staleness=null ");
    expect(text, "train_micro_batch_size_per_gpu=16 ");
    request.batch = (struct compare_batch){0};
    spell(&flags, request, text);
    assert_null(strstr(text, "batch")); /* as the job has it */
}

TEST(a_command_follows_what_its_cluster_gets) {
    enum { WORDS = 2000 };
    static char *words[WORDS + 1] = {"python", "train.py", "--set"};
    char text[4096];
    struct options flags = {.command = words, .lane = "tcp"};
    struct compare_arguments_request request = {.spec = {.mode = COST_MODEL_PS,
                                                         .workers = 3,
                                                         .ps = 2,
                                                         .link_gbits = 2.5},
                                                .steps = 20};
    spell(&flags, request, text);
    assert_string_equal(
        text, "capstan local --json --ps=2 --workers=3 --lane=tcp --set "
              "checkpoint=null --set tensorboard=null --set metrics=null "
              "--set export=null --set "
              "compare=null --set mlflow.tracking_uri= --set strategy.type=ps "
              "--set strategy.staleness=0 "
              "--set steps=20 -- python train.py --set ");
    flags.job = "job.json";
    request.steps = 0;
    spell(&flags, request, text);
    expect(text, "strategy.staleness=0 job.json -- python train.py --set ");
    for (int i = 3; i < WORDS; i++)
        words[i] = "x";
    struct compare_arguments command;
    compare_arguments_build(&command, &flags, &request);
    assert_string_equal(command.argv[command.count - WORDS], "python");
    compare_arguments_free(&command);
}

TEST(given_flags_are_forwarded_before_ours) {
    char text[4096];
    struct options flags = {.job = "job.json",
                            .lane = "tcp",
                            .deepspeed = "ds.json",
                            .sets = {"checkpoint.dir=a"},
                            .num_sets = 1};
    struct compare_arguments_request request = {.spec = {.mode = COST_MODEL_PS,
                                                         .workers = 1,
                                                         .ps = 1,
                                                         .link_gbits = 2.5},
                                                .tests = true};
    spell(&flags, request, text);
    expect(text, "--set checkpoint.dir=a --deepspeed_config=ds.json --lane=tcp "
                 "--link-gbits=2.5 --set checkpoint=null --set "
                 "tensorboard=null --set metrics=null --set export=null --set "
                 "compare=null --set mlflow.tracking_uri= --set "
                 "chief=coordinate ");
    assert_null(strstr(text, "data.test"));
    assert_null(strstr(text, " steps="));
}

TEST(settings_alone_do_not_change_the_chief) {
    struct options flags = {
        .job = "job.json", .sets = {"seed=7"}, .num_sets = 1};
    struct compare_arguments_request request = {
        .spec = {.mode = COST_MODEL_PS_ASYNC, .workers = 3, .ps = 2},
        .batch = {16, 2},
        .steps = 20};
    static const char *const argv[] = {"seed=7",
                                       "checkpoint=null",
                                       "tensorboard=null",
                                       "metrics=null",
                                       "export=null",
                                       "compare=null",
                                       "mlflow.tracking_uri=",
                                       "strategy.type=ps",
                                       "strategy.staleness=inf",
                                       "train_batch_size=null",
                                       "train_micro_batch_size_per_gpu=16",
                                       "gradient_accumulation_steps=2",
                                       "steps=20",
                                       "data.test=null"};
    struct compare_arguments command;
    compare_arguments_overrides(&command, &flags, &request);
    assert_int_equal(command.count, sizeof argv / sizeof *argv);
    for (unsigned i = 0; i < command.count; i++)
        assert_string_equal(command.argv[i], argv[i]);
    compare_arguments_free(&command);
}
