/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated network, and time: messages that are under way and wake-ups, on
 * the simulator's timeline. A connection keeps order and loses nothing until it
 * breaks; before it heals a message may also vanish, come twice or overtake.
 * What was under way on a broken connection may still come, to whoever then has
 * the address. */
#ifndef CAPSTAN_SIMULATED_NET_H
#define CAPSTAN_SIMULATED_NET_H

#include "tests/simulation/simulated.h"

struct simulated_event {
    uint32_t process; /* for it */
    uint64_t client;  /* only for this incarnation; 0: whoever is there */
    bool up;          /* from client to server */
    bool late, kept;  /* it comes though its line broke; and was kept long */
    struct simulated_peer peer;
    struct simulated_message *message; /* NULL: it wakes */
};

/* Nothing is under way, and every line stands. */
struct simulated_net *simulated_net_open(void);
void simulated_net_close(struct simulated_net **net);

/* The line between worker RANK and PS, or between PROCESS and the chief. */
uint32_t simulated_net_data(uint32_t rank, uint32_t ps);
uint32_t simulated_net_control(uint32_t process);

/* From the client PROCESS of LINE to its server; false: it is not connected. */
bool simulated_net_up(struct simulated *s, uint32_t line, uint32_t process,
                      uint32_t server, const struct simulated_message *message);
/* From the server to PEER, which is PROCESS; vanishes when that is gone. */
void simulated_net_down(struct simulated *s, const struct simulated_peer *peer,
                        uint32_t process,
                        const struct simulated_message *message);

/* PROCESS is to be looked at, at TIME at the latest. */
void simulated_net_wake(struct simulated *s, uint32_t process, int64_t time);

/* The connection of LINE breaks, until TIME. */
void simulated_net_break(struct simulated *s, uint32_t line, int64_t until);

/* Does it stand? */
bool simulated_net_connected(const struct simulated *s, uint32_t line);

/* Advances time to the next event that still has somebody to be for, and
 * returns it: the network's until the next call. NULL: nothing will ever happen
 * again. */
const struct simulated_event *simulated_net_next(struct simulated *s);

#endif
