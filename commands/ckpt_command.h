/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan ckpt ls|verify|export DIR`: lists, verifies and exports the
 * checkpoints of a directory. */
#ifndef CAPSTAN_CKPT_COMMAND_H
#define CAPSTAN_CKPT_COMMAND_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/store/manifest.h"
#include "core/store/table_file.h"
#include "core/store/tensor_file.h"

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
    const char *table; /* export: the rows of this table, not the tensors */
    enum table_format table_format;
    bool state; /* export: also the optimizer state, as NAME.SLOTNAME */
};

/* Prints one line a checkpoint to TO: step, epoch, samples, size, files, final,
 * age; below it the base of a delta and a line a table. Checkpoints with an
 * unreadable manifest follow with the reason, then steps without one. JSON:
 * {"dir":..,"checkpoints":[..],"damaged":[..],"incomplete":[..]}. */
enum status ckpt_command_ls(const struct ckpt_command_options *options,
                            FILE *to, struct failure *why) MUST_CHECK;

/* Reads the step, or every step, whole and prints the result of each, with the
 * first problem. STATUS_FAILED if one fails or there is none. Steps without a
 * manifest are listed but do not fail: they are not checkpoints. JSON:
 * {"dir":..,"ok":..,"checkpoints":[..],"incomplete":[..]}. */
enum status ckpt_command_verify(const struct ckpt_command_options *options,
                                FILE *to, struct failure *why) MUST_CHECK;

/* Writes the tensors of the step, or of the newest that verifies, to `out`; or
 * the rows of `table`. LOG (may be NULL) receives a warning for each checkpoint
 * skipped. JSON: {"step":..,"path":..,"tensors":..,"bytes":..}, of a table with
 * "table" and "rows" in place of "tensors". */
enum status ckpt_command_export(const struct ckpt_command_options *options,
                                FILE *to, const struct log *log,
                                struct failure *why) MUST_CHECK;

/* The manifest of the step, or of the newest checkpoint that verifies, for
 * which LOG is as above; the caller clears it, also after a failure. */
enum status ckpt_command_find(const struct ckpt_command_options *options,
                              struct manifest *manifest, const struct log *log,
                              struct failure *why) MUST_CHECK;

#endif
