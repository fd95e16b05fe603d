#include "chief/fitting.h"

#include "proto/conf/byte_size.h"
#include "proto/math/recompute.h"
#include "proto/math/rule.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TOLD = 3 /* of those that take differently */ };

struct fitting {
    const struct fitting_member *members;
    uint32_t count;
    const struct footprint_case *given;
};

/* What all that share a limit take, and what it leaves them. */
struct sum {
    const struct free_memory_limit *limit;
    uint64_t need, free, most;
};

void fitting_hear(struct fitting_limits *told,
                  const struct free_memory_limit *limits, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < told->count; k++)
            if (!strcmp(told->limits[k].key, limits[i].key) &&
                told->limits[k].free < limits[i].free)
                told->limits[k].free = limits[i].free;
}

void fitting_forget_devices(struct fitting_limits *told) {
    told->count -= told->devices;
    told->devices = 0;
}

void fitting_add_device(struct fitting_limits *told, const char *key,
                        const char *name, uint64_t free) {
    if (told->devices == JOB_MOST_DEVICES)
        return;
    struct free_memory_limit *limit = &told->limits[told->count++];
    told->devices++;
    *limit = (struct free_memory_limit){.free = free};
    snprintf(limit->key, sizeof limit->key, "%s", key);
    snprintf(limit->name, sizeof limit->name, "%s", name);
}

static const struct free_memory_limit *find(const struct fitting_member *member,
                                            const char *key) {
    for (unsigned i = 0; i < member->told->count; i++)
        if (!strcmp(member->told->limits[i].key, key))
            return &member->told->limits[i];
    return NULL;
}

/* What MEMBER takes of what LIMIT, which it has told of, leaves. */
static struct footprint take(const struct fitting_member *member,
                             const struct free_memory_limit *limit,
                             const struct footprint_case *given) {
    const struct fitting_limits *told = member->told;
    struct footprint footprint = {0};
    struct footprint_case theirs = *given;
    const struct free_memory_limit *first =
        &told->limits[told->count - told->devices];
    enum footprint_place place = told->devices ? FOOTPRINT_HOST : FOOTPRINT_ALL;
    if (limit && told->devices && limit >= first)
        place = FOOTPRINT_DEVICE;
    if (place == FOOTPRINT_DEVICE && limit > first)
        theirs.test_samples = 0; /* the first evaluates */
    theirs.replicas = told->replicas;
    theirs.adds_on_host = told->adds_on_host;
    if (member->trains)
        footprint_trainer(&footprint, &theirs, place);
    else if (member->elements)
        footprint_ps(&footprint, given, member->elements, member->remote);
    return footprint;
}

/* Members tell as they join, one after the other, and what earlier ones have
 * read since then lies in their sum and in what later ones find taken: so the
 * most that any has found free is what there was for all. */
static struct sum add_up(const struct fitting *fitting,
                         const struct footprint_case *given,
                         const struct free_memory_limit *limit) {
    struct sum sum = {.limit = limit};
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        const struct free_memory_limit *theirs = find(member, limit->key);
        if (!theirs)
            continue;
        struct footprint footprint = take(member, theirs, given);
        sum.need += footprint_sum(&footprint);
        sum.free = theirs->free > sum.free ? theirs->free : sum.free;
        sum.most = theirs->most > sum.most ? theirs->most : sum.most;
    }
    return sum;
}

/* A job that would have fitted is never refused: what a process really holds
 * is within an eighth of its sum (cluster_footprint_test), so seven eighths
 * have to be too much. What is taken beside, for a while or by others of the
 * host, is not known here, and not in the sum. */
static bool is_too_much(const struct sum *sum) {
    return sum->need - sum->need / 8 > sum->free;
}

/* Would it be, with all that others hold? */
static bool is_hopeless(const struct sum *sum) {
    struct sum most = *sum;
    most.free = sum->most > sum->free ? sum->most : sum->free;
    return is_too_much(&most);
}

static double share(const struct sum *sum) {
    return (double)sum->need / ((double)sum->free + 1);
}

/* Does a member before number M share the limit? */
static bool is_known(const struct fitting *fitting, uint32_t m,
                     const char *key) {
    for (uint32_t i = 0; i < m; i++)
        if (find(&fitting->members[i], key))
            return true;
    return false;
}

