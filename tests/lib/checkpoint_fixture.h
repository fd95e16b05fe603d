/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary folders, and checkpoints of a small model in them, for tests. */
#ifndef CAPSTAN_CHECKPOINT_FIXTURE_H
#define CAPSTAN_CHECKPOINT_FIXTURE_H

#include "proto/store/manifest.h"

#include <limits.h>
#include <stdint.h>

enum { CHECKPOINT_FIXTURE_RUN = 0xabcdef };

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

/* What element ELEMENT of PARAMETER has in SLOT of such a checkpoint. */
float checkpoint_fixture_value(uint64_t step, uint32_t parameter, uint16_t slot,
                               uint64_t element);

#endif
