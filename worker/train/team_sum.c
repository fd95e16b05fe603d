/* SPDX-License-Identifier: Apache-2.0 */
/* By the host: each member brings its gradients into memory of its own, and the
 * trainer's thread adds them up in the order of the members as they come. By a
 * collective: neighbouring gradients, which lie one behind the other on each
 * device, are added up there in pieces; the first device's sum goes to the
 * arena while the next piece is added. */
#include "worker/train/team_sum.h"

/* Floats from which on a piece is worth a call. */
enum { PIECE = 1 << 20 };

static struct ferry *ferry_of(struct team_member *member) {
    return &member->replica.engine.ferry;
}

/* The piece that ends with parameter LAST, of parameters *FIRST to LAST; all
 * members cut alike. Returns its floats from gradients[*FIRST] on. */
static size_t cut_piece(const struct ferry *ferry, uint32_t last,
                        uint32_t *first) {
    const struct layout *layout = ferry->layout;
    const float *end =
        ferry->gradients[last] + layout->parameters[last].elements;
    *first = last;
    while (*first > 0 && end - ferry->gradients[*first] < PIECE)
        --*first;
    return (size_t)(end - ferry->gradients[*first]);
}

void team_sum_fail(struct team_member *member) {
    unsigned none = 0;
    atomic_compare_exchange_strong(&member->team->culprit, &none,
                                   member->index + 1);
    siblings_abort(member->team->siblings);
}

/* MEMBER's part in adding up a piece. */
static enum status sum_piece(struct team_member *member, uint32_t first,
                             size_t floats, struct failure *why) {
    struct ferry *ferry = ferry_of(member);
    struct siblings *siblings = member->team->siblings;
    enum status status = ferry_await(ferry, first, why);
    if (!status)
        status = siblings_sum(siblings, member->index, ferry->gradients[first],
                              floats, why);
    if (status)
        team_sum_fail(member);
    return status;
}

static enum status follow_together(struct team_member *member) {
    struct ferry *ferry = ferry_of(member);
    enum status status = STATUS_OK;
    uint32_t first = ferry->layout->num_parameters;
    while (!status && first > 0) {
        size_t floats = cut_piece(ferry, first - 1, &first);
        status = sum_piece(member, first, floats, &member->why);
    }
    return status;
}

static enum status follow_host(struct team_member *member, uint64_t begin) {
    enum status status = STATUS_OK;
    uint32_t count = member->team->layout->num_parameters;
    for (uint32_t p = count; !status && p-- > 0;) {
        status = ferry_await(ferry_of(member), p, &member->why);
        if (!status && p > 0)
            mark_raise(&member->gathered, begin + count - p);
    }
    return status;
}

void team_sum_follow(struct team_member *member, uint64_t begin) {
    const struct team *team = member->team;
    enum status status = STATUS_OK;
    if (team->gathers && !atomic_load(&member->failed))
        status = team->siblings ? follow_together(member)
                                : follow_host(member, begin);
    if (status)
        atomic_store(&member->failed, true);
    mark_raise(&member->gathered, begin + team->layout->num_parameters);
}

static void add(float *restrict sum, const float *restrict more,
                uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        sum[i] += more[i];
}

/* False: a member has failed. */
static bool add_member(struct team_member *member, uint32_t parameter,
                       uint64_t mark) {
    struct team *team = member->team;
    (void)mark_await(&member->gathered, mark, NULL);
    if (atomic_load(&member->failed))
        return false;
    add(team->arena->gradient_of[parameter],
        member->replica.arena.gradient_of[parameter],
        team->layout->parameters[parameter].elements);
    return true;
}

static enum status lead_host(struct team *team, uint64_t begin,
                             void (*said)(void *context, uint32_t parameter),
                             void *context, struct failure *why) {
    uint32_t count = team->layout->num_parameters;
    for (uint32_t p = count; p-- > 0;) {
        enum status status = ferry_await(ferry_of(&team->members[0]), p, why);
        if (status)
            return status;
        for (uint32_t i = 1; i < team->count; i++)
            if (!add_member(&team->members[i], p, begin + count - p))
                return STATUS_OK; /* team_gather tells of it */
        if (said)
            said(context, p);
    }
    return STATUS_OK;
}

/* Parameters FIRST to LAST. */
struct piece {
    uint32_t first, last;
};

/* PIECE is on its way to the arena. */
static enum status await_piece(struct team *team, struct piece piece,
                               void (*said)(void *context, uint32_t parameter),
                               void *context, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t p = piece.last + 1; !status && p-- > piece.first;) {
        status = ferry_await(ferry_of(&team->members[0]), p, why);
        if (!status && said)
            said(context, p);
    }
    return status;
}

static enum status lead_together(struct team *team,
                                 void (*said)(void *context,
                                              uint32_t parameter),
                                 void *context, struct failure *why) {
    struct team_member *own = &team->members[0];
    struct ferry *ferry = ferry_of(own);
    uint32_t count = ferry->layout->num_parameters;
    struct piece before = {count, count};
    enum status status = STATUS_OK;
    for (uint32_t end = count; !status && end > 0; end = before.first) {
        struct piece piece = {.last = end - 1};
        size_t floats = cut_piece(ferry, piece.last, &piece.first);
        status = sum_piece(own, piece.first, floats, why);
        for (uint32_t p = end; !status && p-- > piece.first;)
            ferry_fetch(ferry, p);
        if (!status && end < count)
            status = await_piece(team, before, said, context, why);
        before = piece;
    }
    return status ? status : await_piece(team, before, said, context, why);
}

enum status team_sum_lead(struct team *team, uint64_t begin,
                          void (*said)(void *context, uint32_t parameter),
                          void *context, struct failure *why) {
    return team->siblings ? lead_together(team, said, context, why)
                          : lead_host(team, begin, said, context, why);
}
