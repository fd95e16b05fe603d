/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of one simulated run share. */
#ifndef CAPSTAN_SIMULATOR_CLUSTER_H
#define CAPSTAN_SIMULATOR_CLUSTER_H

#include "simulator/network.h"
#include "simulator/packet.h"
#include "simulator/simulator.h"
#include "simulator/simulator_host.h"
#include "simulator/timeline.h"

struct simulator_worker;
struct simulator_ps;

struct chunk;

/* The thread of a process that moves bytes between it and the kernel, in the
 * order in which it is asked to: a long message in pieces, so that its receiver
 * begins before its sender has ended. */
struct io_thread {
    struct simulator_cluster *simulator_cluster;
    struct simulator_host_thread thread;
    struct chunk *first, *last; /* waiting */
    struct chunk *current;
    uint32_t process;
};

/* Processes are numbered: workers by rank, then ps. */
struct simulator_cluster {
    struct simulator_config config;
    struct simulator_result *result;
    struct timeline *timeline;
    struct network *network;
    uint32_t num_processes, num_hosts, num_host_cores;
    uint32_t *host_of;                  /* [num_processes] */
    struct simulator_host **host_cores; /* [num_host_cores] */
    struct io_thread *io_threads;       /* [num_processes] */
    uint16_t *block_ps;                 /* [num_blocks] */
    uint32_t *block_bytes;              /* [num_blocks] */
    double *shard_bytes;                /* [num_ps] */
    uint32_t *local_block;              /* [num_blocks] its number at its ps */
    struct simulator_worker **workers;
    struct simulator_ps **ps;
    uint32_t num_reported; /* ps that have sent their sums of the open round */
    double *samples;       /* seconds of measured steps, all workers' */
    size_t num_samples, wanted_samples;
    uint32_t num_warmed_up; /* workers that have taken `warm` steps */
    int64_t measured_from;  /* when the last of them had */
    bool failed;
};

/* Builds everything but workers and ps. */
enum status simulator_cluster_open(struct simulator_cluster **out,
                                   const struct simulator_config *config,
                                   struct simulator_result *result,
                                   struct failure *why) MUST_CHECK;

/* Frees *STAGE (may be NULL) and what it has, and clears it. */
void simulator_cluster_close(struct simulator_cluster **simulator_cluster);

/* Of a float in a message. */
uint32_t simulator_cluster_float_bytes(
    const struct simulator_cluster *simulator_cluster);

/* The cores that PROCESS computes on. */
struct simulator_host *simulator_cluster_host(
    const struct simulator_cluster *simulator_cluster, uint32_t process);

/* A worker's step CLOCK has ended, SECONDS after the one before. False: it was
 * its last. Synchronous workers each take the same number of steps; others go
 * on until there are enough of all of them, so that none is measured alone. */
bool simulator_cluster_end_step(struct simulator_cluster *simulator_cluster,
                                uint64_t clock, double seconds);

/* LETTER (taken; NULL: there was no memory for it) leaves its sender. */
void simulator_cluster_send(struct simulator_cluster *simulator_cluster,
                            struct packet *packet);

/* A ps has the sums of squares of all its blocks of ROUND: when all have, the
 * norm comes to each. */
void simulator_cluster_report_sums(struct simulator_cluster *simulator_cluster,
                                   uint64_t round);

#endif
