/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/ranking.h"

#include "proto/config/cli/compare_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a predicted step: what differs by less counts as equal. */
static const double ALIKE = 0.005;

/* The rounds that were measured with as many workers. */
struct rounds {
    const struct verdict *verdicts; /* among them */
    unsigned count;
    double workers;
    const struct verdict *ring; /* all-reduce; NULL: not measured */
};

static double count_at(const struct verdict *verdict, const char *key) {
    return json_number_value(json_object_get(verdict->object, key));
}

static const char *mode_of(const struct verdict *verdict) {
    const char *mode =
        json_string_value(json_object_get(verdict->object, "mode"));
    return mode ? mode : "";
}

static bool is(const struct rounds *rounds, const struct verdict *verdict,
               const char *mode) {
    return !strcmp(mode_of(verdict), mode) && !isnan(verdict->rate) &&
           count_at(verdict, "workers") == rounds->workers;
}

/* The next of rounds by ps after BEFORE, from NULL on; NULL: there is none. */
static const struct verdict *next_ps(const struct rounds *rounds,
                                     const struct verdict *before) {
    const struct verdict *end = rounds->verdicts + rounds->count;
    const struct verdict *one = before ? before + 1 : rounds->verdicts;
    while (one < end && !is(rounds, one, "ps"))
        one++;
    return one < end ? one : NULL;
}

static struct rounds rounds_with(const struct verdict *verdicts, unsigned count,
                                 double workers) {
    struct rounds rounds = {verdicts, count, workers, NULL};
    for (unsigned i = 0; i < count; i++)
        if (is(&rounds, &verdicts[i], "allreduce"))
            rounds.ring = &verdicts[i];
    return rounds;
}

static bool is_round(const struct rounds *rounds,
                     const struct verdict *verdict) {
    return is(rounds, verdict, "ps") || is(rounds, verdict, "allreduce");
}

static int by_mean(const void *left, const void *right) {
    const struct verdict *a = *(const struct verdict *const *)left;
    const struct verdict *b = *(const struct verdict *const *)right;
    return (a->mean < b->mean) - (a->mean > b->mean);
}

/* All rounds: first those that may be the fastest, ALIKE of them, which the one
 * with the highest mean is not faster than; within both kinds by their means.
 */
struct order {
    const struct verdict *rounds[COMPARE_OPTIONS_MAX_COUNTS + 1];
    unsigned count, alike;
};

static struct order order_of(const struct rounds *rounds) {
    struct order order = {.count = 0};
    enum { MOST = sizeof order.rounds / sizeof *order.rounds };
    const struct verdict *all[MOST];
    unsigned count = 0;
    for (unsigned i = 0; i < rounds->count && count < MOST; i++)
        if (is_round(rounds, &rounds->verdicts[i]))
            all[count++] = &rounds->verdicts[i];
    qsort(all, count, sizeof *all, by_mean);
    for (unsigned i = 0; i < count; i++)
        if (!verdict_faster(all[0], all[i]))
            order.rounds[order.count++] = all[i];
    order.alike = order.count;
    for (unsigned i = 0; i < count; i++)
        if (verdict_faster(all[0], all[i]))
            order.rounds[order.count++] = all[i];
    return order;
}

static json_t *fastest_object(const struct order *order) {
    const struct verdict *best = order->rounds[0];
    if (order->count < 2 || order->alike > 1)
        return json_null();
    return json_pack("{s:s, s:I}", "mode", mode_of(best), "ps",
                     (json_int_t)count_at(best, "ps"));
}

static void put_percent(FILE *out, double share) {
    fprintf(out, share < 0.0995 ? "%.2g %%" : "%.0f %%", 100 * share);
}

static void put_name(FILE *out, const struct verdict *one) {
    if (count_at(one, "ps") > 0)
        fprintf(out, "%.0f ps", count_at(one, "ps"));
    else
        fprintf(out, "all-reduce");
}

/* "1 ps 93.1k ± 14 %". */
static void put_rate(FILE *out, const struct verdict *one) {
    double rate = one->mean;
    const char *unit = rate >= 999500 ? "M" : rate >= 9995 ? "k" : "";
    put_name(out, one);
    if (json_is_true(json_object_get(one->object, "diverged")))
        fprintf(out, " (diverged)");
    fprintf(out, *unit ? " %.3g%s" : " %.4g%s",
            rate / (*unit == 'M' ? 1e6
                    : *unit      ? 1e3
                                 : 1),
            unit);
    if (isnan(one->half))
        return;
    fprintf(out, " ± ");
    put_percent(out, one->half / rate);
}

static void put_rates(FILE *out, const struct order *order, unsigned from,
                      unsigned to) {
    for (unsigned i = from; i < to; i++) {
        if (i > from)
            fprintf(out, ", ");
        put_rate(out, order->rounds[i]);
    }
}

static void put_winner(FILE *out, const struct order *order) {
    put_name(out, order->rounds[0]);
    fprintf(out, order->count > 2 ? " is fastest, by " : " is faster by ");
    put_percent(out, order->rounds[0]->mean / order->rounds[1]->mean - 1);
    fprintf(out, ": ");
    put_rates(out, order, 0, order->count);
    fprintf(out, " examples/s");
}

static bool has_spread(const struct order *order) {
    for (unsigned i = 0; i < order->count; i++)
        if (!isnan(order->rounds[i]->half))
            return true;
    return false;
}

