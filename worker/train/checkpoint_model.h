/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a job with the weights and rows of a checkpoint, for evaluation
 * and prediction: no chief, no ps. */
#ifndef CAPSTAN_CHECKPOINT_MODEL_H
#define CAPSTAN_CHECKPOINT_MODEL_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/store/manifest.h"
#include "proto/job/job.h"
#include "worker/data/dataset.h"
#include "worker/train/executor.h"

struct checkpoint_model;

/* Opens JOB's model, and DATA, whose samples it gets, as dataset_open: JOB and
 * LOG are those of DATA. Borrows JOB. STATUS_CONFIG if they do not fit, or if
 * columns that count by place are not those of data.train, as far as that can
 * be read; else LOG gets a warning. */
enum status checkpoint_model_open(struct checkpoint_model **out,
                                  const struct dataset_options *data,
                                  struct failure *why) MUST_CHECK;

/* The same with JOB's test set; STATUS_CONFIG without one. */
enum status checkpoint_model_open_test(struct checkpoint_model **out,
                                       const struct job *job,
                                       const struct log *log,
                                       struct failure *why) MUST_CHECK;

/* Frees *MODEL (may be NULL) and clears it. */
void checkpoint_model_close(struct checkpoint_model **model);

/* Samples of the data. */
uint64_t checkpoint_model_count(const struct checkpoint_model *model);

/* STATUS_CONFIG if the checkpoint in FOLDER, with MANIFEST, has another model,
 * or was trained with other features, or if other hosts hold files of it. */
enum status checkpoint_model_check(const struct checkpoint_model *model,
                                   const struct manifest *manifest,
                                   const char *folder,
                                   struct failure *why) MUST_CHECK;

/* After checkpoint_model_check: reads the weights. Fails as
 * checkpoint_reader_block. */
enum status checkpoint_model_read(struct checkpoint_model *model,
                                  const struct manifest *manifest,
                                  const char *folder,
                                  struct failure *why) MUST_CHECK;

/* What receives the outputs of a prediction; all zero: nothing does. */
struct checkpoint_model_sink {
    enum status (*take)(void *context, const struct model_outputs *outputs,
                        uint32_t count, struct failure *why);
    void *context;
};

/* After checkpoint_model_read: evaluates all samples, in order, with the rows
 * of tables that the checkpoint has; the caller clears OUT's scores. Fails as
 * executor_evaluate, SINK, and checkpoint_reader_lookup, and without a sample.
 */
enum status checkpoint_model_evaluate(struct checkpoint_model *model,
                                      const struct manifest *manifest,
                                      const char *folder,
                                      struct checkpoint_model_sink sink,
                                      struct evaluation *out,
                                      struct failure *why) MUST_CHECK;

/* Tells LOG of RESULT, checkpoint_model_evaluate's, and with JSON prints it on
 * standard output as one object. */
void checkpoint_model_report(const struct checkpoint_model *model,
                             const struct manifest *manifest,
                             const char *folder, const struct log *log,
                             bool json, struct evaluation *result);

#endif
