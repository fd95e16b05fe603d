/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/ranking.h"

#include "commands/measure/compare_table.h"
#include "proto/job/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative to the predicted step: smaller differences count as equal. */
static const double EQUAL_WITHIN = 0.005;

/* The synchronous cases measured with one number of workers. */
struct rounds {
    const struct aggregate *aggregates; /* they are among these */
    unsigned count;
    double workers;
    const struct aggregate *ring; /* all-reduce; NULL: not measured */
};

static double ranking_count_at(const struct aggregate *aggregate,
                               const char *key) {
    return json_number_value(json_object_get(aggregate->object, key));
}

static const char *mode_of(const struct aggregate *aggregate) {
    const char *mode =
        json_string_value(json_object_get(aggregate->object, "mode"));
    return mode ? mode : "";
}

static bool ranking_is_mode(const struct rounds *rounds,
                            const struct aggregate *aggregate,
                            const char *mode) {
    return !strcmp(mode_of(aggregate), mode) && !isnan(aggregate->rate) &&
           ranking_count_at(aggregate, "workers") == rounds->workers;
}

/* The next synchronous ps case after BEFORE (NULL: the first); NULL: there is
 * none. */
static const struct aggregate *next_ps(const struct rounds *rounds,
                                       const struct aggregate *before) {
    const struct aggregate *end = rounds->aggregates + rounds->count;
    const struct aggregate *one = before ? before + 1 : rounds->aggregates;
    while (one < end && !ranking_is_mode(rounds, one, "ps"))
        one++;
    return one < end ? one : NULL;
}

static struct rounds rounds_with(const struct aggregate *aggregates,
                                 unsigned count, double workers) {
    struct rounds rounds = {aggregates, count, workers, NULL};
    for (unsigned i = 0; i < count; i++)
        if (ranking_is_mode(&rounds, &aggregates[i], "allreduce"))
            rounds.ring = &aggregates[i];
    return rounds;
}

static bool is_round(const struct rounds *rounds,
                     const struct aggregate *aggregate) {
    return ranking_is_mode(rounds, aggregate, "ps") ||
           ranking_is_mode(rounds, aggregate, "allreduce");
}

static int by_mean(const void *left, const void *right) {
    const struct aggregate *a = *(const struct aggregate *const *)left;
    const struct aggregate *b = *(const struct aggregate *const *)right;
    return (a->rate < b->rate) - (a->rate > b->rate);
}

/* All synchronous cases. The first ALIKE may be the fastest: the one with the
 * highest mean is not faster than they are beyond the spread. Both groups are
 * sorted by mean. */
struct order {
    const struct aggregate *rounds[JOB_MAX_COUNTS + 1];
    unsigned count, alike;
    const char *unit; /* of the rates */
};

static struct order order_of(const struct rounds *rounds, const char *unit) {
    struct order order = {.unit = unit};
    enum { MAX_ROUNDS = sizeof order.rounds / sizeof *order.rounds };
    const struct aggregate *all[MAX_ROUNDS];
    unsigned count = 0;
    for (unsigned i = 0; i < rounds->count && count < MAX_ROUNDS; i++)
        if (is_round(rounds, &rounds->aggregates[i]))
            all[count++] = &rounds->aggregates[i];
    qsort(all, count, sizeof *all, by_mean);
    for (unsigned i = 0; i < count; i++)
        if (!aggregate_runs_is_faster(all[0], all[i]))
            order.rounds[order.count++] = all[i];
    order.alike = order.count;
    for (unsigned i = 0; i < count; i++)
        if (aggregate_runs_is_faster(all[0], all[i]))
            order.rounds[order.count++] = all[i];
    return order;
}

static json_t *fastest_object(const struct order *order) {
    const struct aggregate *best = order->rounds[0];
    if (order->count < 2 || order->alike > 1)
        return json_null();
    return json_pack("{s:s, s:I}", "mode", mode_of(best), "ps",
                     (json_int_t)ranking_count_at(best, "ps"));
}

static void print_percent(FILE *out, double share) {
    char text[COMPARE_TABLE_DIGITS];
    compare_table_digits(text, share < 0.0995 ? 2 : 0, 100 * share);
    fprintf(out, "%s %%", text);
}

