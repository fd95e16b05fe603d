/* SPDX-License-Identifier: Apache-2.0 */
/* What who holds blocks (a ps, or rank 0 in all-reduce) tells the chief of a
 * cut ID: first that it is held, then that its part is written, or that there
 * will be none. Texts are borrowed by the message. */
#ifndef CAPSTAN_SNAPSHOT_REPORT_H
#define CAPSTAN_SNAPSHOT_REPORT_H

#include "proto/net/messages/control.pb-c.h"
#include "proto/store/shard_file.h"

#include <stdbool.h>
#include <stdint.h>

/* FILE stands in the folder of its step, in the directory of host HOLDER ("":
 * in the one that the chief sees), SECONDS after the cut. */
Capstan__SnapshotDone snapshot_report_written(uint64_t id,
                                              const struct shard_info *file,
                                              const char *holder,
                                              double seconds);

/* Held. FIRST: with the plan's first block, as its update number STEP leaves
 * it. */
Capstan__SnapshotDone snapshot_report_captured(uint64_t id, bool first,
                                               uint64_t step);

/* No file, for the reason TEXT. */
Capstan__SnapshotDone snapshot_report_failed(uint64_t id, const char *text);

#endif
