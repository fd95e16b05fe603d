/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/snapshot_report.h"

Capstan__SnapshotDone snapshot_report_written(uint64_t id,
                                              const struct shard_info *file,
                                              const char *holder,
                                              double seconds) {
    Capstan__SnapshotDone report = CAPSTAN__SNAPSHOT_DONE__INIT;
    report.id = id;
    report.written = true;
    report.name = (char *)file->name;
    report.size = file->size;
    report.hash_low = file->hash[0];
    report.hash_high = file->hash[1];
    report.holder = (char *)holder;
    report.seconds = seconds;
    return report;
}

Capstan__SnapshotDone snapshot_report_captured(uint64_t id, bool first,
                                               uint64_t step) {
    Capstan__SnapshotDone report = CAPSTAN__SNAPSHOT_DONE__INIT;
    report.id = id;
    report.has_step = first;
    report.step = first ? step : 0;
    return report;
}

Capstan__SnapshotDone snapshot_report_failed(uint64_t id, const char *text) {
    Capstan__SnapshotDone report = CAPSTAN__SNAPSHOT_DONE__INIT;
    report.id = id;
    report.error = (char *)text;
    return report;
}
