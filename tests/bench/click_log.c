/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/click_log.h"

#include "core/tensor/philox_element.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POSITIONS = 16, LEVELS = 256, WEIGHTS = 1 + CLICK_LOG_DIM };
enum { NUMBER_MISSING = LEVELS / 8, CATEGORY_MISSING = LEVELS / 32 };

/* Streams below are of rows. */
#define FIELD_STREAM (UINT64_C(1) << 63)
#define EFFECT_STREAM (FIELD_STREAM + CLICK_LOG_FIELDS)
#define BIAS (-1.5f)
#define LARGEST_NUMBER 4999.0
#define HALF_RANK 64.0f /* weights of this rank are smaller by sqrt(1/2) */

/* A cell of Walker's alias method (Walker 1977): its own rank if a word is
 * below BELOW, else OTHER. */
struct cell {
    uint32_t below, other;
};

struct field {
    uint32_t cardinality;
    uint64_t first_id;                /* LIBSVM's */
    struct cell *cells;               /* [cardinality] */
    float means[WEIGHTS];             /* of the weights as they are drawn */
    double squares[WEIGHTS][WEIGHTS]; /* their covariance */
};

/* A number is one of LEVELS, by a byte. */
struct level {
    uint32_t number;
    float value; /* of log1p, with mean 0 and variance 1; 0: missing */
    char text[8], log_text[12];
};

struct click_log {
    uint64_t seed;
    float effects[CLICK_LOG_NUMBERS], weight_gain, factor_gain;
    struct level levels[LEVELS];
    struct field fields[CLICK_LOG_FIELDS];
};

/* The random words of a row. */
union row_words {
    uint32_t words[4 * POSITIONS];
    struct {
        uint32_t draws[CLICK_LOG_FIELDS][2];
        uint8_t missing[28];
        uint8_t levels[16];
        uint32_t click;
    };
};
_Static_assert(sizeof(union row_words) == 16 * POSITIONS, "padded");

struct click_log_options click_log_defaults(void) {
    struct click_log_options options = {.seed = 1};
    for (int f = 0; f < CLICK_LOG_FIELDS; f++) {
        options.cardinality[f] =
            (uint32_t)(10 * pow(10, 4.0 * f / (CLICK_LOG_FIELDS - 1)) + 0.5);
        options.exponent[f] = 1.1;
    }
    return options;
}

/* WEIGHTS of the category of RANK before they are centred: the upper 24 bits of
 * four words, and the four lower bytes together. */
static void draw_weights(uint64_t seed, uint32_t f, uint32_t rank,
                         float weights[WEIGHTS]) {
    uint32_t words[4], rest = 0;
    float bound = 1 / sqrtf(1 + (float)rank / HALF_RANK);
    philox_words(seed, FIELD_STREAM + f, rank, words);
    for (int k = 0; k < CLICK_LOG_DIM; k++) {
        weights[1 + k] = philox_within(words[k], bound);
        rest = rest << 8 | (words[k] & 255);
    }
    weights[0] = philox_within(rest, bound);
}

static void set_weights(uint64_t seed, uint32_t f, struct field *field,
                        const double *shares) {
    double means[WEIGHTS] = {0};
    for (uint32_t r = 0; r < field->cardinality; r++) {
        float weights[WEIGHTS];
        draw_weights(seed, f, r, weights);
        for (int i = 0; i < WEIGHTS; i++) {
            means[i] += shares[r] * weights[i];
            for (int j = 0; j < WEIGHTS; j++)
                field->squares[i][j] +=
                    shares[r] * (double)weights[i] * weights[j];
        }
    }
    for (int i = 0; i < WEIGHTS; i++) {
        field->means[i] = (float)means[i];
        for (int j = 0; j < WEIGHTS; j++)
            field->squares[i][j] -= means[i] * means[j];
    }
}

/* Vose 1991, "A linear algorithm for generating random numbers with a given
 * distribution". LISTS [cardinality]: ranks whose share is below the mean from
 * the front, others from the back. */
static void set_cells(struct field *field, const double *shares,
                      uint32_t *lists, double *left) {
    uint32_t count = field->cardinality, small = 0, large = count;
    for (uint32_t r = 0; r < count; r++) {
        left[r] = shares[r] * count;
        lists[left[r] < 1 ? small++ : --large] = r;
    }
    while (small && large < count) {
        uint32_t s = lists[--small], l = lists[large];
        field->cells[s] = (struct cell){(uint32_t)(left[s] * 0x1p32), l};
        left[l] -= 1 - left[s];
        if (left[l] < 1) {
            large++;
            lists[small++] = l;
        }
    }
    while (small)
        field->cells[lists[--small]] = (struct cell){0, lists[small]};
    for (; large < count; large++)
        field->cells[lists[large]] = (struct cell){0, lists[large]};
}

