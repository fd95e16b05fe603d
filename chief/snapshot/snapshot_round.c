/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/snapshot_round.h"

void snapshot_round_query(struct snapshot_round *snapshot,
                          uint32_t num_holders) {
    *snapshot = (struct snapshot_round){.stage = SNAPSHOT_ROUND_QUERYING,
                                        .num_holders = num_holders};
}

void snapshot_round_start(struct snapshot_round *snapshot,
                          uint32_t num_holders) {
    *snapshot = (struct snapshot_round){.stage = SNAPSHOT_ROUND_TAKING,
                                        .num_holders = num_holders};
}

bool snapshot_round_receive_highest(struct snapshot_round *snapshot,
                                    uint64_t highest, uint64_t last) {
    if (snapshot->stage != SNAPSHOT_ROUND_QUERYING)
        return false;
    if (highest > snapshot->highest)
        snapshot->highest = highest;
    if (++snapshot->answered < snapshot->num_holders)
        return false;
    snapshot->stage = SNAPSHOT_ROUND_TAKING;
    snapshot->round = snapshot->highest < last ? snapshot->highest + 1 : last;
    return true;
}

bool snapshot_round_receive_held(struct snapshot_round *snapshot) {
    if (++snapshot->held < snapshot->num_holders)
        return false;
    snapshot->stage = SNAPSHOT_ROUND_HELD;
    return true;
}

bool snapshot_round_receive_written(struct snapshot_round *snapshot) {
    return ++snapshot->written == snapshot->num_holders;
}
