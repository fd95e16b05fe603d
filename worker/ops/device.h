/* SPDX-License-Identifier: Apache-2.0 */
/* A device as a table of functions; models are written once against it. The CPU
 * is one (ops_cpu); another is a plugin beside the program, capstan-NAME.so,
 * that exports one such table as the symbol `capstan_device`.
 *
 * Pointers are device memory from `allocate` unless a contract says "host";
 * float32, row-major. Calls go to one of the device's streams. Within a
 * stream work is done in order; between streams only `stream_wait` orders it.
 * On a device with `async` a call may return before its work is done: host
 * memory that it reads or writes must not change until a later `event_sync`.
 * Such calls return nothing: an error shows in the next `event_sync` or
 * `synchronize` and in each after it.
 *
 * A device may be used by one thread at a time. */
#ifndef CAPSTAN_DEVICE_H
#define CAPSTAN_DEVICE_H

#include "core/base/device_head.h"
#include "core/base/status.h"
#include "worker/ops/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct device;       /* the backend's own type */
struct device_event; /* a point in a stream; likewise */

enum device_stream {
    STREAM_COMPUTE,
    STREAM_WEIGHTS,   /* uploads */
    STREAM_GRADIENTS, /* downloads, also of losses */
    STREAM_SAMPLES,
    STREAM_EXCHANGE, /* sums over the ranks, and updates */
    DEVICE_STREAMS
};

struct device_settings {
    uint32_t index;   /* of the device, below `count` */
    uint32_t threads; /* of the host, if it computes */
    double timeout;   /* time limit of any wait for the device in seconds */
    bool (*is_cancelled)(
        void *context); /* NULL, or ends an `event_sync` once true */
    void *context;
    void (*warn)(void *warn_context,
                 const char *line); /* NULL, or receives a line */
    void *warn_context;             /* about what makes the device slower */
    const struct rule_loops *loops; /* on the CPU; NULL: the best */
    bool no_graphs;                 /* every op is launched by itself */
};

/* Seconds that `synchronize` waits. Work that does not end by then counts as
 * lost, and its memory is never freed. */
enum { DEVICE_SYNC_SECONDS = 5 };

/* What program and plugin must agree on: the structs that they share, whose
 * number is raised with each change, and which ops, rules and words there are,
 * as an older plugin does not know a further one. */
enum {
    DEVICE_STRUCTS = 14,
    DEVICE_ABI = DEVICE_STRUCTS << 24 | OP_KINDS << 16 | RULE_FORMS << 8 |
                 JOB_ACTIVATIONS << 4 | JOB_LOSSES
};
_Static_assert(OP_KINDS < 256 && RULE_FORMS < 256 && JOB_ACTIVATIONS < 16 &&
                   JOB_LOSSES < 16,
               "each has its bits of the number");

/* Begins as a device_head (core/base/device_head.h). */
struct device_ops {
    uint32_t abi;        /* DEVICE_ABI */
    const char *name;    /* "cpu", "cuda" */
    const char *version; /* of the library behind it */
    enum status (*check)(struct failure *why);
    uint32_t (*count)(void);
    enum status (*describe)(uint32_t index, struct device_description *out,
                            struct failure *why);
    enum status (*identify)(uint32_t index, struct device_description *out,
                            struct failure *why);

    /* Calls may return before their work is done, and device memory is separate
     * from the host's. If false, all is done when a call returns, `upload` and
     * `download` of a pointer onto itself do nothing, and events cost
     * nothing. */
    bool async;

    /* STATUS_RETRY if the device is unavailable, STATUS_CONFIG if this build
     * has no code for it. */
    enum status (*open)(struct device **out,
                        const struct device_settings *settings,
                        struct failure *why);

    /* Waits for enqueued work; frees *DEVICE (may be NULL) and clears it. */
    void (*close)(struct device **device);

    /* BYTES of uninitialised memory at 64-byte alignment; NULL if there is
     * none. `release` accepts NULL; no enqueued work may use the memory. */
    void *(*allocate)(struct device *device, size_t bytes);
    void (*release)(struct device *device, void *memory);

