/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/shard_snapshot.h"
#include "tests/lib/test.h"

struct snapshots *shard_snapshot_open(const struct shard *shard,
                                      const struct layout *layout,
                                      const uint32_t *ids) {
    struct snapshots *snapshots;
    struct snapshots_settings settings = {.layout = layout,
                                          .ids = ids,
                                          .num_units = shard_blocks(shard),
                                          .num_tensors =
                                              shard_tensors(shard, 0),
                                          .row_bytes = sizeof(uint64_t)};
    assert_ok(snapshots_open(&snapshots, &settings, &failure));
    return snapshots;
}

void shard_snapshot_take(struct snapshots *snapshots, uint64_t id,
                         const struct shard *shard) {
    uint64_t version = 0;
    struct buffer *tensors[SNAPSHOTS_MAX_TENSORS];
    struct snapshots_block block = {.tensors = tensors, .row = &version};
    snapshots_begin(snapshots, id, true, CAPSTAN__SNAPSHOT__FORM__UNSAVED);
    for (uint32_t b = 0; b < shard_blocks(shard); b++) {
        for (unsigned t = 0; t < shard_tensors(shard, b); t++)
            tensors[t] = shard_tensor(shard, b, t);
        snapshots_add(snapshots, id, b, &block);
    }
}
