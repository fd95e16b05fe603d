/* A device as a table of functions. Models are written once against it. All
 * pointers are memory of the device, from `allocate`; float32, row-major. Calls
 * run in order on the device; `synchronize` waits for them. */
#ifndef CAPSTAN_OPS_H
#define CAPSTAN_OPS_H

#include "proto/base/status.h"
#include "proto/conf/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPS_ABI 1u

struct ops_device; /* the backend's own */

struct ops {
    uint32_t abi;     /* OPS_ABI */
    const char *name; /* "cpu" */

    /* BYTES at 64-byte alignment, zeroed; NULL when there is no memory.
     * `release` accepts NULL. */
    void *(*allocate)(struct ops_device *device, size_t bytes);
    void (*release)(struct ops_device *device, void *memory);
    void (*synchronize)(struct ops_device *device);

    /* From now on operands of the three matrix products below, x, w and dy,
     * are taken as the nearest numbers that PRECISION has, ties to even; their
     * products and sums stay float32. JOB_PRECISE at first. */
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
};

/* The CPU: oneDNN's sgemm on THREADS threads, vectorised loops on the calling
 * one. The same call gives the same bits, for the same THREADS. A device may be
 * used by one thread at a time. */
const struct ops *ops_cpu(void);

/* STATUS_RETRY when there is no memory. */
enum status ops_cpu_open(struct ops_device **out, uint32_t threads,
                         struct failure *why) MUST_CHECK;

/* Frees *DEVICE (may be NULL) and clears it. */
void ops_cpu_close(struct ops_device **device);

#endif
