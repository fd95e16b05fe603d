/* SPDX-License-Identifier: Apache-2.0 */
/* Advice for a job that does not fit. Each change that the keys allow is tried
 * on the same sum and listed if it needs less. Changes are listed one by one;
 * the user may combine several. */
#include "chief/plan/memory_plan_internal.h"
#include "proto/config/byte_size.h"

/* If CHANGED, in place of the given job, needs at least a hundredth less,
 * appends it with its need. */
static bool helps(const struct memory_plan *memory_plan,
                  const struct memory_plan_usage *sum,
                  const struct memory_footprint_case *changed, char bytes[16]) {
    struct memory_plan_usage less =
        memory_plan_sum_usage(memory_plan, changed, sum->limit);
    byte_size_text(less.need, bytes, 16);
    return less.need < sum->need - sum->need / 100;
}

static void try_batch(struct memory_plan_message *text,
                      const struct memory_plan *memory_plan,
                      const struct memory_plan_usage *sum) {
    struct job job = *memory_plan->given->job;
    struct memory_footprint_case changed = *memory_plan->given;
    char bytes[16];
    if (job.micro_batch % 2)
        return;
    job.micro_batch /= 2;
    job.accumulation *= 2;
    changed.job = &job;
    if (helps(memory_plan, sum, &changed, bytes))
        memory_plan_append(
            text,
            " train_micro_batch_size_per_gpu %u with "
            "gradient_accumulation_steps %u, the same batch (%s);",
            job.micro_batch, job.accumulation, bytes);
}

/* The number of checkpointed outputs that needs least memory. */
static uint32_t best_checkpoint_count(const struct memory_plan *memory_plan) {
    const struct memory_footprint_case *given = memory_plan->given;
    struct memory_footprint_model model = {0};
    if (given->model)
        given->model(given->job, given->job->micro_batch, &model);
    return model.least_kept;
}

static void try_recompute(struct memory_plan_message *text,
                          const struct memory_plan *memory_plan,
                          const struct memory_plan_usage *sum) {
    struct job job = *memory_plan->given->job;
    struct memory_footprint_case changed = *memory_plan->given;
    char bytes[16];
    job.model.kept = best_checkpoint_count(memory_plan);
    changed.job = &job;
    if (job.model.kept && helps(memory_plan, sum, &changed, bytes))
        memory_plan_append(
            text, " activation_checkpointing.number_checkpoints %u (%s);",
            job.model.kept, bytes);
}

static void try_zero(struct memory_plan_message *text,
                     const struct memory_plan *memory_plan,
                     const struct memory_plan_usage *sum) {
    struct job job = *memory_plan->given->job;
    struct memory_footprint_case changed = *memory_plan->given;
    char bytes[16];
    job.zero.stage = 2;
    changed.job = &job;
    if (helps(memory_plan, sum, &changed, bytes))
        memory_plan_append(text, " zero_optimization.stage 2 (%s);", bytes);
}

/* In all-reduce: ps on hosts of their own would hold the optimizer state. */
static void try_ps(struct memory_plan_message *text,
                   const struct memory_plan *memory_plan,
                   const struct memory_plan_usage *sum) {
    struct memory_footprint_case changed = *memory_plan->given;
    char bytes[16];
    changed.allreduce = false;
    if (helps(memory_plan, sum, &changed, bytes))
        memory_plan_append(
            text, " strategy.type \"ps\", with ps on hosts of their own (%s);",
            bytes);
}

static void try_hosts(struct memory_plan_message *text,
                      const struct memory_plan *memory_plan,
                      const struct memory_plan_usage *sum) {
    unsigned trainers = 0, ps = 0;
    for (uint32_t m = 0; m < memory_plan->count; m++) {
        const struct memory_plan_member *member = &memory_plan->members[m];
        if (!memory_plan_find_limit(member, sum->limit->key))
            continue;
        trainers += member->trains;
        ps += !member->trains && member->elements;
    }
    if (ps)
        memory_plan_append(text, " more ps, on other hosts;");
    if (trainers > 1)
        memory_plan_append(text, " fewer of the %u trainers on this host;",
                           trainers);
}

/* The smallest need of a trainer with the best settings of all keys, with the
 * other members moved away; 0: no trainer shares the limit. */
static uint64_t min_trainer_need(const struct memory_plan *memory_plan,
                                 const struct memory_plan_usage *sum) {
    struct job job = *memory_plan->given->job;
    struct memory_footprint_case least = *memory_plan->given;
    uint64_t smallest = 0;
    job.micro_batch = 1;
    job.model.kept = best_checkpoint_count(memory_plan);
    least.job = &job;
    least.allreduce = false;
    for (uint32_t m = 0; m < memory_plan->count; m++) {
        const struct memory_plan_member *member = &memory_plan->members[m];
        const struct free_memory_limit *of_member =
            memory_plan_find_limit(member, sum->limit->key);
        if (!member->trains || !of_member)
            continue;
        struct memory_footprint footprint =
            memory_plan_member_footprint(member, of_member, &least);
        uint64_t need = memory_footprint_sum(&footprint);
        smallest = !smallest || need < smallest ? need : smallest;
    }
    return smallest;
}

void memory_plan_advice(struct memory_plan_message *text,
                        const struct memory_plan *memory_plan,
                        const struct memory_plan_usage *sum) {
    struct memory_plan_message before = *text;
    struct memory_plan_usage alone = {
        .need = min_trainer_need(memory_plan, sum), .free = sum->free};
    char bytes[16];
    byte_size_text(alone.need, bytes, sizeof bytes);
    if (memory_plan_is_exceeded(&alone)) {
        memory_plan_append(
            text,
            ". A trainer alone takes at least %s, whatever the keys say: it "
            "takes a host with more memory, or a smaller model.",
            bytes);
        return;
    }
    memory_plan_append(text, ". What needs less:");
    size_t head = text->length;
    try_batch(text, memory_plan, sum);
    try_recompute(text, memory_plan, sum);
    try_zero(text, memory_plan, sum);
    try_ps(text, memory_plan, sum);
    try_hosts(text, memory_plan, sum);
    if (text->length > head) {
        text->length--;
        memory_plan_append(text, "."); /* replaces the last semicolon */
        return;
    }
    *text = before;
    memory_plan_append(
        text, ". It takes a host with more memory, or a smaller model.");
}
