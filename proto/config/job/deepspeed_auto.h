/* SPDX-License-Identifier: Apache-2.0 */
/* "auto" in a DeepSpeed configuration, which Hugging Face's Trainer replaces by
 * its own arguments (transformers, integrations/deepspeed.py,
 * HfTrainerDeepSpeedConfig; defaults of training_args.py). */
#ifndef CAPSTAN_DEEPSPEED_AUTO_H
#define CAPSTAN_DEEPSPEED_AUTO_H

#include "proto/base/log.h"

#include <jansson.h>

/* Replaces each "auto" in TREE whose meaning is known: by what the job says
 * elsewhere, else by the default of the Trainer's argument; LOG is told which.
 * Others stay, to be refused with the key. */
void deepspeed_auto_fill(json_t *tree, const struct log *log);

#endif
