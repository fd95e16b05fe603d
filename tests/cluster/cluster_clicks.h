/* SPDX-License-Identifier: Apache-2.0 */
/* Click logs with a planted rule, and models with tables that learn it. */
#ifndef CAPSTAN_CLUSTER_CLICKS_H
#define CAPSTAN_CLUSTER_CLICKS_H

#include "tests/cluster/cluster_run.h"

enum {
    CLUSTER_CLICKS_TRAIN = 4000, /* records */
    CLUSTER_CLICKS_TEST = 1000,
    CLUSTER_CLICKS_USERS = 40, /* each in the training set */
    CLUSTER_CLICKS_ITEMS = 60,
};

/* Members of a job over FOLDER/train.csv and FOLDER/test.csv. */
#define CLUSTER_CLICKS_DATA                                                    \
    "\"data\": {\"format\": \"csv\", \"header\": true, \"train\":"             \
    " \"train.csv\", \"test\": \"test.csv\", \"shuffle_buffer\": 512},"        \
    " \"train_micro_batch_size_per_gpu\": 32, \"threads\": 1, "                \
    "\"features\": {\"user\": {\"type\": \"hash_bucket\"},"                    \
    " \"item\": {\"type\": \"hash_bucket\", \"size\": 1000000},"               \
    " \"cross\": {\"type\": \"crossed\", \"of\": [\"user\", \"item\"],"        \
    " \"size\": 1000000},"                                                     \
    " \"weight\": {\"type\": \"numeric\"},"                                    \
    " \"e_user\": {\"type\": \"embedding\", \"of\": \"user\", \"dim\": 8},"    \
    " \"e_item\": {\"type\": \"embedding\", \"of\": \"item\", \"dim\": 8}}, "

/* The same with a model of the tables user, item, user/factors, item/factors.
 */
#define CLUSTER_CLICKS_DEEPFM                                                  \
    CLUSTER_CLICKS_DATA                                                        \
    "\"model\": {\"type\": \"deepfm\", \"features\": [\"user\", \"item\"],"    \
    " \"dim\": 8, \"hidden\": [16]}, "                                         \
    "\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}}"

/* Writes both files: a user clicks items of its own parity, up to noise. */
void cluster_clicks_write(const struct cluster_run *run);

/* The rows of TABLE in the newest checkpoint of DIR, as text; the caller's. */
char *cluster_clicks_exported(struct cluster_run *run, const char *dir,
                              const char *table);

/* Fails unless the rows of TABLE in the newest checkpoints in FOLDER/A and
 * FOLDER/B are the same, bit for bit. */
void cluster_clicks_expect_same_rows(struct cluster_run *run, const char *a,
                                     const char *b, const char *table);

#endif
