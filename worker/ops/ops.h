/* SPDX-License-Identifier: Apache-2.0 */
/* A device as a table of functions. Models are written once against it. The
 * processor is one (ops_cpu); another is a plugin beside the program,
 * capstan-NAME.so, that exports one such table as the symbol `capstan_device`.
 *
 * Pointers are memory of the device, from `allocate`, unless a contract says
 * "host"; float32, row-major. What is called goes to one of the device's
 * streams, computing always to OPS_COMPUTE: within a stream it is done in
 * order, between streams only as `follow` says. On a device with `later` a call
 * may return before its work is done: host memory it reads or writes stays as
 * it is until an `await` behind it. Such calls return nothing: what went wrong
 * shows in the next `await` or `synchronize`, and in each after it.
 *
 * A device may be used by one thread at a time. */
#ifndef CAPSTAN_OPS_H
#define CAPSTAN_OPS_H

#include "proto/base/device_head.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/tensor/rule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ops_device; /* the backend's own */
struct ops_event;  /* a moment in a stream; likewise */

enum ops_stream {
    OPS_COMPUTE,
    OPS_WEIGHTS,   /* up to the device */
    OPS_GRADIENTS, /* and down from it; losses too */
    OPS_SAMPLES,
    OPS_EXCHANGE, /* sums over the ranks, and updates */
    OPS_STREAMS
};

struct ops_settings {
    uint32_t index;   /* of the device, below `count` */
    uint32_t threads; /* of the host, where that computes */
    double timeout;   /* seconds that any wait for the device may take */
    bool (*is_cancelled)(
        void *context); /* NULL, or ends an `await` once true */
    void *context;
    void (*warn)(void *warn_context,
                 const char *line); /* NULL, or hears of what */
    void *warn_context;             /* makes it slower */
    const struct rule_loops *loops; /* of the processor; NULL: the best */
};

/* Seconds that `synchronize` waits: what does not end by then counts as lost,
 * and its memory stays as it is for the rest of the process's life. */
enum { OPS_SYNC_SECONDS = 5 };

/* Begins as a device_head (proto/base/device_head.h). */
struct ops {
    uint32_t abi;        /* DEVICE_ABI */
    const char *name;    /* "cpu", "cuda" */
    const char *version; /* of the library behind it */
    enum status (*check)(struct failure *why);
    uint32_t (*count)(void);
    enum status (*describe)(uint32_t index, struct device_description *out,
                            struct failure *why);
    enum status (*identify)(uint32_t index, struct device_description *out,
                            struct failure *why);

    /* Calls may return before their work is done, and memory of the device is
     * not the host's. Else all is done when a call returns, upload and
     * download of a pointer onto itself are nothing, and events cost nothing.
     */
    bool async;

    /* STATUS_RETRY when it cannot be had, STATUS_CONFIG when this build has no
     * code for it. */
    enum status (*open)(struct ops_device **out,
                        const struct ops_settings *settings,
                        struct failure *why);

    /* Waits for what is under way; frees *DEVICE (may be NULL) and clears
     * it. */
    void (*close)(struct ops_device **device);

    /* BYTES at 64-byte alignment, undefined; NULL when there is no memory.
     * `release` accepts NULL; nothing under way uses it any more. */
    void *(*allocate)(struct ops_device *device, size_t bytes);
    void (*release)(struct ops_device *device, void *memory);

    /* From now on BYTES of host MEMORY, which shares no page with other pinned
     * memory, can be copied while the host goes on; false: they stay ordinary
     * memory, from which copies are slower. `unpin`, before it is freed, leaves
     * alone what is not pinned. */
    bool (*pin)(struct ops_device *device, void *memory, size_t bytes);
    void (*unpin)(struct ops_device *device, void *memory);

    /* Copies from host memory, and to it. */
    void (*upload)(struct ops_device *device, enum ops_stream stream, void *to,
                   const void *from, size_t bytes);
    void (*download)(struct ops_device *device, enum ops_stream stream,
                     void *to, const void *from, size_t bytes);

    /* Within the device; the two do not overlap. */
    void (*copy)(struct ops_device *device, enum ops_stream stream, void *to,
                 const void *from, size_t bytes);

    /* STREAM as others who speak to the device know it (CUDA: a cudaStream_t),
     * for calls of theirs that are to join it: collective.h. NULL: calls of
     * others on the device's memory are done when they return, as its own. No
     * span has a call on it. */
    void *(*native_stream)(struct ops_device *device, enum ops_stream stream);

    /* An event that has come; NULL when there is no memory. */
    struct ops_event *(*event_open)(struct ops_device *device);
    void (*event_close)(struct ops_device *device, struct ops_event **event);

    /* EVENT comes when all that STREAM has been given so far is done. */
    void (*record)(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event);

    /* What STREAM is given from now on waits for EVENT as last recorded. */
    void (*stream_wait)(struct ops_device *device, enum ops_stream stream,
                        struct ops_event *event);

