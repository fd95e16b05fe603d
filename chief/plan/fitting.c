/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/fitting.h"

#include "chief/plan/fitting_parts.h"
#include "proto/config/byte_size.h"
#include "proto/tensor/rule.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TOLD = 3 /* of those that take differently */ };

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

const struct free_memory_limit *fitting_find(
    const struct fitting_member *member, const char *key) {
    for (unsigned i = 0; i < member->told->count; i++)
        if (!strcmp(member->told->limits[i].key, key))
            return &member->told->limits[i];
    return NULL;
}

/* What MEMBER takes of what LIMIT, which it has told of, leaves. */
struct footprint fitting_take(const struct fitting_member *member,
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
struct fitting_sum fitting_add_up(const struct fitting *fitting,
                                  const struct footprint_case *given,
                                  const struct free_memory_limit *limit) {
    struct fitting_sum sum = {.limit = limit};
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_member *member = &fitting->members[m];
        const struct free_memory_limit *theirs =
            fitting_find(member, limit->key);
        if (!theirs)
            continue;
        struct footprint footprint = fitting_take(member, theirs, given);
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
bool fitting_is_too_much(const struct fitting_sum *sum) {
    return sum->need - sum->need / 8 > sum->free;
}

/* Would it be, with all that others hold? */
static bool is_hopeless(const struct fitting_sum *sum) {
    struct fitting_sum most = *sum;
    most.free = sum->most > sum->free ? sum->most : sum->free;
    return fitting_is_too_much(&most);
}

static double share(const struct fitting_sum *sum) {
    return (double)sum->need / ((double)sum->free + 1);
}

/* Does a member before number M share the limit? */
static bool is_known(const struct fitting *fitting, uint32_t m,
                     const char *key) {
    for (uint32_t i = 0; i < m; i++)
        if (fitting_find(&fitting->members[i], key))
            return true;
    return false;
}

/* The limit that is used most. False: nobody has told of any. */
static bool find_fullest(const struct fitting *fitting,
                         struct fitting_sum *fullest) {
    *fullest = (struct fitting_sum){0};
    for (uint32_t m = 0; m < fitting->count; m++) {
        const struct fitting_limits *told = fitting->members[m].told;
        for (unsigned i = 0; i < told->count; i++) {
            if (is_known(fitting, m, told->limits[i].key))
                continue;
            struct fitting_sum sum =
                fitting_add_up(fitting, fitting->given, &told->limits[i]);
            if (!fullest->limit || share(&sum) > share(fullest))
                *fullest = sum;
        }
    }
    return fullest->limit;
}

void fitting_append(struct fitting_words *text, const char *format, ...) {
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
                                const struct fitting_sum *sum) {
    const struct fitting_member *member = &fitting->members[m];
    const struct free_memory_limit *theirs =
        fitting_find(member, sum->limit->key);
    return theirs ? fitting_take(member, theirs, fitting->given)
                  : (struct footprint){0};
}

/* Who takes what; neighbours that take the same are told together. */
static void append_parts(struct fitting_words *text,
                         const struct fitting *fitting,
                         const struct fitting_sum *sum) {
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
            fitting_append(text, "%s %s takes %s", told > 1 ? ";" : "", name,
                           parts);
        else
            fitting_append(text, "%s %s and %u more take %s each",
                           told > 1 ? ";" : "", name, alike - 1, parts);
    }
}

static const char *host_of(const struct fitting *fitting,
                           const struct fitting_sum *sum) {
    for (uint32_t m = 0; m < fitting->count; m++)
        if (fitting_find(&fitting->members[m], sum->limit->key))
            return fitting->members[m].host;
    return "?";
}

enum status fitting_check(const struct fitting_member *members, uint32_t count,
                          const struct footprint_case *given,
                          struct failure *why) {
    struct fitting fitting = {members, count, given};
    struct fitting_sum sum;
    char said[1024], need[16], free[16];
    struct fitting_words text = {said, sizeof said, 0};
    if (!find_fullest(&fitting, &sum) || !fitting_is_too_much(&sum))
        return STATUS_OK;
    byte_size_text(sum.need, need, sizeof need);
    byte_size_text(sum.free, free, sizeof free);
    fitting_append(
        &text, "memory: the job takes %s on host %s, where there is %s (%s)",
        need, host_of(&fitting, &sum), free, sum.limit->name);
    if (!is_hopeless(&sum)) {
        byte_size_text(sum.most, free, sizeof free);
        fitting_append(&text, ", as others hold the rest of %s", free);
    }
    fitting_append(&text, ":");
    append_parts(&text, &fitting, &sum);
    fitting_remedies(&text, &fitting, &sum);
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
        struct footprint theirs = fitting_take(member, NULL, fitting->given);
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
    struct fitting_words said = {text, size, 0};
    struct footprint footprint;
    struct fitting_sum sum;
    char parts[160], need[16], free[16];
    const char *before = ":";
    fitting_append(&said, "memory");
    for (int trains = 1; trains >= 0; trains--) {
        if (!largest(&fitting, trains, &footprint))
            continue;
        footprint_text(&footprint, parts, sizeof parts);
        fitting_append(&said, "%s %s %s", before, trains ? "a trainer" : "a ps",
                       parts);
        before = ";";
    }
    if (!find_fullest(&fitting, &sum))
        return;
    byte_size_text(sum.need, need, sizeof need);
    byte_size_text(sum.free, free, sizeof free);
    fitting_append(&said, "; %s in all on host %s, of %s", need,
                   host_of(&fitting, &sum), free);
}
