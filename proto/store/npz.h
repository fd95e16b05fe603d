/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's archive of arrays: an uncompressed zip of NAME.npy files (format 1.0
 * of numpy/lib/format.py). */
#ifndef CAPSTAN_NPZ_H
#define CAPSTAN_NPZ_H

#include "proto/store/atomic_file.h"
#include "proto/store/tensor_file.h"

/* Appends the archive to FILE. FLOATS must hold the largest tensor. */
enum status npz_write(struct atomic_file *file,
                      const struct tensor_source *source, float *floats,
                      struct failure *why) MUST_CHECK;

#endif