    /* The host waits until EVENT as last recorded has come, or all is done.
     * STATUS_RETRY names a device that is lost, does not end or was given up,
     * STATUS_FAILED one that had no memory for the work. */
    enum status (*event_sync)(struct ops_device *device,
                              struct ops_event *event, struct failure *why);
    enum status (*synchronize)(struct ops_device *device, struct failure *why);

    /* What is given between `begin` and `end` is a span: the device may hold it
     * back until `end`, and one of the same calls with the same arguments as an
     * earlier one may go out at once, where call by call takes the host longer
     * than the device. In a span there are only calls that return nothing:
     * copies, `record`, `follow` and what computes. Where calls are done when
     * they return, so they are in a span. */
    void (*capture_begin)(struct ops_device *device);
    void (*capture_end)(struct ops_device *device);

    /* From now on operands of the three matrix products below, x, w and dy,
     * are taken as the nearest numbers that PRECISION has, ties to even; their
     * products and sums stay float32. JOB_PRECISION_FP32 at first. */
    void (*set_precision)(struct ops_device *device,
                          enum job_precision precision);

    /* y[n, out] = x[n, in] w[out, in]^T + bias[out], then the activation. */
    void (*linear)(struct ops_device *device, const float *x, const float *w,
                   const float *bias, float *y, uint32_t n, uint32_t in,
                   uint32_t out, enum job_activation activation);

    /* dx[n, in] = dy[n, out] w[out, in]. */
    void (*linear_input_gradient)(struct ops_device *device, const float *dy,
                                  const float *w, float *dx, uint32_t n,
                                  uint32_t in, uint32_t out);

    /* dw[out, in] = dy[n, out]^T x[n, in]; added to dw when ADD. */
    void (*linear_weight_gradient)(struct ops_device *device, const float *dy,
                                   const float *x, float *dw, uint32_t n,
                                   uint32_t in, uint32_t out, bool add);

    /* db[out] = column sums of dy[n, out]; added to db when ADD. */
    void (*column_sums)(struct ops_device *device, const float *dy, float *db,
                        uint32_t n, uint32_t out, bool add);

    /* dy *= derivative of the activation whose output is y; [n, out]. */
    void (*activation_gradient)(struct ops_device *device,
                                enum job_activation activation, const float *y,
                                float *dy, uint32_t n, uint32_t out);

    /* Loss of logits z[n, out] against labels[n], each below OUT: *LOSS
     * receives the sum over samples (double), *CORRECT how many have their
     * largest logit (the first of equals) at the label. DZ (may be NULL)
     * receives the gradient of scale * sum. A sample's sigmoid cross-entropy
     * or squared error is the mean over its outputs, as torch's are. */
    void (*loss)(struct ops_device *device, enum job_loss kind, const float *z,
                 const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                 float scale, double *loss, uint32_t *correct);

    /* What follows is put on STREAM. x[count] = value. */
    void (*fill)(struct ops_device *device, enum ops_stream stream, float *x,
                 size_t count, float value);

    /* x[count] *= by. */
    void (*scale)(struct ops_device *device, enum ops_stream stream, float *x,
                  size_t count, float by);

    /* *FOUND receives 1 when an infinity or a NaN is in x[count], else 0. */
    void (*find_overflow)(struct ops_device *device, enum ops_stream stream,
                          const float *x, size_t count, uint32_t *found);

    /* rule_square_sums of scale * x[count]: pieces[ceil(count / RULE_PIECE)]
     * of the device. The same bits on every device. */
    void (*square_sums)(struct ops_device *device, enum ops_stream stream,
                        const float *x, size_t count, float scale,
                        double *pieces);

    /* *SUM = pieces[count], added from first to last; of the device, as all
     * but LIMIT here and in the next. The same bits on every device. */
    void (*reduce_sum)(struct ops_device *device, enum ops_stream stream,
                       const double *pieces, size_t count, double *sum);

    /* *FACTOR = LIMIT / (norm + 1e-6) where that is below 1, else 1 (a norm of
     * NaN too). The norm is the root of the sum of squares[0], squares[step]
     * and so on, COUNT of them, added in that order. */
    void (*clip)(struct ops_device *device, enum ops_stream stream,
                 const double *squares, size_t count, size_t step, double limit,
                 float *factor);

    /* rule_apply of at most one float32 gradient, in place, times *FACTOR (of
     * the device; NULL: 1), which joins update->scale; UPDATE itself is the
     * host's and free again when the call returns. The same bits on every
     * device (Ftrl with another power than -0.5 excepted). */
    void (*rule)(struct ops_device *device, enum ops_stream stream,
                 const struct optimizer *rule, const struct rule_update *update,
                 const float *factor);
};

/* The CPU: oneDNN's sgemm on THREADS threads, vectorised loops on the calling
 * one; memory of the device is memory of the host, zeroed. The same call gives
 * the same bits, for the same THREADS. */
const struct ops *ops_cpu(void);

/* STATUS_RETRY when there is no memory. */
enum status ops_cpu_open(struct ops_device **out, uint32_t threads,
                         struct failure *why) MUST_CHECK;

/* Frees *DEVICE (may be NULL) and clears it. */
void ops_cpu_close(struct ops_device **device);

#ifdef __cplusplus
}
#endif

#endif
