/* SPDX-License-Identifier: Apache-2.0 */
/* What would make a job fit: each change that the keys allow is tried on the
 * same sum, and told with what is taken then if that is less. They are told one
 * by one; that several together are needed is for the reader to see. */
#include "chief/plan/fitting_parts.h"
#include "proto/config/byte_size.h"
#include "proto/tensor/recompute.h"

/* CHANGED instead of what is given: named, with what is taken then, if that is
 * less by a hundredth. */
static bool helps(const struct fitting *fitting, const struct fitting_sum *sum,
                  const struct footprint_case *changed, char bytes[16]) {
    struct fitting_sum less = fitting_add_up(fitting, changed, sum->limit);
    byte_size_text(less.need, bytes, 16);
    return less.need < sum->need - sum->need / 100;
}

static void try_batch(struct fitting_words *text, const struct fitting *fitting,
                      const struct fitting_sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    if (job.micro_batch % 2)
        return;
    job.micro_batch /= 2;
    job.accumulation *= 2;
    changed.job = &job;
    if (helps(fitting, sum, &changed, bytes))
        fitting_append(text,
                       " train_micro_batch_size_per_gpu %u with "
                       "gradient_accumulation_steps %u, the same batch (%s);",
                       job.micro_batch, job.accumulation, bytes);
}

/* The number of kept outputs that takes the least; of equal ones the largest,
 * which computes least anew. */
static uint32_t best_kept(const struct job_model *given) {
    struct job_model model = *given;
    uint64_t least = UINT64_MAX;
    uint32_t best = 0;
    for (model.kept = 1; model.kept + 2 < model.num_layers; model.kept++) {
        struct recompute plan;
        recompute_plan(&plan, &model);
        if (recompute_floats(&plan) > least)
            continue;
        least = recompute_floats(&plan);
        best = model.kept;
    }
    return best;
}

static void try_recompute(struct fitting_words *text,
                          const struct fitting *fitting,
                          const struct fitting_sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    job.model.kept = best_kept(&job.model);
    changed.job = &job;
    if (job.model.kept && helps(fitting, sum, &changed, bytes))
        fitting_append(text,
                       " activation_checkpointing.number_checkpoints %u (%s);",
                       job.model.kept, bytes);
}

static void try_zero(struct fitting_words *text, const struct fitting *fitting,
                     const struct fitting_sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    job.zero.stage = 2;
    changed.job = &job;
    if (helps(fitting, sum, &changed, bytes))
        fitting_append(text, " zero_optimization.stage 2 (%s);", bytes);
}

/* In all-reduce, ps on hosts of their own would hold the state. */
static void try_ps(struct fitting_words *text, const struct fitting *fitting,
                   const struct fitting_sum *sum) {
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    changed.allreduce = false;
    if (helps(fitting, sum, &changed, bytes))
        fitting_append(
            text, " strategy.type \"ps\", with ps on hosts of their own (%s);",
            bytes);
}

static void try_hosts(struct fitting_words *text, const struct fitting *fitting,
                      const struct fitting_sum *sum) {
    unsigned trainers = 0, ps = 0;
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        if (!fitting_find(member, sum->limit->key))
            continue;
        trainers += member->trains;
        ps += !member->trains && member->elements;
    }
    if (ps)
        fitting_append(text, " more ps, on other hosts;");
    if (trainers > 1)
        fitting_append(text, " fewer of the %u trainers on this host;",
                       trainers);
}

/* What the smallest of the trainers would still take after all that keys and
 * other hosts can do. 0: none shares the limit. */
static uint64_t least_of_trainer(const struct fitting *fitting,
                                 const struct fitting_sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case least = *fitting->given;
    uint64_t smallest = 0;
    job.micro_batch = 1;
    job.model.kept = best_kept(&job.model);
    least.job = &job;
    least.allreduce = false;
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        const struct free_memory_limit *theirs =
            fitting_find(member, sum->limit->key);
        if (!member->trains || !theirs)
            continue;
        struct footprint footprint = fitting_take(member, theirs, &least);
        uint64_t need = footprint_sum(&footprint);
        smallest = !smallest || need < smallest ? need : smallest;
    }
    return smallest;
}

void fitting_remedies(struct fitting_words *text, const struct fitting *fitting,
                      const struct fitting_sum *sum) {
    struct fitting_words before = *text;
    struct fitting_sum alone = {.need = least_of_trainer(fitting, sum),
                                .free = sum->free};
    char bytes[16];
    byte_size_text(alone.need, bytes, sizeof bytes);
    if (fitting_is_too_much(&alone)) {
        fitting_append(
            text,
            ". A trainer alone takes at least %s, whatever the keys say: it "
            "takes a host with more memory, or a smaller model.",
            bytes);
        return;
    }
    fitting_append(text, ". What needs less:");
    size_t head = text->length;
    try_batch(text, fitting, sum);
    try_recompute(text, fitting, sum);
    try_zero(text, fitting, sum);
    try_ps(text, fitting, sum);
    try_hosts(text, fitting, sum);
    if (text->length > head) {
        text->length--;
        fitting_append(text, "."); /* for the last semicolon */
        return;
    }
    *text = before;
    fitting_append(text,
                   ". It takes a host with more memory, or a smaller model.");
}
