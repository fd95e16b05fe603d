/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values from Philox: each element follows from key, stream and its
 * number alone, with the same bits on every machine, as only operations that
 * IEEE 754 rounds exactly are used. */
#ifndef CAPSTAN_INITIALIZER_H
#define CAPSTAN_INITIALIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum initializer_kind {
    INITIALIZER_UNIFORM,          /* of [-1, 1) */
    INITIALIZER_NORMAL,           /* of mean 0 and standard deviation 1 */
    INITIALIZER_TRUNCATED_NORMAL, /* of those the part within [-2, 2] */
    INITIALIZER_KINDS
};

/* A value is shift + bound * a number of the kind; all zero: 0. */
struct initializer {
    uint32_t kind; /* enum initializer_kind */
    float shift, bound;
};

/* As a job names it. */
enum job_init_kind {
    JOB_INIT_DEFAULT, /* not given */
    JOB_INIT_ZEROS,
    JOB_INIT_ONES,
    JOB_INIT_CONSTANT,         /* a */
    JOB_INIT_UNIFORM,          /* from a to b */
    JOB_INIT_NORMAL,           /* mean a, standard deviation b */
    JOB_INIT_TRUNCATED_NORMAL, /* likewise */
    /* By the numbers of inputs and outputs: */
    JOB_INIT_XAVIER_UNIFORM,
    JOB_INIT_GLOROT_UNIFORM,
    JOB_INIT_XAVIER_NORMAL,
    JOB_INIT_GLOROT_NORMAL,
    JOB_INIT_KAIMING_UNIFORM,
    JOB_INIT_HE_UNIFORM,
    JOB_INIT_KAIMING_NORMAL,
    JOB_INIT_HE_NORMAL,
    JOB_INIT_KINDS
};

struct job_init {
    enum job_init_kind kind;
    double a, b;
};

/* What INIT, which is given, means for values between FAN_IN inputs and FAN_OUT
 * outputs (both 1 or more; else read by no other kind):
 * xavier_uniform, glorot_uniform: uniform within sqrt(6 / (in + out)), and
 * xavier_normal: normal of standard deviation sqrt(2 / (in + out)) (Glorot,
 * Bengio 2010, Understanding the difficulty of training deep feedforward neural
 * networks);
 * kaiming_uniform, he_uniform: uniform within sqrt(6 / in), and kaiming_normal:
 * normal of standard deviation sqrt(2 / in) (He et al. 2015, Delving Deep into
 * Rectifiers);
 * glorot_normal, he_normal: the same deviations, truncated, as in Keras. */
struct initializer initializer_of_job(const struct job_init *init,
                                      uint32_t fan_in, uint32_t fan_out);

/* Is the kind known, and are the numbers finite and `bound` at least 0? */
bool initializer_is_valid(const struct initializer *initializer);

/* Writes elements FIRST .. FIRST + COUNT - 1 of STREAM (philox.h). Uniform
 * values are philox_uniform's; a normal one is made of word e mod 4 at position
 * e / 4 by the inverse of its distribution. */
void initializer_fill(const struct initializer *initializer, uint64_t key,
                      uint64_t stream, uint64_t first, float *values,
                      size_t count);

#endif
