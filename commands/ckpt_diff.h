/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan ckpt diff A B`: what two checkpoints differ in, by bits. */
#ifndef CAPSTAN_CKPT_DIFF_H
#define CAPSTAN_CKPT_DIFF_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A and B are folders of steps, or checkpoint directories: of those the step,
 * or the newest that has a manifest. */
struct ckpt_diff_options {
    const char *a, *b;
    bool json;     /* one object instead of text */
    bool has_step; /* of both */
    uint64_t step;
};

/* Prints to TO how the tensors, the optimizers' state, the rows of tables and
 * the progress of A and B compare. STATUS_OK: all are equal; STATUS_FAILED with
 * an empty text in WHY: some differ; STATUS_CONFIG: one cannot be read. In
 * memory is a block of each. */
enum status ckpt_diff(const struct ckpt_diff_options *options, FILE *to,
                      struct failure *why) MUST_CHECK;

#endif
