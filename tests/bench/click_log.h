/* SPDX-License-Identifier: Apache-2.0 */
/* Click logs whose best predictor is known. A row has 13 numbers, 26 categories
 * and a click, which is Bernoulli(sigmoid(logit)) of a planted model:
 *
 *   logit = bias + numbers . effects + sum_f w_f + sum_{f < g} v_f . v_g
 *
 * with a weight w and CLICK_LOG_DIM factors v of each category: a factorization
 * machine (Rendle, Factorization Machines, ICDM 2010). A field's categories
 * have Zipf's distribution: the one of rank r, from 0, is drawn in proportion
 * to (r + 1)^-exponent. Weights and factors have mean 0 over it, so that no
 * linear model learns anything from the factors; they shrink with the rank, as
 * rare categories cannot be learnt. The three parts of the logit have fixed
 * standard deviations (CLICK_LOG_SDS), so that the best AUC depends little on
 * the seed.
 *
 * A row is a pure function of the options and its number: training and test
 * rows of one model have different numbers. */
#ifndef CAPSTAN_CLICK_LOG_H
#define CAPSTAN_CLICK_LOG_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CLICK_LOG_NUMBERS = 13,
    CLICK_LOG_FIELDS = 26,
    CLICK_LOG_DIM = 4,
    CLICK_LOG_MAX_CARDINALITY = 100000000,
    CLICK_LOG_ROW_BYTES = 1024 /* no row's text is longer */
};

/* Of the numeric part, the weights and the factors' part of the logit. */
#define CLICK_LOG_SDS                                                          \
    { 0.6, 0.6, 1.0 }

/* A missing number or category: 1 of 8 and 1 of 32; it adds 0 to the logit. */
#define CLICK_LOG_MISSING UINT32_MAX

struct click_log_options {
    uint64_t seed;
    uint32_t cardinality[CLICK_LOG_FIELDS]; /* 1 .. MAX_CARDINALITY */
    double exponent[CLICK_LOG_FIELDS];      /* 0 or more */
};

struct click_row {
    bool clicked;
    float logit, linear; /* `linear` is without the factors' part */
    uint32_t numbers[CLICK_LOG_NUMBERS];   /* 0 .. 4999 */
    uint8_t levels[CLICK_LOG_NUMBERS];     /* the log's own, for their texts */
    uint32_t categories[CLICK_LOG_FIELDS]; /* ranks */
};

struct click_log;

/* Seed 1; 10 to 100,000 categories of a field, exponent 1.1. */
struct click_log_options click_log_defaults(void);

/* Some 8 bytes of memory a category. STATUS_CONFIG if an option is outside its
 * range, STATUS_RETRY without memory. */
enum status click_log_open(struct click_log **out,
                           const struct click_log_options *options,
                           struct failure *why) MUST_CHECK;

/* Frees *LOG (may be NULL) and clears it. */
void click_log_close(struct click_log **log);

/* Row NUMBER, below 2^63. */
void click_log_row(const struct click_log *log, uint64_t number,
                   struct click_row *row);

/* Writes ROW as a line in Criteo's format; returns its bytes. A category's text
 * is a hash of field and rank, different for each rank of a field. */
size_t click_log_criteo(const struct click_log *log,
                        const struct click_row *row,
                        char text[CLICK_LOG_ROW_BYTES]);

/* The same in LIBSVM's: number j (from 1) is id j with the value log1p(number),
 * to 4 digits; a field's categories follow from 14 on, those of the fields
 * after each other, with value 1. */
size_t click_log_libsvm(const struct click_log *log,
                        const struct click_row *row,
                        char text[CLICK_LOG_ROW_BYTES]);

#endif
