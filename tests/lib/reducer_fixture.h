/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that train by reducers in threads of one process, and the same on one
 * process with the whole batch. */
#ifndef CAPSTAN_REDUCER_FIXTURE_H
#define CAPSTAN_REDUCER_FIXTURE_H

#include "tests/gpu/fake_device.h"
#include "tests/lib/collective_fixture.h"
#include "worker/exchange/allreduce/reducer.h"
#include "worker/train/arena.h"

#include <semaphore.h>
#include <stdatomic.h>

enum {
    REDUCER_FIXTURE_TENSORS = 1 + RULE_MAX_SLOTS,
    REDUCER_FIXTURE_PARAMETERS = 16,
};

/* Weights and state of a whole model, in arena order without the room before
 * it; a keeper loads from one and saves into one. */
struct reducer_model {
    float *tensors[REDUCER_FIXTURE_TENSORS];
    uint64_t rule_steps[REDUCER_FIXTURE_PARAMETERS];
    uint64_t round;     /* of the last save */
    uint32_t saved;     /* blocks of it */
    unsigned saves;     /* whole ones */
    bool out_of_order;  /* a block came twice, or too early */
    uint32_t fail_load; /* the block whose load fails, + 1 */
    uint32_t fail_save;
};

extern const struct optimizer reducer_fixture_sgd, reducer_fixture_adam;

struct reducer_fixture;

struct reducer_rank {
    struct reducer_fixture *fixture;
    uint32_t rank;
    struct arena arena;
    struct device *device; /* resident: a fake one */
    struct reducer_device_arena place;
    struct device_event **complete;
    float *rounds; /* gradients of all rounds, each as a model's */
    struct reducer *reducer;
    struct exchange *exchange; /* the reducer's */
    pthread_t thread;
    bool ended; /* a wait said that there is no more training, or it did not
                   begin: */
    struct failure why;
    atomic_uint left; /* parameters of the round not announced yet */
};

/* What is trained, and how; set by the test before it begins. */
struct reducer_fixture {
    uint32_t ranks;
    uint64_t rounds; /* the run's last */
    struct job job;
    struct run_schedule course;
    bool broadcasts_first_weights;
    bool resident; /* on fake devices, of this order and seed */
    enum fake_device_order order;
    uint64_t
        fail_allocation; /* its devices' allocation without memory, 0: none */
    bool large_buckets;
    bool separate_parameters; /* parameters are, in the arena; at first true */
    bool in_two_steps;        /* half-way the last parameter is waited for */
    double timeout;
    /* Is RANK's contribution to ROUND empty? NULL: none is. */
    bool (*empty)(uint32_t rank, uint64_t round);
    /* The same of void ones. */
    bool (*voids)(uint32_t rank, uint64_t round);
    struct loss_scaler scaler; /* of the last save */
    /* Rank 0's keeper is asked to pause after ROUND. */
    void (*pause)(struct reducer_fixture *fixture, uint64_t round);
    uint64_t note; /* the test's own */

    struct layout *layout;
    struct collective_store store;
    struct collective_fixture rendezvous;
    struct reducer_storage rank0_snapshot_agent;
    sem_t handed_over; /* posted at each whole save */
    sem_t
        finished; /* rank 0's reducer is behind the last round, and its save */
    struct reducer_model saved, loaded;
    struct reducer_rank rank[COLLECTIVE_FIXTURE_RANKS];
};

/* COUNT parameters of so many ELEMENTS, trained by RULE at RATE; buckets of
 * everything, with overlap, stage 0. */
void reducer_fixture_open(struct reducer_fixture *fixture, uint32_t ranks,
                          const uint32_t *elements, uint32_t count,
                          const struct optimizer *rule, double rate);

/* The same with usual parameters: small, odd, of several blocks; by Adam. */
void reducer_fixture_open_default(struct reducer_fixture *fixture,
                                  uint32_t ranks);

void reducer_fixture_close(struct reducer_fixture *fixture);

/* Opens all reducers and their compute threads, which train all rounds. */
void reducer_fixture_begin(struct reducer_fixture *fixture);

/* Waits until all have trained, or could not. */
void reducer_fixture_end(struct reducer_fixture *fixture);

/* Waits for SEMAPHORE, for a minute at most. */
void reducer_fixture_await(sem_t *semaphore);

/* Both, for a run that has to succeed. */
void reducer_fixture_run(struct reducer_fixture *fixture);

/* A run, its checkpoint with it, that has to end in what one process makes of
 * all gradients, to the bit. */
void reducer_fixture_run_and_compare(struct reducer_fixture *fixture);

/* Every rank has the weights of MODEL, to the bit. */
void reducer_fixture_expect_weights(const struct reducer_fixture *fixture,
                                    const struct reducer_model *model);

/* FOUND is EXPECTED, weights and state, to the bit. */
void reducer_fixture_expect_model(const struct reducer_fixture *fixture,
                                  const struct reducer_model *found,
                                  const struct reducer_model *expected);

/* RANK's gradient of ROUND: all elements in arena order. */
void reducer_fixture_gradient(uint32_t rank, uint64_t round, float *floats,
                              uint64_t elements);

/* Memory of a model of PLAY's; freed by reducer_model_close. */
void reducer_model_open(struct reducer_model *model,
                        const struct reducer_fixture *fixture);
void reducer_model_close(struct reducer_model *model);

/* MODEL is what PLAY's training makes of it, or of first weights when it does
 * not load: one process, the rule on all gradients of a round at once. */
void reducer_fixture_train_single(struct reducer_fixture *fixture,
                                  struct reducer_model *model);

/* The weights of RANK, from the first in memory on; view. */
const float *reducer_fixture_weights(const struct reducer_fixture *fixture,
                                     uint32_t rank);

#endif