static void put_measured(FILE *out, const struct order *order) {
    bool spread = has_spread(order);
    if (order->alike == 1) {
        put_winner(out, order);
        return;
    }
    fprintf(
        out,
        spread
            ? "no difference beyond the spread: "
            : "fewer than 3 runs have no spread, so none is called faster: ");
    put_rates(out, order, 0, order->alike);
    if (order->alike < order->count) {
        fprintf(out, "; slower: ");
        put_rates(out, order, order->alike, order->count);
    }
    fprintf(out, " examples/s; add --repeats");
}

/* A step by PS to one by all-reduce. */
static double times_longer(const struct predict_case *given, uint32_t ps) {
    struct predict_case with = *given;
    with.ps = ps;
    return predict_step(&with, PREDICT_PS).seconds /
           predict_step(given, PREDICT_RING).seconds;
}

static void put_predicted(FILE *out, const struct predict_case *given) {
    double longer = times_longer(given, given->ps);
    uint32_t from = predict_crossover(given, PREDICT_RING);
    fprintf(out, "with %u ps ", given->ps);
    if (longer > 1 + ALIKE) {
        fprintf(out, "all-reduce is faster%s",
                isinf(longer) ? ", as it exchanges nothing" : " by ");
        if (!isinf(longer))
            put_percent(out, longer - 1);
    } else if (longer < 1 - ALIKE) {
        fprintf(out, "ps is faster by ");
        put_percent(out, 1 / longer - 1);
    } else {
        fprintf(out, "both are equally fast");
    }
    if (longer <= 1 + ALIKE && from > 1 && from <= given->ps)
        fprintf(out, "; with fewer than %u all-reduce is faster", from);
    else if (longer > 1 + ALIKE && !from)
        fprintf(out, "; no number of ps is as fast");
    else if (longer > 1 + ALIKE)
        fprintf(out, "; %s %u ps%s ps is%s", from > given->ps ? "from" : "with",
                from, from > given->ps ? " on" : "",
                times_longer(given, from) < 1 - ALIKE ? "" : " as fast");
}

static void append_ps(json_t *list, const struct verdict *verdict) {
    json_array_append_new(list,
                          json_integer((json_int_t)count_at(verdict, "ps")));
}

/* Each number of ps against all-reduce. */
static void add_measured(json_t *object, const struct rounds *rounds) {
    json_t *fast = json_array(), *faster = json_array(), *slower = json_array();
    const struct verdict *ring = rounds->ring, *one = NULL;
    double slow = 0, from = NAN;
    while (ring && (one = next_ps(rounds, one))) {
        bool loses = verdict_faster(ring, one);
        bool as_fast = !loses && !isnan(one->half) && !isnan(ring->half);
        if (loses)
            append_ps(slower, one);
        if (verdict_faster(one, ring))
            append_ps(faster, one);
        if (as_fast)
            append_ps(fast, one);
        else
            slow = fmax(slow, count_at(one, "ps"));
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

/* As SAY writes it of SUBJECT. */
static json_t *words(void (*say)(FILE *, const void *), const void *subject) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return json_null();
    say(out, subject);
    fclose(out);
    json_t *said = json_string(text);
    free(text);
    return said ? said : json_null();
}

static void say_measured(FILE *out, const void *order) {
    put_measured(out, order);
}

static void say_predicted(FILE *out, const void *given) {
    put_predicted(out, given);
}

json_t *ranking_predict(const struct predict_case *given) {
    return words(say_predicted, given);
}

static void add_order(json_t *object, const struct rounds *rounds) {
    struct order order = order_of(rounds);
    json_object_set_new(object, "fastest", fastest_object(&order));
    json_object_set_new(object, "measured_answer",
                        order.count > 1 ? words(say_measured, &order)
                                        : json_null());
}

/* What the formulas are asked for these workers; false: no link is known. */
static bool predicts(const struct rounds *rounds, struct predict_case *given) {
    const struct verdict *any = NULL, *one = NULL;
    while ((one = next_ps(rounds, one)))
        any = one;
    const struct verdict *by = rounds->ring ? rounds->ring : any;
    if (!by || !by->linked)
        return false;
    *given = by->given;
    if (any)
        given->ps_link = any->given.ps_link;
    return true;
}

static void add_predicted(json_t *object, const struct rounds *rounds) {
    struct predict_case given;
    bool known = predicts(rounds, &given);
    uint32_t from = known ? predict_crossover(&given, PREDICT_RING) : 0;
    json_object_set_new(object, "predicted_ps",
                        from ? json_integer(from) : json_null());
    json_object_set_new(object, "formula",
                        from ? json_string(predict_crossover_formula())
                             : json_null());
    json_object_set_new(object, "predicted_answer",
                        known ? ranking_predict(&given) : json_null());
}

json_t *ranking_of(const struct verdict *verdicts, unsigned count) {
    json_t *list = json_array();
    double before = 0;
    for (unsigned i = 0; i < count; i++) {
        double workers = count_at(&verdicts[i], "workers");
        if (workers > before) {
            struct rounds rounds = rounds_with(verdicts, count, workers);
            json_t *object = json_object();
            json_object_set_new(object, "workers",
                                json_integer((json_int_t)workers));
            add_measured(object, &rounds);
            add_order(object, &rounds);
            add_predicted(object, &rounds);
            json_array_append_new(list, object);
        }
        before = fmax(before, workers);
    }
    return list;
}
