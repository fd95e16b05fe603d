/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the weights between the ps and single files: exports all ps to
 * job.export_path at the end, and loads job.init into all ps at the start. Only
 * the chief does this, over the data links, one tensor at a time, on a
 * background thread. */
#ifndef CAPSTAN_WEIGHTS_IO_H
#define CAPSTAN_WEIGHTS_IO_H

#include "chief/run.h"

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

#endif
