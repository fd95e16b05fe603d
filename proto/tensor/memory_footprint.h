/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a job takes, in bytes that a process holds after its first
 * rounds. Pure. What is small whatever the model (threads, libraries, rows of
 * blocks, rings between processes) is not in it, nor what is taken only while
 * there is some: copies for a checkpoint, messages on their way. */
#ifndef CAPSTAN_MEMORY_FOOTPRINT_H
#define CAPSTAN_MEMORY_FOOTPRINT_H

#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEMORY_FOOTPRINT_EVALUATION = 256 /* samples evaluated at a time */ };

enum memory_footprint_kind {
    MEMORY_FOOTPRINT_WEIGHTS,
    MEMORY_FOOTPRINT_GRADIENTS,
    MEMORY_FOOTPRINT_STATE,       /* of the optimiser */
    MEMORY_FOOTPRINT_ACTIVATIONS, /* and their gradients */
    MEMORY_FOOTPRINT_ROUNDED, /* operands of a product, by bf16 or fp16 on a CPU
                               */
    MEMORY_FOOTPRINT_BATCHES, /* read ahead */
    MEMORY_FOOTPRINT_DATA,    /* the data sets, and their order */
    MEMORY_FOOTPRINT_KINDS,
};

struct memory_footprint {
    uint64_t bytes[MEMORY_FOOTPRINT_KINDS];
};

struct memory_footprint_case {
    const struct job *job; /* its batch is solved */
    bool allreduce;
    bool resident; /* where a trainer has a device, gradients and the
                      optimiser's state stay there */
    uint32_t trainers;
    uint32_t replicas; /* of the trainer in question; 0: 1 */
    bool adds_on_host; /* the gradients of several, each with its place there */
    uint64_t elements; /* of all parameters */
    uint64_t train_samples, test_samples;
};

/* What a trainer computes on: its host's memory, or a device's of its own. */
enum memory_footprint_scope {
    MEMORY_FOOTPRINT_ALL,
    MEMORY_FOOTPRINT_HOST,
    MEMORY_FOOTPRINT_DEVICE
};

/* A trainer's: ALL, where it has no device, else what lies in its HOST's memory
 * or on its DEVICE: of several on the first, which evaluates, and without a
 * test set on each other one. */
void memory_footprint_trainer(struct memory_footprint *out,
                              const struct memory_footprint_case *given,
                              enum memory_footprint_scope scope);

/* That of a ps which holds ELEMENTS; REMOTE trainers reach it over the network.
 * Gradients are those of a round with clipping, which wait for its norm: over
 * shared memory they do where they are. */
void memory_footprint_ps(struct memory_footprint *out,
                         const struct memory_footprint_case *given,
                         uint64_t elements, uint32_t remote);

/* Bytes of all kinds together. */
uint64_t memory_footprint_sum(const struct memory_footprint *memory_footprint);

/* "8 MB: weights 4 MB, state 4 MB" */
void memory_footprint_text(const struct memory_footprint *memory_footprint,
                           char *text, size_t size);

#endif
