/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: what ranks do together to one vector. A backend is a plugin
 * beside the binary (capstan-gloo.so, capstan-nccl.so) that exports one such
 * table as the symbol `capstan_collective`. Every rank calls the same functions
 * in the same order with the same counts, from one thread. The same input gives
 * the same bits, run after run.
 *
 * Vectors are the host's, and a call is done when it returns; or a group has
 * joined a stream of a device, whose memory they are: then a call is put there
 * and returns, and is done in its turn. */
#ifndef CAPSTAN_COLLECTIVE_H
#define CAPSTAN_COLLECTIVE_H

#include "proto/base/collective_head.h"
#include "proto/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How ranks find each other: through the chief. UNTIL is on time_now's clock;
 * STATUS_RETRY names the rank that is waited for. */
struct collective_store {
    void *context;
    /* Tells all ranks VALUE (SIZE bytes) under KEY. */
    enum status (*set)(void *context, const char *key, const void *value,
                       size_t size, struct failure *why);
    /* Waits for KEY. *VALUE is the caller's, freed by free(3). */
    enum status (*get)(void *context, const char *key, int64_t until,
                       void **value, size_t *size, struct failure *why);
    /* From any thread: the ranks are not to meet any more, and `open` returns
     * soon. NULL: they are. */
    bool (*is_cancelled)(void *context);
};

enum collective_algorithm {
    COLLECTIVE_RING,             /* least bytes: large buckets, slow links */
    COLLECTIVE_HALVING_DOUBLING, /* fewest turns; ranks a power of two */
};

/* All borrowed until the group is closed. */
struct collective_settings {
    uint32_t rank, size;
    const char *host; /* where the others reach this rank; NULL: by its name */
    const struct collective_store *store;
    enum collective_algorithm algorithm;
    double timeout;  /* seconds any call may take */
    bool shm;        /* shared memory with ranks on this host, of this user */
    uint32_t device; /* local rank: a backend with devices takes this one */
    void *stream;    /* that is joined, as the device tells (`native` of
                        worker/ops/ops.h); NULL: none. Where `joins` alone */
};

struct buffer; /* proto/net/shm/buffer.h */
struct collective;

/* Begins as every plugin's does (proto/base/plugin.h). */
struct collective_ops {
    uint32_t abi; /* COLLECTIVE_ABI */
    const char *name;
    const char *version;
    enum status (*check)(struct failure *why);

    /* Meets all ranks. *OUT is the caller's. STATUS_RETRY names the rank that
     * did not come or whose connection was lost; so do all below, and after
     * such an error only abort and close may follow. */
    enum status (*open)(struct collective **out,
                        const struct collective_settings *settings,
                        struct failure *why);

    /* From any thread: calls under way and later ones fail at once. */
    void (*abort)(struct collective *group);

    /* Ends *GROUP (may be NULL) and clears it. */
    void (*close)(struct collective **group);

    /* DATA[0..count) becomes the sum over ranks, the same bits everywhere. */
    enum status (*all_reduce)(struct collective *group, float *data,
                              size_t count, struct failure *why);

    /* This rank's piece of DATA (collective_piece) becomes the sum over ranks;
     * the other pieces are left undefined. Of a buffer that was shown they may
     * be read until a later call has told this rank something of each. */
    enum status (*reduce_scatter)(struct collective *group, float *data,
                                  size_t count, struct failure *why);

    /* Each rank brings its piece of DATA; all then have all pieces. Of a buffer
     * that was shown they may be read until a later call has told this rank
     * something of each. */
    enum status (*all_gather)(struct collective *group, float *data,
                              size_t count, struct failure *why);

    /* DATA becomes what ROOT has. */
    enum status (*broadcast)(struct collective *group, void *data, size_t bytes,
                             uint32_t root, struct failure *why);

    bool supports_stream; /* it can join a stream */

    /* How it goes with what was put on the stream, as far as that is known; it
     * does not wait. As the calls themselves. NULL: where it never joins. */
    enum status (*async_error)(struct collective *group, struct failure *why);

    /* How vectors go between the ranks, for people: "over shared memory"; ""
     * where there is nothing to tell. NULL: there never is. */
    void (*transport)(const struct collective *group, char *text, size_t size);

    /* From now on vectors may lie in BUFFER, which stays until the group is
     * closed: ranks of this host can read them there. NULL: nobody does. */
    void (*register_buffer)(struct collective *group, struct buffer *buffer);
};

/* The piece of RANK of a vector of COUNT floats: [*first, *first + returned).
 * Pieces lie in rank order, cut at multiples of 16 floats but for the last's
 * end; some may be empty. */
static inline size_t collective_piece(size_t count, uint32_t rank,
                                      uint32_t size, size_t *first) {
    size_t units = (count + 15) / 16;
    size_t from = units * rank / size * 16,
           end = units * (rank + 1) / size * 16;
    *first = from < count ? from : count;
    return (end < count ? end : count) - *first;
}

#ifdef __cplusplus
}
#endif

#endif
