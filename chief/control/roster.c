/* SPDX-License-Identifier: Apache-2.0 */
/* A slot is absent, held or vacated. If two processes claim the same task, only
 * the first can show whether it is alive. The second claim stays open until the
 * member sends a message (the claim is refused) or is dead. Silence alone kills
 * a claimed member no sooner than any other, as a stopped process and a cut
 * link are silent too. A connection that the member's kernel has closed shows
 * that the process has ended, unless the member comes by another one. */
#include "chief/control/roster.h"

#include "core/base/time.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A living member has a new connection by then: libzmq tries at least every two
 * seconds. */
static const int64_t RETURN_LIMIT = 2 * TIME_S;

bool roster_open(struct roster *roster, bool chief_trains, uint32_t num_workers,
                 uint32_t num_ps, int64_t peer_limit) {
    uint32_t ranks = num_workers + chief_trains, next = 0;
    *roster = (struct roster){.count = ranks + num_ps,
                              .num_ranks = ranks,
                              .num_ps = num_ps,
                              .peer_limit = peer_limit};
    roster->slots = calloc(roster->count + 1, sizeof *roster->slots);
    if (!roster->slots)
        return false;
    if (chief_trains)
        roster->slots[next++] = (struct roster_slot){.role = CLUSTER_CHIEF};
    for (uint32_t i = 0; i < num_workers; i++, next++)
        roster->slots[next] = (struct roster_slot){
            .role = CLUSTER_WORKER, .index = i, .rank = next};
    for (uint32_t i = 0; i < num_ps; i++, next++)
        roster->slots[next] = (struct roster_slot){
            .role = CLUSTER_PS, .index = i, .rank = ROSTER_NO_RANK};
    assert(next == roster->count);
    return true;
}

void roster_close(struct roster *roster) {
    free(roster->slots);
    roster->slots = NULL;
}

struct roster_slot *roster_find(struct roster *roster, enum cluster_role role,
                                uint32_t index) {
    for (uint32_t i = 0; i < roster->count; i++)
        if (roster->slots[i].role == role && roster->slots[i].index == index)
            return &roster->slots[i];
    return NULL;
}

struct roster_slot *roster_find_member(struct roster *roster,
                                       uint64_t incarnation) {
    for (uint32_t i = 0; i < roster->count; i++)
        if (roster->slots[i].incarnation == incarnation &&
            roster->slots[i].state == ROSTER_HELD)
            return &roster->slots[i];
    return NULL;
}

void roster_leave_out(struct roster *roster, uint32_t index) {
    struct roster_slot *slot = roster_find(roster, CLUSTER_PS, index);
    struct roster_slot *last = &roster->slots[roster->count - 1];
    if (!slot)
        return;
    struct roster_slot left = *slot;
    memmove(slot, slot + 1, (size_t)(last - slot) * sizeof *slot);
    *last = left;
    roster->count--;
    roster->num_ps--;
    roster->left_out++;
}

struct roster_slot *roster_ps(struct roster *roster, uint32_t place) {
    assert(place < roster->num_ps);
    return &roster->slots[roster->num_ranks + place];
}

uint32_t roster_place(const struct roster *roster,
                      const struct roster_slot *slot) {
    assert(slot->role == CLUSTER_PS);
    return (uint32_t)(slot - roster->slots) - roster->num_ranks;
}

static void roster_take(struct roster_slot *slot,
                        const struct roster_claim *claim, int64_t now) {
    slot->state = ROSTER_HELD;
    slot->incarnation = claim->incarnation;
    slot->pid = claim->pid;
    slot->port = claim->port;
    slot->shm_key = claim->shm_key;
    snprintf(slot->host, sizeof slot->host, "%s", claim->host);
    snprintf(slot->address, sizeof slot->address, "%s", claim->address);
    slot->last_seen = now;
    slot->claimant = 0;
    slot->closed = 0;
    slot->is_tried = slot->accepts = false;
}

/* Two processes with the same task: a mistake of the user, or the restart of a
 * process whose death was not noticed. A message from the member after the
 * claim, or its silence, tells which. */
enum roster_claim_result roster_claim(struct roster_slot *slot,
                                      const struct roster_claim *claim,
                                      int64_t now) {
    if (claim->incarnation == slot->removed)
        return ROSTER_REMOVED;
    if (slot->state != ROSTER_HELD) {
        roster_take(slot, claim, now);
        return ROSTER_GRANTED;
    }
    if (slot->incarnation == claim->incarnation) {
        slot->last_seen = now;
        return ROSTER_ALREADY_HELD;
    }
    /* What a member sent before its connection was closed may be read later: it
     * is no sign of life. */
    bool spoke = slot->last_seen > slot->claimed;
    if (slot->claimant == claim->incarnation && spoke && !slot->closed)
        return ROSTER_REFUSED;
    /* Alternating claimants must not restart the member's time limit. */
    if (!slot->claimant || spoke) {
        slot->claimant = claim->incarnation;
        slot->claimed = now;
    }
    return ROSTER_WAIT;
}

void roster_mark_alive(struct roster_slot *slot, int64_t now) {
    slot->last_seen = now;
}

void roster_mark_closed(struct roster_slot *slot, int64_t now) {
    slot->closed = now;
}

void roster_mark_returned(struct roster_slot *slot) {
    slot->closed = 0;
}

static bool is_expired(const struct roster *roster,
                       const struct roster_slot *slot, int64_t now) {
    if (slot->state != ROSTER_HELD)
        return false;
    return now - slot->last_seen > roster->peer_limit ||
           (slot->claimant && slot->last_seen <= slot->claimed &&
            slot->closed && now - slot->closed > RETURN_LIMIT);
}

struct roster_slot *roster_find_expired(const struct roster *roster,
                                        int64_t now) {
    for (uint32_t i = 0; i < roster->count; i++)
        if (is_expired(roster, &roster->slots[i], now))
            return &roster->slots[i];
    return NULL;
}

void roster_remove(struct roster_slot *slot) {
    slot->state = ROSTER_VACATED;
    if (slot->incarnation)
        slot->removed = slot->incarnation;
    slot->incarnation = 0;
    slot->claimant = 0;
}

uint32_t roster_count(const struct roster *roster, enum cluster_role role,
                      enum roster_state state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < roster->count; i++)
        count += roster->slots[i].state == state &&
                 (role == CLUSTER_ROLES || roster->slots[i].role == role);
    return count;
}

void roster_name(const struct roster_slot *slot, char *text, size_t size) {
    if (slot->role == CLUSTER_CHIEF)
        snprintf(text, size, "the chief's trainer");
    else
        snprintf(text, size, "%s %u", cluster_role_name(slot->role),
                 slot->index);
}
