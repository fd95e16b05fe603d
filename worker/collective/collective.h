/* SPDX-License-Identifier: Apache-2.0 */
/* Collective operations on one vector. A backend is a plugin beside the binary
 * (capstan-gloo.so, capstan-nccl.so) that exports one such table as the symbol
 * `capstan_collective`. Every rank calls the same functions in the same order
 * with the same counts, from one thread. The same input gives the same bits on
 * every run.
 *
 * Without a stream vectors are in host memory, and a call returns when it is
 * done. A group that has joined a device's stream takes vectors in the device's
 * memory: a call enqueues the operation and returns. */
#ifndef CAPSTAN_COLLECTIVE_H
#define CAPSTAN_COLLECTIVE_H

#include "core/base/collective_head.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rendezvous of the ranks: a key-value store through the chief. UNTIL is on
 * time_now's clock; STATUS_RETRY names the missing rank. */
struct collective_store {
    void *context;
    /* Publishes VALUE (SIZE bytes) under KEY to all ranks. */
    enum status (*set)(void *context, const char *key, const void *value,
                       size_t size, struct failure *why);
    /* Waits for KEY. The caller frees *VALUE by free(3). */
    enum status (*get)(void *context, const char *key, int64_t until,
                       void **value, size_t *size, struct failure *why);
    /* From any thread: true once the rendezvous is cancelled, whereupon `open`
     * returns soon. NULL: never. */
    bool (*is_cancelled)(void *context);
};

enum collective_algorithm {
    COLLECTIVE_RING,             /* fewest bytes: large buckets, slow links */
    COLLECTIVE_HALVING_DOUBLING, /* fewest steps; needs a power of two of ranks
                                  */
};

/* All borrowed until the group is closed. */
struct collective_settings {
    uint32_t rank, size;
    /* Where other ranks reach this one; NULL: its host name. */
    const char *host;
    const char *address; /* numeric, local: the only one to listen on, and where
                            others reach this rank; NULL: any */
    const struct collective_store *store;
    enum collective_algorithm algorithm;
    double timeout; /* time limit of a call in seconds */
    double silence; /* seconds without an acknowledgement after which a
                       connection to another host is cut off; 0: no limit. A
                       backend may have no such limit */
    bool shm;       /* shared memory with ranks on this host, of this user */
    const unsigned char *proof; /* of a run with a secret: the key by which
                                   connections prove that both sides have it
                                   (LINK_KEY_BYTES); NULL: none */
    /* Told, on the calling thread, of a connection from FROM to this rank's
     * address OWN that is refused; WHY is a verb with its object. May be NULL.
     */
    void (*reject)(const void *context, const char *own, const char *from,
                   const char *why);
    const void *reject_context;
    uint32_t device; /* local rank; a backend with devices uses this one */
    void *stream; /* a stream to join (`native_stream` of worker/ops/device.h),
                     if `supports_stream`; NULL: none */
};

struct buffer; /* core/net/shm/buffer.h */
struct collective;

/* Begins as every plugin's table does (core/base/plugin.h). */
struct collective_ops {
    uint32_t abi; /* COLLECTIVE_ABI */
    const char *name;
    const char *version;
    enum status (*check)(struct failure *why);

    /* Connects all ranks. The caller owns *OUT. STATUS_RETRY names the rank
     * that is missing or whose connection was lost, here and below; after such
     * an error only abort and close may be called, if *OUT is not NULL. */
    enum status (*open)(struct collective **out,
                        const struct collective_settings *settings,
                        struct failure *why);

    /* From any thread: current and later calls fail at once. */
    void (*abort)(struct collective *group);

    /* Closes *GROUP (may be NULL) and clears it. False: the library behind it
     * does not return in time; its thread and all memory stay, and the process
     * is to end (plugin_leave_thread). */
    bool (*close)(struct collective **group);

    /* DATA[0..count) becomes the sum over ranks, the same bits everywhere. */
    enum status (*all_reduce)(struct collective *group, float *data,
                              size_t count, struct failure *why);

    /* This rank's piece of DATA (collective_piece) becomes the sum over ranks;
     * the other pieces are undefined afterwards. In a registered buffer other
     * ranks may read them until a later call has received data from each of
     * those ranks. */
    enum status (*reduce_scatter)(struct collective *group, float *data,
                                  size_t count, struct failure *why);

    /* Each rank contributes its piece of DATA; afterwards all ranks have all
     * pieces. In a registered buffer other ranks may read them until a later
     * call has received data from each of those ranks. */
    enum status (*all_gather)(struct collective *group, float *data,
                              size_t count, struct failure *why);

    /* DATA becomes ROOT's. */
    enum status (*broadcast)(struct collective *group, void *data, size_t bytes,
                             uint32_t root, struct failure *why);

    bool supports_stream; /* the backend can join a stream */
    bool supports_proof;  /* its connections prove themselves by `proof` */

    /* The state of the operations on the stream, without waiting; errors as of
     * the calls themselves. NULL if the backend never joins a stream. */
    enum status (*async_error)(struct collective *group, struct failure *why);

    /* How vectors travel between the ranks, for log lines: "over shared
     * memory"; "" if there is nothing to report. NULL: there never is. */
    void (*transport)(const struct collective *group, char *text, size_t size);

    /* Vectors may lie in BUFFER from now on, which stays until the group is
     * closed: ranks on this host can read it in place. NULL: not supported. */
    void (*register_buffer)(struct collective *group, struct buffer *buffer);
};

/* The piece of RANK of a vector of COUNT floats: [*first, *first + returned).
 * Pieces lie in rank order and end at multiples of 16 floats, except the last;
 * some may be empty. */
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
