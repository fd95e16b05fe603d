/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of one simulated run share. */
#ifndef CAPSTAN_STAGE_H
#define CAPSTAN_STAGE_H

#include "simulator/agenda.h"
#include "simulator/letter.h"
#include "simulator/machine.h"
#include "simulator/model.h"
#include "simulator/network.h"

struct modelled_worker;
struct modelled_ps;

struct piece;

/* The thread of a process that moves bytes between it and the kernel, in the
 * order in which it is asked to: a long message in pieces, so that its receiver
 * begins before its sender has ended. */
struct porter {
    struct stage *stage;
    struct machine_thread thread;
    struct piece *first, *last; /* waiting */
    struct piece *at_hand;
    uint32_t process;
};

/* Processes are numbered: workers by rank, then ps. */
struct stage {
    struct model_case given;
    struct model_result *result;
    struct agenda *agenda;
    struct network *network;
    uint32_t num_processes, num_hosts, num_machines;
    uint32_t *host_of;         /* [num_processes] */
    struct machine **machines; /* [num_machines] */
    struct porter *porters;    /* [num_processes] */
    uint16_t *block_ps;        /* [num_blocks] */
    uint32_t *block_bytes;     /* [num_blocks] */
    double *shard_bytes;       /* [num_ps] */
    uint32_t *local;           /* [num_blocks] its number at its ps */
    struct modelled_worker **workers;
    struct modelled_ps **ps;
    uint32_t summed; /* ps that have sent their sums of the open round */
    double *samples; /* seconds of measured steps, all workers' */
    size_t num_samples, wanted;
    uint32_t warmed; /* workers that have taken `warm` steps */
    int64_t begun;   /* when the last of them had */
    bool failed;
};

/* Builds everything but workers and ps. */
enum status stage_open(struct stage **out, const struct model_case *given,
                       struct model_result *result,
                       struct failure *why) MUST_CHECK;

/* Frees *STAGE (may be NULL) and what it has, and clears it. */
void stage_close(struct stage **stage);

/* Of a float in a message. */
uint32_t stage_float_bytes(const struct stage *stage);

/* The cores that PROCESS computes on. */
struct machine *stage_machine(const struct stage *stage, uint32_t process);

/* A worker's step CLOCK has ended, SECONDS after the one before. False: it was
 * its last. Synchronous workers each take the same number of steps; others go
 * on until there are enough of all of them, so that none is measured alone. */
bool stage_step(struct stage *stage, uint64_t clock, double seconds);

/* LETTER (taken; NULL: there was no memory for it) leaves its sender. */
void stage_post(struct stage *stage, struct letter *letter);

/* A ps has the sums of squares of all its blocks of ROUND: when all have, the
 * norm comes to each. */
void stage_summed(struct stage *stage, uint64_t round);

#endif
