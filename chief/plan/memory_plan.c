/* SPDX-License-Identifier: Apache-2.0 */
/* Advice for a job that does not fit: each change that the keys allow is tried
 * on the same sum and listed if it needs less. Changes are listed one by one;
 * the user may combine several. */
#include "chief/plan/memory_plan.h"

#include "core/base/byte_size.h"
#include "core/tensor/rule.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct memory_plan {
    const struct memory_plan_member *members;
    uint32_t count;
    const struct memory_footprint_case *given;
};

/* What all members that share a limit need, and what is free for them. */
struct memory_plan_usage {
    const struct free_memory_limit *limit;
    uint64_t need, free, most;
};

struct memory_plan_message {
    char *bytes;
    size_t size, length;
};

enum { MAX_LISTED = 3 /* members with different needs */ };

void memory_plan_update_limits(struct memory_plan_limits *reported,
                               const struct free_memory_limit *limits,
                               unsigned count) {
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < reported->count; k++)
            if (!strcmp(reported->limits[k].key, limits[i].key) &&
                reported->limits[k].free < limits[i].free)
                reported->limits[k].free = limits[i].free;
}

void memory_plan_clear_devices(struct memory_plan_limits *reported) {
    reported->count -= reported->devices;
    reported->devices = 0;
}

void memory_plan_add_device(struct memory_plan_limits *reported,
                            const char *key, const char *name, uint64_t free) {
    if (reported->devices == JOB_MAX_DEVICES)
        return;
    struct free_memory_limit *limit = &reported->limits[reported->count++];
    reported->devices++;
    *limit = (struct free_memory_limit){.free = free};
    snprintf(limit->key, sizeof limit->key, "%s", key);
    snprintf(limit->name, sizeof limit->name, "%s", name);
}

/* The limit KEY in MEMBER's report, or NULL. */
static const struct free_memory_limit *memory_plan_find_limit(
    const struct memory_plan_member *member, const char *key) {
    for (unsigned i = 0; i < member->reported->count; i++)
        if (!strcmp(member->reported->limits[i].key, key))
            return &member->reported->limits[i];
    return NULL;
}

/* What MEMBER needs of the memory behind LIMIT, one of its reported limits. */
static struct memory_footprint memory_plan_member_footprint(
    const struct memory_plan_member *member,
    const struct free_memory_limit *limit,
    const struct memory_footprint_case *given) {
    const struct memory_plan_limits *reported = member->reported;
    struct memory_footprint footprint = {0};
    struct memory_footprint_case of_member = *given;
    const struct free_memory_limit *first =
        &reported->limits[reported->count - reported->devices];
    enum memory_footprint_scope place =
        reported->devices ? MEMORY_FOOTPRINT_HOST : MEMORY_FOOTPRINT_ALL;
    if (limit && reported->devices && limit >= first)
        place = MEMORY_FOOTPRINT_DEVICE;
    if (place == MEMORY_FOOTPRINT_DEVICE && limit > first)
        of_member.test_samples = 0; /* only the first device evaluates */
    of_member.replicas = reported->replicas;
    of_member.adds_on_host = reported->adds_on_host;
    of_member.elements_beside = member->elements;
    if (member->trains)
        memory_footprint_trainer(&footprint, &of_member, place);
    else if (member->elements)
        memory_footprint_ps(&footprint, given, member->elements,
                            member->remote);
    return footprint;
}

/* Members report while they join, one after the other. The data that earlier
 * ones have read since are in the sum, and later members report them as used.
 * So the highest free value that any member reported is what was there for all,
 * with what trainers held before they joined. */
static struct memory_plan_usage memory_plan_sum_usage(
    const struct memory_plan *memory_plan,
    const struct memory_footprint_case *given,
    const struct free_memory_limit *limit) {
    struct memory_plan_usage sum = {.limit = limit};
    uint64_t held = 0;
    for (uint32_t m = 0; m < memory_plan->count; m++) {
        const struct memory_plan_member *member = &memory_plan->members[m];
        const struct free_memory_limit *of_member =
            memory_plan_find_limit(member, limit->key);
        if (!of_member)
            continue;
        struct memory_footprint footprint =
            memory_plan_member_footprint(member, of_member, given);
        sum.need += memory_footprint_sum(&footprint);
        held += of_member->held;
        sum.free = of_member->free > sum.free ? of_member->free : sum.free;
        sum.most = of_member->most > sum.most ? of_member->most : sum.most;
    }
    sum.free += held;
    return sum;
}

