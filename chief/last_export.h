/* SPDX-License-Identifier: Apache-2.0 */
/* Where a chief finds that the run of the one before was over, it may have to
 * write the export: from the run's last checkpoint, on a thread of its own. */
#ifndef CAPSTAN_LAST_EXPORT_H
#define CAPSTAN_LAST_EXPORT_H

#include "core/store/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

/* Begins the export of LAST, which it takes, to RUN's export.path, if the job
 * has one. */
void last_export_begin(struct run *run, struct manifest *last);

/* Once a turn: is it over, or was none wanted? *STEP is that of the checkpoint,
 * and run->export_problem tells of a failure. It is given up after
 * timeouts.step. */
bool last_export_is_done(struct run *run, uint64_t *step);

/* Gives up what is under way, without a wait for the disk. */
void last_export_close(struct run *run);

#endif