static void set_shares(uint32_t count, double exponent, double *shares) {
    double sum = 0;
    for (uint32_t r = 0; r < count; r++)
        sum += shares[r] = pow(r + 1.0, -exponent);
    for (uint32_t r = 0; r < count; r++)
        shares[r] /= sum;
}

static enum status open_field(struct click_log *log,
                              const struct click_log_options *options,
                              uint32_t f, struct failure *why) {
    struct field *field = &log->fields[f];
    uint32_t count = options->cardinality[f];
    if (!count || count > CLICK_LOG_MAX_CARDINALITY ||
        !(options->exponent[f] >= 0))
        return status_fail(why, FAILURE_USAGE,
                           "C%u: found %u categories and the exponent %g; "
                           "allowed: 1 to %d, and 0 or more",
                           f + 1, count, options->exponent[f],
                           CLICK_LOG_MAX_CARDINALITY);
    double *shares = malloc(count * sizeof *shares);
    double *left = malloc(count * sizeof *left);
    uint32_t *lists = malloc(count * sizeof *lists);
    field->cardinality = count;
    field->first_id =
        f ? log->fields[f - 1].first_id + log->fields[f - 1].cardinality
          : CLICK_LOG_NUMBERS + 1;
    field->cells = malloc(count * sizeof *field->cells);
    bool complete = shares && left && lists && field->cells;
    if (complete) {
        set_shares(count, options->exponent[f], shares);
        set_cells(field, shares, lists, left);
        set_weights(log->seed, f, field, shares);
    }
    free(shares);
    free(left);
    free(lists);
    return complete
               ? STATUS_OK
               : status_fail(why, FAILURE_NO_MEMORY,
                             "C%u: no memory for %u categories", f + 1, count);
}

/* Variances of sum_f w_f and of sum_{f < g} v_f . v_g. The fields are
 * independent and have mean 0, so that the latter is the sum of
 * trace(cov(v_f) cov(v_g)) over f < g. */
static void set_gains(struct click_log *log, const double *sds) {
    double weights = 0, factors = 0;
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        weights += log->fields[f].squares[0][0];
    for (int i = 1; i < WEIGHTS; i++)
        for (int j = 1; j < WEIGHTS; j++) {
            double sum = 0;
            for (int f = 0; f < CLICK_LOG_FIELDS; f++) {
                factors += sum * log->fields[f].squares[i][j];
                sum += log->fields[f].squares[i][j];
            }
        }
    log->weight_gain = weights > 0 ? (float)(sds[1] / sqrt(weights)) : 0;
    log->factor_gain = factors > 0 ? (float)(sds[2] / sqrt(factors)) : 0;
}

static void set_effects(struct click_log *log, double sd) {
    double squares = 0;
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++) {
        uint32_t words[4];
        philox_words(log->seed, EFFECT_STREAM, (uint64_t)j, words);
        log->effects[j] = philox_within(words[0], 1);
        squares += (double)log->effects[j] * log->effects[j];
    }
    squares *= (LEVELS - NUMBER_MISSING) / (double)LEVELS;
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++)
        log->effects[j] *= (float)(sd / sqrt(squares));
}

/* Numbers are uniform in their logarithm. */
static void set_levels(struct click_log *log) {
    double logs[LEVELS], mean = 0, square = 0;
    int count = LEVELS - NUMBER_MISSING;
    for (int l = NUMBER_MISSING; l < LEVELS; l++) {
        double share = (l - NUMBER_MISSING) / (count - 1.0);
        double number = floor(expm1(log1p(LARGEST_NUMBER) * share) + 1e-6);
        struct level *level = &log->levels[l];
        logs[l] = log1p(number);
        level->number = (uint32_t)number;
        snprintf(level->text, sizeof level->text, "%u", level->number);
        snprintf(level->log_text, sizeof level->log_text, "%.4g", logs[l]);
        mean += logs[l] / count;
        square += logs[l] * logs[l] / count;
    }
    for (int l = NUMBER_MISSING; l < LEVELS; l++)
        log->levels[l].value =
            (float)((logs[l] - mean) / sqrt(square - mean * mean));
    for (int l = 0; l < NUMBER_MISSING; l++)
        log->levels[l].number = CLICK_LOG_MISSING;
}

enum status click_log_open(struct click_log **out,
                           const struct click_log_options *options,
                           struct failure *why) {
    static const double sds[3] = CLICK_LOG_SDS;
    struct click_log *log = calloc(1, sizeof *log);
    *out = NULL;
    if (!log)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a click log");
    enum status status = STATUS_OK;
    log->seed = options->seed;
    for (uint32_t f = 0; !status && f < CLICK_LOG_FIELDS; f++)
        status = open_field(log, options, f, why);
    if (status) {
        click_log_close(&log);
        return status;
    }
    set_gains(log, sds);
    set_effects(log, sds[0]);
    set_levels(log);
    *out = log;
    return STATUS_OK;
}

