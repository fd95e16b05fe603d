/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan ckpt ls|verify|export DIR`: what a checkpoint directory holds. */
#ifndef CAPSTAN_CKPT_COMMAND_H
#define CAPSTAN_CKPT_COMMAND_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/store/tensor_file.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct ckpt_command_options {
    const char *dir;
    bool json; /* one object instead of text */
    bool has_step;
    uint64_t step;
    const char *out; /* export: the file */
    bool has_format; /* export: else by the ending of `out` */
    enum tensor_format format;
    bool state; /* export: also the optimiser's, as NAME.SLOTNAME */
};

/* Prints to TO a line a checkpoint: step, epoch, samples, size, files, final,
 * age; those whose manifest cannot be read after them, with the reason, then
 * the steps that have none. JSON:
 * {"dir":..,"checkpoints":[..],"damaged":[..],"incomplete":[..]}. */
enum status ckpt_command_ls(const struct ckpt_command_options *options,
                            FILE *to, struct failure *why) MUST_CHECK;

/* Reads the step, or every one, whole and prints the outcome of each.
 * STATUS_FAILED when one fails, naming the first thing wrong in each, or when
 * there is none. Steps without a manifest are named, and fail nothing: they are
 * no checkpoints. JSON:
 * {"dir":..,"ok":..,"checkpoints":[..],"incomplete":[..]}. */
enum status ckpt_command_verify(const struct ckpt_command_options *options,
                                FILE *to, struct failure *why) MUST_CHECK;

/* Writes the tensors of the step, or of the newest that verifies (LOG, may be
 * NULL, is told of those passed over), to `out`. JSON:
 * {"step":..,"path":..,"tensors":..,"bytes":..}. */
enum status ckpt_command_export(const struct ckpt_command_options *options,
                                FILE *to, const struct log *log,
                                struct failure *why) MUST_CHECK;

#endif