/* The limit that is used most. False: nobody has told of any. */
static bool find_fullest(const struct fitting *fitting, struct sum *fullest) {
    *fullest = (struct sum){0};
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_limits *told = fitting->members[m].told;
        for (unsigned i = 0; i < told->count; i++) {
            if (is_known(fitting, m, told->limits[i].key))
                continue;
            struct sum sum = add_up(fitting, fitting->given, &told->limits[i]);
            if (!fullest->limit || share(&sum) > share(fullest))
                *fullest = sum;
        }
    }
    return fullest->limit;
}

struct text {
    char *bytes;
    size_t size, length;
};

static void append(struct text *text, const char *format, ...)
    PRINTF_LIKE(2, 3);

static void append(struct text *text, const char *format, ...) {
    va_list arguments;
    if (text->length >= text->size)
        return;
    va_start(arguments, format);
    int length = vsnprintf(text->bytes + text->length,
                           text->size - text->length, format, arguments);
    va_end(arguments);
    text->length += length > 0 ? (size_t)length : 0;
}

/* What member M takes of the limit; nothing when it does not share it. */
static struct footprint take_of(const struct fitting *fitting, uint32_t m,
                                const struct sum *sum) {
    const struct fitting_member *member = &fitting->members[m];
    const struct free_memory_limit *theirs = find(member, sum->limit->key);
    return theirs ? take(member, theirs, fitting->given)
                  : (struct footprint){0};
}

/* Who takes what; neighbours that take the same are told together. */
static void append_parts(struct text *text, const struct fitting *fitting,
                         const struct sum *sum) {
    uint32_t told = 0, alike;
    for (uint32_t m = 0; m < fitting->count; m += alike) {
        struct footprint footprint = take_of(fitting, m, sum);
        const char *name = fitting->members[m].name;
        char parts[160];
        for (alike = 1; m + alike < fitting->count; alike++) {
            struct footprint next = take_of(fitting, m + alike, sum);
            if (memcmp(&next, &footprint, sizeof next) != 0)
                break;
        }
        if (!footprint_sum(&footprint) || told++ == TOLD)
            continue;
        footprint_text(&footprint, parts, sizeof parts);
        if (alike == 1)
            append(text, "%s %s takes %s", told > 1 ? ";" : "", name, parts);
        else
            append(text, "%s %s and %u more take %s each", told > 1 ? ";" : "",
                   name, alike - 1, parts);
    }
}

/* CHANGED instead of what is given: named, with what is taken then, if that is
 * less by a hundredth. */
static bool helps(const struct fitting *fitting, const struct sum *sum,
                  const struct footprint_case *changed, char bytes[16]) {
    struct sum less = add_up(fitting, changed, sum->limit);
    byte_size_text(less.need, bytes, 16);
    return less.need < sum->need - sum->need / 100;
}

static void try_batch(struct text *text, const struct fitting *fitting,
                      const struct sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    if (job.micro_batch % 2)
        return;
    job.micro_batch /= 2;
    job.accumulation *= 2;
    changed.job = &job;
    if (helps(fitting, sum, &changed, bytes))
        append(text,
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

static void try_recompute(struct text *text, const struct fitting *fitting,
                          const struct sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    job.model.kept = best_kept(&job.model);
    changed.job = &job;
    if (job.model.kept && helps(fitting, sum, &changed, bytes))
        append(text, " activation_checkpointing.number_checkpoints %u (%s);",
               job.model.kept, bytes);
}

static void try_zero(struct text *text, const struct fitting *fitting,
                     const struct sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    job.zero.stage = 2;
    changed.job = &job;
    if (helps(fitting, sum, &changed, bytes))
        append(text, " zero_optimization.stage 2 (%s);", bytes);
}

/* In all-reduce, ps on hosts of their own would hold the state. */
static void try_ps(struct text *text, const struct fitting *fitting,
                   const struct sum *sum) {
    struct footprint_case changed = *fitting->given;
    char bytes[16];
    changed.allreduce = false;
    if (helps(fitting, sum, &changed, bytes))
        append(text,
               " strategy.type \"ps\", with ps on hosts of their own (%s);",
               bytes);
}

static void try_hosts(struct text *text, const struct fitting *fitting,
                      const struct sum *sum) {
    unsigned trainers = 0, ps = 0;
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        if (!find(member, sum->limit->key))
            continue;
        trainers += member->trains;
        ps += !member->trains && member->elements;
    }
    if (ps)
        append(text, " more ps, on other hosts;");
    if (trainers > 1)
        append(text, " fewer of the %u trainers on this host;", trainers);
}

/* What the smallest of the trainers would still take after all that keys and
 * other hosts can do. 0: none shares the limit. */
static uint64_t least_of_trainer(const struct fitting *fitting,
                                 const struct sum *sum) {
    struct job job = *fitting->given->job;
    struct footprint_case least = *fitting->given;
    uint64_t smallest = 0;
    job.micro_batch = 1;
    job.model.kept = best_kept(&job.model);
    least.job = &job;
    least.allreduce = false;
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        const struct free_memory_limit *theirs = find(member, sum->limit->key);
        if (!member->trains || !theirs)
            continue;
        struct footprint footprint = take(member, theirs, &least);
        uint64_t need = footprint_sum(&footprint);
        smallest = !smallest || need < smallest ? need : smallest;
    }
    return smallest;
}

