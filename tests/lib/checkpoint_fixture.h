/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary folders, and checkpoints of a small model in them, for tests. */
#ifndef CAPSTAN_CHECKPOINT_FIXTURE_H
#define CAPSTAN_CHECKPOINT_FIXTURE_H

#include "core/store/manifest.h"
#include "core/tensor/row_keys.h"
#include "proto/holder/snapshots.h"

#include <limits.h>
#include <stdint.h>

enum {
    CHECKPOINT_FIXTURE_RUN = 0xabcdef,
    CHECKPOINT_FIXTURE_TABLES = 3,
    CHECKPOINT_FIXTURE_IDS = 20000, /* that tables may have */
    CHECKPOINT_FIXTURE_CHANGED = 19500,
};

/* Makes a folder of its own; ends it with all it holds. */
void checkpoint_fixture_folder(char path[PATH_MAX]);
void checkpoint_fixture_remove(const char *path);

/* For cmocka: *STATE is the path of such a folder. */
int checkpoint_fixture_setup_folder(void **state);
int checkpoint_fixture_teardown_folder(void **state);

/* A folder of its own, and the path of one file in it. */
struct checkpoint_fixture_file {
    char folder[PATH_MAX];
    char path[PATH_MAX + 32];
};

/* For cmocka: *STATE is such a place, its file called NAME. */
int checkpoint_fixture_setup(void **state, const char *name);
int checkpoint_fixture_teardown(void **state);

/* The number of entries in the folder of PATH, "." and ".." left out. */
int checkpoint_fixture_entries(const char *path);

/* A manifest without files of the model: three parameters in eight blocks,
 * two state slots "a" and "b". The caller clears it. */
void checkpoint_fixture_manifest(struct manifest *manifest, uint64_t step,
                                 uint32_t num_ps);

/* Writes a whole checkpoint, block b by ps b % num_ps. */
void checkpoint_fixture_write(const char *dir, uint64_t step, uint32_t num_ps);

/* Adds the first NUM_TABLES of these tables in NUM_PARTITIONS to such a
 * manifest, on ps by turns: "e1" and "e2" of one stack (dim 3, initial rows up
 * to 0.25), and "c" (dim 8, Ftrl with a slot less, admitted by 2 pushes). */
void checkpoint_fixture_tables(struct manifest *manifest, uint32_t num_tables,
                               uint32_t num_partitions);

/* Writes the checkpoint of MANIFEST with all its files, and clears it. */
void checkpoint_fixture_write_manifest(const char *dir,
                                       struct manifest *manifest);

/* Id I of the tests: ids are in no order and have all bits. */
uint64_t checkpoint_fixture_id(uint32_t i);

/* Has table T a row for id I? It is admitted unless it is in "c" and
 * I / 6 odd. */
bool checkpoint_fixture_has_row(uint32_t t, uint32_t i);

/* Element ELEMENT of the row of T's ID. */
float checkpoint_fixture_weight(uint32_t t, uint64_t id, uint32_t element);

/* The rows of PARTITION in pages, [num_stacks]; free them with
 * checkpoint_fixture_free_rows. */
struct shard_rows_source *checkpoint_fixture_rows(
    const struct manifest *manifest, uint32_t partition);
void checkpoint_fixture_free_rows(struct shard_rows_source *rows,
                                  uint32_t num_stacks);

/* Writes a whole checkpoint with tables. */
void checkpoint_fixture_write_tables(const char *dir, uint64_t step,
                                     uint32_t num_ps, uint32_t num_partitions);

/* The same as a delta of BASE, which is there: rows of ids from
 * CHECKPOINT_FIXTURE_CHANGED on have changed, those of which
 * checkpoint_fixture_is_removed were removed. */
void checkpoint_fixture_write_delta(const char *dir, uint64_t step,
                                    uint32_t num_ps, uint64_t base);
bool checkpoint_fixture_is_removed(uint32_t i);

/* The updates of block B of MANIFEST that its rule has counted. Of the first
 * parameter there is no record, as in a checkpoint of an older release. */
uint64_t checkpoint_fixture_rule_step(const struct manifest *manifest,
                                      uint32_t b);

/* What element ELEMENT of PARAMETER has in SLOT of such a checkpoint. */
float checkpoint_fixture_value(uint64_t step, uint32_t parameter, uint16_t slot,
                               uint64_t element);

#endif
