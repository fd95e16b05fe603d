/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its first weights, samples that no two are alike of, and what a
 * compute thread does with a team of replicas on fake devices.
 *
 * A failed assertion ends the whole program: threads of the team go on in a
 * fixture that is on the failed test's stack. */
#ifndef CAPSTAN_LOCAL_GROUP_FIXTURE_H
#define CAPSTAN_LOCAL_GROUP_FIXTURE_H

#include "tests/gpu/fake_device.h"
#include "worker/data/idx_dataset.h"
#include "worker/models/mlp.h"
#include "worker/train/local_group.h"

enum {
    LOCAL_GROUP_FIXTURE_SAMPLES = 90,
    LOCAL_GROUP_FIXTURE_MAX_ELEMENTS = 1024
};

struct local_group_fixture {
    struct job job;
    struct mlp_settings model;
    struct layout *layout;
    struct arena arena;
    struct idx_dataset data;
    struct local_group local_group;
    uint32_t said[2 * JOB_MAX_WIDTHS]; /* parameters, as they were heard of */
    uint32_t num_announced;
    bool aborted;          /* the step has no meaning any more */
    uint32_t missing_from; /* weights of this parameter and those above do not
                           come; 0: all do */
};

/* Layers of WIDTHS (0-ended), micro batches of three, two accumulated. */
void local_group_fixture_open(struct local_group_fixture *fixture,
                              const uint32_t *widths);
void local_group_fixture_close(struct local_group_fixture *fixture);

/* Finds the devices of GPUS, or (NULL) the CPU; COUNT of them are opened. */
enum status local_group_fixture_begin(struct local_group_fixture *fixture,
                                      const struct fake_device_settings *gpus,
                                      const struct collective_ops *nccl,
                                      uint32_t count, struct failure *why);

/* Opens samples: the first replica's are those of RANK of RANKS. */
void local_group_fixture_load(struct local_group_fixture *fixture,
                              uint32_t rank, uint32_t ranks);

/* One step's samples; its gradients are to be gathered. */
enum status local_group_fixture_compute(struct local_group_fixture *fixture,
                                        struct device_replica_result *result,
                                        struct failure *why);

/* They come, and what is heard of is kept. */
enum status local_group_fixture_gather(struct local_group_fixture *fixture,
                                       bool wanted, struct failure *why);

/* STEPS with RANKS replicas one after the other on the CPU, their gradients of
 * the last one added up in this order: into SUM [layout->elements]. RESULT is
 * that of the last step. */
void local_group_fixture_expect(const uint32_t *widths, uint32_t ranks,
                                uint32_t steps, float *sum,
                                struct device_replica_result *result);

/* The gradients in the arena, parameter by parameter. */
void local_group_fixture_gradients(const struct local_group_fixture *fixture,
                                   float *out);

#endif
