/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a job takes, in bytes that a process holds after its first
 * rounds. Pure. What is small whatever the model (threads, libraries, rows of
 * blocks, rings between processes) is not in it, nor what is taken only while
 * there is some: copies for a checkpoint, messages on their way. */
#ifndef CAPSTAN_FOOTPRINT_H
#define CAPSTAN_FOOTPRINT_H

#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FOOTPRINT_EVALUATION = 256 /* samples evaluated at a time */ };

enum footprint_kind {
    FOOTPRINT_WEIGHTS,
    FOOTPRINT_GRADIENTS,
    FOOTPRINT_STATE,       /* of the optimiser */
    FOOTPRINT_ACTIVATIONS, /* and their gradients */
    FOOTPRINT_ROUNDED,     /* operands of a product, by bf16 or fp16 on a CPU */
    FOOTPRINT_BATCHES,     /* read ahead */
    FOOTPRINT_DATA,        /* the data sets, and their order */
    FOOTPRINT_KINDS,
};

struct footprint {
    uint64_t bytes[FOOTPRINT_KINDS];
};

struct footprint_case {
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
enum footprint_place { FOOTPRINT_ALL, FOOTPRINT_HOST, FOOTPRINT_DEVICE };

/* A trainer's: ALL, where it has no device, else what lies in its HOST's memory
 * or on its DEVICE: of several on the first, which evaluates, and without a
 * test set on each other one. */
void footprint_trainer(struct footprint *out,
                       const struct footprint_case *given,
                       enum footprint_place place);

/* That of a ps which holds ELEMENTS; REMOTE trainers reach it over the network.
 * Gradients are those of a round with clipping, which wait for its norm: over
 * shared memory they do where they are. */
void footprint_ps(struct footprint *out, const struct footprint_case *given,
                  uint64_t elements, uint32_t remote);

/* Bytes of all kinds together. */
uint64_t footprint_sum(const struct footprint *footprint);

/* "8 MB: weights 4 MB, state 4 MB" */
void footprint_text(const struct footprint *footprint, char *text, size_t size);

#endif
