/* SPDX-License-Identifier: Apache-2.0 */
/* Files of named tensors for other tools: safetensors and npz. */
#ifndef CAPSTAN_TENSOR_FILE_H
#define CAPSTAN_TENSOR_FILE_H

#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum tensor_format { TENSOR_SAFETENSORS, TENSOR_NPZ };

/* The format by the ending of PATH; STATUS_CONFIG for any ending but
 * .safetensors and .npz. */
enum status tensor_format_of(const char *path, enum tensor_format *format,
                             struct failure *why) MUST_CHECK;

/* Writes the elements of tensor INDEX to FLOATS; called once for each, in
 * order. */
typedef enum status tensor_fetch(void *context, uint32_t index, float *floats,
                                 struct failure *why);

/* The tensors of a file. All borrowed. */
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

/* Reads the tensors of a safetensors file. Every field of its header is checked
 * against the file's size. */
struct tensor_file;

/* A tensor of the file; a view. */
struct tensor_info {
    const char *name, *dtype; /* "F32" */
    const json_t *shape;      /* an array of integers from 0 on */
    uint64_t begin, bytes;    /* in the tensors' bytes */
};

/* Opens PATH and checks its header; STATUS_CONFIG names the problem. */
enum status tensor_file_open(struct tensor_file **out, const char *path,
                             struct failure *why) MUST_CHECK;

/* Closes *FILE (may be NULL) and clears it. */
void tensor_file_close(struct tensor_file **file);

/* Fills INFOS with up to MOST tensors, in the header's order; returns how many
 * the file has. */
size_t tensor_file_list(const struct tensor_file *file,
                        struct tensor_info *infos, size_t most);

/* Copies SIZE of the tensors' bytes, from BEGIN on; STATUS_CONFIG if the file
 * has fewer. */
enum status tensor_file_read_bytes(const struct tensor_file *file,
                                   uint64_t begin, void *bytes, size_t size,
                                   struct failure *why) MUST_CHECK;

/* Copies the float32 tensor with TENSOR's name, which must have its dims;
 * STATUS_CONFIG names the difference. */
enum status tensor_file_read(struct tensor_file *file,
                             const struct parameter *tensor, float *floats,
                             struct failure *why) MUST_CHECK;

#endif
