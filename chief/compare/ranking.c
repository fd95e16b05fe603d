#include "chief/compare/ranking.h"

#include <math.h>
#include <string.h>

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

/* Faster than all others, of which there is one at least; NULL: none is. */
static const struct verdict *fastest(const struct rounds *rounds) {
    const struct verdict *best = NULL;
    unsigned others = 0;
    for (unsigned i = 0; i < rounds->count; i++) {
        const struct verdict *one = &rounds->verdicts[i];
        if (is_round(rounds, one) && (!best || one->mean > best->mean))
            best = one;
    }
    for (unsigned i = 0; i < rounds->count; i++) {
        const struct verdict *one = &rounds->verdicts[i];
        if (one == best || !is_round(rounds, one))
            continue;
        others++;
        if (!verdict_faster(best, one))
            return NULL;
    }
    return others ? best : NULL;
}

static json_t *fastest_object(const struct rounds *rounds) {
    const struct verdict *best = fastest(rounds);
    if (!best)
        return json_null();
    return json_pack("{s:s, s:I}", "mode", mode_of(best), "ps",
                     (json_int_t)count_at(best, "ps"));
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
    json_object_set_new(object, "fastest", fastest_object(rounds));
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
    uint32_t from =
        predicts(rounds, &given) ? predict_crossover(&given, PREDICT_RING) : 0;
    json_object_set_new(object, "predicted_ps",
                        from ? json_integer(from) : json_null());
    json_object_set_new(object, "formula",
                        from ? json_string(predict_crossover_formula())
                             : json_null());
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
            add_predicted(object, &rounds);
            json_array_append_new(list, object);
        }
        before = fmax(before, workers);
    }
    return list;
}
