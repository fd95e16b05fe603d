/* SPDX-License-Identifier: Apache-2.0 */
/* A device as a table of functions; models are written once against it. The CPU
 * is one (ops_cpu); another is a plugin beside the program, capstan-NAME.so,
 * that exports one such table as the symbol `capstan_device`.
 *
 * Pointers are device memory from `allocate` unless a contract says "host";
 * float32, row-major. Calls go to one of the device's streams, computation
 * always to STREAM_COMPUTE. Within a stream work is done in order; between
 * streams only `stream_wait` orders it. On a device with `async` a call may
 * return before its work is done: host memory that it reads or writes must not
 * change until a later `event_sync`. Such calls return nothing: an error shows
 * in the next `event_sync` or `synchronize` and in each after it.
 *
 * A device may be used by one thread at a time. */
#ifndef CAPSTAN_DEVICE_H
#define CAPSTAN_DEVICE_H

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
};

/* What `rows` computes of each sample; x is [fields, width]. */
enum ops_rows_kind {
    OPS_ROWS_COPY,  /* y[fields * width] = x; with x_row 0 x is one row for all
                       samples */
    OPS_ROWS_PAIRS, /* y[1] = the sum of the products of all pairs of fields
                       (Rendle 2010, Factorization Machines, lemma 3.1) */
    OPS_ROWS_PAIRS_GRADIENT, /* y[fields, width], by dy[1] */
    OPS_ROWS_DOTS,           /* y[pairs] = the products of all pairs of fields:
                                1-0, 2-0, 2-1, 3-0, ... (Naumov et al. 2019) */
    OPS_ROWS_DOTS_GRADIENT,  /* y[fields, width], by dy[pairs] */
    OPS_ROWS_DROPOUT,        /* y[fields * width] = x dropped out: dropout.h; x
                                may be y */
    OPS_ROWS_KINDS
};

/* A call of `rows`. Samples are x_row, dy_row and y_row floats apart. Without
 * padding. */
struct ops_rows {
    const float *x, *dy; /* DY: of the two gradients */
    float *y;
    uint64_t key, number; /* OPS_ROWS_DROPOUT: Philox's key and stream; the
                             position is that of the element in y's rows without
                             gaps */
    double rate;          /* likewise, the fraction dropped */
    uint32_t kind, n, fields, width;
    uint32_t x_row, dy_row, y_row;
    uint32_t add; /* 1: to y; not OPS_ROWS_DROPOUT */
};

/* Floats from the first to the last of an operand of CALL, whose samples have
 * VALUES each, ROW apart. */
static inline uint64_t ops_rows_span(const struct ops_rows *call, uint32_t row,
                                     uint64_t values) {
    return call->n ? (uint64_t)(call->n - 1) * row + values : 0;
}

static inline uint64_t ops_rows_x(const struct ops_rows *call) {
    return ops_rows_span(call, call->x_row,
                         (uint64_t)call->fields * call->width);
}

static inline uint64_t ops_rows_pairs(const struct ops_rows *call) {
    return (uint64_t)call->fields * (call->fields - 1) / 2;
}

static inline uint64_t ops_rows_dy(const struct ops_rows *call) {
    bool dots = call->kind == OPS_ROWS_DOTS_GRADIENT;
    return ops_rows_span(call, call->dy_row, dots ? ops_rows_pairs(call) : 1);
}

static inline uint64_t ops_rows_y(const struct ops_rows *call) {
    uint64_t values = (uint64_t)call->fields * call->width;
    values = call->kind == OPS_ROWS_PAIRS ? 1 : values;
    values = call->kind == OPS_ROWS_DOTS ? ops_rows_pairs(call) : values;
    return ops_rows_span(call, call->y_row, values);
}

/* Seconds that `synchronize` waits. Work that does not end by then counts as
 * lost, and its memory is never freed. */
enum { DEVICE_SYNC_SECONDS = 5 };

