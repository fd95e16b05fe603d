/* SPDX-License-Identifier: Apache-2.0 */
/* Files of records (data.format csv, criteo, tfrecord, libsvm, npz, npy,
 * safetensors), read as
 * they are needed: memory does not grow with them. Batches have what the job's
 * features give, and the label, a class or a number; where a column is of two
 * classes, -1 is the first of them in a file of LIBSVM. A position in the data
 * is a record's number in the trainer's share, which follows from the micro
 * batch's number. */
#ifndef CAPSTAN_RECORD_DATASET_H
#define CAPSTAN_RECORD_DATASET_H

#include "core/base/status.h"
#include "worker/data/dataset.h"

/* *OUT has a count of 0 if it was not counted. STATUS_CONFIG for files that are
 * missing or unreadable, columns or features that do not fit; WHY names file
 * and line. */
enum status record_dataset_open(struct dataset **out,
                                const struct dataset_options *options,
                                struct failure *why) MUST_CHECK;

/* Fails if no file matches one of FILES' patterns, or the first cannot be
 * opened. */
enum status record_dataset_check_files(const struct job_files *files,
                                       struct failure *why) MUST_CHECK;

#endif
