/* capstan-gloo.so: collectives over Gloo's TCP transport. Sums are of our own:
 * Gloo reduces and scatters only whole copies, and adds only when a whole
 * segment has come. */
#include "worker/gloo_group.h"

#include <gloo/config.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>

/* Floats of a message, and how many messages are awaited ahead: adding one
 * overlaps receiving the next. Fewer and longer ones wake threads less. */
static const size_t CHUNK = 131072, AHEAD = 2;

struct collective {
    struct gloo_group group;
    enum collective_algorithm algorithm;
};

/* Gloo writes without MSG_NOSIGNAL: the thread that calls, and the one that it
 * starts, must not be killed by a lost peer. */
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

static void add(float *__restrict sum, const float *__restrict more,
                size_t count) {
    for (size_t i = 0; i < count; i++)
        sum[i] += more[i];
}

static float *inbox_slot(struct gloo_group *group, size_t k) {
    return &group->inbox[k % AHEAD * CHUNK];
}

/* The ring of Patarasuk and Yuan (2009), by chunks: in turn t rank r receives
 * piece r-2-t from its left and sends piece r-1-t to its right. The first n-1
 * turns add, and after them rank r has piece r of the sum; n-1 more replace. */
struct walk {
    const struct gloo_group *group;
    float *data;
    size_t count;
    int64_t turn, end;
    size_t done; /* floats of this turn's piece */
};

struct chunk {
    float *floats;
    size_t count;
    bool adds;
    bool last_turn;
};

/* The next chunk that is received; false after the last. */
static bool walk_next(struct walk *walk, struct chunk *chunk) {
    int64_t size = walk->group->size, rank = walk->group->rank;
    for (; walk->turn < walk->end; walk->turn++, walk->done = 0) {
        auto piece = (uint32_t)((rank + 2 * size - 2 - walk->turn) % size);
        size_t first, length = collective_piece(walk->count, piece,
                                                walk->group->size, &first);
        if (walk->done == length)
            continue;
        *chunk = {walk->data + first + walk->done,
                  std::min(CHUNK, length - walk->done), walk->turn < size - 1,
                  walk->turn + 1 == walk->end};
        walk->done += chunk->count;
        return true;
    }
    return false;
}

static void send_floats(struct gloo_group *group, uint32_t to,
                        const struct chunk *chunk) {
    gloo_group_send(group, to, chunk->floats, chunk->count * sizeof(float));
}

static void await_next(struct gloo_group *group, uint32_t from,
                       struct walk *ahead, size_t k) {
    struct chunk chunk;
    if (walk_next(ahead, &chunk))
        gloo_group_receive(group, from,
                           chunk.adds ? inbox_slot(group, k) : chunk.floats,
                           chunk.count * sizeof(float));
}

/* Turns [from, to). */
static void ring(struct gloo_group *group, float *data, size_t count,
                 int64_t from, int64_t to) {
    uint32_t left = (group->rank + group->size - 1) % group->size;
    uint32_t right = (group->rank + 1) % group->size;
    struct walk own = {group, data, count, from - 1, from, 0};
    struct walk now = {group, data, count, from, to, 0}, ahead = now;
    struct chunk chunk;
    size_t k;
    for (k = 0; k < AHEAD; k++)
        await_next(group, left, &ahead, k);
    while (walk_next(&own, &chunk))
        send_floats(group, right, &chunk);
    for (k = 0; walk_next(&now, &chunk); k++) {
        gloo_group_wait(group, left);
        if (chunk.adds)
            add(chunk.floats, inbox_slot(group, k), chunk.count);
        await_next(group, left, &ahead, k + AHEAD);
        if (!chunk.last_turn)
            send_floats(group, right, &chunk);
    }
}

/* Both partners send OUT and receive IN, or add to it. */
static void exchange(struct gloo_group *group, uint32_t partner, float *out,
                     size_t num_out, float *in, size_t num_in, bool adds) {
    size_t posted = 0, chunks = (num_in + CHUNK - 1) / CHUNK;
    auto await_chunk = [&] {
        if (posted == chunks)
            return;
        size_t at = posted * CHUNK;
        gloo_group_receive(group, partner,
                           adds ? inbox_slot(group, posted) : in + at,
                           std::min(CHUNK, num_in - at) * sizeof(float));
        posted++;
    };
    while (posted < chunks && posted < AHEAD)
        await_chunk();
    for (size_t at = 0; at < num_out; at += CHUNK)
        gloo_group_send(group, partner, out + at,
                        std::min(CHUNK, num_out - at) * sizeof(float));
    for (size_t k = 0; k < chunks; k++) {
        gloo_group_wait(group, partner);
        if (adds)
            add(in + k * CHUNK, inbox_slot(group, k),
                std::min(CHUNK, num_in - k * CHUNK));
        await_chunk();
    }
}

