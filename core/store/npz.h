/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's archive of arrays: an uncompressed zip of NAME.npy files (format 1.0
 * of numpy/lib/format.py). */
#ifndef CAPSTAN_NPZ_H
#define CAPSTAN_NPZ_H

#include "core/store/atomic_file.h"
#include "core/store/tensor_file.h"

/* An archive whose arrays are written piece by piece. After a failure only
 * npz_close may be called. */
struct npz;

struct npz_array {
    const char *name, *descr; /* NumPy's type: "<f4" */
    uint64_t shape[LAYOUT_MAX_DIMS];
    uint32_t num_dims;
    uint64_t bytes;
};

/* Borrows FILE, to whose end the archive goes. */
enum status npz_open(struct npz **out, struct atomic_file *file,
                     struct failure *why) MUST_CHECK;

/* Begins an array, whose bytes npz_append then takes, row-major. */
enum status npz_begin(struct npz *npz, const struct npz_array *array,
                      struct failure *why) MUST_CHECK;
enum status npz_append(struct npz *npz, const void *bytes, size_t size,
                       struct failure *why) MUST_CHECK;

/* Ends the archive. */
enum status npz_finish(struct npz *npz, struct failure *why) MUST_CHECK;

/* Frees *NPZ (may be NULL) and clears it. */
void npz_close(struct npz **npz);

#endif
