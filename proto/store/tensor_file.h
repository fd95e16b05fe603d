/* SPDX-License-Identifier: Apache-2.0 */
/* Files of named tensors that other tools read: safetensors and npz. */
#ifndef CAPSTAN_TENSOR_FILE_H
#define CAPSTAN_TENSOR_FILE_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stddef.h>
#include <stdint.h>

enum tensor_format { TENSOR_SAFETENSORS, TENSOR_NPZ };

/* By the ending of PATH; STATUS_CONFIG for any other than .safetensors and
 * .npz. */
enum status tensor_format_of(const char *path, enum tensor_format *format,
                             struct failure *why) MUST_CHECK;

/* Fills FLOATS with the elements of tensor INDEX; called once for each, in
 * order. */
typedef enum status tensor_fetch(void *context, uint32_t index, float *floats,
                                 struct failure *why);

/* Where a file's tensors come from. All borrowed. */
struct tensor_source {
    const struct parameter *tensors; /* [count]: names, dims, elements */
    uint32_t count;
    tensor_fetch *fetch;
    void *context;
};

/* Writes SOURCE's tensors to PATH: a temporary file, fsync, rename. At most one
 * tensor is in memory at a time. */
enum status tensor_file_write(const char *path, enum tensor_format format,
                              const struct tensor_source *source,
                              struct failure *why) MUST_CHECK;

/* Reads float32 tensors of a safetensors file. Every field of its header is
 * checked against the file's size. */
struct tensor_file;

/* Opens PATH and checks its header; STATUS_CONFIG names what is wrong. */
enum status tensor_file_open(struct tensor_file **out, const char *path,
                             struct failure *why) MUST_CHECK;

/* Ends *FILE (may be NULL) and clears it. */
void tensor_file_close(struct tensor_file **file);

/* Copies the tensor of TENSOR's name, which must have its dims; STATUS_CONFIG
 * names what differs. */
enum status tensor_file_read(struct tensor_file *file,
                             const struct parameter *tensor, float *floats,
                             struct failure *why) MUST_CHECK;

#endif
