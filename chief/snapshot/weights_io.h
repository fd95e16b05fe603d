/* SPDX-License-Identifier: Apache-2.0 */
/* The run's weights and single files: out of all ps into job.export_path at
 * the end, out of job.init into all ps at the start. The chief alone does
 * both, over the wire, with one tensor at a time in its memory, on a thread
 * beside its loop. */
#ifndef CAPSTAN_WEIGHTS_IO_H
#define CAPSTAN_WEIGHTS_IO_H

#include "chief/run.h"

/* Looks whether the export can be written where it shall, long before it is:
 * makes its folder. STATUS_CONFIG says why not. */
enum status weights_io_check_export_path(const struct run *run,
                                         struct failure *why) MUST_CHECK;

/* Starts what is due and follows up what has ended; cancels what the run ends
 * without.
 *
 * Due is the export when all ps hold its cut: the cut is released at its end,
 * and run->export_problem says what went wrong. And job.init when
 * run->init_wanted says that all ps are ready for its weights: run->init_done
 * follows, or the run ends with what is wrong with the file. */
void weights_io_step(struct run *run);

/* Polls readable when there is something to follow up; -1: nothing can be. */
int weights_io_descriptor(const struct run *run);

/* Cancels what is under way, waits for it and clears *COLLECT. */
void weights_io_close(struct run *run);

#endif
