/* SPDX-License-Identifier: Apache-2.0 */
/* A model on its device: what computes, and what brings weights and samples
 * there and gradients back. */
#ifndef CAPSTAN_ENGINE_H
#define CAPSTAN_ENGINE_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/tensor/layout.h"
#include "worker/data/dataset.h"
#include "worker/models/mlp.h"
#include "worker/ops/device.h"
#include "worker/train/arena.h"
#include "worker/train/evaluation.h"
#include "worker/train/ferry.h"
#include "worker/train/intake.h"

#include <stdbool.h>
#include <stdint.h>

struct engine {
    struct device device;
    struct mlp *mlp;
    struct ferry ferry;
    struct intake intake; /* of samples to train on */
    struct intake trial;  /* of those to evaluate on */
};

/* What the model is used for. */
struct engine_use {
    uint32_t micro_batch; /* samples it is trained on at a time; 0: it is not */
    bool evaluates;
    bool resident; /* weights and gradients stay on the device: ferry.h */
};

/* Takes the device that WISH means, and nothing of its memory yet. */
enum status engine_find(struct engine *engine, const struct device_wish *wish,
                        const struct log *log, struct failure *why) MUST_CHECK;

/* After engine_find: opens JOB's model for the weights in ARENA, which is open.
 * Borrows all. STATUS_FAILED says how much memory was wanted for what, and
 * which keys need less. */
enum status engine_open(struct engine *engine, const struct job *job,
                        const struct layout *layout, struct arena *arena,
                        const struct engine_use *use,
                        struct failure *why) MUST_CHECK;

/* Waits for what is under way, or has failed. */
void engine_rest(struct engine *engine);

/* The same, and closes it; before the arena is closed. ENGINE may be all
 * zero. */
void engine_close(struct engine *engine);

/* As evaluation_run, on the arena's weights as they are now. */
enum status engine_evaluate(struct engine *engine,
                            const struct evaluation_part *part,
                            struct evaluation *out,
                            struct failure *why) MUST_CHECK;

#endif
