/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over memory: a tile of gradients is summed into the first-level
 * cache and the rule reads it there, so each gradient, weight and state slot is
 * read from memory once. The processor determines which loops run. A single
 * gradient needs no tile. */
#include "core/tensor/rule.h"

#include "core/tensor/rule_loops.h"

#include <stdio.h>
#include <string.h>

/* Floats summed at a time: the tile and its gradients stay in the first-level
 * cache until the rule has read them. */
enum { TILE = 256 };

#define SLOT_NAMES(FORM, name, slots, ...) [RULE_##FORM] = {__VA_ARGS__},
static const char *const slot_names[RULE_FORMS][RULE_MAX_SLOTS] = {
    RULE_ROWS(SLOT_NAMES)};

#define CHECK_SLOTS(FORM, name, slots, ...)                                    \
    _Static_assert((slots ? slots : 1) ==                                      \
                       sizeof((const char *const[]){__VA_ARGS__}) /            \
                           sizeof(const char *),                               \
                   "each slot has a name");
RULE_ROWS(CHECK_SLOTS)

const char *rule_name(enum optimizer_type type) {
#define RULE_NAME(NAME, number, word) [OPTIMIZER_##NAME] = word,
    static const char *const names[OPTIMIZER_TYPES] = {
        [OPTIMIZER_NONE] = "None", OPTIMIZER_ROWS(RULE_NAME)};
    return (unsigned)type < OPTIMIZER_TYPES ? names[type] : "None";
}

unsigned rule_slots(const struct optimizer *rule) {
    unsigned slots = 0;
    while (rule_slot_name(rule, slots))
        slots++;
    return slots;
}

const char *rule_slot_name(const struct optimizer *rule, unsigned slot) {
    return slot < RULE_MAX_SLOTS ? slot_names[rule_form_of(rule)][slot] : NULL;
}

float rule_slot_start(const struct optimizer *rule, unsigned slot) {
    bool accumulates =
        rule->type == OPTIMIZER_ADAGRAD || rule->type == OPTIMIZER_FTRL;
    return accumulates && slot == 0 ? (float)rule->initial_accumulator_value
                                    : 0;
}

/* Ordered so that a processor that runs one variant runs all later ones. */
static const struct rule_loops *const variants[] = {
    &rule_loops_avx512,
    &rule_loops_avx2,
    &rule_loops_plain,
};

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
}

const struct rule_loops *const *rule_variants(size_t *count) {
    size_t best = 2;
    if (__builtin_cpu_supports("avx2"))
        best = has_avx512() ? 0 : 1;
    *count = sizeof variants / sizeof variants[0] - best;
    return variants + best;
}

static const char *list_names(const struct rule_loops *const *here,
                              size_t count, char *text, size_t size) {
    size_t used = 0;
    for (size_t v = count; v-- > 0 && used < size;)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 used ? ", " : "", here[v]->name);
    return text;
}

enum status rule_choose(const struct rule_loops **loops, const char *name,
                        struct failure *why) {
    enum { ALL = sizeof variants / sizeof *variants };
    char text[64];
    size_t count;
    const struct rule_loops *const *here = rule_variants(&count);
    *loops = here[0];
    if (!name || !name[0])
        return STATUS_OK;
    for (size_t v = 0; v < count; v++)
        if (!strcmp(name, (*loops = here[v])->name))
            return STATUS_OK;
    for (size_t v = 0; v < ALL - count; v++)
        if (!strcmp(name, variants[v]->name))
            return status_fail(why, FAILURE_BAD_VARIABLE,
                               "CAPSTAN_CPU is %s, which this processor does "
                               "not have; it has %s",
                               name,
                               list_names(here, count, text, sizeof text));
    return status_fail(
        why, FAILURE_BAD_VARIABLE,
        "CAPSTAN_CPU is '%.64s'; allowed are %s, or unset for the best that "
        "the processor has",
        name, list_names(variants, ALL, text, sizeof text));
}

const char *rule_variant_name(const struct rule_loops *loops) {
    return loops->name;
}

static void rule_copy(float *to, const float *from, size_t elements) {
    if (to != from)
        memcpy(to, from, elements * sizeof *to);
}

static void copy_all(const struct optimizer *rule,
                     const struct rule_update *update) {
    rule_copy(update->weights_out, update->weights, update->elements);
    for (unsigned slot = 0; slot < rule_slots(rule); slot++)
        rule_copy(update->state_out[slot], update->state[slot],
                  update->elements);
}

/* A single float32 gradient is its own sum. */
static bool is_sum(const struct rule_update *update) {
    return update->num_gradients == 1 && update->wire == JOB_WIRE_FLOAT32;
}

