/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer and its learning-rate schedule from the job file. The
 * arithmetic is in rule.h and schedule.h. */
#ifndef CAPSTAN_OPTIMIZER_H
#define CAPSTAN_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

/* The rules that a ps applies: ROW(its enumerator, its number in messages, its
 * name in the job file and in a manifest). A new one is the last row, with the
 * number after the highest. */
#define OPTIMIZER_ROWS_AFTER_SGD(ROW)                                          \
    ROW(ADAGRAD, 1, "Adagrad")                                                 \
    ROW(RMSPROP, 2, "RMSprop")                                                 \
    ROW(ADAM, 3, "Adam")                                                       \
    ROW(ADAMW, 4, "AdamW")                                                     \
    ROW(FTRL, 5, "Ftrl")
#define OPTIMIZER_ROWS(ROW) ROW(SGD, 0, "SGD") OPTIMIZER_ROWS_AFTER_SGD(ROW)

#define OPTIMIZER_TYPE(NAME, number, word) OPTIMIZER_##NAME = number,
#define OPTIMIZER_ONE(NAME, number, word) +1
#define OPTIMIZER_NEXT_WORD(NAME, number, word) ", " word

enum optimizer_type {
    OPTIMIZER_ROWS(OPTIMIZER_TYPE)
    /* The trainers apply one of their own to the mean gradient. */
    OPTIMIZER_NONE = 6
};
enum { OPTIMIZER_TYPES = 1 OPTIMIZER_ROWS(OPTIMIZER_ONE) };

/* "SGD, Adagrad, ..." */
#define OPTIMIZER_WORDS "SGD" OPTIMIZER_ROWS_AFTER_SGD(OPTIMIZER_NEXT_WORD)

/* Names and defaults are those of torch.optim, Ftrl's those of
 * tf.raw_ops.ApplyFtrl (McMahan et al., KDD 2013). The learning rate is in the
 * schedule. */
struct optimizer {
    enum optimizer_type type;
    double momentum, dampening, weight_decay; /* momentum: SGD, RMSprop */
    bool nesterov;                            /* SGD */
    bool maximize;
    double lr_decay;                  /* Adagrad */
    double initial_accumulator_value; /* Adagrad, Ftrl */
    double alpha;                     /* RMSprop */
    bool centered;                    /* RMSprop */
    double eps;
    double beta1, beta2; /* Adam, AdamW */
    bool amsgrad;
    double learning_rate_power, l1, l2; /* Ftrl */
    bool keeps_momentum; /* SGD, RMSprop: a buffer even while momentum is 0 */
};

/* Format of gradients and weights in messages; sums, master weights and files
 * are float32. */
enum job_wire { JOB_WIRE_FLOAT32, JOB_WIRE_BF16 };

enum schedule_type {
    SCHEDULE_CONSTANT,
    SCHEDULE_WARMUP,
    SCHEDULE_WARMUP_DECAY,
    SCHEDULE_WARMUP_COSINE,
    SCHEDULE_EXPONENTIAL, /* TensorFlow's name and keys; next torch's */
    SCHEDULE_EXPONENTIAL_LR,
    SCHEDULE_STEP_LR,
    SCHEDULE_PIECEWISE,
    SCHEDULE_MULTI_STEP_LR,
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_POLYNOMIAL_LR,
    SCHEDULE_INVERSE_TIME,
    SCHEDULE_COSINE,
    SCHEDULE_COSINE_ANNEALING_LR,
    SCHEDULE_COSINE_RESTARTS,
    SCHEDULE_COSINE_WARM_RESTARTS,
};

enum { JOB_MAX_REALS = 64 };

/* An array of numbers. */
struct job_reals {
    uint32_t count;
    double items[JOB_MAX_REALS];
};

/* Ratios of the cosine form are relative to `lr`. */
struct schedule {
    enum schedule_type type;
    double lr; /* the optimizer's */
    double warmup_min_lr, warmup_max_lr;
    double warmup_min_ratio, cos_min_ratio; /* cosine */
    uint64_t warmup_num_steps, total_num_steps;
    bool warmup_linear; /* else logarithmic, the default */

    /* Of the schedules of TensorFlow and torch, with the names of keys. */
    double initial_lr; /* initial_learning_rate; 0: `lr` */
    uint64_t period;   /* decay_steps, first_decay_steps; step_size,
                          total_iters, T_max, T_0 */
    double decay_rate; /* gamma */
    bool staircase, cycle;
    double end_rate; /* end_learning_rate, eta_min */
    double power;
    double alpha;            /* the lowest share of `lr` */
    double t_mul, m_mul;     /* T_mult */
    struct job_reals bounds; /* boundaries, milestones: ascending */
    struct job_reals values; /* one more than bounds */
};

#endif
