/* SPDX-License-Identifier: Apache-2.0 */
/* A run that goes back to a checkpoint: the worker joins anew and attaches
 * another trainer, and the caller's next call that waits takes the model to it.
 * Until external_take_rewound has told the caller, its pushes are left out. */
#include "core/base/time.h"
#include "worker/train/external_internal.h"

#include <stdlib.h>

void external_set_rewinds(struct external *external, bool rewinds) {
    waiter_enter(&external->waiter);
    external->rewinds = rewinds;
    waiter_leave(&external->waiter);
}

void external_go_back(struct external *external) {
    waiter_enter(&external->waiter);
    external->is_asked_back = true;
    waiter_leave(&external->waiter);
}

bool external_can_follow(struct external *external) {
    waiter_enter(&external->waiter);
    bool follows = !external->joined || external->back || external->anew;
    waiter_leave(&external->waiter);
    return follows;
}

/* One thread at a time begins anew. False: not until then. */
static bool claim_return(struct external *external, int64_t until) {
    waiter_enter(&external->waiter);
    while (external->returning && waiter_wait(&external->waiter, until, NULL))
        ;
    bool claimed = !external->returning;
    external->returning = true;
    waiter_leave(&external->waiter);
    return claimed;
}

static void leave_return(struct external *external, bool done) {
    waiter_enter(&external->waiter);
    if (done) {
        external->back = false;
        external->rewound = true;
    }
    external->returning = false;
    waiter_leave_changed(&external->waiter);
}

/* Waits for the trainer of the next run. */
static struct trainer *await_trainer(struct external *external, int64_t until,
                                     enum external_result *result) {
    waiter_enter(&external->waiter);
    while ((!external->trainer || external->detached) && !external->ended &&
           waiter_wait(&external->waiter, until, NULL))
        ;
    *result = external->ended ? EXTERNAL_OVER : EXTERNAL_LATE;
    waiter_leave(&external->waiter);
    return external_enter_any(external);
}

enum external_result external_return(struct external *external, int64_t until) {
    enum external_result result;
    bool is_over = false;
    if (!claim_return(external, until))
        return EXTERNAL_LATE;
    do {
        result = EXTERNAL_DONE;
        if (!external_is_back(external))
            break; /* another thread was first */
        struct trainer *trainer = await_trainer(external, until, &result);
        if (trainer) {
            result = external_start_again(external, trainer, until);
            if (result == EXTERNAL_OVER)
                result = external_late(external, until);
            external_leave(external);
        }
        is_over = result == EXTERNAL_OVER && !external_is_back(external);
    } while (result == EXTERNAL_OVER && !is_over);
    leave_return(external, result == EXTERNAL_DONE);
    return result;
}

/* The caller may have written to its VALUES since they came. */
static void read_again(struct external *external, struct trainer *trainer) {
    if (external->is_read_again)
        return;
    for (uint32_t p = 0; p < external->count; p++) {
        external->tensors[p].stale = true;
        external->tensors[p].answers_push = false;
    }
    trainer->exchange->pull(trainer->exchange, trainer->clock, 0);
    external->is_read_again = true;
}

static void forget_rewound(struct external *external) {
    waiter_enter(&external->waiter);
    external->rewound = external->is_read_again = false;
    waiter_leave(&external->waiter);
}

enum external_result external_take_rewound(struct external *external,
                                           int64_t until) {
    enum external_result result = EXTERNAL_DONE;
    if (!external_is_behind(external))
        return EXTERNAL_OVER;
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    read_again(external, trainer);
    if (external_wait_all(external, trainer, until))
        forget_rewound(external);
    else
        result = external_late(external, until);
    external_leave(external);
    return result;
}