/* The summed gradients of COUNT elements from FIRST on, in TILE or in place. */
static const void *sums_of(const struct rule_loops *loops,
                           const struct rule_update *update, size_t first,
                           size_t count, float tile[TILE]) {
    if (is_sum(update))
        return (const char *)update->gradients[0] + first * sizeof *tile;
    loops->sum[update->wire](update->gradients, update->num_gradients, first,
                             count, tile);
    return tile;
}

static size_t rule_smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Ftrl divides by its rate. */
bool rule_is_noop(const struct optimizer *rule,
                  const struct rule_update *update) {
    bool divides_by_0 = rule->type == OPTIMIZER_FTRL && update->rate == 0;
    return update->num_gradients == 0 || divides_by_0;
}

void rule_apply(const struct rule_loops *loops, const struct optimizer *rule,
                const struct rule_update *update) {
    if (rule_is_noop(rule, update)) {
        copy_all(rule, update);
        return;
    }
    struct rule_constants constants = rule_form_constants(rule, update);
    rule_apply_form(loops, rule_form_of(rule), &constants, update);
}

void rule_apply_form(const struct rule_loops *loops, enum rule_form form,
                     const struct rule_constants *constants,
                     const struct rule_update *update) {
    rule_kernel *kernel = loops->kernel[form];
    bool whole = is_sum(update) && !update->nonfinite;
    size_t stride = whole ? update->elements : TILE;
    _Alignas(64) float tile[TILE];
    for (size_t first = 0; first < update->elements; first += stride) {
        size_t count = rule_smaller(stride, update->elements - first);
        const void *sums = sums_of(loops, update, first, count, tile);
        if (update->nonfinite && !loops->is_finite(sums, count))
            *update->nonfinite = true;
        kernel(constants, update, sums, first, count);
    }
}

enum status rule_nonfinite(const char *name, uint64_t step,
                           struct failure *why) {
    return status_fail(why, FAILURE_LOSS_NOT_FINITE,
                       "the gradient of \"%s\" is NaN or infinite in its "
                       "update %llu: try a smaller rate, or gradient_clipping",
                       name, (unsigned long long)step);
}

void rule_mean(const struct rule_loops *loops, const struct rule_update *update,
               size_t first, size_t count, float *floats) {
    loops->sum[update->wire](update->gradients, update->num_gradients, first,
                             count, floats);
    for (size_t i = 0; i < count; i++)
        floats[i] *= update->scale;
}

void rule_average(const struct rule_loops *loops,
                  const struct rule_update *update) {
    float tile[TILE], take = (float)update->rate, keep = 1 - take;
    if (update->num_gradients == 0) {
        rule_copy(update->weights_out, update->weights, update->elements);
        return;
    }
    for (size_t first = 0; first < update->elements; first += TILE) {
        size_t count = rule_smaller(TILE, update->elements - first);
        rule_mean(loops, update, first, count, tile);
        for (size_t i = 0; i < count; i++) {
            float mean = tile[i];
            update->weights_out[first + i] =
                take == 1 ? mean
                          : keep * update->weights[first + i] + take * mean;
        }
    }
}

void rule_assign(const struct rule_update *update) {
    const void *from =
        update->num_gradients ? update->gradients[0] : update->weights;
    if (from != update->weights_out)
        memcpy(update->weights_out, from,
               update->elements * sizeof *update->weights_out);
}

/* Adds one half of the lanes to the other until one is left, so that the order
 * of additions does not depend on the vector width. */
static double rule_tree_sum(double lanes[RULE_LANES]) {
    for (unsigned width = RULE_LANES / 2; width > 0; width /= 2)
        for (unsigned lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    return lanes[0];
}

void rule_square_sums(const struct rule_loops *loops,
                      const struct rule_update *update, double *pieces) {
    _Alignas(64) float tile[TILE];
    _Static_assert(TILE % RULE_LANES == 0 && RULE_PIECE % TILE == 0,
                   "an element's lane depends on the tile");
    size_t elements = update->elements;
    for (size_t piece = 0; piece < elements; piece += RULE_PIECE) {
        size_t end = rule_smaller(elements, piece + RULE_PIECE);
        double lanes[RULE_LANES] = {0};
        for (size_t first = piece; update->num_gradients && first < end;
             first += TILE) {
            size_t count = rule_smaller(TILE, end - first);
            const void *sums = sums_of(loops, update, first, count, tile);
            loops->add_squares(sums, count, update->scale, lanes);
        }
        *pieces++ = rule_tree_sum(lanes);
    }
}

void rule_to_bf16(const struct rule_loops *loops, const float *floats,
                  size_t elements, void *bf16) {
    loops->to_bf16(floats, elements, bf16);
}

void rule_from_bf16(const struct rule_loops *loops, const void *bf16,
                    size_t elements, float *floats) {
    loops->sum[JOB_WIRE_BF16](&bf16, 1, 0, elements, floats);
}
