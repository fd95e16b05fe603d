/* What may be said of peers that keep no rules. */
#include "proto/base/time.h"
#include "proto/wire/link_parts.h"

#include <stdio.h>
#include <string.h>

static const int64_t SAY_EVERY = 10 * TIME_S;

/* Why a connection is not one of ours. */
enum stranger { NOT_STRANGE, NO_MESSAGE, MANY_PARTS, STRANGERS };

/* What EVENT of the monitor on DESCRIPTOR says of its peer. */
static enum stranger judge(struct link *link, uint16_t event,
                           uint32_t descriptor) {
    if (descriptor >= LINK_DESCRIPTORS)
        return NOT_STRANGE;
    bool spoke = link->spoke[descriptor];
    link->spoke[descriptor] = false;
    memset(link->noted, 0, sizeof link->noted); /* who has come may be among */
    return event == ZMQ_EVENT_DISCONNECTED && !spoke ? NO_MESSAGE : NOT_STRANGE;
}

bool link_next_event(struct link *link, uint16_t *event, uint32_t *value) {
    zmq_msg_t part, address;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, link->monitor, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&part);
        return false;
    }
    const char *bytes = zmq_msg_data(&part);
    memcpy(event, bytes, sizeof *event);
    memcpy(value, bytes + sizeof *event, sizeof *value);
    zmq_msg_close(&part);
    zmq_msg_init(&address);
    zmq_msg_recv(&address, link->monitor, ZMQ_DONTWAIT);
    zmq_msg_close(&address);
    return true;
}

bool link_may_say(struct link *link, const char *text) {
    int64_t now = time_now();
    struct link_saying *old = NULL;
    for (int i = 0; i < LINK_SAYINGS; i++) {
        struct link_saying *saying = &link->sayings[i];
        if (!saying->at || now - saying->at >= SAY_EVERY)
            old = saying;
        else if (!strncmp(saying->text, text, LINK_SAYING - 1))
            return false;
    }
    if (!old)
        return false;
    snprintf(old->text, sizeof old->text, "%s", text);
    old->at = now;
    return true;
}

bool link_stranger(struct link *link, char *text, size_t size) {
    static const char *const texts[STRANGERS] = {
        [NO_MESSAGE] = "said nothing we understand",
        [MANY_PARTS] = "sent a message of too many parts",
    };
    uint16_t event;
    uint32_t value;
    enum stranger stranger = link->many_parts ? MANY_PARTS : NOT_STRANGE;
    link->many_parts = false;
    if (link->kind == LINK_CLIENT)
        return false;
    const char *trouble = link->lanes ? lanes_trouble(link->lanes) : NULL;
    if (trouble && link_may_say(link, trouble)) {
        snprintf(text, size, "that shares memory is left: %s", trouble);
        return true;
    }
    while (!stranger || !link_may_say(link, texts[stranger])) {
        if (!link->monitor || !link_next_event(link, &event, &value))
            return false;
        stranger = judge(link, event, value);
    }
    snprintf(text, size, "%s", texts[stranger]);
    return true;
}
