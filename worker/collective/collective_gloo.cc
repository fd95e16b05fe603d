/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-gloo.so: collectives over Gloo's TCP transport. The reductions are
 * Capstan's own: Gloo's reduce-scatter works on whole copies of the vector, and
 * Gloo adds only after a whole segment has arrived. */
#include "worker/collective/gloo_group.h"

#include <gloo/config.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>

/* Floats per message. */
static const size_t CHUNK = GLOO_CHUNK / sizeof(float);

struct collective {
    struct gloo_group group;
    enum collective_algorithm algorithm;
};

/* Gloo writes without MSG_NOSIGNAL: SIGPIPE from a lost peer must not kill the
 * calling thread or the one that it starts. */
class no_sigpipe {
  public:
    no_sigpipe() {
        sigset_t pending;
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        sigpending(&pending);
        was_pending = sigismember(&pending, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe, &before);
    }
    ~no_sigpipe() {
        struct timespec none = {};
        while (!was_pending && sigtimedwait(&pipe, nullptr, &none) == -1 &&
               errno == EINTR)
            ;
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

  private:
    sigset_t pipe, before;
    bool was_pending;
};

/* The ring of Patarasuk and Yuan (2009), by chunks: in step t rank r receives
 * piece r-2-t from its left and sends piece r-1-t to its right. The first n-1
 * steps add, after which rank r has piece r of the sum; n-1 more copy. */
struct ring_walk {
    const struct gloo_group *group;
    float *data;
    size_t count;
    int64_t ring_step, end;
    size_t done; /* floats done of this step's piece */
};

struct chunk {
    float *floats;
    size_t count;
    int64_t ring_step;
};

/* The next chunk to receive; false after the last. */
static bool ring_walk_next(struct ring_walk *walk, struct chunk *chunk) {
    int64_t size = walk->group->size, rank = walk->group->rank;
    for (; walk->ring_step < walk->end; walk->ring_step++, walk->done = 0) {
        auto piece = (uint32_t)((rank + 2 * size - 2 - walk->ring_step) % size);
        size_t first, length = collective_piece(walk->count, piece,
                                                walk->group->size, &first);
        if (walk->done == length)
            continue;
        *chunk = {walk->data + first + walk->done,
                  std::min(CHUNK, length - walk->done), walk->ring_step};
        walk->done += chunk->count;
        return true;
    }
    return false;
}

/* The operation of RING_STEP at the receiving rank. */
static enum gloo_operation operation_of(const struct gloo_group *group,
                                        int64_t ring_step) {
    return ring_step < (int64_t)group->size - 1 ? GLOO_SUM : GLOO_COPY;
}

/* Receives COUNT floats from FROM and adds them to FLOATS, or replaces them. */
static void collective_gloo_receive_chunk(struct gloo_group *group,
                                          uint32_t from, float *floats,
                                          size_t count,
                                          enum gloo_operation operation) {
    if (operation == GLOO_SUM)
        gloo_group_add(group, from, floats, count);
    else
        gloo_group_receive(group, from, floats, count * sizeof *floats);
}

/* The number of chunks that may be sent once RECEIVED have been received. */
static size_t ahead_of(const struct gloo_group *group, size_t received) {
    return received + group->pairs.window;
}

/* Ring steps [from, to). A chunk received in one step is sent in the next; this
 * rank's own chunks are sent first. */
static void ring(struct gloo_group *group, float *data, size_t count,
                 int64_t from, int64_t to) {
    uint32_t left = (group->rank + group->size - 1) % group->size;
    uint32_t right = (group->rank + 1) % group->size;
    struct ring_walk own_piece = {group, data, count, from - 1, from, 0};
    struct ring_walk out = {group, data, count, from - 1, to - 1, 0};
    struct ring_walk in = {group, data, count, from, to, 0};
    struct chunk chunk;
    size_t own = 0, sent = 0, received = 0;
    while (ring_walk_next(&own_piece, &chunk))
        own++;
    auto send_some = [&](size_t limit) {
        for (; sent < limit && ring_walk_next(&out, &chunk); sent++)
            gloo_group_send(group, right, chunk.floats,
                            chunk.count * sizeof(float),
                            operation_of(group, chunk.ring_step + 1));
    };
    send_some(std::min(own, ahead_of(group, 0)));
    while (ring_walk_next(&in, &chunk)) {
        collective_gloo_receive_chunk(group, left, chunk.floats, chunk.count,
                                      operation_of(group, chunk.ring_step));
        received++;
        send_some(std::min(own + received, ahead_of(group, received)));
    }
    send_some(SIZE_MAX);
}

struct span {
    float *floats;
    size_t count;
};

/* Both partners send OUT, and receive IN or add to it. */
static void exchange(struct gloo_group *group, uint32_t partner,
                     struct span out, struct span in,
                     enum gloo_operation operation) {
    size_t at_out = 0, received = 0;
    auto send_some = [&](size_t limit) {
        for (; at_out < out.count && at_out / CHUNK < limit; at_out += CHUNK)
            gloo_group_send(group, partner, out.floats + at_out,
                            std::min(CHUNK, out.count - at_out) * sizeof(float),
                            operation);
    };
    send_some(ahead_of(group, 0));
    for (size_t at = 0; at < in.count; at += CHUNK) {
        collective_gloo_receive_chunk(group, partner, in.floats + at,
                                      std::min(CHUNK, in.count - at),
                                      operation);
        send_some(ahead_of(group, ++received));
    }
    send_some(SIZE_MAX);
}

/* Recursive halving and doubling (Thakur, Rabenseifner, Gropp 2005, 4.4); the
 * number of ranks is a power of two. After the halving, step by step, each rank
 * has summed the floats from begins[step] to ends[step]. */
static void halve_and_double(struct gloo_group *group, float *data,
                             size_t count) {
    size_t begins[33], ends[33];
    uint32_t step = 0, mask = group->size / 2;
    begins[0] = 0, ends[0] = count;
    for (; mask; mask /= 2, step++) {
        size_t begin = begins[step], end = ends[step];
        size_t middle = begin + (end - begin) / 32 * 16;
        bool upper = group->rank & mask;
        begins[step + 1] = upper ? middle : begin;
        ends[step + 1] = upper ? end : middle;
        size_t other = upper ? begin : middle;
        size_t kept = ends[step + 1] - begins[step + 1];
        exchange(group, group->rank ^ mask,
                 {data + other, (end - begin) - kept},
                 {data + begins[step + 1], kept}, GLOO_SUM);
    }
    for (mask = 1; step--; mask *= 2) {
        size_t begin = begins[step + 1], end = ends[step + 1];
        size_t other = begin == begins[step] ? end : begins[step];
        exchange(group, group->rank ^ mask, {data + begin, end - begin},
                 {data + other, (ends[step] - begins[step]) - (end - begin)},
                 GLOO_COPY);
    }
}

/* Broadcast along the ring: each rank forwards from its left to its right. */
static void collective_gloo_forward(struct gloo_group *group, char *data,
                                    size_t bytes, uint32_t root) {
    uint32_t left = (group->rank + group->size - 1) % group->size;
    uint32_t right = (group->rank + 1) % group->size;
    for (size_t at = 0; at < bytes; at += GLOO_CHUNK) {
        size_t size = std::min(GLOO_CHUNK, bytes - at);
        if (group->rank != root)
            gloo_group_receive(group, left, data + at, size);
        if (right != root)
            gloo_group_send(group, right, data + at, size, GLOO_COPY);
    }
}

/* Runs WORK on DATA as one call of the contract; WORK throws if it fails.
 * Chunks sent with SHARED_OPERATION are read in place by the receiver. They are
 * not overwritten before they arrive: either the new value depends on their
 * arrival, or the contract of the call forbids it. */
template <typename work>
static enum status collective_gloo_call(struct collective *all, void *data,
                                        size_t bytes,
                                        enum gloo_operation shared_operation,
                                        struct failure *why,
                                        work work_of) noexcept {
    struct gloo_group *group = &all->group;
    if (group->size == 1)
        return STATUS_OK;
    no_sigpipe guard;
    try {
        gloo_group_begin(group, data, bytes, shared_operation);
        work_of(group);
        gloo_group_end(group);
        return STATUS_OK;
    } catch (...) {
        return gloo_group_failed(group, why);
    }
}

static bool halves_of(enum collective_algorithm algorithm, uint32_t size) {
    return algorithm == COLLECTIVE_HALVING_DOUBLING && !(size & (size - 1));
}

/* By rank: true if any algorithm above sends between it and this rank. */
static std::vector<bool> partners_of(const struct collective_settings *s) {
    std::vector<bool> partners(s->size);
    partners[(s->rank + 1) % s->size] = true;
    partners[(s->rank + s->size - 1) % s->size] = true;
    if (halves_of(s->algorithm, s->size))
        for (uint32_t mask = 1; mask < s->size; mask *= 2)
            partners[s->rank ^ mask] = true;
    return partners;
}

static enum status collective_gloo_all_reduce(struct collective *all,
                                              float *data, size_t count,
                                              struct failure *why) {
    bool halves = halves_of(all->algorithm, all->group.size);
    return collective_gloo_call(all, data, count * sizeof *data, GLOO_SUM, why,
                                [=](struct gloo_group *group) {
                                    if (halves)
                                        halve_and_double(group, data, count);
                                    else
                                        ring(group, data, count, 0,
                                             2 * (int64_t)group->size - 2);
                                });
}

static enum status collective_gloo_reduce_scatter(struct collective *all,
                                                  float *data, size_t count,
                                                  struct failure *why) {
    return collective_gloo_call(all, data, count * sizeof *data, GLOO_SUM, why,
                                [=](struct gloo_group *group) {
                                    ring(group, data, count, 0,
                                         (int64_t)group->size - 1);
                                });
}

static enum status collective_gloo_all_gather(struct collective *all,
                                              float *data, size_t count,
                                              struct failure *why) {
    return collective_gloo_call(all, data, count * sizeof *data, GLOO_COPY, why,
                                [=](struct gloo_group *group) {
                                    ring(group, data, count,
                                         (int64_t)group->size - 1,
                                         2 * (int64_t)group->size - 2);
                                });
}

static enum status collective_gloo_broadcast(struct collective *all, void *data,
                                             size_t bytes, uint32_t root,
                                             struct failure *why) {
    return collective_gloo_call(
        all, data, bytes, GLOO_OPERATIONS, why, [=](struct gloo_group *group) {
            collective_gloo_forward(group, static_cast<char *>(data), bytes,
                                    root);
        });
}

static enum status collective_gloo_check(struct failure *) {
    return STATUS_OK;
}

static bool collective_gloo_end(struct collective **all) {
    if (*all) {
        no_sigpipe guard;
        gloo_group_close(&(*all)->group);
        delete *all;
    }
    *all = nullptr;
    return true;
}

static enum status collective_gloo_begin(
    struct collective **out, const struct collective_settings *settings,
    struct failure *why) {
    no_sigpipe guard;
    auto all = new (std::nothrow) collective();
    *out = nullptr;
    if (!all)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "gloo: out of memory");
    all->algorithm = settings->algorithm;
    all->group.connect.listener = -1;
    all->group.rank = settings->rank;
    all->group.size = settings->size;
    enum status status = STATUS_OK;
    try {
        if (settings->size > 1)
            status = gloo_group_open(&all->group, settings,
                                     partners_of(settings), why);
    } catch (...) {
        status = gloo_group_failed(&all->group, why);
    }
    if (status)
        collective_gloo_end(&all);
    *out = all;
    return status;
}

