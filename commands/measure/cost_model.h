/* SPDX-License-Identifier: Apache-2.0 */
/* Cost model of a training step by parameter server and by all-reduce;
 * docs/compare.md gives the source of each formula. Pure.
 *
 * n workers, g of them on each host, H = n/g hosts with workers, m ps on hosts
 * of their own, M bytes of weights on the wire, B bytes per second in each
 * direction of a host's link, b of a worker's link inside its host, a seconds
 * of latency. */
#ifndef CAPSTAN_COST_MODEL_H
#define CAPSTAN_COST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { COST_MODEL_MAX_PS = 1024 };

enum cost_model_mode {
    COST_MODEL_PS,       /* synchronous, pipelined */
    COST_MODEL_PS_ASYNC, /* asynchronous: no worker waits for another */
    COST_MODEL_RING, /* all-reduce: first inside each host, then a ring between
                        hosts */
    COST_MODEL_HALVING, /* the same, with halving and doubling between hosts */
    COST_MODEL_MODES
};

/* The resources that a step uses; one of them limits it. */
enum cost_model_limit {
    COST_MODEL_WORKER_LINK,
    COST_MODEL_PS_LINK,
    COST_MODEL_INTRA_HOST_LINK, /* inside a host */
    COST_MODEL_LATENCY,
    COST_MODEL_PS_ARITHMETIC,
    COST_MODEL_COMPUTE, /* in all-reduce it includes the update rule, which the
                           workers run */
    COST_MODEL_INPUT,
    COST_MODEL_LIMITS
};

struct cost_model_case {
    /* M of ps is their product; ranks always sum float32. */
    double parameters, element_bytes;
    double link, intra_host; /* B, b; INFINITY: no limit */
    double ps_link;          /* B of a ps's host; 0: as link */
    double latency;          /* a */
    double compute, input;   /* seconds per step of one worker */
    double overlap; /* fraction of compute during which bytes are transferred:
                       0..1 */
    double update;  /* seconds of the update rule per element of a gradient */
    double max_ps_share; /* of the weights, on the fullest ps; 0: 1/m */
    double reply_bytes; /* bytes that a ps answers as soon as they are complete;
                           0: small */
    uint32_t workers, per_host, ps;
    bool clip; /* global-norm clipping: a ps answers only after all gradients of
                  the round */
};

struct cost_model_step {
    double busy[COST_MODEL_LIMITS]; /* seconds of use per step */
    enum cost_model_limit limit;    /* the resource with the longest use */
    double bound;      /* that many seconds, if all others run in parallel */
    double wire;       /* of the exchange alone */
    double exposed;    /* the part of it that compute does not hide */
    double seconds;    /* of one step of each worker */
    double rate;       /* steps per second of all workers */
    double efficiency; /* T1/(n Tn): relative to n workers without any waiting,
                          each with the whole job's update rule; NAN: T1 is
                          unknown */
};

/* The step of GIVEN in MODE. Numbers are positive or zero; counts are at least
 * 1. */
struct cost_model_step cost_model_step(const struct cost_model_case *given,
                                       enum cost_model_mode mode);

/* The lowest number of ps whose synchronous step takes no longer than that of
 * all-reduce MODE; 0: none up to COST_MODEL_MAX_PS. */
uint32_t cost_model_crossover(const struct cost_model_case *given,
                              enum cost_model_mode mode);

/* The same for the exchange alone, not rounded: nM/(mB) = T of all-reduce gives
 * m = nM/(BT), for a ring n^2/(2(n-1)). INFINITY: the worker's own link takes
 * longer than T, so no number of ps helps. */
double cost_model_crossover_wire(const struct cost_model_case *given,
                                 enum cost_model_mode mode);

/* That formula as text; static. */
const char *cost_model_crossover_formula(void);

/* Seconds of compute from which on MODE has the given EFFICIENCY (0..1). */
double cost_model_compute_for_efficiency(const struct cost_model_case *given,
                                         enum cost_model_mode mode,
                                         double efficiency);

/* "ps", "ps-async", "ring", "halving"; "worker link", ... */
const char *cost_model_mode_name(enum cost_model_mode mode);
const char *cost_model_limit_name(enum cost_model_limit limit);

#endif
