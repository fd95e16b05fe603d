/* SPDX-License-Identifier: Apache-2.0 */
/* A file of predictions, a row for each sample: npz or csv. Of a classifier's
 * logits (softmax) it has the largest one's class and all probabilities, of
 * other logits the probabilities (sigmoid), of a regression the numbers. */
#ifndef CAPSTAN_PREDICTION_FILE_H
#define CAPSTAN_PREDICTION_FILE_H

#include "core/base/status.h"
#include "worker/models/model.h"

#include <stdint.h>

struct prediction_file;

/* STATUS_CONFIG for any ending of PATH but .npz and .csv. */
enum status prediction_file_check(const char *path,
                                  struct failure *why) MUST_CHECK;

/* Creates PATH, which has one of them, for COUNT samples under a temporary
 * name. */
enum status prediction_file_open(struct prediction_file **out, const char *path,
                                 uint64_t count,
                                 struct failure *why) MUST_CHECK;

/* Writes the predictions of the next COUNT samples; CONTEXT is the file,
 * OUTPUTS's values are in host memory. */
enum status prediction_file_take(void *context,
                                 const struct model_outputs *outputs,
                                 uint32_t count,
                                 struct failure *why) MUST_CHECK;

/* Gives the file its name; STATUS_FAILED unless all samples were taken. */
enum status prediction_file_commit(struct prediction_file *file,
                                   struct failure *why) MUST_CHECK;

/* Frees *FILE (may be NULL) and clears it; removes a file that was not
 * committed. */
void prediction_file_close(struct prediction_file **file);

#endif
