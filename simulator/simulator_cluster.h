/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the processes of one simulated run, and the messages between
 * them. */
#ifndef CAPSTAN_SIMULATOR_CLUSTER_H
#define CAPSTAN_SIMULATOR_CLUSTER_H

#include "simulator/network.h"
#include "simulator/simulator.h"
#include "simulator/simulator_host.h"
#include "simulator/timeline.h"

enum packet_kind { PACKET_PUSH, PACKET_WEIGHTS, PACKET_NORM };

/* FROM and TO are processes: workers by rank, then ps. */
struct packet {
    struct packet *next;
    enum packet_kind kind;
    uint32_t from, to;
    uint64_t clock, seq;
    uint64_t bytes; /* of its blocks */
    uint32_t count;
    uint32_t blocks[];
};

struct packet_queue {
    struct packet *first, *last;
};

/* A copy of HEAD with room for COUNT blocks, copied from BLOCKS; the caller
 * frees it. NULL: no memory. */
struct packet *packet_new(const struct packet *head, const uint32_t *blocks,
                          uint32_t count);

/* Appends PACKET and takes ownership. */
void packet_queue_push(struct packet_queue *queue, struct packet *packet);

/* Removes the first and returns it; NULL if there is none. */
struct packet *packet_queue_pop(struct packet_queue *queue);

/* Frees all packets in the queue. */
void packet_queue_clear(struct packet_queue *queue);

struct simulator_worker;
struct simulator_ps;

/* The I/O thread of a process, which moves bytes to and from the kernel in the
 * order of its requests. A long message goes in pieces, so its receiver begins
 * before its sender has finished. */
struct io_thread {
    struct simulator_cluster *simulator_cluster;
    struct simulator_host_thread thread;
    struct network_message *first, *last; /* waiting: chunks */
    struct network_message *current;
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
    uint32_t *local_block;              /* [num_blocks] index at its ps */
    struct simulator_worker **workers;
    struct simulator_ps **ps;
    uint32_t
        num_reported; /* ps that have reported their sums of the open round */
    double *samples;  /* seconds of measured steps of all workers */
    size_t num_samples, wanted_samples;
    uint32_t num_warmed_up; /* workers that have taken `warm` steps */
    int64_t measured_from;  /* when the last of them did */
    bool failed;
};

/* Builds everything but workers and ps. */
enum status simulator_cluster_open(struct simulator_cluster **out,
                                   const struct simulator_config *config,
                                   struct simulator_result *result,
                                   struct failure *why) MUST_CHECK;

/* Frees *CLUSTER (may be NULL) with its contents, and clears it. */
void simulator_cluster_close(struct simulator_cluster **cluster);

/* Bytes of a float in a message. */
uint32_t simulator_cluster_float_bytes(const struct simulator_cluster *cluster);

/* The cores of PROCESS. */
struct simulator_host *simulator_cluster_host(
    const struct simulator_cluster *cluster, uint32_t process);

/* Sends PACKET (ownership moves; NULL: memory was short) from its sender. */
void simulator_cluster_send(struct simulator_cluster *cluster,
                            struct packet *packet);

/* A ps has the sums of squares of all its blocks of ROUND. Once all ps have
 * reported, each receives the norm. */
void simulator_cluster_report_sums(struct simulator_cluster *cluster,
                                   uint64_t round);

#endif
