/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/machine.h"

#include <math.h>
#include <stdlib.h>

/* Virtual time goes on at the speed that each running thread has, so that the
 * end of its work is fixed when it starts. */
struct machine {
    struct agenda *agenda;
    struct machine_settings settings;
    struct machine_thread **running;
    uint32_t num_running;
    const struct machine_thread *awake; /* whose piece has just ended */
    int64_t looked; /* when virtual time was last brought up to date */
    double virtual, busy;
    uint64_t started;
    uint64_t planned; /* number of the one event that counts */
};

struct machine *machine_open(struct agenda *agenda,
                             const struct machine_settings *settings) {
    struct machine *machine = calloc(1, sizeof *machine);
    if (!machine)
        return NULL;
    machine->agenda = agenda;
    machine->settings = *settings;
    machine->running =
        calloc(settings->threads + 1, sizeof(struct machine_thread *));
    if (!machine->running)
        machine_close(&machine);
    return machine;
}

void machine_close(struct machine **where) {
    struct machine *machine = *where;
    *where = NULL;
    if (!machine)
        return;
    free(machine->running);
    free(machine);
}

/* Of each of COUNT running threads. */
static double speed(const struct machine *machine, uint32_t count) {
    uint32_t cores = machine->settings.cores;
    uint32_t busy = count < cores ? count : cores;
    double each = cores > 1 && busy > 1 ? 1 - (1 - machine->settings.crowded) *
                                                  (busy - 1) / (cores - 1)
                                        : 1;
    return count ? each * busy / count : 0;
}

static void bring_up_to_date(struct machine *machine) {
    int64_t now = agenda_now(machine->agenda);
    double seconds = 1e-9 * (double)(now - machine->looked);
    uint32_t cores = machine->settings.cores, count = machine->num_running;
    machine->virtual += seconds * speed(machine, count);
    machine->busy += seconds * (count < cores ? count : cores);
    machine->looked = now;
}

static struct machine_thread *first_to_finish(const struct machine *machine) {
    struct machine_thread *first = NULL;
    for (uint32_t i = 0; i < machine->num_running; i++) {
        struct machine_thread *thread = machine->running[i];
        if (!first || thread->finish < first->finish ||
            (thread->finish == first->finish && thread->order < first->order))
            first = thread;
    }
    return first;
}

static void finish(void *context, uint64_t number);

static void plan(struct machine *machine) {
    const struct machine_thread *first = first_to_finish(machine);
    machine->planned++;
    if (!first)
        return;
    double seconds = (first->finish - machine->virtual) /
                     speed(machine, machine->num_running);
    int64_t delay = seconds > 0 ? (int64_t)ceil(1e9 * seconds) : 0;
    agenda_add(machine->agenda, delay, finish, machine, machine->planned);
}

static void remove_thread(struct machine *machine,
                          struct machine_thread *thread) {
    for (uint32_t i = 0; i < machine->num_running; i++)
        if (machine->running[i] == thread) {
            machine->running[i] = machine->running[--machine->num_running];
            break;
        }
    thread->running = false;
}

/* The event is one ns late at most, which is not made up for. */
static void finish(void *context, uint64_t number) {
    struct machine *machine = context;
    if (number != machine->planned)
        return;
    bring_up_to_date(machine);
    struct machine_thread *thread = first_to_finish(machine);
    remove_thread(machine, thread);
    plan(machine);
    machine->awake = thread;
    thread->then(thread->context);
    machine->awake = NULL;
}

/* With a core for each thread that runs, one that slept finds its core asleep
 * too. */
static double seconds_to_wake(const struct machine *machine,
                              const struct machine_thread *thread) {
    if (machine->awake == thread)
        return 0;
    return machine->num_running < machine->settings.cores
               ? machine->settings.wake
               : machine->settings.turn;
}

void machine_run(struct machine_thread *thread, double seconds,
                 void (*then)(void *context), void *context) {
    struct machine *machine = thread->machine;
    bring_up_to_date(machine);
    const struct machine_thread *first = first_to_finish(machine);
    double before = speed(machine, machine->num_running);
    double wake = seconds_to_wake(machine, thread);
    thread->finish = machine->virtual + wake + seconds;
    thread->order = machine->started++;
    thread->then = then;
    thread->context = context;
    thread->running = true;
    machine->running[machine->num_running++] = thread;
    if (!first || thread->finish < first->finish ||
        speed(machine, machine->num_running) != before)
        plan(machine);
}

double machine_busy(struct machine *machine) {
    bring_up_to_date(machine);
    return machine->busy;
}