/* Begins as a device_head (proto/base/device_head.h). */
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

    /* Operations issued between `capture_begin` and `capture_end` may be
     * deferred until `capture_end` and replayed as a captured graph if the same
     * calls with the same arguments came before: this saves host time where
     * launches take longer than the work. Only calls that return nothing are
     * allowed in between: copies, `record`, `stream_wait` and computation.
     * Without `async` calls are done when they return, as always. */
    void (*capture_begin)(struct device *device);
    void (*capture_end)(struct device *device);

    /* From now on the operands x, w and dy of the three matrix products below
     * are rounded to the nearest numbers of PRECISION, ties to even; products
     * and sums stay float32. Initially JOB_PRECISION_FP32. */
    void (*set_precision)(struct device *device, enum job_precision precision);

    /* y[n, out] = x[n, in] w[out, in]^T + bias[out], then the activation. */
    void (*linear)(struct device *device, const float *x, const float *w,
                   const float *bias, float *y, uint32_t n, uint32_t in,
                   uint32_t out, enum job_activation activation);

    /* dx[n, in] = dy[n, out] w[out, in]. */
    void (*linear_input_gradient)(struct device *device, const float *dy,
                                  const float *w, float *dx, uint32_t n,
                                  uint32_t in, uint32_t out);

    /* dw[out, in] = dy[n, out]^T x[n, in]; added to dw if ADD. */
    void (*linear_weight_gradient)(struct device *device, const float *dy,
                                   const float *x, float *dw, uint32_t n,
                                   uint32_t in, uint32_t out, bool add);

    /* db[out] = column sums of dy[n, out]; added to db if ADD. */
    void (*column_sums)(struct device *device, const float *dy, float *db,
                        uint32_t n, uint32_t out, bool add);

    /* dy *= derivative of the activation with output y; [n, out]. */
    void (*activation_gradient)(struct device *device,
                                enum job_activation activation, const float *y,
                                float *dy, uint32_t n, uint32_t out);

    /* Loss of logits z[n, out] against labels[n], each below OUT: *LOSS
     * receives the sum over samples (double), *CORRECT the number of samples
     * whose largest logit (the first of equals) is the label's. With OUT 1,
     * except by softmax, labels are the bits of floats, the targets, and
     * *CORRECT counts those that sigmoid(z) rounds to. DZ (may be
     * NULL) receives the gradient of scale * sum. A sample's sigmoid
     * cross-entropy or squared error is the mean over its outputs, as in
     * torch. */
    void (*loss)(struct device *device, enum job_loss kind, const float *z,
                 const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                 float scale, double *loss, uint32_t *correct);

    /* CALL for its n samples, as described at ops_rows. The same bits on every
     * device. */
    void (*rows)(struct device *device, const struct ops_rows *call);

    /* The functions below enqueue on STREAM. x[count] = value. */
    void (*fill)(struct device *device, enum device_stream stream, float *x,
                 size_t count, float value);

    /* x[count] *= by. */
    void (*scale)(struct device *device, enum device_stream stream, float *x,
                  size_t count, float by);

    /* *FOUND becomes 1 if x[count] contains an infinity or a NaN, else 0. */
    void (*find_overflow)(struct device *device, enum device_stream stream,
                          const float *x, size_t count, uint32_t *found);

    /* rule_square_sums of scale * x[count]: pieces[ceil(count / RULE_PIECE)] in
     * device memory. The same bits on every device. */
    void (*square_sums)(struct device *device, enum device_stream stream,
                        const float *x, size_t count, float scale,
                        double *pieces);

    /* *SUM = pieces[count], added from first to last; in device memory, as are
     * all but LIMIT here and in the next function. The same bits on every
     * device. */
    void (*reduce_sum)(struct device *device, enum device_stream stream,
                       const double *pieces, size_t count, double *sum);

    /* *FACTOR = LIMIT / (norm + 1e-6) if that is below 1, else 1 (also for a
     * norm of NaN). The norm is the root of the sum of squares[0],
     * squares[step] and so on, COUNT of them, added in that order. */
    void (*clip)(struct device *device, enum device_stream stream,
                 const double *squares, size_t count, size_t step, double limit,
                 float *factor);

    /* rule_apply of at most one float32 gradient, in place, times *FACTOR
     * (device memory; NULL: 1), which is multiplied into update->scale; UPDATE
     * itself is host memory and not used after the call returns. The same bits
     * on every device (except Ftrl with a power other than -0.5). */
    void (*rule)(struct device *device, enum device_stream stream,
                 const struct optimizer *rule, const struct rule_update *update,
                 const float *factor);
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