static void ranking_print_name(FILE *out, const struct aggregate *one) {
    if (ranking_count_at(one, "ps") > 0)
        fprintf(out, "%.0f ps", ranking_count_at(one, "ps"));
    else
        fprintf(out, "all-reduce");
}

/* "1 ps 93.1k ± 14 %". */
static void ranking_print_rate(FILE *out, const struct aggregate *one) {
    double rate = one->rate;
    const char *unit = rate >= 999500 ? "M" : rate >= 9995 ? "k" : "";
    ranking_print_name(out, one);
    if (json_is_true(json_object_get(one->object, "diverged")))
        fprintf(out, " (diverged)");
    char text[COMPARE_TABLE_DIGITS];
    compare_table_digits(text, *unit ? 3 : 4,
                         rate / (*unit == 'M' ? 1e6
                                 : *unit      ? 1e3
                                              : 1));
    fprintf(out, " %s%s", text, unit);
    if (isnan(one->half_width))
        return;
    fprintf(out, " ± ");
    print_percent(out, one->half_width / rate);
}

static void print_rates(FILE *out, const struct order *order, unsigned from,
                        unsigned to) {
    for (unsigned i = from; i < to; i++) {
        if (i > from)
            fprintf(out, ", ");
        ranking_print_rate(out, order->rounds[i]);
    }
}

static void print_winner(FILE *out, const struct order *order) {
    ranking_print_name(out, order->rounds[0]);
    fprintf(out, order->count > 2 ? " is fastest, by " : " is faster by ");
    print_percent(out, order->rounds[0]->rate / order->rounds[1]->rate - 1);
    fprintf(out, ": ");
    print_rates(out, order, 0, order->count);
    fprintf(out, " %s/s", order->unit);
}

static bool ranking_has_spread(const struct order *order) {
    for (unsigned i = 0; i < order->count; i++)
        if (!isnan(order->rounds[i]->half_width))
            return true;
    return false;
}

static void print_measured(FILE *out, const struct order *order) {
    bool spread = ranking_has_spread(order);
    if (order->alike == 1) {
        print_winner(out, order);
        return;
    }
    fprintf(
        out,
        spread
            ? "no difference beyond the spread: "
            : "fewer than 3 runs have no spread, so none is called faster: ");
    print_rates(out, order, 0, order->alike);
    if (order->alike < order->count) {
        fprintf(out, "; slower: ");
        print_rates(out, order, order->alike, order->count);
    }
    fprintf(out, " %s/s; add --repeats", order->unit);
}

/* A step by PS ps relative to one by all-reduce. */
static double step_ratio(const struct cost_model_case *given, uint32_t ps) {
    struct cost_model_case with = *given;
    with.ps = ps;
    return cost_model_step(&with, COST_MODEL_PS).seconds /
           cost_model_step(given, COST_MODEL_RING).seconds;
}

static void print_predicted(FILE *out, const struct cost_model_case *given) {
    double longer = step_ratio(given, given->ps);
    uint32_t from = cost_model_crossover(given, COST_MODEL_RING);
    fprintf(out, "with %u ps ", given->ps);
    if (longer > 1 + EQUAL_WITHIN) {
        fprintf(out, "all-reduce is faster%s",
                isinf(longer) ? ", as it exchanges nothing" : " by ");
        if (!isinf(longer))
            print_percent(out, longer - 1);
    } else if (longer < 1 - EQUAL_WITHIN) {
        fprintf(out, "ps is faster by ");
        print_percent(out, 1 / longer - 1);
    } else {
        fprintf(out, "both are equally fast");
    }
    if (longer <= 1 + EQUAL_WITHIN && from > 1 && from <= given->ps)
        fprintf(out, "; with fewer than %u all-reduce is faster", from);
    else if (longer > 1 + EQUAL_WITHIN && !from)
        fprintf(out, "; no number of ps is as fast");
    else if (longer > 1 + EQUAL_WITHIN)
        fprintf(out, "; %s %u ps%s ps is%s", from > given->ps ? "from" : "with",
                from, from > given->ps ? " on" : "",
                step_ratio(given, from) < 1 - EQUAL_WITHIN ? "" : " as fast");
}

