/* SPDX-License-Identifier: Apache-2.0 */
/* A backend of collectives whose ranks are threads of one process. Sums are in
 * rank order; all_reduce is reduce_scatter, then all_gather; what is left
 * undefined is NaN. Faults can be planted. Nothing is allocated by a call. */
#ifndef CAPSTAN_COLLECTIVE_FIXTURE_H
#define CAPSTAN_COLLECTIVE_FIXTURE_H

#include "worker/collective/collective.h"

#include <pthread.h>
#include <stdbool.h>

enum { COLLECTIVE_FIXTURE_RANKS = 8 };

enum collective_fault {
    COLLECTIVE_FAULT_NONE,
    COLLECTIVE_FAULT_FAIL, /* the rank's call fails; the others hear of it */
    COLLECTIVE_FAULT_HANG, /* the rank never comes, until it is aborted */
};

/* Where all ranks meet; the context of their store. */
struct collective_fixture {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t size, arrived;
    uint64_t num_rendezvous;
    bool lost;
    uint32_t lost_rank;
    struct {
        bool here;
        const char *call;
        size_t count;
        uint32_t calls;
        float *data;
    } ranks[COLLECTIVE_FIXTURE_RANKS];
    enum collective_fault fault; /* of fault_rank's call number fault_call, */
    uint32_t fault_rank, fault_call; /* opening is number 0 */
    /* At each call, before the others are met; NULL: not wanted. */
    void (*called)(void *context, uint32_t rank, const char *call,
                   size_t count);
    void *context;
    bool mismatch; /* ranks have not called the same */
    bool aborted;
    struct collective_fixture *before; /* of those that rank 0 made */
};

extern const struct collective_ops collective_fixture_ops;

/* The same over any store, for memory of fake devices (tests/gpu/fake_device.h)
 * of this process, which nobody else may touch. Only sums; an abort is for all
 * ranks. */
extern const struct collective_ops collective_fixture_device_ops;

/* Of groups that are opened from now on: RANK cannot meet the others, or (0:
 * never) fails its sum number FAILING, from 1. */
void collective_fixture_arrange(bool unmet, uint32_t rank, uint32_t failing);

/* How often a rank has left a group that nobody had aborted: NCCL's would then
 * wait for all others. */
unsigned collective_fixture_unaborted_exits(void);

void collective_fixture_open(struct collective_fixture *fixture, uint32_t size);
void collective_fixture_close(struct collective_fixture *fixture);

#endif
