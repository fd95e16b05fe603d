/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from a holder of blocks (a ps, or rank 0 in all-reduce) to the chief
 * about snapshot ID: first that it is captured, then that its part is written
 * or has failed. The message borrows its texts. */
#ifndef CAPSTAN_SNAPSHOT_REPORT_H
#define CAPSTAN_SNAPSHOT_REPORT_H

#include "proto/net/messages/control.pb-c.h"
#include "proto/store/shard_file.h"

#include <stdbool.h>
#include <stdint.h>

/* FILE is in the folder of its step, in the directory of host HOLDER ("": the
 * directory that the chief sees), SECONDS after the capture. */
Capstan__SnapshotDone snapshot_report_written(uint64_t id,
                                              const struct shard_info *file,
                                              const char *holder,
                                              double seconds);

/* Captured. FIRST: this holder has the plan's first block, whose update number
 * is STEP. */
Capstan__SnapshotDone snapshot_report_captured(uint64_t id, bool first,
                                               uint64_t step);

/* No file was written, for the reason TEXT. */
Capstan__SnapshotDone snapshot_report_failed(uint64_t id, const char *text);

#endif