/* Recursive halving, then doubling (Thakur, Rabenseifner, Gropp 2005, 4.4); the
 * ranks are a power of two. After the halving each has summed what lies between
 * bounds[step] and bounds[step + 1] of its path. */
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
        exchange(group, group->rank ^ mask, data + other,
                 (end - begin) - (ends[step + 1] - begins[step + 1]),
                 data + begins[step + 1], ends[step + 1] - begins[step + 1],
                 true);
    }
    for (mask = 1; step--; mask *= 2) {
        size_t begin = begins[step + 1], end = ends[step + 1];
        size_t other = begin == begins[step] ? end : begins[step];
        exchange(group, group->rank ^ mask, data + begin, end - begin,
                 data + other, (ends[step] - begins[step]) - (end - begin),
                 false);
    }
}

/* Each passes on to its right what comes from its left, until it is round. */
static void pass_on(struct gloo_group *group, char *data, size_t bytes,
                    uint32_t root) {
    static const size_t most = CHUNK * sizeof(float);
    uint32_t left = (group->rank + group->size - 1) % group->size;
    uint32_t right = (group->rank + 1) % group->size;
    size_t chunks = (bytes + most - 1) / most, posted = 0;
    for (size_t k = 0; k < chunks; k++) {
        size_t at = k * most;
        for (; group->rank != root && posted < chunks && posted < k + AHEAD;
             posted++)
            gloo_group_receive(group, left, data + posted * most,
                               std::min(most, bytes - posted * most));
        if (group->rank != root)
            gloo_group_wait(group, left);
        if (right != root)
            gloo_group_send(group, right, data + at,
                            std::min(most, bytes - at));
    }
}

/* Runs WORK, which throws when it fails, as one call of the contract. */
template <typename work>
static enum status call(struct collective *all, struct failure *why,
                        work work_of) noexcept {
    struct gloo_group *group = &all->group;
    if (group->size == 1)
        return STATUS_OK;
    no_sigpipe guard;
    try {
        gloo_group_begin(group);
        work_of(group);
        gloo_group_end(group);
        return STATUS_OK;
    } catch (...) {
        return gloo_group_failed(group, why);
    }
}

static enum status all_reduce(struct collective *all, float *data, size_t count,
                              struct failure *why) {
    bool halves = all->algorithm == COLLECTIVE_HALVING_DOUBLING &&
                  !(all->group.size & (all->group.size - 1));
    return call(all, why, [=](struct gloo_group *group) {
        if (halves)
            halve_and_double(group, data, count);
        else
            ring(group, data, count, 0, 2 * (int64_t)group->size - 2);
    });
}

static enum status reduce_scatter(struct collective *all, float *data,
                                  size_t count, struct failure *why) {
    return call(all, why, [=](struct gloo_group *group) {
        ring(group, data, count, 0, (int64_t)group->size - 1);
    });
}

static enum status all_gather(struct collective *all, float *data, size_t count,
                              struct failure *why) {
    return call(all, why, [=](struct gloo_group *group) {
        ring(group, data, count, (int64_t)group->size - 1,
             2 * (int64_t)group->size - 2);
    });
}

static enum status broadcast(struct collective *all, void *data, size_t bytes,
                             uint32_t root, struct failure *why) {
    return call(all, why, [=](struct gloo_group *group) {
        pass_on(group, static_cast<char *>(data), bytes, root);
    });
}

static enum status check(struct failure *) {
    return STATUS_OK;
}

static void end(struct collective **all) {
    if (*all) {
        no_sigpipe guard;
        gloo_group_close(&(*all)->group);
        delete *all;
    }
    *all = nullptr;
}

static enum status begin(struct collective **out,
                         const struct collective_settings *settings,
                         struct failure *why) {
    no_sigpipe guard;
    auto all = new (std::nothrow) collective();
    *out = nullptr;
    if (!all)
        return status_fail(why, STATUS_FAILED, "gloo: out of memory");
    all->algorithm = settings->algorithm;
    all->group.rank = settings->rank;
    all->group.size = settings->size;
    enum status status = STATUS_OK;
    try {
        if (settings->size > 1) {
            all->group.inbox.resize(AHEAD * CHUNK);
            status = gloo_group_open(&all->group, settings, why);
        }
    } catch (...) {
        status = gloo_group_failed(&all->group, why);
    }
    if (status)
        end(&all);
    *out = all;
    return status;
}

static void abort_all(struct collective *all) {
    gloo_group_abort(&all->group);
}

#define TEXT_OF(number) #number
#define VERSION_OF(major, minor, patch)                                        \
    TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

extern "C" __attribute__((visibility("default")))
const struct collective_ops capstan_collective = {
    COLLECTIVE_ABI,
    "gloo",
    VERSION_OF(GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH),
    check,
    begin,
    abort_all,
    end,
    all_reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    nullptr, /* devices: none is needed */
};
