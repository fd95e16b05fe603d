/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of TensorFlow 1's training scripts that stand for keys of the
 * job. */
#ifndef CAPSTAN_LEGACY_OPTIONS_H
#define CAPSTAN_LEGACY_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* In the order of the keys of cli_command.h. */
enum legacy_options_key {
    LEGACY_OPTIONS_TRAIN_STEPS,
    LEGACY_OPTIONS_EPOCHS,
    LEGACY_OPTIONS_BATCH_SIZE,
    LEGACY_OPTIONS_LEARNING_RATE,
    LEGACY_OPTIONS_DATA_DIR,
    LEGACY_OPTIONS_MODEL_DIR,
    LEGACY_OPTIONS_NUM_GPUS,
    LEGACY_OPTIONS_SYNC_REPLICAS,
    LEGACY_OPTIONS_NOSYNC_REPLICAS,
    LEGACY_OPTIONS_REPLICAS_TO_AGGREGATE,
    LEGACY_OPTIONS_KEYS
};

enum { LEGACY_OPTIONS_SET = 1280 }; /* bytes of the longest setting */

/* Writes what KEY with the value TEXT (NULL: none) sets of the job, as --set
 * takes it, to SET [LEGACY_OPTIONS_SET]. False: PROBLEM [SIZE] says what is
 * wrong. Relative paths start at the working directory. */
bool legacy_options_set(enum legacy_options_key key, const char *text,
                        char *set, char *problem, size_t size);

#endif
