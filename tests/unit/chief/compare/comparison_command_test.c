/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/comparison_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

/* All words of one with spaces between. */
static void spell(const struct options *flags, struct comparison_asked asked,
                  char text[4096]) {
    struct comparison_command command;
    size_t used = 0;
    comparison_command_make(&command, flags, &asked);
    assert_null(command.words[command.count]);
    for (unsigned i = 0; i < command.count; i++)
        used +=
            (size_t)snprintf(text + used, 4096 - used, "%s ", command.words[i]);
    comparison_command_forget(&command);
}

static void expect(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void each_mode_has_its_strategy_and_the_same_batch(void **state) {
    (void)state;
    char text[4096];
    struct options flags = {.job = "-job.json"};
    struct comparison_asked asked = {
        .of = {.mode = PREDICT_PS, .workers = 3, .ps = 2},
        .batch = {16, 2},
        .steps = 20};
    spell(&flags, asked, text);
    expect(text, "capstan local --json --ps=2 --workers=3 ");
    expect(text, "strategy.type=ps --set strategy.staleness=0 ");
    expect(text, "--set train_batch_size=null --set "
                 "train_micro_batch_size_per_gpu=16 --set "
                 "gradient_accumulation_steps=2 ");
    expect(text, "--set steps=20 --set data.test=null -- -job.json ");
    asked.of.mode = PREDICT_PS_FREE;
    spell(&flags, asked, text);
    expect(text, "strategy.staleness=inf ");
    expect(text, "train_micro_batch_size_per_gpu=16 ");
    asked.of = (struct verdict_case){.mode = PREDICT_RING, .workers = 3};
    spell(&flags, asked, text);
    expect(text, "--ps=0 --workers=3 ");
    expect(text, "strategy.type=allreduce --set strategy.staleness=null ");
    expect(text, "train_micro_batch_size_per_gpu=16 ");
    asked.batch = (struct comparison_batch){0};
    spell(&flags, asked, text);
    assert_null(strstr(text, "batch")); /* as the job has it */
}

static void flags_go_on_and_ours_come_after_them(void **state) {
    (void)state;
    char text[4096];
    struct options flags = {.job = "job.json",
                            .lane = "tcp",
                            .deepspeed = "ds.json",
                            .sets = {"checkpoint.dir=a"},
                            .num_sets = 1};
    struct comparison_asked asked = {
        .of = {.mode = PREDICT_PS, .workers = 1, .ps = 1, .link_gbits = 2.5},
        .tests = true};
    spell(&flags, asked, text);
    expect(text, "--lane=tcp --link-gbits=2.5 --deepspeed_config=ds.json --set "
                 "checkpoint.dir=a --set checkpoint=null --set "
                 "tensorboard=null --set export=null --set compare=null --set "
                 "chief=coordinate ");
    assert_null(strstr(text, "data.test"));
    assert_null(strstr(text, " steps="));
}

static void settings_alone_leave_the_chief_as_the_job_has_it(void **state) {
    (void)state;
    struct options flags = {
        .job = "job.json", .sets = {"seed=7"}, .num_sets = 1};
    struct comparison_asked asked = {
        .of = {.mode = PREDICT_PS_FREE, .workers = 3, .ps = 2},
        .batch = {16, 2},
        .steps = 20};
    static const char *const words[] = {"seed=7",
                                        "checkpoint=null",
                                        "tensorboard=null",
                                        "export=null",
                                        "compare=null",
                                        "strategy.type=ps",
                                        "strategy.staleness=inf",
                                        "train_batch_size=null",
                                        "train_micro_batch_size_per_gpu=16",
                                        "gradient_accumulation_steps=2",
                                        "steps=20",
                                        "data.test=null"};
    struct comparison_command command;
    comparison_command_settings(&command, &flags, &asked);
    assert_int_equal(command.count, sizeof words / sizeof *words);
    for (unsigned i = 0; i < command.count; i++)
        assert_string_equal(command.words[i], words[i]);
    comparison_command_forget(&command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_mode_has_its_strategy_and_the_same_batch),
        cmocka_unit_test(flags_go_on_and_ours_come_after_them),
        cmocka_unit_test(settings_alone_leave_the_chief_as_the_job_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
