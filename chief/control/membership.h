/* SPDX-License-Identifier: Apache-2.0 */
/* Membership of a run: joins, slot claims, deaths and goodbyes. */
#ifndef CAPSTAN_MEMBERSHIP_H
#define CAPSTAN_MEMBERSHIP_H

#include "chief/control/control_server.h"
#include "chief/control/reachability.h"
#include "core/base/free_memory.h"
#include "core/store/copies.h"

#include <stdbool.h>
#include <stdint.h>

struct manifest;
struct run;

struct run_membership {
    struct reachability reachability;
    uint64_t view;  /* number of the newest view */
    bool view_sent; /* it was sent to the trainers that it newly lists */
    bool trainer_died;
    uint64_t death_step;      /* the run's step when the last trainer died */
    int64_t refused_at;       /* when a late joiner was refused, 0: none */
    int64_t no_trainer_since; /* since when no trainer is left, 0: one is */
    bool silence_passed;  /* a member was declared dead for its silence, which
                             hang_report.c has not logged */
    uint32_t generation;  /* of the trainers' group for collectives of scripts:
                             how often it is to connect anew */
    int64_t peer_lost_at; /* all-reduce: when a trainer reported a lost peer, 0:
                             none */
    char lost_reason[512]; /* its text */
};

/* Of what a process has copies in memory, by its join. */
struct membership_copies {
    uint32_t count;
    struct {
        uint64_t step;
        uint32_t part;
    } list[COPIES_MOST];
};

bool membership_has_copy(const struct membership_copies *held, uint64_t step,
                         uint32_t part);

/* The ps that has COPY, in memory, of the part of ps PART: that one if it can.
 * UINT32_MAX: none has. */
uint32_t membership_find_copy(const struct run *run,
                              const struct manifest *copy, uint32_t part);

/* Has the trainer of RANK, which has joined, what it kept with the copy of
 * STEP? */
bool membership_has_kept(const struct run *run, uint64_t step, uint32_t rank);

/* INCOMING is a join: it is welcomed or refused, or it gets no answer and the
 * joiner asks again. */
void membership_join(struct run *run, const struct control_message *incoming,
                     int64_t now);

/* The slot that INCOMING, a join, asks for; NULL: there is none for it, and it
 * is refused or gets no answer. */
struct roster_slot *membership_find_expected(
    struct run *run, const struct control_message *incoming);

/* The sender of INCOMING, a join, claims SLOT; if it gets it, its channel is
 * empty. */
enum roster_claim_result membership_claim(
    struct run *run, const struct control_message *incoming,
    struct roster_slot *slot, int64_t now);

/* Tells PEER, which wants to be in its run as before, to join anew: the run
 * goes on from a checkpoint. */
void membership_send_back(struct run *run, uint32_t peer);

/* A trainer has set the key of INCOMING, a rendezvous: forwards it to all. */
void membership_forward_rendezvous(struct run *run,
                                   const Capstan__Control *incoming);

/* RUN is adopted: tells all trainers of the generations of their group so far,
 * as the chief before may have told some of them alone. */
void membership_tell_generations(struct run *run);

/* Refuses a message from a process that holds no slot. */
void membership_reject_unknown(struct run *run, uint32_t peer,
                               const Capstan__Control *control);

/* SLOT's trainer reports the ps that it does not reach. */
void membership_receive_lost(struct run *run, const struct roster_slot *slot,
                             const Capstan__Heartbeat *heartbeat, int64_t now);

/* Removes the members of slots whose heartbeats have timed out, and those that
 * others do not reach. */
void membership_check_deaths(struct run *run, int64_t now);

/* SLOT's member has said GOODBYE, or is declared dead. */
void membership_remove(struct run *run, struct roster_slot *slot, bool goodbye);

/* Tells the joiner in SLOT to end with STATUS because it does not fit this run,
 * for the reason TEXT. The run continues without it. */
void membership_dismiss(struct run *run, struct roster_slot *slot,
                        enum failure_code code, const char *text);

/* Has SLOT's trainer joined during training, without a first clock yet? */
bool membership_is_joining(const struct run *run,
                           const struct roster_slot *slot);

/* The launcher of SLOT's member reports that the process has ended. */
void membership_receive_exit(struct run *run, struct roster_slot *slot,
                             const Capstan__ExitReport *report);

/* Copies up to FREE_MEMORY_LIMITS of the COUNT limits that a member has
 * REPORTED; returns how many. */
unsigned membership_read_limits(struct free_memory_limit *limits,
                                Capstan__MemoryLimit *const *reported,
                                size_t count);

/* The entry of one rank in a view. */
struct membership_view_entry {
    uint64_t incarnation; /* 0: none */
    uint64_t from;        /* clock of its first contribution */
    bool live; /* its contributions are awaited: it is neither dead nor out of
                  the loop */
};

/* The entry of a trainer with INCARNATION, whose first contribution is FROM (0:
 * not admitted yet) and which may have FINISHED. */
struct membership_view_entry membership_view_make_entry(uint64_t incarnation,
                                                        uint64_t from,
                                                        bool finished);

/* May a trainer with first clock FROM start? REPORTED: it has the view already.
 * OLDEST: the oldest view that any ps has; NEWEST: the current view. */
bool membership_view_may_start(uint64_t from, bool reported, uint64_t oldest,
                               uint64_t newest);

/* Sends a new view to all ps. The trainers that it newly lists get it once
 * every ps has acknowledged it (membership_broadcast_acknowledged). */
void membership_broadcast_view(struct run *run);

/* A ps has acknowledged a view. Once all ps have the newest view, the trainers
 * that it newly lists get it. */
void membership_broadcast_acknowledged(struct run *run);

#endif