void click_log_close(struct click_log **where) {
    struct click_log *log = where ? *where : NULL;
    if (!log)
        return;
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        free(log->fields[f].cells);
    free(log);
    *where = NULL;
}

static uint32_t draw_rank(const struct field *field, const uint32_t draw[2]) {
    uint32_t rank = (uint32_t)((uint64_t)draw[0] * field->cardinality >> 32);
    const struct cell *cell = &field->cells[rank];
    return draw[1] < cell->below ? rank : cell->other;
}

/* The weights' part of the logit; adds the factors' to *FACTORS, as half of the
 * square of the sum less the sum of the squares (Rendle 2010, lemma 3.1). */
static float weigh_categories(const struct click_log *log,
                              const uint32_t *categories, float *factors) {
    float sums[CLICK_LOG_DIM] = {0}, weights = 0, squares = 0, square = 0;
    for (uint32_t f = 0; f < CLICK_LOG_FIELDS; f++) {
        float drawn[WEIGHTS];
        if (categories[f] == CLICK_LOG_MISSING)
            continue;
        draw_weights(log->seed, f, categories[f], drawn);
        weights += drawn[0] - log->fields[f].means[0];
        for (int k = 0; k < CLICK_LOG_DIM; k++) {
            float factor = drawn[1 + k] - log->fields[f].means[1 + k];
            sums[k] += factor;
            squares += factor * factor;
        }
    }
    for (int k = 0; k < CLICK_LOG_DIM; k++)
        square += sums[k] * sums[k];
    *factors = log->factor_gain * (square - squares) / 2;
    return log->weight_gain * weights;
}

void click_log_row(const struct click_log *log, uint64_t number,
                   struct click_row *row) {
    union row_words random;
    float factors;
    for (uint64_t p = 0; p < POSITIONS; p++)
        philox_words(log->seed, number, p, random.words + 4 * p);
    row->linear = BIAS;
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++) {
        const struct level *level = &log->levels[random.levels[j]];
        row->levels[j] = random.levels[j];
        row->numbers[j] = level->number;
        row->linear += log->effects[j] * level->value;
    }
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        row->categories[f] = random.missing[f] < CATEGORY_MISSING
                                 ? CLICK_LOG_MISSING
                                 : draw_rank(&log->fields[f], random.draws[f]);
    row->linear += weigh_categories(log, row->categories, &factors);
    row->logit = row->linear + factors;
    row->clicked = random.click * 0x1p-32 < 1 / (1 + exp(-(double)row->logit));
}

static char *put_text(char *to, const char *text) {
    while (*text)
        *to++ = *text++;
    return to;
}

/* The finalizer of MurmurHash3 (Appleby 2011), a bijection of 32 bits. */
static char *put_category(char *to, uint32_t f, uint32_t rank) {
    uint32_t hash = rank ^ (f + 1) * UINT32_C(0x9e3779b9);
    hash = (hash ^ hash >> 16) * UINT32_C(0x85ebca6b);
    hash = (hash ^ hash >> 13) * UINT32_C(0xc2b2ae35);
    hash ^= hash >> 16;
    for (int shift = 28; shift >= 0; shift -= 4)
        *to++ = "0123456789abcdef"[hash >> shift & 15];
    return to;
}

size_t click_log_criteo(const struct click_log *log,
                        const struct click_row *row,
                        char text[CLICK_LOG_ROW_BYTES]) {
    char *to = put_text(text, row->clicked ? "1" : "0");
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++) {
        *to++ = '\t';
        to = put_text(to, log->levels[row->levels[j]].text);
    }
    for (uint32_t f = 0; f < CLICK_LOG_FIELDS; f++) {
        *to++ = '\t';
        if (row->categories[f] != CLICK_LOG_MISSING)
            to = put_category(to, f, row->categories[f]);
    }
    *to++ = '\n';
    return (size_t)(to - text);
}

static char *put_id(char *to, uint64_t id) {
    char digits[20];
    int count = 0;
    *to++ = ' ';
    do
        digits[count++] = (char)('0' + id % 10);
    while (id /= 10);
    while (count)
        *to++ = digits[--count];
    *to++ = ':';
    return to;
}

size_t click_log_libsvm(const struct click_log *log,
                        const struct click_row *row,
                        char text[CLICK_LOG_ROW_BYTES]) {
    char *to = put_text(text, row->clicked ? "1" : "0");
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++)
        if (row->numbers[j] != CLICK_LOG_MISSING)
            to = put_text(put_id(to, (uint64_t)j + 1),
                          log->levels[row->levels[j]].log_text);
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        if (row->categories[f] != CLICK_LOG_MISSING)
            to = put_text(
                put_id(to, log->fields[f].first_id + row->categories[f]), "1");
    *to++ = '\n';
    return (size_t)(to - text);
}