static void append_ps(json_t *list, const struct aggregate *aggregate) {
    json_array_append_new(
        list, json_integer((json_int_t)ranking_count_at(aggregate, "ps")));
}

/* Compares each number of ps with all-reduce. */
static void add_measured(json_t *object, const struct rounds *rounds) {
    json_t *fast = json_array(), *faster = json_array(), *slower = json_array();
    const struct aggregate *ring = rounds->ring, *one = NULL;
    double slow = 0, from = NAN;
    while (ring && (one = next_ps(rounds, one))) {
        bool loses = aggregate_runs_is_faster(ring, one);
        bool as_fast =
            !loses && !isnan(one->half_width) && !isnan(ring->half_width);
        if (loses)
            append_ps(slower, one);
        if (aggregate_runs_is_faster(one, ring))
            append_ps(faster, one);
        if (as_fast)
            append_ps(fast, one);
        else
            slow = fmax(slow, ranking_count_at(one, "ps"));
    }
    for (size_t i = 0; i < json_array_size(fast); i++) {
        double ps = json_number_value(json_array_get(fast, i));
        if (ps > slow)
            from = fmin(from, ps);
    }
    json_object_set_new(object, "measured_ps",
                        isnan(from) ? json_null()
                                    : json_integer((json_int_t)from));
    json_object_set_new(object, "fast_ps", fast);
    json_object_set_new(object, "faster_ps", faster);
    json_object_set_new(object, "slower_ps", slower);
}

/* The text that WRITE produces for SUBJECT. */
static json_t *json_text(void (*write)(FILE *, const void *),
                         const void *subject) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return json_null();
    write(out, subject);
    fclose(out);
    json_t *text_object = json_string(text);
    free(text);
    return text_object ? text_object : json_null();
}

static void describe_measured(FILE *out, const void *order) {
    print_measured(out, order);
}

static void describe_predicted(FILE *out, const void *given) {
    print_predicted(out, given);
}

json_t *ranking_predict(const struct cost_model_case *given) {
    return json_text(describe_predicted, given);
}

static void add_order(json_t *object, const struct rounds *rounds,
                      const char *unit) {
    struct order order = order_of(rounds, unit);
    json_object_set_new(object, "fastest", fastest_object(&order));
    json_object_set_new(object, "measured_answer",
                        order.count > 1 ? json_text(describe_measured, &order)
                                        : json_null());
}

/* Fills the cost model's input for these workers; false: no bandwidth is known.
 */
static bool has_prediction(const struct rounds *rounds,
                           struct cost_model_case *given) {
    const struct aggregate *any = NULL, *one = NULL;
    while ((one = next_ps(rounds, one)))
        any = one;
    const struct aggregate *by = rounds->ring ? rounds->ring : any;
    if (!by || !by->linked)
        return false;
    *given = by->given;
    if (any)
        given->ps_link = any->given.ps_link;
    return true;
}

static void add_predicted(json_t *object, const struct rounds *rounds) {
    struct cost_model_case given;
    bool known = has_prediction(rounds, &given);
    uint32_t from = known ? cost_model_crossover(&given, COST_MODEL_RING) : 0;
    json_object_set_new(object, "predicted_ps",
                        from ? json_integer(from) : json_null());
    json_object_set_new(object, "formula",
                        from ? json_string(cost_model_crossover_formula())
                             : json_null());
    json_object_set_new(object, "predicted_answer",
                        known ? ranking_predict(&given) : json_null());
}

json_t *ranking_compute(const struct aggregate *aggregates, unsigned count,
                        const char *unit) {
    json_t *list = json_array();
    double before = 0;
    for (unsigned i = 0; i < count; i++) {
        double workers = ranking_count_at(&aggregates[i], "workers");
        if (workers > before) {
            struct rounds rounds = rounds_with(aggregates, count, workers);
            json_t *object = json_object();
            json_object_set_new(object, "workers",
                                json_integer((json_int_t)workers));
            add_measured(object, &rounds);
            add_order(object, &rounds, unit);
            add_predicted(object, &rounds);
            json_array_append_new(list, object);
        }
        before = fmax(before, workers);
    }
    return list;
}
