/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the weights between the ps and single files: exports all ps to
 * job.export_path at the end, and loads job.init into all ps at the start. Only
 * the chief does this, over the data links, one tensor at a time, on a
 * background thread. */
#ifndef CAPSTAN_WEIGHTS_IO_H
#define CAPSTAN_WEIGHTS_IO_H

#include "chief/run.h"
#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "proto/messages/ps_links.h"

#include <stdint.h>

/* Checks early that the export can be written: creates its folder. Otherwise
 * STATUS_CONFIG. */
enum status weights_io_check_export_path(const struct run *run,
                                         struct failure *why) MUST_CHECK;

/* Starts what is due and handles what has ended; cancels it when the run stops.
 *
 * The export is due when all holders have its snapshot. The snapshot is
 * released when the export is over; run->export_problem holds its error.
 * job.init is due when run->plan.init_wanted is set. Then run->plan.init_done
 * is set, or the run stops with the error of the file. */
void weights_io_step(struct run *run);

/* Becomes readable when a transfer has ended; -1: none is in progress. */
int weights_io_descriptor(const struct run *run);

/* Cancels and joins the transfer in progress. */
void weights_io_close(struct run *run);

/* Transfers whole parameters between the chief and all ps over their data
 * links: out of a snapshot, or into their initial weights. It blocks, so it
 * runs on a background thread (background_task.h), which owns it from open to
 * close. All pointers are borrowed until then. */
struct weights_transfer_settings {
    const char *address; /* these two as of struct process (member.h) */
    const struct link_keys *keys;
    void *zmq;
    uint64_t run, incarnation; /* of the chief */
    const struct layout *layout;
    const uint32_t *ps_of_block;
    const struct ps_links_peer *ps;
    uint32_t num_ps;
    const char *inproc;  /* in-process link of a ps in this process, or NULL */
    double step_timeout; /* seconds that a ps may stay silent */
    int cancel; /* when it becomes readable, every call fails at once */
};

struct weights_transfer;

/* Opens a link to each ps; the first transfer waits for the connections.
 * STATUS_RETRY: no memory, or no socket. */
enum status weights_transfer_open(
    struct weights_transfer **out,
    const struct weights_transfer_settings *settings,
    struct failure *why) MUST_CHECK;

/* Closes the links and clears *TRANSFER (may be NULL). */
void weights_transfer_close(struct weights_transfer **transfer);

/* Reads PARAMETER of SNAPSHOT into FLOATS [elements], or writes FLOATS as the
 * initial weights of all ps. STATUS_RETRY: a ps, which WHY names, is silent for
 * the step timeout, or the call was cancelled. STATUS_FAILED: a ps refuses; WHY
 * has its reason. */
enum status weights_transfer_read(struct weights_transfer *transfer,
                                  uint32_t parameter, uint64_t snapshot,
                                  float *floats,
                                  struct failure *why) MUST_CHECK;
enum status weights_transfer_assign(struct weights_transfer *transfer,
                                    uint32_t parameter, const float *floats,
                                    struct failure *why) MUST_CHECK;

#endif
