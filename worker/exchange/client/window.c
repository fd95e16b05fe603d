/* SPDX-License-Identifier: Apache-2.0 */
/* A block is idle, then waiting, then in flight, and idle again when an answer
 * of its clock has arrived. A block that a ps reports missing waits again in
 * its old position, as positions are block numbers: the oldest block always
 * goes first. Credit is counted per ps, for pushes with bytes only, and returns
 * with the answer; a block larger than the whole credit is sent alone.
 *
 * Two times are kept per ps. `queried_at` is the time of the last request or
 * answer: after query_after the ps is queried for the pushes in flight, and
 * reads are sent again. `answered_at` is the time of the last answer, from
 * which its silence counts; or `unreachable_since`, from which on no request
 * could leave. */
#include "worker/exchange/client/window.h"

#include "proto/messages/message.h"

#include <assert.h>
#include <stdlib.h>

#define NEVER INT64_MAX
#define REACHABLE INT64_MAX

/* A block's stage. IDLE: nothing is wanted; WAITING: wanted and not sent, also
 * after a loss; IN_FLIGHT: sent and not answered. Only an answer of its clock
 * makes it idle again. */
enum stage { IDLE, WAITING, IN_FLIGHT };

struct block_state {
    uint64_t clock;
    uint64_t wanted; /* the ps wants the weights of this clock; 0: none */
    uint8_t stage, kind;
};

struct ps_state {
    uint64_t bytes_in_flight;           /* bytes of gradients */
    uint32_t waiting, blocks_in_flight; /* blocks */
    uint32_t wanted;                    /* blocks whose weights it wants */
    uint64_t received;                  /* blocks that were outstanding */
    bool store_failed;   /* some of them could not leave: see retry_at */
    uint32_t cursor;     /* no waiting block has a lower number */
    int64_t answered_at; /* last answer, or the first request while idle */
    int64_t queried_at;  /* last query or request */
    int64_t retry_at;    /* no request before this time */
    int64_t unreachable_since; /* since when none could leave, or REACHABLE */
    int64_t
        unreachable_before; /* `unreachable_since` before the last request */
};

struct window {
    struct window_settings settings;
    struct block_state *blocks;
    struct ps_state *ps;
    uint32_t outstanding;
    bool settled;
};

struct window *window_open(const struct window_settings *settings) {
    struct window *window = calloc(1, sizeof *window);
    if (!window)
        return NULL;
    window->settings = *settings;
    window->blocks = calloc(settings->num_blocks + 1, sizeof *window->blocks);
    window->ps = calloc(settings->num_ps + 1, sizeof *window->ps);
    if (!window->blocks || !window->ps)
        window_close(&window);
    else
        for (uint32_t p = 0; p < settings->num_ps; p++)
            window->ps[p] = (struct ps_state){.retry_at = INT64_MIN,
                                              .unreachable_since = REACHABLE,
                                              .unreachable_before = REACHABLE};
    return window;
}

void window_close(struct window **where) {
    struct window *window = *where;
    *where = NULL;
    if (!window)
        return;
    free(window->blocks);
    free(window->ps);
    free(window);
}

static struct ps_state *ps_of(struct window *window, uint32_t block) {
    assert(block < window->settings.num_blocks);
    return &window->ps[window->settings.block_ps[block]];
}

static bool window_has_bytes(const struct block_state *block) {
    return block->kind == WINDOW_PUSH || block->kind == WINDOW_ASSIGN;
}

static void window_enqueue_ps(struct window *window, uint32_t b) {
    struct ps_state *ps = ps_of(window, b);
    window->blocks[b].stage = WAITING;
    ps->waiting++;
    if (b < ps->cursor)
        ps->cursor = b;
}

/* Enqueueing needs no credit; window_next sends as credit allows. */
void window_enqueue(struct window *window, uint32_t first, uint32_t count,
                    enum window_kind kind, uint64_t clock) {
    assert(first <= window->settings.num_blocks &&
           count <= window->settings.num_blocks - first);
    for (uint32_t b = first; b < first + count; b++) {
        window->blocks[b].kind = (uint8_t)kind;
        window->blocks[b].clock = clock;
        window_enqueue_ps(window, b);
        window->outstanding++;
    }
}

