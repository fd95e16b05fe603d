/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/comparison_command.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void add(struct comparison_command *command, const char *format, ...)
    PRINTF_LIKE(2, 3);
static void add(struct comparison_command *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (command->count < COMPARISON_COMMAND_MOST &&
        vasprintf(&command->words[command->count], format, arguments) >= 0)
        command->count++;
    va_end(arguments);
}

static void set(struct comparison_command *command, const char *format, ...)
    PRINTF_LIKE(2, 3);
static void set(struct comparison_command *command, const char *format, ...) {
    char setting[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(setting, sizeof setting, format, arguments);
    va_end(arguments);
    if (!command->bare)
        add(command, "--set");
    add(command, "%s", setting);
}

/* The whole batch follows from the replicas that a run has. */
static void set_batch(struct comparison_command *command,
                      const struct comparison_batch *batch) {
    if (!batch->micro)
        return;
    set(command, "train_batch_size=null");
    set(command, "train_micro_batch_size_per_gpu=%" PRIu32, batch->micro);
    set(command, "gradient_accumulation_steps=%" PRIu32, batch->accumulation);
}

static void set_strategy(struct comparison_command *command,
                         const struct verdict_case *of) {
    static const char *const staleness[PREDICT_MODES] = {
        [PREDICT_PS] = "0", [PREDICT_PS_FREE] = "inf", [PREDICT_RING] = "null"};
    set(command, "strategy.type=%s",
        of->mode == PREDICT_RING ? "allreduce" : "ps");
    set(command, "strategy.staleness=%s", staleness[of->mode]);
}

static void set_all(struct comparison_command *command,
                    const struct options *flags,
                    const struct comparison_asked *asked) {
    static const char *const off[] = {"checkpoint", "tensorboard", "export",
                                      "compare"};
    for (unsigned i = 0; i < flags->num_sets; i++) {
        if (!command->bare)
            add(command, "--set");
        add(command, "%s", flags->sets[i]);
    }
    for (unsigned i = 0; i < sizeof off / sizeof *off; i++)
        set(command, "%s=null", off[i]);
    if (!command->bare)
        set(command, "chief=coordinate");
    set_strategy(command, &asked->of);
    set_batch(command, &asked->batch);
    if (asked->steps)
        set(command, "steps=%" PRIu64, asked->steps);
    if (!asked->tests)
        set(command, "data.test=null");
}

void comparison_command_settings(struct comparison_command *command,
                                 const struct options *flags,
                                 const struct comparison_asked *asked) {
    command->count = 0;
    command->bare = true;
    set_all(command, flags, asked);
    command->words[command->count] = NULL;
}

void comparison_command_make(struct comparison_command *command,
                             const struct options *flags,
                             const struct comparison_asked *asked) {
    const struct verdict_case *of = &asked->of;
    command->count = 0;
    command->bare = false;
    add(command, "capstan");
    add(command, "local");
    add(command, "--json");
    add(command, "--ps=%u", of->ps);
    add(command, "--workers=%u", of->workers);
    if (flags->lane)
        add(command, "--lane=%s", flags->lane);
    if (of->link_gbits > 0)
        add(command, "--link-gbits=%.17g", of->link_gbits);
    if (flags->deepspeed)
        add(command, "--deepspeed_config=%s", flags->deepspeed);
    set_all(command, flags, asked);
    add(command, "--");
    add(command, "%s", flags->job);
    command->words[command->count] = NULL;
}

void comparison_command_forget(struct comparison_command *command) {
    for (unsigned i = 0; i < command->count; i++)
        free(command->words[i]);
    command->count = 0;
}
