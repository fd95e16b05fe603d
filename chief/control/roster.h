/* SPDX-License-Identifier: Apache-2.0 */
/* Who is in the run: a slot for every task that is awaited, and who holds it.
 * Only the roster declares arrivals and deaths. Pure: times and events in,
 * verdicts out. */
#ifndef CAPSTAN_ROSTER_H
#define CAPSTAN_ROSTER_H

#include "proto/config/cluster/cluster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROSTER_NO_RANK UINT32_MAX

enum roster_state {
    ROSTER_ABSENT, /* nobody yet, or not any more */
    ROSTER_HELD,   /* beats */
    ROSTER_LEFT,   /* said goodbye, or was declared dead */
};

struct roster_slot {
    enum cluster_role role;
    uint32_t index, rank; /* rank: ROSTER_NO_RANK for a ps */
    enum roster_state state;
    uint64_t incarnation; /* of the holder, 0: none */
    uint32_t pid;
    uint16_t port;
    uint64_t shm_key;  /* what the holder offers shared memory by, 0: nothing */
    uint64_t end_key;  /* with which its launcher tells its end, 0: none */
    char host[256];    /* the holder's machine */
    char address[300]; /* host:port where others reach it */
    int64_t last_seen; /* last sign of life */
    int64_t silent_since; /* the one before a silence that was told; 0: none */
    uint64_t claimant;    /* incarnation of another that wants in, 0: none */
    int64_t claimed; /* since when there are claims and no word of the holder */
};

struct roster {
    uint32_t count, num_ranks, num_ps;
    struct roster_slot *slots; /* trainers by rank, then ps by index */
    int64_t peer_limit;        /* ns of silence that are death */
};

/* Slots for NUM_PS ps and NUM_WORKERS workers, and first the chief when it
 * trains. False: no memory. */
bool roster_open(struct roster *roster, bool chief_trains, uint32_t num_workers,
                 uint32_t num_ps, int64_t peer_limit);

/* Frees the slots, not the struct. */
void roster_close(struct roster *roster);

/* The slot of that task, or NULL when it is not awaited. */
struct roster_slot *roster_find(struct roster *roster, enum cluster_role role,
                                uint32_t index);

/* The slot that INCARNATION holds, or NULL. */
struct roster_slot *roster_find_holder(struct roster *roster,
                                       uint64_t incarnation);

/* The slot of ps INDEX (< num_ps). */
struct roster_slot *roster_ps(struct roster *roster, uint32_t index);

enum roster_claim_result {
    ROSTER_GRANTED,      /* the claimant now holds the slot */
    ROSTER_ALREADY_HELD, /* it held it already */
    ROSTER_WAIT,         /* another holds it, who may be dead: ask again */
    ROSTER_REFUSED,      /* another holds it and lives */
};

struct roster_claim {
    uint64_t incarnation;
    uint32_t pid;
    uint16_t port;
    const char *host, *address;
    uint64_t shm_key;
};

/* CLAIM wants SLOT. A holder that beats after the claim refuses it; one that
 * was silent for long enough beside a claim is declared dead by
 * roster_find_expired, and the next claim succeeds. */
enum roster_claim_result roster_claim(struct roster_slot *slot,
                                      const struct roster_claim *claim,
                                      int64_t now);

/* A sign of life of the slot's holder. */
void roster_mark_alive(struct roster_slot *slot, int64_t now);

/* A held slot whose holder is to be declared dead at NOW, or NULL. */
struct roster_slot *roster_find_expired(const struct roster *roster,
                                        int64_t now);

/* The holder is gone: dead, or by its own word. */
void roster_remove(struct roster_slot *slot);

/* How many slots of ROLE (CLUSTER_ROLES: all) are in STATE. */
uint32_t roster_count(const struct roster *roster, enum cluster_role role,
                      enum roster_state state);

/* "worker 1" or "the chief's trainer". */
void roster_name(const struct roster_slot *slot, char *text, size_t size);

#endif
