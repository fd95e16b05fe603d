/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/modelled_worker.h"

#include "proto/base/time.h"
#include "proto/tensor/philox.h"
#include "worker/exchange/client/window.h"

#include <stdlib.h>

/* The computing thread is at `parameter`, forward or backward, and has
 * announced the gradients of step `pushing` from the last parameter's down to
 * `announced`; the exchanging one has told the window of those to `granted`. */
struct modelled_worker {
    struct stage *stage;
    uint32_t rank;
    struct machine_thread computing, exchanging;
    struct philox_sequence chance;
    uint64_t clock; /* of the step at hand */
    uint32_t parameter;
    bool backward, waiting;
    double pace; /* of this step: 1 is the mean */
    int64_t began;
    double computed; /* seconds */
    struct window *window;
    uint32_t *missing; /* [num_parameters] blocks awaited */
    uint64_t pushing, seq;
    uint32_t announced, granted;
    struct letters inbox;
    struct letter *placing;
    struct window_request request;
};

static const struct layout *layout_of(const struct modelled_worker *worker) {
    return worker->stage->given.layout;
}

static struct window *open_window(const struct stage *stage) {
    const struct model_case *given = &stage->given;
    bool whole = given->clip && given->staleness == 0;
    struct window_settings settings = {
        .num_blocks = given->layout->num_blocks,
        .num_ps = given->num_ps,
        .block_ps = stage->block_ps,
        .block_bytes = stage->block_bytes,
        .credit = whole ? UINT64_MAX : WINDOW_CREDIT,
        .group_bytes = given->group_bytes,
        .ask_after = TIME_NEVER, /* nothing is lost here */
        .retry_after = 0,
    };
    return window_open(&settings);
}

struct modelled_worker *modelled_worker_open(struct stage *stage,
                                             uint32_t rank) {
    struct modelled_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->stage = stage;
    worker->rank = rank;
    worker->computing.machine = worker->exchanging.machine =
        stage_machine(stage, rank);
    philox_sequence_open(&worker->chance, stage->given.seed, rank);
    worker->window = open_window(stage);
    worker->missing =
        calloc(layout_of(worker)->num_parameters, sizeof *worker->missing);
    if (!worker->window || !worker->missing)
        modelled_worker_close(&worker);
    return worker;
}

void modelled_worker_close(struct modelled_worker **where) {
    struct modelled_worker *worker = *where;
    *where = NULL;
    if (!worker)
        return;
    window_close(&worker->window);
    letters_drop(&worker->inbox);
    free(worker->placing);
    free(worker->missing);
    free(worker);
}

/* Mean 1; a sum of uniforms, which is near enough to a normal distribution and
 * has an end: 12 of them have the variance 1. */
static double draw_pace(struct modelled_worker *worker) {
    double sum = -6, pace;
    for (int i = 0; worker->stage->given.jitter > 0 && i < 12; i++)
        sum += philox_next(&worker->chance) * 0x1p-32;
    pace = worker->stage->given.jitter > 0
               ? 1 + worker->stage->given.jitter * sum
               : 1;
    return pace > 0.1 ? pace : 0.1;
}

static void compute(struct modelled_worker *worker);
static void exchange(struct modelled_worker *worker);

static void computed(void *context);

static void work(struct modelled_worker *worker, double seconds) {
    seconds *= worker->pace;
    worker->computed += seconds;
    machine_run(&worker->computing, seconds, computed, worker);
}

static void begin_step(struct modelled_worker *worker) {
    worker->clock++;
    worker->parameter = 0;
    worker->backward = false;
    worker->pace = draw_pace(worker);
    compute(worker);
}

/* A step lasts from its begin to that of the next. */
static void end_step(struct modelled_worker *worker) {
    int64_t now = agenda_now(worker->stage->agenda);
    double seconds = 1e-9 * (double)(now - worker->began);
    worker->began = now;
    if (stage_step(worker->stage, worker->clock, seconds))
        begin_step(worker);
}

/* A worker with staleness clips its own gradient: nothing leaves before the
 * last of it is there. */
static bool keeps_back(const struct modelled_worker *worker) {
    const struct model_case *given = &worker->stage->given;
    return given->clip && given->staleness != 0;
}

/* Small gradients leave with the larger one that follows, but on a network. */
static void announce(struct modelled_worker *worker) {
    const struct layout *layout = layout_of(worker);
    uint32_t at = worker->parameter, end = worker->announced;
    uint64_t elements = 0;
    for (uint32_t p = at; p < end; p++)
        elements += layout->parameters[p].elements;
    bool together =
        elements < WINDOW_ALONE_FLOATS && !(worker->stage->given.link_rate > 0);
    if (at && (keeps_back(worker) || together))
        return;
    worker->announced = at;
    for (uint32_t p = at; p < end; p++)
        worker->missing[p] = layout->num_blocks_of[p];
    exchange(worker);
}