/* Never refuses a job that would have fitted: a process holds its computed need
 * to within an eighth (cluster_memory_use_test), so only seven eighths of the
 * need are certain. Memory used by others on the host is unknown here. */
static bool memory_plan_is_exceeded(const struct memory_plan_usage *sum) {
    return sum->need - sum->need / 8 > sum->free;
}

/* Would it not fit even if all other processes freed their memory? */
static bool can_never_fit(const struct memory_plan_usage *sum) {
    struct memory_plan_usage most = *sum;
    most.free = sum->most > sum->free ? sum->most : sum->free;
    return memory_plan_is_exceeded(&most);
}

static double usage_ratio(const struct memory_plan_usage *sum) {
    return (double)sum->need / ((double)sum->free + 1);
}

/* Does a member before number M share the limit? */
static bool is_known(const struct memory_plan *memory_plan, uint32_t m,
                     const char *key) {
    for (uint32_t i = 0; i < m; i++)
        if (memory_plan_find_limit(&memory_plan->members[i], key))
            return true;
    return false;
}

/* Finds the limit that is used most. False: no member reported one. */
static bool find_most_used(const struct memory_plan *memory_plan,
                           struct memory_plan_usage *most_used) {
    *most_used = (struct memory_plan_usage){0};
    for (uint32_t m = 0; m < memory_plan->count; m++) {
        const struct memory_plan_limits *reported =
            memory_plan->members[m].reported;
        for (unsigned i = 0; i < reported->count; i++) {
            if (is_known(memory_plan, m, reported->limits[i].key))
                continue;
            struct memory_plan_usage sum = memory_plan_sum_usage(
                memory_plan, memory_plan->given, &reported->limits[i]);
            if (!most_used->limit || usage_ratio(&sum) > usage_ratio(most_used))
                *most_used = sum;
        }
    }
    return most_used->limit;
}

/* Appends as printf does; truncates at the end of the buffer. */
PRINTF_LIKE(2, 3)
static void memory_plan_append(struct memory_plan_message *text,
                               const char *format, ...) {
    va_list arguments;
    if (text->length >= text->size)
        return;
    va_start(arguments, format);
    int length = vsnprintf(text->bytes + text->length,
                           text->size - text->length, format, arguments);
    va_end(arguments);
    text->length += length > 0 ? (size_t)length : 0;
}

/* What member M needs of the limit; nothing if it does not share it. */
static struct memory_footprint member_footprint(
    const struct memory_plan *memory_plan, uint32_t m,
    const struct memory_plan_usage *sum) {
    const struct memory_plan_member *member = &memory_plan->members[m];
    const struct free_memory_limit *of_member =
        memory_plan_find_limit(member, sum->limit->key);
    return of_member ? memory_plan_member_footprint(member, of_member,
                                                    memory_plan->given)
                     : (struct memory_footprint){0};
}

/* Lists members and their needs; adjacent members with the same need are
 * grouped. */
static void append_members(struct memory_plan_message *text,
                           const struct memory_plan *memory_plan,
                           const struct memory_plan_usage *sum) {
    uint32_t reported = 0, alike;
    for (uint32_t m = 0; m < memory_plan->count; m += alike) {
        struct memory_footprint footprint =
            member_footprint(memory_plan, m, sum);
        const char *name = memory_plan->members[m].name;
        char parts[160];
        for (alike = 1; m + alike < memory_plan->count; alike++) {
            struct memory_footprint next =
                member_footprint(memory_plan, m + alike, sum);
            if (memcmp(&next, &footprint, sizeof next) != 0)
                break;
        }
        if (!memory_footprint_sum(&footprint) || reported++ == MAX_LISTED)
            continue;
        memory_footprint_text(&footprint, parts, sizeof parts);
        if (alike == 1)
            memory_plan_append(text, "%s %s takes %s", reported > 1 ? ";" : "",
                               name, parts);
        else
            memory_plan_append(text, "%s %s and %u more take %s each",
                               reported > 1 ? ";" : "", name, alike - 1, parts);
    }
}

