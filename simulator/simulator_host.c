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
    struct simulator_host *simulator_host = calloc(1, sizeof *simulator_host);
    if (!simulator_host)
        return NULL;
    simulator_host->timeline = timeline;
    simulator_host->settings = *settings;
    simulator_host->running =
        calloc(settings->threads + 1, sizeof(struct simulator_host_thread *));
    if (!simulator_host->running)
        simulator_host_close(&simulator_host);
    return simulator_host;
}

void simulator_host_close(struct simulator_host **where) {
    struct simulator_host *simulator_host = *where;
    *where = NULL;
    if (!simulator_host)
        return;
    free(simulator_host->running);
    free(simulator_host);
}

/* Speed of each of COUNT running threads. */
static double speed(const struct simulator_host *simulator_host,
                    uint32_t count) {
    uint32_t cores = simulator_host->settings.cores;
    uint32_t busy = count < cores ? count : cores;
    double each = cores > 1 && busy > 1
                      ? 1 - (1 - simulator_host->settings.parallel_efficiency) *
                                (busy - 1) / (cores - 1)
                      : 1;
    return count ? each * busy / count : 0;
}

static void update_virtual_time(struct simulator_host *simulator_host) {
    int64_t now = timeline_now(simulator_host->timeline);
    double seconds = 1e-9 * (double)(now - simulator_host->updated);
    uint32_t cores = simulator_host->settings.cores,
             count = simulator_host->num_running;
    simulator_host->virtual_seconds += seconds * speed(simulator_host, count);
    simulator_host->busy += seconds * (count < cores ? count : cores);
    simulator_host->updated = now;
}

static struct simulator_host_thread *first_to_finish(
    const struct simulator_host *simulator_host) {
    struct simulator_host_thread *first = NULL;
    for (uint32_t i = 0; i < simulator_host->num_running; i++) {
        struct simulator_host_thread *thread = simulator_host->running[i];
        if (!first || thread->finish < first->finish ||
            (thread->finish == first->finish && thread->order < first->order))
            first = thread;
    }
    return first;
}

static void simulator_host_finish(void *context, uint64_t number);

static void schedule_finish(struct simulator_host *simulator_host) {
    const struct simulator_host_thread *first = first_to_finish(simulator_host);
    simulator_host->event++;
    if (!first)
        return;
    double seconds = (first->finish - simulator_host->virtual_seconds) /
                     speed(simulator_host, simulator_host->num_running);
    int64_t delay = seconds > 0 ? (int64_t)ceil(1e9 * seconds) : 0;
    timeline_add(simulator_host->timeline, delay, simulator_host_finish,
                 simulator_host, simulator_host->event);
}

static void remove_thread(struct simulator_host *simulator_host,
                          struct simulator_host_thread *thread) {
    for (uint32_t i = 0; i < simulator_host->num_running; i++)
        if (simulator_host->running[i] == thread) {
            simulator_host->running[i] =
                simulator_host->running[--simulator_host->num_running];
            break;
        }
    thread->running = false;
}

/* The event is at most 1 ns late; this is not corrected. */
static void simulator_host_finish(void *context, uint64_t number) {
    struct simulator_host *simulator_host = context;
    if (number != simulator_host->event)
        return;
    update_virtual_time(simulator_host);
    struct simulator_host_thread *thread = first_to_finish(simulator_host);
    remove_thread(simulator_host, thread);
    schedule_finish(simulator_host);
    simulator_host->last_run = thread;
    thread->callback(thread->context);
    simulator_host->last_run = NULL;
}

/* If there is a core for each running thread, a thread that slept finds its
 * core asleep too. */
static double wakeup_seconds(const struct simulator_host *simulator_host,
                             const struct simulator_host_thread *thread) {
    if (simulator_host->last_run == thread)
        return 0;
    return simulator_host->num_running < simulator_host->settings.cores
               ? simulator_host->settings.idle_wakeup
               : simulator_host->settings.busy_wakeup;
}

void simulator_host_run(struct simulator_host_thread *thread, double seconds,
                        void (*callback)(void *context), void *context) {
    struct simulator_host *simulator_host = thread->simulator_host;
    update_virtual_time(simulator_host);
    const struct simulator_host_thread *first = first_to_finish(simulator_host);
    double before = speed(simulator_host, simulator_host->num_running);
    double idle_wakeup = wakeup_seconds(simulator_host, thread);
    thread->finish = simulator_host->virtual_seconds + idle_wakeup + seconds;
    thread->order = simulator_host->num_started++;
    thread->callback = callback;
    thread->context = context;
    thread->running = true;
    simulator_host->running[simulator_host->num_running++] = thread;
    if (!first || thread->finish < first->finish ||
        speed(simulator_host, simulator_host->num_running) != before)
        schedule_finish(simulator_host);
}

double simulator_host_busy(struct simulator_host *simulator_host) {
    update_virtual_time(simulator_host);
    return simulator_host->busy;
}
