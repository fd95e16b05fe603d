/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/discovery.h"

#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/net/link/resolve.h"
#include "proto/messages/message.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_ANNOUNCEMENTS = 8 }; /* at once, to bound the descriptors in use */
static const int64_t STEP_INTERVAL = TIME_S / 4, ANNOUNCE_TIMEOUT = 2 * TIME_S;

/* One announcement to a peer: resolve, connect, send, close. */
struct announcement {
    struct roster_slot *slot; /* NULL: not in use */
    uint64_t member;          /* its incarnation; 0: it was absent */
    struct link *link;
    struct resolve *resolve;
    int64_t connecting; /* since when it connects */
};

struct discovery {
    struct discovery_settings settings;
    char address[300];
    struct announcement announcements[MAX_ANNOUNCEMENTS];
    uint32_t next; /* slot to be announced to after those */
    int64_t last_step;
    bool *refused; /* by slot: it has other keys, which was logged */
};

struct discovery *discovery_open(const struct discovery_settings *settings) {
    struct discovery *discovery = calloc(1, sizeof *discovery);
    bool *refused =
        calloc(settings->roster->count + settings->roster->left_out + 1,
               sizeof *discovery->refused);
    if (!discovery || !refused) {
        free(discovery);
        free(refused);
        return NULL;
    }
    *discovery = (struct discovery){
        .settings = *settings, .last_step = time_now(), .refused = refused};
    snprintf(discovery->address, sizeof discovery->address, "%s",
             settings->address);
    return discovery;
}

static void close_announcement(struct announcement *announcement) {
    resolve_end(&announcement->resolve);
    link_close(&announcement->link);
    *announcement = (struct announcement){0};
}

void discovery_close(struct discovery **where) {
    struct discovery *discovery = *where;
    *where = NULL;
    if (!discovery)
        return;
    for (int i = 0; i < MAX_ANNOUNCEMENTS; i++)
        close_announcement(&discovery->announcements[i]);
    free(discovery->refused);
    free(discovery);
}

static bool send_address(struct discovery *discovery,
                         struct announcement *announcement) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[1024];
    header.kind = CAPSTAN__DATA_HEADER__KIND__CHIEF_AT;
    header.text = discovery->address;
    size_t bytes = message_write_data(&header, space);
    return link_commit(announcement->link, 0, space, bytes, NULL);
}

/* Connects to the resolved address. */
static bool discovery_connect_to(struct discovery *discovery,
                                 struct announcement *announcement,
                                 const char *address) {
    struct link_settings settings = {
        .max_frame = MESSAGE_MAX_HEADER,
        .address = discovery->settings.source,
        .keys = discovery->settings.keys,
        .party =
            cluster_party(announcement->slot->role, announcement->slot->index),
        .flush_ms = 1000};
    struct failure why;
    return !link_open(&announcement->link, discovery->settings.zmq, LINK_CLIENT,
                      &settings, &why) &&
           !link_connect(announcement->link, address, &why);
}

static void name_refusal(struct discovery *discovery,
                         const struct announcement *announcement,
                         const struct cluster_task *task) {
    const struct roster_slot *slot = announcement->slot;
    bool *refused =
        &discovery->refused[slot - discovery->settings.roster->slots];
    int64_t since;
    const char *text =
        link_answer_of_keys(link_answer(announcement->link, &since));
    if (!text || *refused)
        return;
    *refused = true;
    log_warning(discovery->settings.log, "foreign_server_found",
                "%s %u at %s:%u %s", cluster_role_name(slot->role), slot->index,
                task->host, task->port, text);
}

/* What a member sends then shows nothing more: it ignores the announcement. */
static void take_acceptance(const struct announcement *announcement) {
    if (announcement->member)
        announcement->slot->accepts =
            announcement->slot->incarnation == announcement->member;
}

/* Advances by one step; false: it is over, whether it succeeded or not. */
static bool advance(struct discovery *discovery,
                    struct announcement *announcement, int64_t now) {
    const struct cluster_task *task =
        cluster_find(discovery->settings.cluster, announcement->slot->role,
                     announcement->slot->index);
    char text[300];
    if (announcement->link) { /* the peer may have joined: it expects a message
                               */
        if (!announcement->member)
            name_refusal(discovery, announcement, task);
        if (send_address(discovery, announcement)) {
            take_acceptance(announcement);
            return false;
        }
        return now - announcement->connecting < ANNOUNCE_TIMEOUT;
    }
    if (announcement->member) {
        announcement->connecting = now;
        return discovery_connect_to(discovery, announcement,
                                    announcement->slot->address);
    }
    if (announcement->slot->state != ROSTER_ABSENT || !task || !task->port)
        return false;
    if (!announcement->resolve)
        return (announcement->resolve =
                    resolve_start(task->host, task->port)) != NULL;
    enum resolve_state state =
        resolve_poll(announcement->resolve, text, sizeof text);
    announcement->connecting = now;
    return state == RESOLVE_WAITING ||
           (state == RESOLVE_FOUND &&
            discovery_connect_to(discovery, announcement, text));
}

/* Is something for the peer of SLOT to be begun? A member is tried at once, as
 * it may die soon. */
static bool is_peer_wanted(const struct discovery *discovery,
                           const struct roster_slot *slot, bool due) {
    bool is_member =
        slot->state == ROSTER_HELD && slot->port && !slot->is_tried;
    if (!is_member && (!due || slot->state != ROSTER_ABSENT))
        return false;
    for (int i = 0; i < MAX_ANNOUNCEMENTS; i++)
        if (discovery->announcements[i].slot == slot)
            return false;
    return true;
}

/* The next peer. ps come before trainers, because a trainer may ask a ps for
 * the chief. */
static struct roster_slot *next_peer(struct discovery *discovery, bool due) {
    const struct roster *roster = discovery->settings.roster;
    uint32_t count = roster->count + roster->left_out;
    for (uint32_t i = 0; i < count; i++) {
        struct roster_slot *slot =
            &roster->slots[count - 1 - discovery->next++ % count];
        if (is_peer_wanted(discovery, slot, due))
            return slot;
    }
    return NULL;
}

static void begin_announcement(struct announcement *announcement,
                               struct roster_slot *slot) {
    *announcement = (struct announcement){.slot = slot};
    if (!slot || slot->state != ROSTER_HELD)
        return;
    announcement->member = slot->incarnation;
    slot->is_tried = true;
}

void discovery_step(struct discovery *discovery, int64_t now) {
    bool due = now - discovery->last_step >= STEP_INTERVAL, more = true;
    if (!discovery->address[0])
        return;
    if (due)
        discovery->last_step = now;
    for (int i = 0; i < MAX_ANNOUNCEMENTS; i++) {
        struct announcement *announcement = &discovery->announcements[i];
        if (!announcement->slot && more) {
            begin_announcement(announcement, next_peer(discovery, due));
            more = announcement->slot;
        }
        if (announcement->slot && (due || announcement->member) &&
            !advance(discovery, announcement, now))
            close_announcement(announcement);
    }
}
