/* SPDX-License-Identifier: Apache-2.0 */
/* Can processes be reached? Resolves names and connects, as links do, to many
 * addresses at once, sends nothing, and waits for the greeting with which every
 * server of Capstan begins (ZMTP 3.1, section 3). */
#ifndef CAPSTAN_LINK_CHECK_H
#define CAPSTAN_LINK_CHECK_H

#include <stdint.h>

enum link_check_state {
    LINK_CHECK_NOT_TRIED,
    LINK_CHECK_ANSWERS,     /* a server like Capstan's */
    LINK_CHECK_REFUSED,     /* the host is reachable, nothing listens there */
    LINK_CHECK_UNRESOLVED,  /* no address is known for the name */
    LINK_CHECK_UNREACHABLE, /* no route, or the system refuses to connect */
    LINK_CHECK_TIMEOUT,     /* nothing comes back from the host */
    LINK_CHECK_FOREIGN,     /* another kind of server, or a silent one */
};

/* One address; the caller sets the first two. */
struct link_check {
    const char *host; /* borrowed */
    uint16_t port;
    enum link_check_state state;
    char text[256]; /* what was found, for people */
};

/* Tries COUNT addresses, each for at most LIMIT ns, and fills their state and
 * text. */
void link_check_run(struct link_check *checks, uint32_t count, int64_t limit);

/* "not_tried", "answers", "refused", ... */
const char *link_check_state_name(enum link_check_state state);

#endif
