/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a run: one slot for each expected task, and its member. Only
 * the roster decides arrivals and deaths. Pure: it takes times and events and
 * returns decisions. */
#ifndef CAPSTAN_ROSTER_H
#define CAPSTAN_ROSTER_H

#include "proto/cluster/cluster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROSTER_NO_RANK UINT32_MAX

enum roster_state {
    ROSTER_ABSENT,  /* not joined yet */
    ROSTER_HELD,    /* the member sends heartbeats */
    ROSTER_VACATED, /* said goodbye, or was declared dead */
};

struct roster_slot {
    enum cluster_role role;
    uint32_t index, rank; /* rank: ROSTER_NO_RANK for a ps */
    enum roster_state state;
    uint64_t incarnation; /* of the member, 0: none */
    uint64_t removed;     /* that of the last member that is gone, 0: none */
    uint32_t pid;
    uint16_t port;
    uint64_t shm_key;  /* of the member's shared memory, 0: none */
    uint64_t end_key;  /* with this key its launcher reports its end, 0: none */
    uint64_t launcher; /* as of Join */
    char host[256];    /* the member's host name */
    char address[300]; /* host:port that peers connect to */
    int64_t last_seen; /* time of the last message */
    int64_t silent_since; /* last_seen before a logged silence; 0: none */
    uint64_t claimant; /* incarnation of another process that claims the slot,
                          0: none */
    int64_t claimed;   /* since when it is claimed without a message from the
                          member */
    bool is_tried;  /* did this process connect to ADDRESS since it joined, */
    bool accepts;   /* and was the connection accepted? */
    int64_t closed; /* when the member's kernel closed its connection; 0: it
                       has not, or the member has another one */
};

struct roster {
    uint32_t count, num_ranks, num_ps;
    uint32_t left_out;         /* ps */
    struct roster_slot *slots; /* [count]: trainers by rank, then ps by place,
                                  in the order of their index; then those that
                                  are left out */
    int64_t peer_limit; /* ns without a message until the member is dead */
};

/* Creates slots for the chief's trainer if CHIEF_TRAINS, then for NUM_WORKERS
 * workers and NUM_PS ps. False: no memory. */
bool roster_open(struct roster *roster, bool chief_trains, uint32_t num_workers,
                 uint32_t num_ps, int64_t peer_limit);

/* Frees the slots, not the struct. */
void roster_close(struct roster *roster);

/* The slot of task INDEX of ROLE, or NULL if the run expects none. */
struct roster_slot *roster_find(struct roster *roster, enum cluster_role role,
                                uint32_t index);

/* The slot that INCARNATION holds, or NULL. */
struct roster_slot *roster_find_member(struct roster *roster,
                                       uint64_t incarnation);

/* Before anyone joins: the run has no ps INDEX. */
void roster_leave_out(struct roster *roster, uint32_t index);

/* The slot of the ps of PLACE (< num_ps), its number among those of the run. */
struct roster_slot *roster_ps(struct roster *roster, uint32_t place);

/* The place of the ps of SLOT. */
uint32_t roster_place(const struct roster *roster,
                      const struct roster_slot *slot);

enum roster_claim_result {
    ROSTER_GRANTED,      /* the claimant now holds the slot */
    ROSTER_ALREADY_HELD, /* the claimant held it already */
    ROSTER_WAIT,    /* another process holds it and may be dead: ask again */
    ROSTER_REFUSED, /* another process holds it and is alive */
    ROSTER_REMOVED, /* the claimant held it and has been removed */
};

struct roster_claim {
    uint64_t incarnation;
    uint32_t pid;
    uint16_t port;
    const char *host, *address;
    uint64_t shm_key;
};

/* CLAIM asks for SLOT. A process that was removed does not get it again: what
 * its first life in the run has left would count for the second. If the member
 * sends a message after the claim, the claim is refused. While the member is
 * silent the claimant waits, until roster_find_expired returns its slot; once
 * it is removed the next claim succeeds. */
enum roster_claim_result roster_claim(struct roster_slot *slot,
                                      const struct roster_claim *claim,
                                      int64_t now);

/* Records a message from the slot's member. */
void roster_mark_alive(struct roster_slot *slot, int64_t now);

/* The kernel of the slot's member has closed its connection. */
void roster_mark_closed(struct roster_slot *slot, int64_t now);

/* The slot's member has joined again by a new connection. */
void roster_mark_returned(struct roster_slot *slot);

/* A held slot whose member is to be declared dead at NOW, or NULL. */
struct roster_slot *roster_find_expired(const struct roster *roster,
                                        int64_t now);

/* The member is gone: it died or said goodbye. */
void roster_remove(struct roster_slot *slot);

/* How many slots of ROLE (CLUSTER_ROLES: all) are in STATE. */
uint32_t roster_count(const struct roster *roster, enum cluster_role role,
                      enum roster_state state);

/* "worker 1" or "the chief's trainer". */
void roster_name(const struct roster_slot *slot, char *text, size_t size);

#endif
