/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/snapshot_report.h"

Capstan__SnapshotReport snapshot_report_held(uint64_t id, bool first,
                                             uint64_t step) {
    Capstan__SnapshotReport report = CAPSTAN__SNAPSHOT_REPORT__INIT;
    report.id = id;
    report.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD;
    report.has_step = first;
    report.step = first ? step : 0;
    return report;
}

Capstan__SnapshotReport snapshot_report_written(uint64_t id,
                                                const struct shard_info *file,
                                                const char *host,
                                                double seconds) {
    Capstan__SnapshotReport report = CAPSTAN__SNAPSHOT_REPORT__INIT;
    report.id = id;
    report.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN;
    report.name = (char *)file->name;
    report.size = file->size;
    report.hash_low = file->hash[0];
    report.hash_high = file->hash[1];
    report.host = (char *)host;
    report.seconds = seconds;
    return report;
}

Capstan__SnapshotReport snapshot_report_not_written(uint64_t id,
                                                    const char *text) {
    Capstan__SnapshotReport report = CAPSTAN__SNAPSHOT_REPORT__INIT;
    report.id = id;
    report.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN;
    report.error = (char *)text;
    return report;
}
