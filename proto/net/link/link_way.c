/* SPDX-License-Identifier: Apache-2.0 */
/* Over which lane messages go: shared memory where there is some.
 *
 * A client's way: it calls (LINK_MEETING, a second at most) and goes by the
 * lane once that is open (LINK_BY_LANE), else by TCP (LINK_BY_TCP), for good. A
 * lane that is lost after it has held for a while is called once more, as the
 * other side may have left it for silence; one that is lost at once would be
 * lost again. Until the way is known nothing is sent, so no message overtakes
 * another on the other way. A server has no way: each peer came by one of them,
 * and is answered there. */
#include "proto/base/time.h"
#include "proto/net/link/link_parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const int64_t LANE_HOLDS = 5 * TIME_S;
static const char HAS_LEFT[] = "it has ended, or has closed its shared memory";

struct lane *link_lane_of(const struct link *link, uint32_t peer) {
    if (link->kind == LINK_CLIENT)
        return link->way == LINK_BY_LANE ? lanes_find(link->lanes, link->lane)
                                         : NULL;
    return link->lanes && peer >= LANES_FIRST ? lanes_find(link->lanes, peer)
                                              : NULL;
}

enum status link_offer_lane(struct link *link, uint64_t word,
                            struct failure *why) {
    lanes_name(link->lane_name, word);
    link->lanes = lanes_open((uint64_t)link->max_frame);
    if (link->lanes && lanes_listen(link->lanes, link->lane_name))
        return STATUS_OK;
    int error = errno;
    lanes_close(&link->lanes);
    return status_errno(why, STATUS_FAILED, error,
                        "cannot offer shared memory to trainers on this host");
}

bool link_has_lanes(const struct link *link) {
    return link->lanes && lanes_count(link->lanes);
}

/* Over TCP from now on, for WHY. */
static void go_by_tcp(struct link *link, const char *why) {
    link->way = LINK_BY_TCP;
    link->way_changed = true;
    snprintf(link->way_text, sizeof link->way_text, "over TCP: %s", why);
    if (link->address[0])
        zmq_connect(link->socket, link->address);
}

/* Who held a lane and does not answer any more was on this host. */
static void call_lane(struct link *link) {
    char text[LINK_SAYING - 16];
    bool held = link->way == LINK_BY_LANE;
    link->way = LINK_MEETING;
    link->lane_since = time_now();
    link->lane = lanes_call(link->lanes, link->lane_name, text, sizeof text);
    if (!link->lane)
        go_by_tcp(link, held ? HAS_LEFT : text);
}

void link_prefer_lane(struct link *link, uint64_t word) {
    lanes_name(link->lane_name, word);
    link->lanes = lanes_open((uint64_t)link->max_frame);
    if (link->lanes)
        call_lane(link);
}

static void lane_lost(struct link *link, int64_t now) {
    const char *trouble = lanes_trouble(link->lanes);
    if (link->way == LINK_BY_LANE && now - link->lane_since >= LANE_HOLDS)
        call_lane(link);
    else
        go_by_tcp(link, trouble ? trouble : HAS_LEFT);
}

/* A client's way follows what becomes of its lane. */
static void follow_lane(struct link *link) {
    if (link->way == LINK_BY_TCP)
        return;
    int64_t now = time_now();
    lanes_tend(link->lanes, now);
    struct lane *lane = lanes_find(link->lanes, link->lane);
    if (!lane) {
        lane_lost(link, now);
    } else if (link->way == LINK_MEETING && lane_bell(lane) >= 0 &&
               !lane_trouble(lane)) {
        link->way = LINK_BY_LANE;
        link->lane_since = now;
        link->renewed = link->way_changed = true;
        snprintf(link->way_text, sizeof link->way_text, "over shared memory");
    }
}

bool link_way(struct link *link, char *text, size_t size) {
    if (!link->way_changed)
        return false;
    link->way_changed = false;
    snprintf(text, size, "%s", link->way_text);
    return true;
}

bool link_renewed(struct link *link) {
    uint16_t event;
    uint32_t value;
    if (link->lanes && link->kind == LINK_CLIENT)
        follow_lane(link);
    bool renewed = link->renewed;
    link->renewed = false;
    while (link->kind == LINK_CLIENT && link->monitor &&
           link_next_event(link, &event, &value))
        renewed = true;
    link->paced &= !renewed;
    return renewed;
}
