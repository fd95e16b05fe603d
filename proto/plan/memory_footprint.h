/* SPDX-License-Identifier: Apache-2.0 */
/* Memory use of a job, in bytes that a process holds after its first rounds.
 * Pure. It leaves out memory that is small for every model (threads, libraries,
 * rows of blocks, rings between processes), and temporary memory: checkpoint
 * copies, messages in flight. */
#ifndef CAPSTAN_MEMORY_FOOTPRINT_H
#define CAPSTAN_MEMORY_FOOTPRINT_H

#include "proto/job/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEMORY_FOOTPRINT_EVALUATION = 256 /* samples evaluated at a time */ };

enum memory_footprint_kind {
    MEMORY_FOOTPRINT_WEIGHTS,
    MEMORY_FOOTPRINT_GRADIENTS,
    MEMORY_FOOTPRINT_STATE,       /* of the optimizer */
    MEMORY_FOOTPRINT_COPIES,      /* in memory, of a ps's part and another's */
    MEMORY_FOOTPRINT_ACTIVATIONS, /* and their gradients */
    MEMORY_FOOTPRINT_ROUNDED,     /* rounded operands of a product, with bf16 or
                                     fp16 on a CPU */
    MEMORY_FOOTPRINT_BATCHES,     /* prefetched */
    MEMORY_FOOTPRINT_DATA, /* the data sets and their order, or windows of
                              records */
    MEMORY_FOOTPRINT_KINDS,
};

struct memory_footprint {
    uint64_t bytes[MEMORY_FOOTPRINT_KINDS];
};

/* Bytes of a record with its place in a window; a line of Criteo's logs has
 * some 240. */
enum { MEMORY_FOOTPRINT_RECORD = 320 };

/* What a trainer's built-in model takes, in bytes. */
struct memory_footprint_model {
    uint64_t activations; /* and their gradients */
    uint64_t rounded;
    uint64_t sample;     /* a sample in a batch, with its label */
    uint64_t stored;     /* a sample in a data set */
    uint32_t least_kept; /* model.kept with the smallest activations; of several
                            the largest, which recomputes least; 0: none */
};

/* Fills OUT for JOB's model with SAMPLES in memory at once. */
typedef void memory_footprint_of_model(const struct job *job, uint64_t samples,
                                       struct memory_footprint_model *out);

struct memory_footprint_case {
    const struct job *job;            /* its batch is solved */
    memory_footprint_of_model *model; /* NULL: external; activations and data
                                         are the caller's */
    bool allreduce;
    bool resident; /* if a trainer has a device, gradients and optimizer state
                      stay on it */
    uint32_t trainers;
    uint32_t replicas; /* of this trainer; 0: 1 */
    bool adds_on_host; /* gradients of several devices are summed in host memory
                        */
    uint64_t elements; /* of all parameters */
    uint64_t elements_beside; /* those held by the ps on this trainer's host */
    uint64_t train_samples, test_samples;
};

/* The memory that a trainer uses: all, its host's, or one device's. */
enum memory_footprint_scope {
    MEMORY_FOOTPRINT_ALL,
    MEMORY_FOOTPRINT_HOST,
    MEMORY_FOOTPRINT_DEVICE
};

/* The memory of a trainer: ALL if it has no device, else the part in HOST
 * memory or on a DEVICE. Of several devices it is the first, which evaluates;
 * computed without a test set it is any other device. */
void memory_footprint_trainer(struct memory_footprint *out,
                              const struct memory_footprint_case *given,
                              enum memory_footprint_scope scope);

/* The memory of a ps with ELEMENTS floats, to which REMOTE trainers connect
 * over the network. Gradients are those of a round with clipping, which wait
 * for the global norm; over shared memory they wait in place. */
void memory_footprint_ps(struct memory_footprint *out,
                         const struct memory_footprint_case *given,
                         uint64_t elements, uint32_t remote);

/* Bytes of all kinds together. */
uint64_t memory_footprint_sum(const struct memory_footprint *footprint);

/* "8 MB: weights 4 MB, state 4 MB" */
void memory_footprint_text(const struct memory_footprint *footprint, char *text,
                           size_t size);

#endif
