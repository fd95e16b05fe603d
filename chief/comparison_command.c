#include "chief/comparison_command.h"

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

/* The same samples for every worker's step in each case. */
static void add_batch(struct comparison_command *command,
                      const struct verdict_case *of, const struct job *job) {
    uint64_t whole = (uint64_t)job->micro_batch * job->accumulation;
    if (of->mode != PREDICT_PS_FREE)
        whole *= of->workers;
    add(command, "--set");
    add(command, "train_batch_size=%" PRIu64, whole);
    add(command, "--set");
    add(command, "train_micro_batch_size_per_gpu=%" PRIu32, job->micro_batch);
    add(command, "--set");
    add(command, "gradient_accumulation_steps=%" PRIu32, job->accumulation);
}

static void add_strategy(struct comparison_command *command,
                         const struct verdict_case *of) {
    static const char *const staleness[PREDICT_MODES] = {
        [PREDICT_PS] = "0", [PREDICT_PS_FREE] = "inf", [PREDICT_RING] = "null"};
    add(command, "--set");
    add(command, "strategy.type=%s",
        of->mode == PREDICT_RING ? "allreduce" : "ps");
    add(command, "--set");
    add(command, "strategy.staleness=%s", staleness[of->mode]);
}

void comparison_command_make(struct comparison_command *command,
                             const struct options *flags, const struct job *job,
                             const struct comparison_asked *asked) {
    const struct verdict_case *of = &asked->of;
    command->count = 0;
    static const char *const off[] = {"checkpoint=null", "tensorboard=null",
                                      "export=null", "chief=coordinate"};
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
    for (unsigned i = 0; i < flags->num_sets; i++) {
        add(command, "--set");
        add(command, "%s", flags->sets[i]);
    }
    for (unsigned i = 0; i < sizeof off / sizeof *off; i++) {
        add(command, "--set");
        add(command, "%s", off[i]);
    }
    add_strategy(command, of);
    add_batch(command, of, job);
    if (asked->steps) {
        add(command, "--set");
        add(command, "steps=%" PRIu64, asked->steps);
    }
    if (!asked->tests) {
        add(command, "--set");
        add(command, "data.test=null");
    }
    add(command, "--");
    add(command, "%s", flags->job);
    command->words[command->count] = NULL;
}

void comparison_command_forget(struct comparison_command *command) {
    for (unsigned i = 0; i < command->count; i++)
        free(command->words[i]);
    command->count = 0;
}