/* Takes a block out of flight. */
static void remove_in_flight(struct window *window, uint32_t b) {
    struct ps_state *ps = ps_of(window, b);
    ps->blocks_in_flight--;
    if (window_has_bytes(&window->blocks[b]))
        ps->bytes_in_flight -= window->settings.block_bytes[b];
}

/* Silence counts from the first request, not from an earlier answer. */
static void window_send(struct window *window, uint32_t b, int64_t now) {
    struct ps_state *ps = ps_of(window, b);
    if (!ps->blocks_in_flight)
        ps->answered_at = now;
    window->blocks[b].stage = IN_FLIGHT;
    ps->waiting--;
    ps->blocks_in_flight++;
    if (window_has_bytes(&window->blocks[b]))
        ps->bytes_in_flight += window->settings.block_bytes[b];
}

/* True if block B is within ps P's credit, or is the only one in flight. */
static bool has_credit(const struct window *window, uint32_t p, uint32_t b) {
    const struct ps_state *ps = &window->ps[p];
    return !window_has_bytes(&window->blocks[b]) || !ps->bytes_in_flight ||
           ps->bytes_in_flight + window->settings.block_bytes[b] <=
               window->settings.credit;
}

/* Are both blocks of weights, both pushes or both lookups of partitions? */
static bool are_alike(const struct window *window, uint32_t a, uint32_t b) {
    const struct window_settings *settings = &window->settings;
    if (!settings->first_push)
        return true;
    return (a >= settings->first_push) == (b >= settings->first_push) &&
           (a >= settings->first_lookup) == (b >= settings->first_lookup);
}

/* One request has one kind, one clock, and a size that the link forwards
 * without splitting. */
static bool fits(const struct window *window,
                 const struct window_request *request, uint32_t b) {
    const struct block_state *block = &window->blocks[b];
    if (!request->count)
        return true;
    return request->count < WINDOW_MAX_BLOCKS && block->kind == request->kind &&
           block->clock == request->clock &&
           are_alike(window, request->blocks[0], b) &&
           request->bytes + window->settings.block_bytes[b] <=
               window->settings.group_bytes;
}

static bool is_lookup(const struct window *window, uint32_t b) {
    return window->settings.first_push && b >= window->settings.first_lookup;
}

/* Fills REQUEST with the first waiting blocks of ps P. They follow each other
 * in memory, so their gradients are sent without a copy; lookups, of which a
 * batch has some partitions' only, have gaps. */
static bool next_waiting(struct window *window, uint32_t p, int64_t now,
                         struct window_request *request) {
    struct ps_state *ps = &window->ps[p];
    request->count = 0;
    request->bytes = 0;
    request->ps = p;
    for (uint32_t b = ps->cursor;
         ps->waiting && b < window->settings.num_blocks; b++) {
        if (window->settings.block_ps[b] != p)
            continue;
        if (window->blocks[b].stage != WAITING) {
            if (request->count && !is_lookup(window, request->blocks[0]))
                break;
            continue;
        }
        if (!fits(window, request, b) || !has_credit(window, p, b))
            break;
        if (!request->count)
            ps->cursor = b;
        request->kind = (enum window_kind)window->blocks[b].kind;
        request->clock = window->blocks[b].clock;
        request->bytes += window->settings.block_bytes[b];
        request->blocks[request->count++] = b;
        window_send(window, b, now);
    }
    if (!request->count)
        return false;
    ps->queried_at = now;
    ps->unreachable_before = ps->unreachable_since;
    ps->unreachable_since = REACHABLE;
    return true;
}

/* Fills REQUEST with blocks in flight to ps P at one clock: pushes to be
 * queried, or reads to be repeated; lookups as far as one message answers
 * them. */