static void append_remedies(struct text *text, const struct fitting *fitting,
                            const struct sum *sum) {
    struct text before = *text;
    struct sum alone = {.need = least_of_trainer(fitting, sum),
                        .free = sum->free};
    char bytes[16];
    byte_size_text(alone.need, bytes, sizeof bytes);
    if (is_too_much(&alone)) {
        append(text,
               ". A trainer alone takes at least %s, whatever the keys say: it "
               "takes a host with more memory, or a smaller model.",
               bytes);
        return;
    }
    append(text, ". What needs less:");
    size_t head = text->length;
    try_batch(text, fitting, sum);
    try_recompute(text, fitting, sum);
    try_zero(text, fitting, sum);
    try_ps(text, fitting, sum);
    try_hosts(text, fitting, sum);
    if (text->length > head) {
        text->length--;
        append(text, "."); /* for the last semicolon */
        return;
    }
    *text = before;
    append(text, ". It takes a host with more memory, or a smaller model.");
}

static const char *host_of(const struct fitting *fitting,
                           const struct sum *sum) {
    for (uint32_t m = 0; m < fitting->count; m++)
        if (find(&fitting->members[m], sum->limit->key))
            return fitting->members[m].host;
    return "?";
}

enum status fitting_check(const struct fitting_member *members, uint32_t count,
                          const struct footprint_case *given,
                          struct failure *why) {
    struct fitting fitting = {members, count, given};
    struct sum sum;
    char said[1024], need[16], free[16];
    struct text text = {said, sizeof said, 0};
    if (!find_fullest(&fitting, &sum) || !is_too_much(&sum))
        return STATUS_OK;
    byte_size_text(sum.need, need, sizeof need);
    byte_size_text(sum.free, free, sizeof free);
    append(&text, "memory: the job takes %s on host %s, where there is %s (%s)",
           need, host_of(&fitting, &sum), free, sum.limit->name);
    if (!is_hopeless(&sum)) {
        byte_size_text(sum.most, free, sizeof free);
        append(&text, ", as others hold the rest of %s", free);
    }
    append(&text, ":");
    append_parts(&text, &fitting, &sum);
    append_remedies(&text, &fitting, &sum);
    return status_fail(why, is_hopeless(&sum) ? STATUS_CONFIG : STATUS_RETRY,
                       "%s", said);
}

/* The member that takes most among trainers or ps; NULL: nobody takes any. */
static const struct fitting_member *largest(const struct fitting *fitting,
                                            bool trains,
                                            struct footprint *footprint) {
    const struct fitting_member *found = NULL;
    uint64_t most = 0;
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        struct footprint theirs = take(member, NULL, fitting->given);
        if (member->trains != trains || footprint_sum(&theirs) <= most)
            continue;
        most = footprint_sum(&theirs);
        *footprint = theirs;
        found = member;
    }
    return found;
}

void fitting_text(const struct fitting_member *members, uint32_t count,
                  const struct footprint_case *given, char *text, size_t size) {
    struct fitting fitting = {members, count, given};
    struct text said = {text, size, 0};
    struct footprint footprint;
    struct sum sum;
    char parts[160], need[16], free[16];
    const char *before = ":";
    append(&said, "memory");
    for (int trains = 1; trains >= 0; trains--) {
        if (!largest(&fitting, trains, &footprint))
            continue;
        footprint_text(&footprint, parts, sizeof parts);
        append(&said, "%s %s %s", before, trains ? "a trainer" : "a ps", parts);
        before = ";";
    }
    if (!find_fullest(&fitting, &sum))
        return;
    byte_size_text(sum.need, need, sizeof need);
    byte_size_text(sum.free, free, sizeof free);
    append(&said, "; %s in all on host %s, of %s", need,
           host_of(&fitting, &sum), free);
}