    /* Pins BYTES of host MEMORY, which shares no page with other pinned memory,
     * so that copies run asynchronously; false: it stays pageable, and copies
     * are slower. Call `unpin` before the memory is freed; it ignores memory
     * that is not pinned. */
    bool (*pin)(struct device *device, void *memory, size_t bytes);
    void (*unpin)(struct device *device, void *memory);

    /* Copies from host memory, and to host memory. */
    void (*upload)(struct device *device, enum device_stream stream, void *to,
                   const void *from, size_t bytes);
    void (*download)(struct device *device, enum device_stream stream, void *to,
                     const void *from, size_t bytes);

    /* Copies within the device; the ranges do not overlap. */
    void (*copy)(struct device *device, enum device_stream stream, void *to,
                 const void *from, size_t bytes);

    /* STREAM as the backend's API knows it (CUDA: a cudaStream_t), for
     * libraries that enqueue on it: collective.h. NULL: such calls are done
     * when they return, as this device's are. No capture contains a call on
     * it. */
    void *(*native_stream)(struct device *device, enum device_stream stream);

    /* An event that is complete; NULL if there is no memory. */
    struct device_event *(*event_open)(struct device *device);
    void (*event_close)(struct device *device, struct device_event **event);

    /* EVENT completes when all work enqueued on STREAM so far is done. */
    void (*record)(struct device *device, enum device_stream stream,
                   struct device_event *event);

    /* Work enqueued on STREAM from now on waits for EVENT as last recorded. */
    void (*stream_wait)(struct device *device, enum device_stream stream,
                        struct device_event *event);

    /* The host waits until EVENT as last recorded is complete, or until all
     * work is done. STATUS_RETRY: the device is lost or does not finish, or the
     * wait was cancelled; STATUS_FAILED: the device had no memory for the
     * work. */
    enum status (*event_sync)(struct device *device, struct device_event *event,
                              struct failure *why);
    enum status (*synchronize)(struct device *device, struct failure *why);

    /* Calls between `capture_begin` and `capture_end` may be deferred until
     * `capture_end` and replayed as a captured graph if the same calls with
     * equal ops came before: this saves host time where launches take longer
     * than the work. Only calls that return nothing are allowed in between:
     * copies, `record`, `stream_wait` and `run`. Without `async` calls are done
     * when they return, as always. */
    void (*capture_begin)(struct device *device);
    void (*capture_end)(struct device *device);

    /* The calling thread begins a range called NAME, a literal, for profilers
     * that show what the host does beside the device's work; NULL: its last one
     * ends. Also within a capture, of which it is no part. */
    void (*range)(struct device *device, const char *name);

    /* From now on the operands x, w and dy of the three matrix products (op.h)
     * are rounded to the nearest numbers of PRECISION, ties to even; of TF32,
     * which only GPUs have, as cuBLAS does it. Products and sums stay float32.
     * Initially JOB_PRECISION_FP32. */
    void (*set_precision)(struct device *device, enum job_precision precision);

    /* True if `run` computes OP. Follows no address of it. */
    bool (*supports)(const struct device *device, struct op op);

    /* Does now what the first run of an op of this kind and these sizes would
     * do otherwise, so that no step waits for it or fails in it; without it
     * `run` does so itself. Follows no address of OP, which is supported. The
     * CPU chooses oneDNN's code for the product of OP_LINEAR and allocates
     * rounded operands; CUDA allocates these and room for partial sums, and
     * growing them later would discard all captured graphs. Other kinds need
     * nothing. STATUS_FAILED: the device has no memory. */
    enum status (*prepare)(struct device *device, struct op op,
                           struct failure *why);

    /* Enqueues OP on STREAM, which op.h restricts for some kinds. */
    void (*run)(struct device *device, enum device_stream stream, struct op op);
};

/* The CPU: oneDNN's sgemm on THREADS threads, vectorised loops on the calling
 * one; device memory is zeroed host memory. The same call gives the same bits
 * for the same THREADS. */
const struct device_ops *ops_cpu(void);

/* STATUS_RETRY: no memory. */
enum status ops_cpu_open(struct device **out, uint32_t threads,
                         struct failure *why) MUST_CHECK;

/* Frees *DEVICE (may be NULL) and clears it. */
void ops_cpu_close(struct device **device);

#ifdef __cplusplus
}
#endif

#endif
