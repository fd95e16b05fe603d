/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the result of `capstan compare` for TensorBoard, whose plugin HParams
 * shows a session for each case: what it is, and its figures. */
#ifndef CAPSTAN_COMPARE_HPARAMS_H
#define CAPSTAN_COMPARE_HPARAMS_H

#include "core/base/status.h"

#include <jansson.h>

/* Makes DIR, with its parents, before anything is measured. STATUS_CONFIG: it
 * cannot be made or written. */
enum status compare_hparams_check(const char *dir,
                                  struct failure *why) MUST_CHECK;

/* Writes RESULT, the JSON object of docs/compare.md, into a folder of DIR that
 * has its date as name. */
enum status compare_hparams_write(const json_t *result, const char *dir,
                                  struct failure *why) MUST_CHECK;

#endif