static void abort_all(struct collective *all) {
    gloo_group_abort(&all->group);
}

/* Describes the ranks with which memory is shared, and why not with others on
 * this host. */
static void transport(const struct collective *all, char *text, size_t size) {
    const struct gloo_pairs *pairs = &all->group.pairs;
    const std::vector<bool> &marks = all->group.connect.partners;
    size_t ranks = pairs->shm.size(), shared = 0, refused = ranks;
    size_t partners = (size_t)std::count(marks.begin(), marks.end(), true);
    for (size_t i = 0; i < ranks; i++) {
        shared += pairs->shm[i] != nullptr;
        if (!pairs->errors[i].empty())
            refused = i;
    }
    *text = 0;
    if (!pairs->unfiltered.empty())
        snprintf(text, size,
                 "over TCP; processes of this host reach Gloo's port, as the "
                 "kernel takes no filter: %s",
                 pairs->unfiltered.c_str());
    else if (refused < ranks)
        snprintf(text, size, "over TCP with rank %zu, though on this host: %s",
                 refused, pairs->errors[refused].c_str());
    else if (shared && shared == partners)
        snprintf(text, size, "over shared memory");
    else if (shared)
        snprintf(text, size, "over shared memory with %zu of %zu ranks", shared,
                 partners);
}

static void register_buffer(struct collective *all, struct buffer *buffer) {
    all->group.pairs.registered.push_back(buffer);
}

#define TEXT_OF(number) #number
#define VERSION_OF(major, minor, patch)                                        \
    TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

extern "C" __attribute__((visibility("default")))
const struct collective_ops capstan_collective = {
    COLLECTIVE_ABI,
    "gloo",
    VERSION_OF(GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH),
    collective_gloo_check,
    collective_gloo_begin,
    abort_all,
    collective_gloo_end,
    collective_gloo_all_reduce,
    collective_gloo_reduce_scatter,
    collective_gloo_all_gather,
    collective_gloo_broadcast,
    false,
    true,
    nullptr,
    transport,
    register_buffer,
};
