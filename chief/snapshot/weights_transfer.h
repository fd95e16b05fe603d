/* SPDX-License-Identifier: Apache-2.0 */
/* Whole parameters between the chief and all ps, over their data links: out of
 * a snapshot that they hold, or into their first weights. It waits, so it runs
 * on a thread of its own (background_task.h), to which it belongs from open to
 * close. */
#ifndef CAPSTAN_WEIGHTS_TRANSFER_H
#define CAPSTAN_WEIGHTS_TRANSFER_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stdint.h>

struct weights_transfer_peer {
    char address[300]; /* host:port of a ps's data link */
    uint64_t incarnation;
};

/* All borrowed until close. */
struct weights_transfer_settings {
    void *zmq;
    uint64_t run, incarnation; /* the chief's */
    const struct layout *layout;
    const uint32_t *ps_of_block;
    const struct weights_transfer_peer *ps;
    uint32_t num_ps;
    const char *inproc;  /* the ps's link in this process, or NULL */
    double step_timeout; /* seconds of silence of a ps that is waited for */
    int cancel;          /* polls readable: everything fails at once */
};

struct weights_transfer;

/* A link to each place; connections are awaited by the first transfer.
 * STATUS_RETRY: no memory, or no socket. */
enum status weights_transfer_open(
    struct weights_transfer **out,
    const struct weights_transfer_settings *settings,
    struct failure *why) MUST_CHECK;

/* Closes the links and clears *TRANSFER (may be NULL). */
void weights_transfer_close(struct weights_transfer **weights_transfer);

/* Fills FLOATS [elements] with PARAMETER as SNAPSHOT has it, or makes all ps
 * start from FLOATS. STATUS_RETRY names a ps that is silent for the step
 * timeout, or says that it was cancelled; STATUS_FAILED one that refuses, and
 * why. */
enum status weights_transfer_read(struct weights_transfer *weights_transfer,
                                  uint32_t parameter, uint64_t snapshot,
                                  float *floats,
                                  struct failure *why) MUST_CHECK;
enum status weights_transfer_assign(struct weights_transfer *weights_transfer,
                                    uint32_t parameter, const float *floats,
                                    struct failure *why) MUST_CHECK;

#endif
