/* SPDX-License-Identifier: Apache-2.0 */
/* A model on the CPU with its weights, its gradients and a batch of random
 * inputs. */
#ifndef CAPSTAN_MLP_FIXTURE_H
#define CAPSTAN_MLP_FIXTURE_H

#include "worker/models/mlp.h"

enum { MLP_PARAMETERS = 16, MLP_BATCH = 64, MLP_WIDTH = 784 }; /* at most */

struct mlp_fixture {
    struct mlp_settings settings;
    const struct device_ops *ops;
    struct device *device;
    struct model_instance *mlp;
    uint32_t num_parameters;
    struct parameter parameters[MLP_PARAMETERS];
    float *weights[MLP_PARAMETERS], *gradients[MLP_PARAMETERS];
    float *inputs;
    uint32_t labels[MLP_BATCH];
};

/* Four layers, none of a width that a vector unit divides. */
extern const struct job_model mlp_medium;

/* COUNT values of at most BOUND in size, always the same for SEED. */
void mlp_fixture_fill(float *values, size_t count, float bound, uint32_t seed);

/* ELEMENTS floats of the device; its release gives them back. */
float *mlp_fixture_allocate(struct mlp_fixture *fixture, size_t elements);

/* Opens MODEL with weights of their initial bounds. */
void mlp_fixture_open(struct mlp_fixture *fixture,
                      const struct job_model *model);

void mlp_fixture_close(struct mlp_fixture *fixture);

/* The fixture's samples FIRST .. FIRST + COUNT - 1. */
struct batch mlp_fixture_samples(const struct mlp_fixture *fixture,
                                 uint32_t first, uint32_t count);

/* A trainer at its most eager: weights come when needed and are gone when
 * done, and each gradient is taken when it is announced. */
struct mlp_eager {
    struct mlp_fixture *fixture;
    float *weights[MLP_PARAMETERS], *taken[MLP_PARAMETERS];
    uint32_t needed[2 * MLP_PARAMETERS], done[MLP_PARAMETERS];
    uint32_t num_needed, num_done;
};

/* Takes the weights of FIXTURE away until they are needed. */
void mlp_eager_open(struct mlp_eager *eager, struct mlp_fixture *fixture);
void mlp_eager_close(struct mlp_eager *eager);

/* mlp_hooks with an mlp_eager as their context. */
void mlp_eager_need(void *context, uint32_t first, uint32_t count);
void mlp_eager_done(void *context, uint32_t parameter);

#endif