static bool list_in_flight(const struct window *window, uint32_t p,
                           enum window_kind kind,
                           struct window_request *request) {
    request->kind = kind;
    request->ps = p;
    request->count = 0;
    request->bytes = 0;
    for (uint32_t b = 0;
         b < window->settings.num_blocks && request->count < WINDOW_MAX_BLOCKS;
         b++) {
        const struct block_state *block = &window->blocks[b];
        uint64_t answer =
            is_lookup(window, b) ? window->settings.block_bytes[b] : 0;
        if (window->settings.block_ps[b] != p || block->stage != IN_FLIGHT ||
            (block->kind == WINDOW_PULL) != (kind == WINDOW_PULL) ||
            (request->count && (block->clock != request->clock ||
                                request->bytes + answer > MESSAGE_MAX_PAYLOAD ||
                                (kind == WINDOW_PULL &&
                                 !are_alike(window, request->blocks[0], b)))))
            continue;
        request->clock = block->clock;
        request->bytes += answer;
        request->blocks[request->count++] = b;
    }
    return request->count;
}

/* Pushes are queried by header alone, as the answer is lost more often than the
 * push. Reads carry no payload and are simply repeated. */
static bool next_query(struct window *window, uint32_t p, int64_t now,
                       struct window_request *request) {
    struct ps_state *ps = &window->ps[p];
    if (!ps->blocks_in_flight ||
        now - ps->queried_at < window->settings.query_after)
        return false;
    ps->queried_at = now;
    return list_in_flight(window, p, WINDOW_QUERY, request) ||
           list_in_flight(window, p, WINDOW_PULL, request);
}

/* Does the caller have the weights that block B's ps wants? */
static bool has_wanted(const struct window *window, uint32_t b) {
    const struct block_state *block = &window->blocks[b];
    if (!block->wanted)
        return false;
    return block->stage == IDLE
               ? window->settled && block->clock == block->wanted
               : block->clock == block->wanted + 1;
}

/* Fills REQUEST with weights that ps P wants, all of one clock. */
static bool next_wanted(struct window *window, uint32_t p,
                        struct window_request *request) {
    request->kind = WINDOW_STORE;
    request->ps = p;
    request->count = 0;
    request->bytes = 0;
    window->ps[p].store_failed = false;
    for (uint32_t b = 0;
         window->ps[p].wanted && b < window->settings.num_blocks; b++) {
        uint64_t clock = window->blocks[b].wanted;
        if (window->settings.block_ps[b] != p || !has_wanted(window, b) ||
            (request->count &&
             (clock != request->clock || request->count == WINDOW_MAX_BLOCKS ||
              request->bytes + window->settings.block_bytes[b] >
                  window->settings.group_bytes)))
            continue;
        request->clock = clock;
        request->bytes += window->settings.block_bytes[b];
        request->blocks[request->count++] = b;
        assert(window->ps[p].wanted);
        window->blocks[b].wanted = 0;
        window->ps[p].wanted--;
    }
    return request->count;
}

bool window_next(struct window *window, int64_t now,
                 struct window_request *request) {
    for (uint32_t p = 0; p < window->settings.num_ps; p++)
        if (now >= window->ps[p].retry_at &&
            (next_wanted(window, p, request) ||
             next_query(window, p, now, request) ||
             next_waiting(window, p, now, request)))
            return true;
    return false;
}

/* The credit returns. The ps's silence begins with the first request that could
 * not leave, and continues through retries. */
void window_requeue(struct window *window, const struct window_request *request,
                    int64_t now) {
    struct ps_state *ps = &window->ps[request->ps];
    assert(request->ps < window->settings.num_ps && request->count);
    ps->retry_at = now + window->settings.retry_after;
    for (uint32_t i = 0; request->kind == WINDOW_STORE && i < request->count;
         i++)
        window_wanted(window, request->blocks[i], request->clock);
    ps->store_failed = request->kind == WINDOW_STORE;
    if (request->kind == WINDOW_QUERY || request->kind == WINDOW_STORE)
        return;
    ps->unreachable_since =
        ps->unreachable_before == REACHABLE ? now : ps->unreachable_before;
    for (uint32_t i = 0; i < request->count; i++) {
        remove_in_flight(window, request->blocks[i]);
        window_enqueue_ps(window, request->blocks[i]);
    }
}

