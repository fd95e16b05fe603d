/* SPDX-License-Identifier: Apache-2.0 */
/* "auto" in a DeepSpeed configuration. Hugging Face's Trainer replaces it with
 * its own arguments (transformers, integrations/deepspeed.py,
 * HfTrainerDeepSpeedConfig; defaults of training_args.py). */
#ifndef CAPSTAN_DEEPSPEED_AUTO_H
#define CAPSTAN_DEEPSPEED_AUTO_H

#include "proto/base/log.h"

#include <jansson.h>

/* Replaces each "auto" in TREE with a known meaning by the job's value, else by
 * the default of the Trainer's argument; LOG receives each replacement. Any
 * other "auto" stays and its key is refused. */
void deepspeed_auto_fill(json_t *tree, const struct log *log);

#endif