static const char *memory_plan_host_of(const struct memory_plan *memory_plan,
                                       const struct memory_plan_usage *sum) {
    for (uint32_t m = 0; m < memory_plan->count; m++)
        if (memory_plan_find_limit(&memory_plan->members[m], sum->limit->key))
            return memory_plan->members[m].host;
    return "?";
}

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

/* Appends the changes of job keys or cluster that need less than SUM, or that
 * there are none. */
static void memory_plan_advice(struct memory_plan_message *text,
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

enum status memory_plan_check(const struct memory_plan_member *members,
                              uint32_t count,
                              const struct memory_footprint_case *given,
                              struct failure *why) {
    struct memory_plan memory_plan = {members, count, given};
    struct memory_plan_usage sum;
    char message[1024], need[16], free[16];
    struct memory_plan_message text = {message, sizeof message, 0};
    if (!find_most_used(&memory_plan, &sum) || !memory_plan_is_exceeded(&sum))
        return STATUS_OK;
    byte_size_text(sum.need, need, sizeof need);
    byte_size_text(sum.free, free, sizeof free);
    memory_plan_append(
        &text, "memory: the job takes %s on host %s, where there is %s (%s)",
        need, memory_plan_host_of(&memory_plan, &sum), free, sum.limit->name);
    if (!can_never_fit(&sum)) {
        byte_size_text(sum.most, free, sizeof free);
        memory_plan_append(&text, ", as others hold the rest of %s", free);
    }
    memory_plan_append(&text, ":");
    append_members(&text, &memory_plan, &sum);
    memory_plan_advice(&text, &memory_plan, &sum);
    return status_fail(
        why, can_never_fit(&sum) ? FAILURE_JOB_TOO_LARGE : FAILURE_NO_MEMORY,
        "%s", message);
}

/* The trainer or ps that needs most; NULL: none needs any. */
static const struct memory_plan_member *memory_plan_largest(
    const struct memory_plan *memory_plan, bool trains,
    struct memory_footprint *footprint) {
    const struct memory_plan_member *found = NULL;
    uint64_t most = 0;
    for (uint32_t m = 0; m < memory_plan->count; m++) {
        const struct memory_plan_member *member = &memory_plan->members[m];
        struct memory_footprint of_member =
            memory_plan_member_footprint(member, NULL, memory_plan->given);
        if (member->trains != trains ||
            memory_footprint_sum(&of_member) <= most)
            continue;
        most = memory_footprint_sum(&of_member);
        *footprint = of_member;
        found = member;
    }
    return found;
}

void memory_plan_describe(const struct memory_plan_member *members,
                          uint32_t count,
                          const struct memory_footprint_case *given, char *text,
                          size_t size) {
    struct memory_plan memory_plan = {members, count, given};
    struct memory_plan_message message = {text, size, 0};
    struct memory_footprint footprint;
    struct memory_plan_usage sum;
    char parts[160], need[16], free[16];
    const char *before = ":";
    memory_plan_append(&message, "memory");
    for (int trains = 1; trains >= 0; trains--) {
        if (!memory_plan_largest(&memory_plan, trains, &footprint))
            continue;
        memory_footprint_text(&footprint, parts, sizeof parts);
        memory_plan_append(&message, "%s %s %s", before,
                           trains ? "a trainer" : "a ps", parts);
        before = ";";
    }
    if (!find_most_used(&memory_plan, &sum))
        return;
    byte_size_text(sum.need, need, sizeof need);
    byte_size_text(sum.free, free, sizeof free);
    memory_plan_append(&message, "; %s in all on host %s, of %s", need,
                       memory_plan_host_of(&memory_plan, &sum), free);
}
