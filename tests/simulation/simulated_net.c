/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_net.h"

#include "simulator/timeline.h"

#include <stdlib.h>
#include <string.h>

enum {
    DATA_LINES = SIMULATED_RANKS * SIMULATED_PS,
    LINES = DATA_LINES + SIMULATED_PROCESSES,
    LATE = 300, /* of 1000 messages on a broken line */
};

static const int64_t LONGEST_KEPT = 8 * TIME_S;

struct line {
    uint64_t generation;
    int64_t down_until;
    int64_t last[2]; /* the last message's arrival, down and up */
};

/* An event on the timeline, with room for its message. */
struct scheduled {
    struct simulated_event event; /* first: one address for both */
    struct simulated_message message;
    struct simulated_net *net;
    struct scheduled *next, *older; /* in the free list; of all */
};

struct simulated_net {
    struct timeline *timeline;
    struct line lines[LINES];
    struct scheduled *free, *newest;
    struct scheduled *due; /* the event that the timeline has just run */
};

struct simulated_net *simulated_net_open(void) {
    struct simulated_net *net = calloc(1, sizeof *net);
    net->timeline = timeline_open();
    return net;
}

void simulated_net_close(struct simulated_net **where) {
    struct simulated_net *net = *where;
    *where = NULL;
    if (!net)
        return;
    while (net->newest) {
        struct scheduled *scheduled = net->newest;
        net->newest = scheduled->older;
        free(scheduled);
    }
    timeline_close(&net->timeline);
    free(net);
}

uint32_t simulated_net_data(uint32_t rank, uint32_t ps) {
    return rank * SIMULATED_PS + ps;
}

uint32_t simulated_net_control(uint32_t process) {
    return DATA_LINES + process;
}

/* A free one; its event has a message if MESSAGE is not NULL. */
static struct scheduled *schedule_new(struct simulated_net *net,
                                      const struct simulated_event *event,
                                      const struct simulated_message *message) {
    struct scheduled *scheduled = net->free;
    if (scheduled) {
        net->free = scheduled->next;
    } else {
        scheduled = malloc(sizeof *scheduled);
        scheduled->older = net->newest;
        net->newest = scheduled;
    }
    scheduled->net = net;
    scheduled->event = *event;
    scheduled->event.message = message ? &scheduled->message : NULL;
    if (message)
        scheduled->message = *message;
    return scheduled;
}

static void run_scheduled(void *context, uint64_t number) {
    struct scheduled *scheduled = context;
    (void)number;
    scheduled->net->due = scheduled;
}

static void schedule(struct scheduled *scheduled, int64_t time) {
    struct timeline *timeline = scheduled->net->timeline;
    timeline_add(timeline, time - timeline_now(timeline), run_scheduled,
                 scheduled, 0);
}

static void give_back(struct simulated_net *net) {
    if (net->due) {
        net->due->next = net->free;
        net->free = net->due;
    }
    net->due = NULL;
}

static void carry(struct simulated *s, struct simulated_event event,
                  const struct simulated_message *message) {
    struct simulated_net *net = s->net;
    struct line *line = &net->lines[event.peer.line];
    if (simulated_chance(s, s->scenario.drop))
        return;
    int64_t time = s->now + TIME_US + simulated_time(s, s->scenario.delay);
    if (simulated_chance(s, s->scenario.reorder))
        time += simulated_time(s, 4 * s->scenario.delay);
    else if (time <= line->last[event.up])
        time = line->last[event.up] + 1;
    if (time > line->last[event.up])
        line->last[event.up] = time;
    event.late = !s->healed && simulated_chance(s, LATE);
    schedule(schedule_new(net, &event, message), time);
    if (simulated_chance(s, s->scenario.duplicate))
        schedule(schedule_new(net, &event, message),
                 time + simulated_time(s, 50 * s->scenario.delay));
}

bool simulated_net_connected(const struct simulated *s, uint32_t line) {
    return s->net->lines[line].down_until <= s->now;
}

bool simulated_net_up(struct simulated *s, uint32_t line, uint32_t process,
                      uint32_t server,
                      const struct simulated_message *message) {
    if (!simulated_net_connected(s, line))
        return false;
    carry(
        s,
        (struct simulated_event){.process = server,
                                 .up = true,
                                 .peer = {line, s->net->lines[line].generation,
                                          s->processes[process].incarnation}},
        message);
    return true;
}

void simulated_net_down(struct simulated *s, const struct simulated_peer *peer,
                        uint32_t process,
                        const struct simulated_message *message) {
    const struct line *line = &s->net->lines[peer->line];
    if (!peer->client || line->generation != peer->generation ||
        line->down_until > s->now)
        return;
    carry(s,
          (struct simulated_event){
              .process = process, .client = peer->client, .peer = *peer},
          message);
}

void simulated_net_wake(struct simulated *s, uint32_t process, int64_t time) {
    struct simulated_process *who = &s->processes[process];
    if (who->wakes > s->now && who->wakes <= time)
        return;
    who->wakes = time > s->now ? time : s->now + 1;
    struct simulated_event event = {.process = process,
                                    .client = who->incarnation};
    schedule(schedule_new(s->net, &event, NULL), who->wakes);
}

void simulated_net_break(struct simulated *s, uint32_t line, int64_t until) {
    s->net->lines[line].generation++;
    s->net->lines[line].down_until = until;
}

static bool is_broken(const struct simulated *s,
                      const struct simulated_event *event) {
    return event->message &&
           s->net->lines[event->peer.line].generation != event->peer.generation;
}

static bool has_somebody(const struct simulated *s,
                         const struct simulated_event *event) {
    const struct simulated_process *who = &s->processes[event->process];
    if (event->client && event->client != who->incarnation)
        return false;
    return event->late || !is_broken(s, event);
}

/* Until when EVENT has to wait: what was sent before its line broke, for the
 * next connection; all, for whoever is stopped. Whoever resumes reads what has
 * come before it looks at the time. */
static int64_t put_off(struct simulated *s, struct simulated_event *event) {
    int64_t until = s->processes[event->process].paused_until;
    if (until > s->now && !event->message)
        until++;
    if (!is_broken(s, event) || event->kept)
        return until;
    event->kept = true;
    int64_t connected = s->now + simulated_time(s, LONGEST_KEPT);
    return connected > until ? connected : until;
}

const struct simulated_event *simulated_net_next(struct simulated *s) {
    struct simulated_net *net = s->net;
    give_back(net);
    while (timeline_step(net->timeline)) {
        struct simulated_event *event = &net->due->event;
        s->now = timeline_now(net->timeline);
        bool wanted = has_somebody(s, event);
        int64_t until = wanted ? put_off(s, event) : 0;
        if (wanted && until <= s->now)
            return event;
        if (wanted)
            schedule(net->due, until);
        else
            give_back(net);
    }
    return NULL;
}