/* Messages on the old connection may be lost: query without waiting for
 * query_after. */
void window_reconnected(struct window *window, uint32_t ps) {
    window->ps[ps].queried_at = -window->settings.query_after;
}

/* Also accepts an answer to a block that waits to be sent again: the first copy
 * has arrived after all. */
bool window_received(struct window *window, uint32_t b, uint64_t clock,
                     int64_t now) {
    struct block_state *block = &window->blocks[b];
    struct ps_state *ps = ps_of(window, b);
    ps->answered_at = ps->queried_at = now;
    if (block->stage == IDLE || block->clock != clock)
        return false;
    if (block->stage == IN_FLIGHT)
        remove_in_flight(window, b);
    else
        ps->waiting--;
    block->stage = IDLE;
    ps->received++;
    window->outstanding--;
    return true;
}

uint64_t window_received_count(const struct window *window, uint32_t ps) {
    return window->ps[ps].received;
}

void window_answered(struct window *window, uint32_t ps, int64_t now) {
    window->ps[ps].answered_at = now;
}

/* Its position is its number: it goes before younger blocks. */
void window_missing(struct window *window, uint32_t b, uint64_t clock) {
    const struct block_state *block = &window->blocks[b];
    if (block->stage != IN_FLIGHT || block->clock != clock)
        return;
    remove_in_flight(window, b);
    window_enqueue_ps(window, b);
}

/* A block that has gone further has been through the ps's round: it no longer
 * wants them. */
void window_wanted(struct window *window, uint32_t b, uint64_t clock) {
    struct block_state *block = &window->blocks[b];
    bool past =
        block->stage == IDLE ? block->clock > clock : block->clock > clock + 1;
    if (past || !clock)
        return;
    if (!block->wanted)
        ps_of(window, b)->wanted++;
    block->wanted = clock;
}

void window_settle(struct window *window) {
    window->settled = true;
}

uint32_t window_outstanding(const struct window *window) {
    return window->outstanding;
}

void window_add_pause(struct window *window, int64_t pause) {
    for (uint32_t p = 0; p < window->settings.num_ps; p++) {
        struct ps_state *ps = &window->ps[p];
        ps->answered_at += pause;
        if (ps->unreachable_since != REACHABLE)
            ps->unreachable_since += pause;
        if (ps->unreachable_before != REACHABLE)
            ps->unreachable_before += pause;
    }
}

static int64_t silent_since(const struct ps_state *ps) {
    int64_t since = ps->blocks_in_flight ? ps->answered_at : NEVER;
    return ps->waiting && ps->unreachable_since < since ? ps->unreachable_since
                                                        : since;
}

bool window_silent(const struct window *window, uint32_t *ps, int64_t *since) {
    *since = NEVER;
    for (uint32_t p = 0; p < window->settings.num_ps; p++)
        if (silent_since(&window->ps[p]) < *since) {
            *ps = p;
            *since = silent_since(&window->ps[p]);
        }
    return *since != NEVER;
}

/* May ps P's first waiting block leave? Else an answer comes first. */
static bool may_leave(const struct window *window, uint32_t p) {
    const struct window_settings *settings = &window->settings;
    for (uint32_t b = window->ps[p].cursor; b < settings->num_blocks; b++)
        if (settings->block_ps[b] == p && window->blocks[b].stage == WAITING)
            return has_credit(window, p, b);
    return false;
}

int64_t window_deadline(const struct window *window) {
    int64_t deadline = NEVER;
    for (uint32_t p = 0; p < window->settings.num_ps; p++) {
        const struct ps_state *ps = &window->ps[p];
        if (ps->blocks_in_flight &&
            ps->queried_at + window->settings.query_after < deadline)
            deadline = ps->queried_at + window->settings.query_after;
        if (((ps->waiting && may_leave(window, p)) || ps->store_failed) &&
            ps->retry_at < deadline)
            deadline = ps->retry_at;
    }
    return deadline;
}
