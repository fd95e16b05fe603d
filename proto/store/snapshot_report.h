/* SPDX-License-Identifier: Apache-2.0 */
/* What a holder (a ps, or rank 0 in all-reduce) reports to the chief about
 * snapshot ID: first that it is held, then that its part is written or could
 * not be. The message borrows its texts. */
#ifndef CAPSTAN_SNAPSHOT_REPORT_H
#define CAPSTAN_SNAPSHOT_REPORT_H

#include "proto/net/messages/control.pb-c.h"
#include "proto/store/shard_file.h"

#include <stdbool.h>
#include <stdint.h>

/* FIRST: this holder has the plan's first block, whose update number is
 * STEP. */
Capstan__SnapshotReport snapshot_report_held(uint64_t id, bool first,
                                             uint64_t step);

/* FILE is in the folder of its step, in the directory of HOST ("": the
 * directory that the chief sees), SECONDS after the snapshot. */
Capstan__SnapshotReport snapshot_report_written(uint64_t id,
                                                const struct shard_info *file,
                                                const char *host,
                                                double seconds);

/* There is no file, for the reason TEXT. */
Capstan__SnapshotReport snapshot_report_not_written(uint64_t id,
                                                    const char *text);

#endif