/* All weights are here, and so nothing is left to grant. */
static void turn_back(struct modelled_worker *worker) {
    worker->backward = true;
    worker->pushing = worker->clock;
    worker->announced = worker->granted = worker->parameter;
}

static void computed(void *context) {
    struct modelled_worker *worker = context;
    if (worker->backward)
        announce(worker);
    else if (++worker->parameter == layout_of(worker)->num_parameters)
        turn_back(worker);
    compute(worker);
}

/* With staleness a step begins when the last parameter's weights, and so the
 * global step, are here. */
static bool must_wait(const struct modelled_worker *worker) {
    uint32_t last = layout_of(worker)->num_parameters - 1;
    return worker->missing[worker->parameter] ||
           (worker->stage->given.staleness && !worker->parameter &&
            worker->missing[last]);
}

static void compute_forward(struct modelled_worker *worker) {
    const struct model_case *given = &worker->stage->given;
    uint32_t p = worker->parameter;
    worker->waiting = must_wait(worker);
    if (!worker->waiting)
        work(worker, given->forward[p] + (p ? 0 : given->costs.step));
}

static void compute(struct modelled_worker *worker) {
    const struct model_case *given = &worker->stage->given;
    if (!worker->backward) {
        compute_forward(worker);
        return;
    }
    if (!worker->parameter) {
        end_step(worker);
        return;
    }
    double clipping =
        worker->parameter == 1 && keeps_back(worker)
            ? given->costs.gradient_byte * 4 * (double)given->layout->elements
            : 0;
    worker->parameter--;
    work(worker, given->backward[worker->parameter] + clipping);
}

/* Weights are in place: who waits for them goes on. */
static void placed(void *context) {
    struct modelled_worker *worker = context;
    const struct layout *layout = layout_of(worker);
    struct letter *letter = worker->placing;
    worker->placing = NULL;
    worker->stage->result->placed += letter->bytes;
    for (uint32_t i = 0; i < letter->count; i++)
        if (window_arrived(worker->window, letter->blocks[i], letter->clock,
                           agenda_now(worker->stage->agenda)))
            worker->missing[layout->blocks[letter->blocks[i]].parameter]--;
    free(letter);
    if (worker->waiting && !must_wait(worker))
        compute_forward(worker);
    exchange(worker);
}

static void place(struct modelled_worker *worker) {
    const struct model_costs *costs = &worker->stage->given.costs;
    worker->placing = letters_take(&worker->inbox);
    machine_run(&worker->exchanging,
                costs->message +
                    costs->copy_byte * (double)worker->placing->bytes,
                placed, worker);
}

static void grant(struct modelled_worker *worker) {
    const struct layout *layout = layout_of(worker);
    while (worker->granted > worker->announced) {
        uint32_t p = --worker->granted;
        window_want(worker->window, layout->first_block[p],
                    layout->num_blocks_of[p], WINDOW_PUSH, worker->pushing);
    }
}

/* Neighbouring blocks lie side by side and leave without a copy. */
static bool is_gathered(const struct window_request *request) {
    for (uint32_t i = 1; i < request->count; i++)
        if (request->blocks[i] != request->blocks[i - 1] + 1)
            return true;
    return false;
}

static void pushed(void *context) {
    struct modelled_worker *worker = context;
    const struct window_request *request = &worker->request;
    struct letter head = {.kind = LETTER_PUSH,
                          .from = worker->rank,
                          .to = worker->stage->given.num_workers + request->ps,
                          .clock = request->clock,
                          .seq = ++worker->seq,
                          .bytes = request->bytes};
    worker->stage->result->pushed += request->bytes;
    stage_post(worker->stage,
               letter_write(&head, request->blocks, request->count));
    exchange(worker);
}

static void push(struct modelled_worker *worker) {
    const struct model_costs *costs = &worker->stage->given.costs;
    bool copied = is_gathered(&worker->request) || worker->stage->given.bf16;
    double byte = copied ? costs->copy_byte : 0;
    machine_run(&worker->exchanging,
                costs->message + byte * (double)worker->request.bytes, pushed,
                worker);
}

/* What has come first, then what is to leave. */
static void exchange(struct modelled_worker *worker) {
    if (worker->exchanging.running || worker->placing)
        return;
    if (worker->inbox.first) {
        place(worker);
        return;
    }
    grant(worker);
    if (window_next(worker->window, agenda_now(worker->stage->agenda),
                    &worker->request))
        push(worker);
}

void modelled_worker_begin(struct modelled_worker *worker) {
    begin_step(worker);
}

void modelled_worker_take(struct modelled_worker *worker,
                          struct letter *letter) {
    letters_add(&worker->inbox, letter);
    exchange(worker);
}

double modelled_worker_busy(const struct modelled_worker *worker) {
    return worker->computed;
}
