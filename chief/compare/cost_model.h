/* SPDX-License-Identifier: Apache-2.0 */
/* What a step takes by parameter server and by all-reduce: formulas over a
 * handful of numbers, each with its source in docs/compare.md. Pure.
 *
 * n workers, g of them on a host, H = n/g hosts with workers, m ps on hosts of
 * their own, M bytes of weights on the wire, B bytes a second each way of a
 * host's link, b of a worker's inside its host, a seconds of latency. */
#ifndef CAPSTAN_COST_MODEL_H
#define CAPSTAN_COST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { COST_MODEL_MAX_PS = 1024 };

enum cost_model_mode {
    COST_MODEL_PS,       /* synchronous, pipelined */
    COST_MODEL_PS_ASYNC, /* asynchronous: nobody waits for another worker */
    COST_MODEL_RING, /* all-reduce; inside a host first, then between hosts */
    COST_MODEL_HALVING, /* the same, between hosts by halving and doubling */
    COST_MODEL_MODES
};

/* What is busy in a step, and may be what limits it. */
enum cost_model_limit {
    COST_MODEL_WORKER_LINK,
    COST_MODEL_PS_LINK,
    COST_MODEL_INTRA_HOST_LINK, /* inside a host */
    COST_MODEL_LATENCY,
    COST_MODEL_PS_ARITHMETIC,
    COST_MODEL_COMPUTE, /* all-reduce: with the update rule, which workers run
                         */
    COST_MODEL_INPUT,
    COST_MODEL_LIMITS
};

struct cost_model_case {
    double parameters, element_bytes; /* M of ps is their product; ranks
                                         always sum float32 */
    double link, intra_host;          /* B, b; INFINITY: no limit */
    double ps_link;                   /* B of a ps's host; 0: as link */
    double latency;                   /* a */
    double compute, input;            /* seconds of a step of one worker */
    double overlap; /* share of compute beside which bytes travel: 0..1 */
    double update;  /* seconds a rule takes for an element of a gradient */
    double
        max_ps_share; /* share of the weights on the ps that has most; 0: 1/m */
    double reply_bytes; /* bytes that a ps answers when it has them whole; 0:
                           few */
    uint32_t workers, per_host, ps;
    bool clip; /* by the global norm: nothing is answered before all has come */
};

struct cost_model_step {
    double busy[COST_MODEL_LIMITS]; /* seconds of each in a step */
    enum cost_model_limit limit;    /* the longest of them */
    double bound;      /* that many seconds: all the rest beside it */
    double wire;       /* of the exchange alone */
    double exposed;    /* what of it computing does not hide */
    double seconds;    /* of a step of each worker */
    double rate;       /* steps of all workers a second */
    double efficiency; /* T1/(n Tn): of n workers that wait for
                          nothing, each with the whole job's rule;
                          NAN: T1 is not known */
};

/* A step of GIVEN, whose numbers are positive or zero, counts at least 1. */
struct cost_model_step cost_model_step(const struct cost_model_case *given,
                                       enum cost_model_mode mode);

/* The lowest number of ps whose synchronous step takes no longer than the
 * all-reduce MODE's; 0: none up to COST_MODEL_MAX_PS. */
uint32_t cost_model_crossover(const struct cost_model_case *given,
                              enum cost_model_mode mode);

/* The same for the exchange alone, not rounded: nM/(mB) = T of all-reduce gives
 * m = nM/(BT), for a ring n^2/(2(n-1)). INFINITY: the worker's own link takes
 * longer than T, and no number of ps helps. */
double cost_model_crossover_wire(const struct cost_model_case *given,
                                 enum cost_model_mode mode);

/* That formula, for people; static. */
const char *cost_model_crossover_formula(void);

/* Seconds of compute from which on MODE's efficiency is EFFICIENCY (0..1). */
double cost_model_compute_for_efficiency(const struct cost_model_case *given,
                                         enum cost_model_mode mode,
                                         double efficiency);

/* "ps", "ps-async", "ring", "halving"; "worker link", ... */
const char *cost_model_mode_name(enum cost_model_mode mode);
const char *cost_model_limit_name(enum cost_model_limit limit);

#endif
