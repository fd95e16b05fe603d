/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/simulator_host.h"

#include <math.h>
#include <stdlib.h>

/* Virtual time advances at the speed of each running thread, so the end of a
 * thread's work is known when it starts. */
struct simulator_host {
    struct timeline *timeline;
    struct simulator_host_settings settings;
    struct simulator_host_thread **running;
    uint32_t num_running;
    const struct simulator_host_thread
        *last_run;   /* whose piece has just ended */
    int64_t updated; /* time of the last update of virtual time */
    double virtual_seconds, busy;
    uint64_t num_started;
    uint64_t event; /* number of the one valid event */
};

struct simulator_host *simulator_host_open(
    struct timeline *timeline, const struct simulator_host_settings *settings) {
    struct simulator_host *host = calloc(1, sizeof *host);
    if (!host)
        return NULL;
    host->timeline = timeline;
    host->settings = *settings;
    host->running =
        calloc(settings->threads + 1, sizeof(struct simulator_host_thread *));
    if (!host->running)
        simulator_host_close(&host);
    return host;
}

void simulator_host_close(struct simulator_host **where) {
    struct simulator_host *host = *where;
    *where = NULL;
    if (!host)
        return;
    free(host->running);
    free(host);
}

/* Speed of each of COUNT running threads. */
static double speed(const struct simulator_host *host, uint32_t count) {
    uint32_t cores = host->settings.cores;
    uint32_t busy = count < cores ? count : cores;
    double each = cores > 1 && busy > 1
                      ? 1 - (1 - host->settings.parallel_efficiency) *
                                (busy - 1) / (cores - 1)
                      : 1;
    return count ? each * busy / count : 0;
}

static void update_virtual_time(struct simulator_host *host) {
    int64_t now = timeline_now(host->timeline);
    double seconds = 1e-9 * (double)(now - host->updated);
    uint32_t cores = host->settings.cores, count = host->num_running;
    host->virtual_seconds += seconds * speed(host, count);
    host->busy += seconds * (count < cores ? count : cores);
    host->updated = now;
}

static struct simulator_host_thread *first_to_finish(
    const struct simulator_host *host) {
    struct simulator_host_thread *first = NULL;
    for (uint32_t i = 0; i < host->num_running; i++) {
        struct simulator_host_thread *thread = host->running[i];
        if (!first || thread->finish < first->finish ||
            (thread->finish == first->finish && thread->order < first->order))
            first = thread;
    }
    return first;
}

static void simulator_host_finish(void *context, uint64_t number);

static void schedule_finish(struct simulator_host *host) {
    const struct simulator_host_thread *first = first_to_finish(host);
    host->event++;
    if (!first)
        return;
    double seconds = (first->finish - host->virtual_seconds) /
                     speed(host, host->num_running);
    int64_t delay = seconds > 0 ? (int64_t)ceil(1e9 * seconds) : 0;
    timeline_add(host->timeline, delay, simulator_host_finish, host,
                 host->event);
}

static void remove_thread(struct simulator_host *host,
                          struct simulator_host_thread *thread) {
    for (uint32_t i = 0; i < host->num_running; i++)
        if (host->running[i] == thread) {
            host->running[i] = host->running[--host->num_running];
            break;
        }
    thread->running = false;
}

/* The event is at most 1 ns late; this is not corrected. */
static void simulator_host_finish(void *context, uint64_t number) {
    struct simulator_host *host = context;
    if (number != host->event)
        return;
    update_virtual_time(host);
    struct simulator_host_thread *thread = first_to_finish(host);
    remove_thread(host, thread);
    schedule_finish(host);
    host->last_run = thread;
    thread->callback(thread->context);
    host->last_run = NULL;
}

/* If there is a core for each running thread, a thread that slept finds its
 * core asleep too. */
static double wakeup_seconds(const struct simulator_host *host,
                             const struct simulator_host_thread *thread) {
    if (host->last_run == thread)
        return 0;
    return host->num_running < host->settings.cores
               ? host->settings.idle_wakeup
               : host->settings.busy_wakeup;
}

void simulator_host_run(struct simulator_host_thread *thread, double seconds,
                        void (*callback)(void *context), void *context) {
    struct simulator_host *host = thread->simulator_host;
    update_virtual_time(host);
    const struct simulator_host_thread *first = first_to_finish(host);
    double before = speed(host, host->num_running);
    double idle_wakeup = wakeup_seconds(host, thread);
    thread->finish = host->virtual_seconds + idle_wakeup + seconds;
    thread->order = host->num_started++;
    thread->callback = callback;
    thread->context = context;
    thread->running = true;
    host->running[host->num_running++] = thread;
    if (!first || thread->finish < first->finish ||
        speed(host, host->num_running) != before)
        schedule_finish(host);
}

double simulator_host_busy(struct simulator_host *host) {
    update_virtual_time(host);
    return host->busy;
}
