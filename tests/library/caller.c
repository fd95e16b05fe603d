/* SPDX-License-Identifier: Apache-2.0 */
/* A caller of the library for cluster_library_test.c: `caller CASE` trains with
 * gradients that are small integers, so that every sum is exact, and checks the
 * values that come back. It ends with the run's result, or with 99 after a line
 * on standard error if a value is wrong. */
#include "library/capstan.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WRONG = 99, LARGE = 40000, MAX_TENSORS = 40 };

struct caller {
    capstan_run *run;
    int rank, size;
    uint32_t count;
    float *values[MAX_TENSORS], *gradients[MAX_TENSORS], *means[MAX_TENSORS];
    uint32_t elements[MAX_TENSORS];
    bool has_no_means;
};

static int expect(bool holds, const char *what, double found) {
    if (!holds)
        fprintf(stderr, "wrong: %s: %.9g\n", what, found);
    return holds ? 0 : WRONG;
}

static int declare(struct caller *caller, const char *name, uint32_t elements,
                   enum capstan_kind kind, uint32_t group, float value) {
    uint32_t number, n = caller->count++;
    float *values = malloc(elements * sizeof *values);
    caller->values[n] = values;
    caller->gradients[n] = calloc(elements, sizeof(float));
    caller->means[n] = calloc(elements, sizeof(float));
    caller->elements[n] = elements;
    for (uint32_t i = 0; i < elements; i++)
        values[i] = value;
    struct capstan_tensor tensor = {
        .name = name,
        .num_dims = 1,
        .dims = &elements,
        .kind = kind,
        .group = group,
        .values = values,
        .mean = caller->has_no_means ? NULL : caller->means[n]};
    int result = capstan_declare(caller->run, &tensor, &number);
    return result ? result : expect(number == n, "tensor number", number);
}

static int push(struct caller *caller, uint32_t n, float gradient,
                enum capstan_contribution contribution) {
    bool full = contribution == CAPSTAN_FULL;
    for (uint32_t i = 0; full && i < caller->elements[n]; i++)
        caller->gradients[n][i] = gradient;
    return capstan_push(caller->run, n, full ? caller->gradients[n] : NULL,
                        full ? caller->elements[n] * sizeof(float) : 0,
                        contribution);
}

/* Ends the step and waits for all values. */
static int step(struct caller *caller, double loss,
                enum capstan_outcome *outcome) {
    int result = capstan_step(caller->run, loss, 1, 0, outcome, -1);
    for (uint32_t n = 0; !result && n < caller->count; n++)
        result = capstan_wait(caller->run, n, -1);
    return result;
}

static int expect_all(const struct caller *caller, uint32_t n, float value,
                      const char *what) {
    for (uint32_t i = 0; i < caller->elements[n]; i++)
        if (caller->values[n][i] != value)
            return expect(false, what, (double)caller->values[n][i]);
    return 0;
}

/* Rank 0's first values are 5, others' 7; weights fall by the mean. */
static int sums(struct caller *caller) {
    enum capstan_outcome outcome;
    float weight = 5, mine = caller->rank ? 7 : 5;
    int result = declare(caller, "large", LARGE, CAPSTAN_TRAINED, 0, mine);
    if (!result)
        result = declare(caller, "small", 3, CAPSTAN_TRAINED, 0, mine);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (uint32_t n = 0; !result && n < 2; n++)
        result = expect_all(caller, n, 5, "first values");
    for (int s = 1; !result && s <= 30; s++) {
        float gradient = (float)(s * (caller->rank + 1) * 4);
        float mean = 0;
        for (int r = 0; r < caller->size; r++)
            mean += (float)(s * (r + 1) * 4);
        weight -= (1.0f / (float)caller->size) * mean;
        for (uint32_t n = 2; !result && n-- > 0;)
            result = push(caller, n, gradient, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        for (uint32_t n = 0; !result && n < 2; n++)
            result = expect_all(caller, n, weight, "weights");
    }
    return result;
}

/* What counts in the divisor, and what leaves momentum and weights alone. */
static int contributions(struct caller *caller) {
    static const struct {
        enum capstan_contribution of[2]; /* by rank */
        float fall;                      /* of the weights, momentum aside */
        bool moves;
    } steps[] = {
        {{CAPSTAN_FULL, CAPSTAN_ZERO}, 2, true},
        {{CAPSTAN_FULL, CAPSTAN_EMPTY}, 4, true},
        {{CAPSTAN_EMPTY, CAPSTAN_EMPTY}, 0, false},
        {{CAPSTAN_ZERO, CAPSTAN_ZERO}, 0, false},
        {{CAPSTAN_EMPTY, CAPSTAN_FULL}, 4, true},
        {{CAPSTAN_VOID, CAPSTAN_FULL}, 0, false},
        {{CAPSTAN_FULL, CAPSTAN_FULL}, 4, true},
    };
    enum capstan_outcome outcome;
    float weight = 0, momentum = 0, other = 0;
    int result = declare(caller, "w", LARGE, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = declare(caller, "always", 4, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (unsigned s = 0; !result && s < sizeof steps / sizeof *steps; s++) {
        enum capstan_contribution own = steps[s].of[caller->rank];
        bool is_void = steps[s].of[0] == CAPSTAN_VOID;
        result = push(caller, 1, 0, own == CAPSTAN_VOID ? own : CAPSTAN_FULL);
        if (!result)
            result = push(caller, 0, 4, own);
        if (!result)
            result = step(caller, 1, &outcome);
        if (steps[s].moves) {
            momentum = s ? 0.5f * momentum + steps[s].fall : steps[s].fall;
            weight -= momentum;
        }
        if (!result && !is_void)
            result = expect_all(caller, 0, weight, "weights of contributions");
        if (!result)
            result = expect_all(caller, 1, other, "the tensor beside");
    }
    return result;
}

/* In a round without bytes of NUMBER the caller's own VALUES stay. */
static int keep_values(struct caller *caller, uint32_t number, int64_t *values,
                       int s) {
    enum capstan_outcome outcome;
    int64_t own = 1000 * s + caller->rank;
    int result = expect(capstan_brought(caller->run, number), "brought", s);
    values[1] = own;
    if (!result)
        result = push(caller, 1, 0, CAPSTAN_EMPTY);
    if (!result)
        result = capstan_push(caller->run, number, NULL, 0, CAPSTAN_EMPTY);
    if (!result)
        result = push(caller, 0, 0, CAPSTAN_FULL);
    if (!result)
        result = step(caller, 1, &outcome);
    if (!result)
        result = capstan_wait(caller->run, number, -1);
    if (!result)
        result = expect(values[1] == own, "kept", s);
    if (!result)
        result = expect(!capstan_brought(caller->run, number), "left", s);
    return result;
}

/* Means, and rank 0's integers of any bits. */
static int kinds(struct caller *caller) {
    static const int64_t numbers[] = {INT64_C(1) << 31, -1, 0, INT64_MIN,
                                      INT64_C(0x7fc0000180000000)};
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    enum capstan_outcome outcome;
    int64_t values[NUMBERS] = {0}, mine[NUMBERS];
    uint32_t dims = NUMBERS, number;
    struct capstan_tensor tensor = {.name = "count",
                                    .num_dims = 1,
                                    .dims = &dims,
                                    .dtype = CAPSTAN_INT64,
                                    .kind = CAPSTAN_ASSIGNED,
                                    .values = values};
    int result = declare(caller, "weight", 10, CAPSTAN_TRAINED, 0, 1);
    if (!result)
        result = declare(caller, "mean", LARGE, CAPSTAN_AVERAGED, 0, 0);
    if (!result)
        result = capstan_declare(caller->run, &tensor, &number);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (int s = 1; !result && s <= 5; s++) {
        for (int i = 0; i < NUMBERS; i++)
            mine[i] = numbers[(i + s) % NUMBERS];
        result =
            push(caller, 1, (float)(4 * s * (caller->rank + 1)), CAPSTAN_FULL);
        if (!result && caller->rank == 0)
            result = capstan_push(caller->run, number, mine, sizeof mine,
                                  CAPSTAN_FULL);
        else if (!result)
            result = capstan_push(caller->run, number, NULL, 0, CAPSTAN_EMPTY);
        if (!result)
            result = push(caller, 0, 0, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        if (!result)
            result = capstan_wait(caller->run, number, -1);
        float sum = 0;
        for (int r = 0; r < caller->size; r++)
            sum += (float)(4 * s * (r + 1));
        if (!result)
            result = expect_all(caller, 1, (1.0f / (float)caller->size) * sum,
                                "averaged");
        if (!result)
            result = expect(!memcmp(values, mine, sizeof mine), "assigned", s);
        if (!result)
            result = keep_values(caller, number, values, s);
    }
    return result;
}

/* Two groups; from step 3 on other rates, which only rank 0's are. More STEPS
 * than USUAL take longer. */
static int groups(struct caller *caller, int steps) {
    enum { USUAL = 8 };
    enum capstan_outcome outcome;
    float weights[2] = {0, 0};
    double rates[2] = {1, 0.5};
    int result = declare(caller, "first", 100, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = declare(caller, "second", LARGE, CAPSTAN_TRAINED, 1, 0);
    if (!result)
        result = capstan_optimizer(caller->run, "SGD");
    for (uint32_t g = 0; !result && g < 2; g++)
        result = capstan_set(caller->run, g, "lr", rates[g]);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (int s = 1; !result && s <= steps; s++) {
        usleep(steps > USUAL ? 2000 : 0);
        if (s >= 3 && s != 6) { /* what is not set again holds */
            rates[0] = 0.25 * s;
            rates[1] = 2;
            result =
                capstan_set(caller->run, 0, "lr", caller->rank ? 77 : rates[0]);
            if (!result)
                result = capstan_set(caller->run, 1, "lr",
                                     caller->rank ? 99 : rates[1]);
        }
        for (uint32_t n = 2; !result && n-- > 0;)
            result = push(caller, n, 4, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        for (uint32_t n = 0; !result && n < 2; n++) {
            weights[n] -= (float)rates[n] * 4;
            result = expect_all(caller, n, weights[n], "weights of a group");
        }
    }
    return result;
}

/* Each rank has another order, in which blocks of all sizes are ready. */
static int orders(struct caller *caller) {
    enum capstan_outcome outcome;
    char name[16];
    int result = 0;
    for (uint32_t n = 0; !result && n < MAX_TENSORS; n++) {
        snprintf(name, sizeof name, "tensor%u", n);
        result = declare(caller, name, n % 7 ? 100 * n + 1 : LARGE,
                         CAPSTAN_TRAINED, 0, 0);
    }
    if (!result)
        result = capstan_start(caller->run, -1);
    for (int s = 1; !result && s <= 20; s++) {
        for (uint32_t i = 0; !result && i < MAX_TENSORS; i++) {
            uint32_t n =
                (i * 7 + (uint32_t)(caller->rank * 11 + s)) % MAX_TENSORS;
            if (caller->rank == 1)
                n = MAX_TENSORS - 1 - n;
            result = push(caller, n, 1, CAPSTAN_FULL);
        }
        if (!result)
            result = step(caller, 1, &outcome);
        for (uint32_t n = 0; !result && n < MAX_TENSORS; n++)
            result = expect_all(caller, n, (float)-s, "weights in any order");
    }
    return result;
}

/* Ends without a word to the run: by a signal, or with the number in HOW. */
static void vanish(const char *how) {
    if (!strcmp(how, "gone-signal"))
        kill(getpid(), SIGSEGV);
    _exit(!strcmp(how, "gone-3") ? 3 : 0);
}

/* A few steps, then rank 1 does what WHAT says. */
static int misuse(struct caller *caller, const char *what) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    bool culprit = caller->rank == (strcmp(what, "gone-leader") != 0);
    int result =
        declare(caller, "w", culprit && !strcmp(what, "differ") ? 4 : 3,
                CAPSTAN_TRAINED, 0, 0);
    if (!result && culprit && !strcmp(what, "name"))
        result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result && culprit && !strcmp(what, "group"))
        result = capstan_set(caller->run, UINT32_MAX, "lr", 1);
    if (!result && !strcmp(what, "rules"))
        result = capstan_optimizer(caller->run, culprit ? "SGD" : "None");
    if (!result && culprit && !strcmp(what, "soon"))
        result = capstan_step(caller->run, 0, 1, 0, &outcome, -1);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (int s = 1; !result && outcome == CAPSTAN_GOES_ON && s <= 40; s++) {
        bool now = culprit && s == 10;
        if (caller->rank == 2 && s == 9 && !strcmp(what, "gone-3"))
            _exit(4);
        if (now && !strncmp(what, "gone", 4))
            vanish(what);
        if (now && !strcmp(what, "ends"))
            return 0;
        if (now && !strcmp(what, "early"))
            return capstan_end(caller->run, CAPSTAN_EARLY, NULL, -1);
        if (now && !strcmp(what, "fails"))
            return capstan_end(caller->run, CAPSTAN_FAILED, "out of luck", -1);
        if (now && !strcmp(what, "retries"))
            return capstan_end(caller->run, CAPSTAN_RETRY, "out of luck", -1);
        if (now && !strcmp(what, "gradient"))
            result = push(caller, 0, 0.0f / 0.0f, CAPSTAN_FULL);
        else if (now && !strcmp(what, "size"))
            result = capstan_push(caller->run, 0, caller->gradients[0], 4,
                                  CAPSTAN_FULL);
        else if (!(now && !strcmp(what, "never")))
            result = push(caller, 0, 1, CAPSTAN_FULL);
        if (now && !strcmp(what, "undeclared"))
            result =
                capstan_push(caller->run, UINT32_MAX, NULL, 0, CAPSTAN_ZERO);
        if (!result && now && !strcmp(what, "twice"))
            result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = step(caller, now && !strcmp(what, "nan") ? 0.0 / 0.0 : 1,
                          &outcome);
    }
    return result;
}

/* Prints the sum of the weights after the job's last step, or step LAST, with
 * which it asks for a checkpoint, whatever the run continues. */
static int resume(struct caller *caller, uint64_t last) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position;
    int result =
        declare(caller, "w", LARGE, CAPSTAN_TRAINED, 0, caller->rank ? 9 : 3);
    if (!result)
        result = capstan_start(caller->run, -1);
    capstan_where(caller->run, &position);
    while (!result && outcome == CAPSTAN_GOES_ON && position.step < last) {
        float gradient =
            0.1f * (float)(position.step % 7) - 0.2f * (float)caller->rank;
        result = push(caller, 0, gradient, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        capstan_where(caller->run, &position);
    }
    if (!result && position.step == last)
        result = capstan_checkpoint(caller->run);
    if (!result && caller->rank == 0)
        printf("from %d to %llu: %.9g\n", position.resumed,
               (unsigned long long)position.step,
               (double)caller->values[0][LARGE - 1]);
    return result;
}

/* Pushes LIST as often as it takes to see in memory what is not left out. */
static int push_many(struct caller *caller, const struct capstan_rows *list) {
    enum { TIMES = 1000, GROWTH = 64 << 10 /* KiB, of 250 MiB pushed */ };
    struct rusage before, after;
    int result = 0;
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; !result && i < TIMES; i++)
        result = capstan_push_rows(caller->run, list, 1);
    getrusage(RUSAGE_SELF, &after);
    return result ? result
                  : expect(after.ru_maxrss - before.ru_maxrss < GROWTH,
                           "KiB of rows that are left out",
                           (double)(after.ru_maxrss - before.ru_maxrss));
}

/* Gradients of 1, whatever the run continues, first of rows; checks
 * that both are as after the job's last step. */
static int rows(struct caller *caller) {
    enum { IDS = 4096, DIM = 16 };
    static uint64_t ids[IDS];
    static float values[IDS * DIM];
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position;
    struct capstan_rows list = {.count = IDS, .ids = ids, .values = values};
    struct capstan_table table = {"rows", DIM, 0, "SGD", 0, 0, 0};
    int result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_declare_table(caller->run, &table, &list.table);
    if (!result)
        result = capstan_set_table(caller->run, list.table, "lr", 1);
    if (!result)
        result = capstan_start(caller->run, -1);
    capstan_where(caller->run, &position);
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = i;
    for (uint32_t i = 0; i < IDS * DIM; i++)
        values[i] = 1;
    if (!result && position.step == position.total)
        result = push_many(caller, &list);
    while (!result && outcome == CAPSTAN_GOES_ON) {
        result = capstan_push_rows(caller->run, &list, 1);
        if (!result)
            result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
    }
    if (!result)
        result = push_many(caller, &list);
    if (!result)
        result = capstan_lookup(caller->run, &list, 1, -1);
    for (uint32_t i = 0; !result && i < IDS * DIM; i++)
        result = expect(values[i] == -(float)position.total,
                        "rows of the last step", (double)values[i]);
    capstan_where(caller->run, &position);
    return result ? result
                  : expect_all(caller, 0, -(float)position.step,
                               "weights of the last step");
}

/* Rows of `writes`: those that rank 0 begins with, and each rank's own. */
enum { BEGUN = 300, OWN = 7, WRITES_DIM = 3, WRITES_STEPS = 40 };

/* Rank 0's, written twice: the last stands. Others write none. */
static int write_first(struct caller *caller, struct capstan_rows *list) {
    static uint64_t ids[2 * BEGUN];
    static float values[2 * BEGUN * WRITES_DIM];
    for (uint32_t i = 0; i < 2 * BEGUN; i++)
        ids[i] = 5000 + i % BEGUN;
    for (uint32_t i = 0; i < 2 * BEGUN * WRITES_DIM; i++)
        values[i] = (float)i;
    list->ids = ids;
    list->values = values;
    list->count = caller->rank ? 0 : 2 * BEGUN;
    return capstan_write_rows(caller->run, list, 1);
}

static int expect_first(struct caller *caller, struct capstan_rows list) {
    static uint64_t ids[BEGUN];
    static float values[BEGUN * WRITES_DIM];
    for (uint32_t i = 0; i < BEGUN; i++)
        ids[i] = 5000 + i;
    list.ids = ids;
    list.values = values;
    list.count = BEGUN;
    int result = capstan_lookup(caller->run, &list, 1, -1);
    for (uint32_t i = 0; !result && i < BEGUN * WRITES_DIM; i++)
        result = expect(values[i] == (float)(i + BEGUN * WRITES_DIM),
                        "rows to begin with", (double)values[i]);
    return result;
}

/* Own row I after STEP: it was written in the last step that I is the rest of,
 * and has fallen by 1 in that step and each since. */
static float own_row(uint64_t step, uint64_t i) {
    uint64_t since = (step + OWN - i) % OWN, at = step - since;
    return step < i || !at ? -(float)step : 8 * (float)at - (float)(since + 1);
}

/* In each of STEPS a rank writes one of its rows, and pushes gradients to all
 * of them; what it reads is exact, whatever the staleness. More steps than
 * usual take 2 ms or more each. */
static int writes(struct caller *caller, uint64_t steps) {
    uint64_t ids[OWN];
    float values[OWN * WRITES_DIM], gradients[OWN * WRITES_DIM];
    struct capstan_rows list = {0};
    struct capstan_table table = {"rows", WRITES_DIM, 0, "SGD", 0, 0, 0};
    enum capstan_outcome outcome;
    bool divides = !capstan_staleness(caller->run);
    int result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_declare_table(caller->run, &table, &list.table);
    if (!result)
        result = capstan_set_table(caller->run, list.table, "lr", 1);
    if (!result)
        result = write_first(caller, &list);
    if (!result)
        result = capstan_start(caller->run, -1);
    if (!result)
        result = expect_first(caller, list);
    for (uint32_t i = 0; i < OWN; i++)
        ids[i] = (uint64_t)caller->rank * 100 + i;
    for (uint32_t i = 0; i < OWN * WRITES_DIM; i++)
        gradients[i] = divides ? (float)caller->size : 1;
    for (uint64_t s = 1; !result && s <= steps; s++) {
        usleep(steps > WRITES_STEPS ? 2000 : 0);
        float row[WRITES_DIM] = {(float)s * 8, (float)s * 8, (float)s * 8};
        list.ids = &ids[s % OWN];
        list.values = row;
        list.count = 1;
        result = capstan_write_rows(caller->run, &list, 1);
        list.ids = ids;
        list.values = gradients;
        list.count = OWN;
        if (!result)
            result = capstan_push_rows(caller->run, &list, 1);
        if (!result)
            result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        list.values = values;
        if (!result)
            result = capstan_lookup(caller->run, &list, 1, -1);
        for (uint32_t i = 0; !result && i < OWN * WRITES_DIM; i++)
            result = expect(values[i] == own_row(s, i / WRITES_DIM),
                            "a written row", (double)values[i]);
    }
    return result ? result : expect_first(caller, list);
}

/* What rank R pushes in STEP of `own`, a number that sums exactly. */
static enum capstan_contribution own_push(uint64_t step, int r, float *value) {
    *value = (float)((step % 7) * 4) - 8 * (float)r;
    if (step % 11 == 6 || (step % 5 == 3 && r == 1))
        return CAPSTAN_EMPTY;
    return step % 5 == 1 && r == 0 ? CAPSTAN_ZERO : CAPSTAN_FULL;
}

/* The state of `own`: alike on all ranks, and of one rank. */
struct own_state {
    float velocity[2];
    uint64_t step, rank;
};

/* Keeps STATE where a checkpoint is due. */
static int own_keep(struct caller *caller, struct own_state *state, bool last) {
    enum capstan_due due = capstan_due(caller->run, last);
    int result = 0;
    if (due != CAPSTAN_NOT_DUE)
        result = capstan_keep(caller->run, "rank", state, sizeof *state);
    if (!result && due != CAPSTAN_NOT_DUE)
        result =
            capstan_keep(caller->run, "velocity",
                         due == CAPSTAN_DUE_LEAD ? state->velocity : NULL,
                         due == CAPSTAN_DUE_LEAD ? sizeof state->velocity : 0);
    return result;
}

/* In a run that continues at STEP. */
static int own_take(struct caller *caller, struct own_state *state) {
    const void *data;
    size_t bytes;
    struct own_state mine = {.step = UINT64_MAX};
    uint64_t step = state->step;
    int result = capstan_kept(caller->run, "rank", &data, &bytes);
    if (!result && bytes == sizeof mine)
        memcpy(&mine, data, sizeof mine);
    if (!result)
        result =
            expect(mine.step == step && mine.rank == (uint64_t)caller->rank,
                   "the step of what a rank has kept", (double)mine.step);
    if (!result)
        result = capstan_kept(caller->run, "velocity", &data, &bytes);
    if (!result)
        result =
            expect(bytes == sizeof state->velocity, "velocity", (double)bytes);
    if (!result)
        memcpy(state->velocity, data, bytes);
    return result;
}

/* Optimizer None, with momentum that it KEEPS. Applies the mean itself, alike
 * on all ranks, checks it while all ranks live, and prints the last weights.
 * Rank 0 is killed after DIES steps and the checkpoint of step 10, by which the
 * chief knows of steps; each rank asks for a checkpoint after step ASKS,
 * or, where its run continues, before its first step. */
static int own(struct caller *caller, bool keeps, uint64_t dies,
               uint64_t asks) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position;
    struct own_state state = {.rank = (uint64_t)caller->rank};
    int result = capstan_optimizer(caller->run, "None");
    for (uint32_t n = 0; !result && n < 2; n++)
        result = declare(caller, n ? "small" : "large", n ? 3 : LARGE,
                         CAPSTAN_TRAINED, 0, caller->rank ? 9 : 3);
    if (!result)
        result = capstan_start(caller->run, -1);
    capstan_where(caller->run, &position);
    state.step = position.step;
    if (!result && keeps && position.resumed)
        result = own_take(caller, &state);
    if (!result && keeps) /* from now on checkpoints wait for it */
        result = capstan_keep(caller->run, "rank", &state, sizeof state);
    if (!result && asks && position.resumed)
        result = capstan_checkpoint(caller->run);
    if (position.step >= position.total)
        outcome = CAPSTAN_ENDS;
    while (!result && outcome == CAPSTAN_GOES_ON) {
        float mine, other, sum = 0, count = 0;
        enum capstan_contribution kind =
            own_push(position.step, caller->rank, &mine);
        for (int r = 0; r < caller->size; r++) {
            enum capstan_contribution of = own_push(position.step, r, &other);
            sum += of == CAPSTAN_FULL ? other : 0;
            count += of != CAPSTAN_EMPTY;
        }
        if (position.step == dies && caller->rank == 0) {
            while (access("kept/step-000000010/manifest.json", F_OK))
                usleep(1000);
            raise(SIGKILL);
        }
        for (uint32_t n = 0; !result && n < 2; n++) {
            caller->means[n][0] = 77;
            result = push(caller, n, mine, kind);
        }
        if (!result)
            result = step(caller, 1, &outcome);
        for (uint32_t n = 0; !result && n < 2; n++) {
            float *mean = caller->means[n], first = mean[0];
            if (first == 77)
                continue;
            if (position.step < dies)
                result = expect(first == (1.0f / count) * sum, "mean", first);
            state.velocity[n] =
                (keeps ? 0.5f * state.velocity[n] : 0) + mean[1];
            for (uint32_t i = 0; i < caller->elements[n]; i++)
                caller->values[n][i] -= 0.5f * state.velocity[n];
        }
        capstan_where(caller->run, &position);
        state.step = position.step;
        if (!result && position.step == asks)
            result = capstan_checkpoint(caller->run);
        if (!result && keeps)
            result = own_keep(caller, &state, outcome == CAPSTAN_ENDS);
    }
    if (!result && caller->rank == (position.step > dies))
        printf("from %d to %llu: %.9g\n", position.resumed,
               (unsigned long long)position.step,
               (double)(caller->values[0][LARGE - 1] + caller->values[1][2]));
    return result;
}

/* Optimizer None with staleness: adds 3 to all weights in each step. Rank DIES
 * is killed after 20 steps of its first life, and rank 0 takes 40 before its
 * second. Rank CULPRIT takes SGD. Rank 0 prints the weights that
 * the run begins with. */
static int changes(struct caller *caller, int dies, int culprit) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    uint64_t steps = 0;
    bool falls = caller->rank == dies && access("lived", F_OK) != 0;
    int result = capstan_optimizer(caller->run,
                                   caller->rank == culprit ? "SGD" : "None");
    caller->has_no_means = true;
    for (uint32_t n = 0; !result && n < 2; n++)
        result = declare(caller, n ? "small" : "large", n ? 3 : LARGE,
                         CAPSTAN_TRAINED, 0, caller->rank ? 9 : 1);
    if (!result)
        result = capstan_start(caller->run, -1);
    if (!result && caller->rank == dies && !falls)
        fclose(fopen("joined", "w"));
    if (!result && caller->rank == 0)
        printf("begins: %.9g %.9g\n", (double)caller->values[0][LARGE - 1],
               (double)caller->values[1][2]);
    while (!result && outcome == CAPSTAN_GOES_ON) {
        for (uint32_t n = 0; !result && n < 2; n++)
            result = push(caller, n, 3, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        steps++;
        if (falls && steps == 20) {
            fclose(fopen("lived", "w"));
            raise(SIGKILL);
        }
        while (dies >= 0 && caller->rank == 0 && steps == 40 &&
               access("joined", F_OK))
            usleep(1000);
    }
    return result;
}

/* From now on this process cannot write files. */
static void fill_disk(void) {
    struct rlimit none = {0, 0};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
}

/* Once this process is dead, another one plays NAME in its place. */
static void leave_heir(const char *name) {
    int ends[2];
    char byte = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return;
    if (fork()) {
        close(ends[0]);
        ssize_t got = read(ends[1], &byte, 1); /* it has left the group */
        (void)got;
        return;
    }
    setsid(); /* what a process leaves in its group is killed */
    close(ends[1]);
    if (write(ends[0], &byte, 1) == 1 && !read(ends[0], &byte, 1))
        execl("/proc/self/exe", "caller", name, NULL);
    _exit(WRONG);
}

/* Rank DIES is killed after 20 steps. In its second life it joins with the
 * weights of the others and, if they KEEP, their momentum; all end 20 steps
 * after rank 0 has seen that. Prints the weights of each rank. FULL: by then
 * the other rank cannot write. HEIR: it sees to its second life itself. */
static int joins(struct caller *caller, int dies, bool keeps, bool full,
                 bool heir) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position;
    struct own_state state = {.rank = (uint64_t)caller->rank};
    bool returned = caller->rank == dies && !access("lived", F_OK);
    int64_t left = INT64_MAX, mine = 20;
    uint32_t number;
    struct capstan_tensor tensor = {.name = "left",
                                    .dtype = CAPSTAN_INT64,
                                    .kind = CAPSTAN_ASSIGNED,
                                    .values = &left};
    int result = capstan_optimizer(caller->run, "None");
    if (!result)
        result = declare(caller, "w", LARGE, CAPSTAN_TRAINED, 0, 1);
    if (!result)
        result = capstan_declare(caller->run, &tensor, &number);
    if (!result)
        result = capstan_start(caller->run, -1);
    capstan_where(caller->run, &position);
    if (!result && keeps && returned) {
        const void *data;
        size_t bytes;
        result = capstan_kept(caller->run, "velocity", &data, &bytes);
        if (!result)
            result = expect(bytes == sizeof state.velocity, "velocity",
                            (double)bytes);
        if (!result)
            memcpy(state.velocity, data, bytes);
    }
    if (!result && keeps)
        result = capstan_keep(caller->run, "rank", &state, sizeof state);
    if (caller->rank == dies)
        fclose(fopen(returned ? "joined" : "lived", "w"));
    while (!result && left > 0) {
        mine -= !access("joined", F_OK);
        if (!returned && caller->rank == dies && position.step == 20) {
            if (heir)
                leave_heir("joins-plain");
            raise(SIGKILL);
        }
        if (full && !access("lived", F_OK) && position.step == 20)
            fill_disk();
        usleep(2000); /* a round is open while the joiner is announced */
        result = push(caller, 0, (float)(position.step % 5), CAPSTAN_FULL);
        if (!result)
            result =
                capstan_push(caller->run, number, caller->rank ? NULL : &mine,
                             caller->rank ? 0 : sizeof mine,
                             caller->rank ? CAPSTAN_EMPTY : CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        if (!result)
            result = capstan_wait(caller->run, number, -1);
        state.velocity[0] =
            (keeps ? 0.5f * state.velocity[0] : 0) + caller->means[0][1];
        for (uint32_t i = 0; i < LARGE; i++)
            caller->values[0][i] -= 0.5f * state.velocity[0];
        capstan_where(caller->run, &position);
        if (!result && keeps)
            result = own_keep(caller, &state, left <= 0);
    }
    if (!result)
        printf("from %d to %llu: %.9g\n", 0, (unsigned long long)position.step,
               (double)caller->values[0][LARGE - 1]);
    return result;
}

/* What learn keeps: its own steps. */
struct learnt {
    uint64_t rank, steps;
};

/* A rank of a resumed run has its own back. */
static int check_learnt(struct caller *caller) {
    const void *data;
    size_t bytes;
    struct learnt learnt = {0};
    int result = capstan_kept(caller->run, "learnt", &data, &bytes);
    if (!result && bytes == sizeof learnt)
        memcpy(&learnt, data, sizeof learnt);
    if (!result)
        result =
            expect(learnt.rank == (uint64_t)caller->rank && learnt.steps > 0,
                   "the steps that a rank has kept", (double)learnt.steps);
    return result;
}

/* Trains to the run's end, 40 steps if that has none, with a PAUSE (us) in
 * each. A step reports SAMPLES and, unless they are 0, a loss that falls.
 * KEEPS: the count of its steps. */
static int learn(struct caller *caller, uint64_t samples, bool keeps,
                 useconds_t pause) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position;
    struct learnt learnt = {.rank = (uint64_t)caller->rank};
    int result = declare(caller, "w", LARGE, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    capstan_where(caller->run, &position);
    uint64_t last = position.total == UINT64_MAX ? 40 : UINT64_MAX;
    printf("rank %d learns\n", caller->rank);
    if (!result && keeps && position.resumed)
        result = check_learnt(caller);
    if (!result && keeps)
        result = capstan_keep(caller->run, "learnt", &learnt, sizeof learnt);
    for (uint64_t s = 1; !result && outcome == CAPSTAN_GOES_ON && s <= last;
         s++) {
        usleep(pause);
        result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = capstan_step(caller->run, samples ? 1.0 / (double)s : 0,
                                  samples, 0, &outcome, -1);
        if (!result)
            result = capstan_wait(caller->run, 0, -1);
        learnt.steps = s;
        if (!result && keeps &&
            capstan_due(caller->run, outcome != CAPSTAN_GOES_ON))
            result =
                capstan_keep(caller->run, "learnt", &learnt, sizeof learnt);
    }
    return result;
}

/* Trains until rank 0, with FIRST steps done, sends its own run SIGTERM, or is
 * KILLED. */
static int interrupt(struct caller *caller, int first, bool killed) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    int result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (int s = 0; !result && outcome == CAPSTAN_GOES_ON; s++) {
        if (caller->rank == 0 && s == first && killed)
            raise(SIGKILL);
        if (caller->rank == 0 && s == first)
            capstan_interrupt(caller->run, 15);
        result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
    }
    return result;
}

/* Epochs of four steps; prints where a resumed run goes on. */
static int epochs(struct caller *caller) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position;
    int result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    capstan_where(caller->run, &position);
    if (!result && caller->rank == 0)
        printf("epoch %llu, %llu steps of it\n",
               (unsigned long long)position.epoch,
               (unsigned long long)position.epoch_step);
    while (!result && outcome == CAPSTAN_GOES_ON) {
        if (position.step % 4 == 0)
            result = capstan_epoch(caller->run, position.step / 4);
        if (!result)
            result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        capstan_where(caller->run, &position);
    }
    return result;
}

/* A child may not use the run, and outlives its parent, which is killed. */
static int orphan(struct caller *caller) {
    int result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0), status;
    if (!result)
        result = capstan_start(caller->run, -1);
    if (!result)
        result = push(caller, 0, 1, CAPSTAN_FULL);
    pid_t child = result ? -1 : fork();
    if (child == 0) {
        result = capstan_wait(caller->run, 0, -1);
        capstan_close(caller->run);
        _exit(result == 2 ? 0 : WRONG);
    }
    if (!result && (waitpid(child, &status, 0) != child || status))
        return expect(false, "the child's call", status);
    if (!result && fork() == 0) {
        fclose(stdout);
        fclose(stderr);
        sleep(20);
        _exit(0);
    }
    if (!result)
        kill(getpid(), SIGKILL);
    return result;
}

/* The ranks meet again and again. */
static int meets(struct caller *caller) {
    const struct timespec pause_time = {.tv_nsec = 2000000};
    int result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (int s = 0; !result; s++) {
        result = capstan_barrier(caller->run, -1);
        if (!result && !s)
            fprintf(stderr, "rank %d has met\n", caller->rank);
        nanosleep(&pause_time, NULL);
    }
    return result;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What a rank of `rewinds` keeps beside the weights: its gradients depend on
 * it. */
struct course {
    uint64_t step;
    float sum;
};

static int kept(struct caller *caller, const void **data, size_t *bytes) {
    int result;
    do
        result = capstan_kept(caller->run, "course", data, bytes);
    while (result == CAPSTAN_AGAIN);
    return result;
}

/* LATE: with staleness, where each rank has steps of its own. */
static int find_course(struct caller *caller, struct course *course,
                       bool late) {
    struct capstan_position position;
    const void *data;
    size_t bytes;
    capstan_where(caller->run, &position);
    *course = (struct course){0};
    if (!position.resumed)
        return 0;
    int result = kept(caller, &data, &bytes);
    capstan_where(caller->run, &position); /* the run may have gone back */
    if (!result)
        result = expect(bytes == sizeof *course, "kept bytes", (double)bytes);
    if (!result)
        memcpy(course, data, sizeof *course);
    if (!result)
        fprintf(stderr, "goes on from step %llu\n",
                (unsigned long long)position.step);
    if (!result)
        result = expect(late || course->step == position.step,
                        "kept step less that of the run",
                        (double)course->step - (double)position.step);
    return result;
}

static int take_course_step(struct caller *caller, struct course *course,
                            enum capstan_outcome *outcome) {
    const struct timespec pause = {.tv_nsec = 2000000};
    course->step++;
    course->sum += (float)course->step * 0.37f + (float)caller->rank;
    if (course->sum > 100)
        course->sum -= 100;
    int result = push(caller, 1, course->sum - 50, CAPSTAN_FULL);
    nanosleep(&pause, NULL);
    if (!result)
        result =
            push(caller, 0, caller->values[0][0] - course->sum, CAPSTAN_FULL);
    if (!result)
        result = step(caller, 1, outcome);
    return result;
}

/* Takes its steps again where the run goes back, or (STAYS) does not say so.
 * Epochs have 370 steps. */
static int rewinds(struct caller *caller, bool stays, bool late) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct course course;
    int result = declare(caller, "large", LARGE, CAPSTAN_TRAINED, 0, 1);
    if (!result)
        result = declare(caller, "small", 3, CAPSTAN_TRAINED, 0, 2);
    if (!result)
        result = capstan_start(caller->run, -1);
    if (!result)
        result = capstan_rewinds(caller->run, !stays);
    if (!result)
        result = find_course(caller, &course, late);
    while (!result && outcome != CAPSTAN_ENDS) {
        if (!late && course.step % 370 == 0)
            result = capstan_epoch(caller->run, course.step / 370);
        if (!result)
            result = take_course_step(caller, &course, &outcome);
        if (!result && outcome == CAPSTAN_REWOUND)
            result = find_course(caller, &course, late);
        else if (!result)
            result =
                capstan_keep(caller->run, "course", &course, sizeof course);
    }
    return result;
}

/* Ends the step and waits for all values, or until the run goes back. */
static int end_unless_behind(struct caller *caller) {
    enum capstan_outcome outcome;
    int result = CAPSTAN_AGAIN;
    while (result == CAPSTAN_AGAIN && !capstan_is_behind(caller->run))
        result = capstan_step(caller->run, 1, 1, 0, &outcome, 0.1);
    if (result)
        return result == CAPSTAN_AGAIN ? 0 : result;
    do
        result = capstan_wait(caller->run, CAPSTAN_ALL, 0.1);
    while (result == CAPSTAN_AGAIN && !capstan_is_behind(caller->run));
    return result == CAPSTAN_AGAIN ? 0 : result;
}

/* While the run waits for a ps that does not come back, what is kept is not
 * there: the call says so soon. */
static int asks_behind(struct caller *caller) {
    struct course course = {0};
    const void *data;
    size_t bytes;
    int result = declare(caller, "small", 3, CAPSTAN_TRAINED, 0, 2);
    if (!result)
        result = capstan_start(caller->run, -1);
    if (!result)
        result = capstan_rewinds(caller->run, 1);
    while (!result && !capstan_is_behind(caller->run)) {
        result = capstan_keep(caller->run, "course", &course, sizeof course);
        if (!result)
            result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = end_unless_behind(caller);
    }
    double begin = seconds_now();
    if (!result)
        result = capstan_kept(caller->run, "course", &data, &bytes);
    double seconds = seconds_now() - begin;
    if (result == CAPSTAN_AGAIN)
        _exit(expect(seconds < 2, "seconds in capstan_kept", seconds));
    return expect(false, "what capstan_kept returned", result);
}

static void await_file(const char *name) {
    while (access(name, F_OK))
        usleep(1000);
}

/* What rank R brings in each step: half their sum over a run of at most 255
 * steps has a digit, of base 256, for each rank. */
static float backed_gradient(int r) {
    static const float of[] = {2, 512, 131072};
    return of[r];
}

/* Rank 2 stands still once, from step 10 on, until the others are at 30, which
 * wait at 60 until it is back; and from 80 on until they are at the end. */
static void stand_still(const struct caller *caller, uint64_t step) {
    if (caller->rank == 2 && step >= 10)
        await_file("far");
    if (caller->rank == 2 && step >= 30)
        fclose(fopen("back", "w"));
    if (caller->rank != 2 && step >= 30)
        fclose(fopen("far", "w"));
    if (caller->rank != 2 && step >= 60)
        await_file("back");
    if (caller->rank == 2 && step >= 80)
        await_file("end");
}

/* A mean of two ranks' values. */
static int expect_mean(const struct caller *caller, uint32_t n) {
    float found = caller->values[n][0];
    bool holds = false;
    for (int a = 0; a < 2; a++)
        for (int b = a + 1; b < 3; b++)
            holds |= found == 0.5f * (backed_gradient(a) + backed_gradient(b));
    return expect(holds, "a mean of two", (double)found);
}

/* A step with a backup worker. KINDS: of two tensors more, and at times rank 1
 * overflows or has no batch. */
static int take_backed_step(struct caller *caller, bool kinds, uint64_t number,
                            enum capstan_outcome *outcome) {
    enum capstan_contribution kind = CAPSTAN_FULL;
    if (kinds && caller->rank == 1 && number % 10 == 0)
        kind = number % 20 ? CAPSTAN_EMPTY : CAPSTAN_VOID;
    int result = push(caller, 0, backed_gradient(caller->rank), kind);
    bool fills = kind == CAPSTAN_FULL;
    if (!result && kinds)
        result = push(caller, 1, backed_gradient(caller->rank),
                      fills ? CAPSTAN_ZERO : kind);
    if (!result && kinds)
        result = push(caller, 2, backed_gradient(caller->rank), kind);
    if (!result)
        result = step(caller, 1, outcome);
    if (!result && kinds)
        result = expect_all(caller, 1, 0, "the tensor beside");
    return result;
}

/* Prints the steps that this rank took, those that it missed, the updates, and
 * half the sum of all that was applied. */
static int backed(struct caller *caller, bool kinds) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    struct capstan_position position = {0};
    uint64_t taken = 0, missed = 0;
    bool backs = capstan_backup_workers(caller->run) == 1;
    int result = expect(backs, "backup workers", !backs);
    for (uint32_t n = 0; !result && n < (kinds ? 3 : 1); n++)
        result = declare(caller,
                         n == 0   ? "w"
                         : n == 1 ? "beside"
                                  : "mean",
                         3, n == 2 ? CAPSTAN_AVERAGED : CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    while (!result && outcome == CAPSTAN_GOES_ON) {
        uint64_t before = position.step;
        stand_still(caller, before);
        result = take_backed_step(caller, kinds, before + 1, &outcome);
        capstan_where(caller->run, &position);
        taken++;
        missed += position.step - before - 1;
        if (!result && kinds && before % 10 == 1)
            result = expect_mean(caller, 2);
    }
    if (caller->rank != 2)
        fclose(fopen("end", "w"));
    if (!result)
        printf("rank %d: %llu %llu %llu %.9g\n", caller->rank,
               (unsigned long long)taken, (unsigned long long)missed,
               (unsigned long long)position.updates,
               -(double)caller->values[0][2]);
    return result;
}

/* An epoch that began a step ago, and one that began before all steps. */
static int tell_begun(struct caller *caller) {
    struct capstan_position position;
    int result = capstan_epoch_begun(caller->run, 4, 1);
    capstan_where(caller->run, &position);
    if (!result)
        result = expect(position.epoch == 4 && position.epoch_step == 1,
                        "steps of the epoch", (double)position.epoch_step);
    return result ? result
                  : capstan_epoch_begun(caller->run, 5, position.step + 1);
}

/* Calls what does not go with backup workers. */
static int backed_wrongly(struct caller *caller, const char *name) {
    enum capstan_outcome outcome;
    int result = 0;
    if (strcmp(name, "backed-not"))
        (void)capstan_backup_workers(caller->run);
    if (!strcmp(name, "backed-means"))
        result = capstan_optimizer(caller->run, "None");
    if (!result)
        result = declare(caller, "w", 3, CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    if (!result && !strcmp(name, "backed-keeps"))
        result = capstan_keep(caller->run, "state", "1", 1);
    if (!result && !strcmp(name, "backed-rewinds"))
        result = capstan_rewinds(caller->run, 1);
    while (!result) {
        result = push(caller, 0, 1, CAPSTAN_FULL);
        if (!result)
            result = step(caller, 1, &outcome);
        if (!result && !strcmp(name, "backed-asks"))
            result = capstan_had_batch(caller->run);
        if (!result && !strcmp(name, "backed-epoch"))
            result = tell_begun(caller);
    }
    return result;
}

/* Rounds a second of a model 784-512-512-10 whose gradients cost nothing. */
static int rates(struct caller *caller) {
    static const struct {
        const char *name;
        uint32_t elements;
    } tensors[] = {{"layer0.weight", 784 * 512}, {"layer0.bias", 512},
                   {"layer1.weight", 512 * 512}, {"layer1.bias", 512},
                   {"layer2.weight", 512 * 10},  {"layer2.bias", 10}};
    enum { TENSORS = sizeof tensors / sizeof *tensors, WARM_UP = 50 };
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    double begin = 0;
    int result = 0, rounds = 0;
    for (int n = 0; !result && n < TENSORS; n++)
        result = declare(caller, tensors[n].name, tensors[n].elements,
                         CAPSTAN_TRAINED, 0, 0);
    if (!result)
        result = capstan_start(caller->run, -1);
    for (; !result && outcome == CAPSTAN_GOES_ON; rounds++) {
        begin = rounds == WARM_UP ? seconds_now() : begin;
        for (uint32_t n = TENSORS; !result && n-- > 0;)
            result =
                capstan_push(caller->run, n, caller->gradients[n],
                             caller->elements[n] * sizeof(float), CAPSTAN_FULL);
        if (!result)
            result = capstan_step(caller->run, 1, 1, 0, &outcome, -1);
        if (!result)
            result = capstan_wait(caller->run, CAPSTAN_ALL, -1);
    }
    if (!result && caller->rank == 0)
        printf("%.0f rounds/s\n", (rounds - WARM_UP) / (seconds_now() - begin));
    return result;
}

static int play(struct caller *caller, const char *name) {
    if (!strcmp(name, "sums"))
        return sums(caller);
    if (!strcmp(name, "contributions"))
        return contributions(caller);
    if (!strcmp(name, "kinds"))
        return kinds(caller);
    if (!strcmp(name, "groups"))
        return groups(caller, 8);
    if (!strcmp(name, "groups-long"))
        return groups(caller, 1500);
    if (!strcmp(name, "orders"))
        return orders(caller);
    if (!strcmp(name, "resume"))
        return resume(caller, UINT64_MAX);
    if (!strncmp(name, "short", 5)) {
        int result = resume(caller, 3);
        return result || strcmp(name, "short-early")
                   ? result
                   : capstan_end(caller->run, CAPSTAN_EARLY, NULL, -1);
    }
    if (!strcmp(name, "rows"))
        return rows(caller);
    if (!strcmp(name, "writes"))
        return writes(caller, WRITES_STEPS);
    if (!strcmp(name, "writes-long"))
        return writes(caller, 1500);
    if (!strcmp(name, "own"))
        return own(caller, true, UINT64_MAX, 0);
    if (!strcmp(name, "changes"))
        return changes(caller, -1, -1);
    if (!strcmp(name, "changes-first"))
        return changes(caller, -1, 0);
    if (!strcmp(name, "changes-second"))
        return changes(caller, -1, 1);
    if (!strcmp(name, "changes-dies"))
        return changes(caller, 1, -1);
    if (!strcmp(name, "own-plain"))
        return own(caller, false, UINT64_MAX, 0);
    if (!strcmp(name, "own-asks"))
        return own(caller, true, UINT64_MAX, 7);
    if (!strcmp(name, "own-full")) {
        if (caller->rank == 1)
            fill_disk();
        return own(caller, true, UINT64_MAX, 0);
    }
    if (!strcmp(name, "joins"))
        return joins(caller, 1, true, false, false);
    if (!strcmp(name, "joins-lead"))
        return joins(caller, 0, true, false, false);
    if (!strcmp(name, "joins-plain"))
        return joins(caller, 1, false, false, false);
    if (!strcmp(name, "joins-heir"))
        return joins(caller, 1, false, false, true);
    if (!strcmp(name, "joins-full"))
        return joins(caller, 1, true, true, false);
    if (!strcmp(name, "own-dies"))
        return own(caller, false, 20, 0);
    if (!strcmp(name, "learns"))
        return learn(caller, 8, false, 0);
    if (!strcmp(name, "learns-slowly"))
        return learn(caller, 8, false, 2000);
    if (!strcmp(name, "learns-keeps"))
        return learn(caller, 8, true, 0);
    if (!strcmp(name, "silent"))
        return learn(caller, 0, false, 0);
    if (!strcmp(name, "epochs"))
        return epochs(caller);
    if (!strcmp(name, "orphan"))
        return orphan(caller);
    if (!strcmp(name, "rewinds"))
        return rewinds(caller, false, false);
    if (!strcmp(name, "rewinds-late"))
        return rewinds(caller, false, true);
    if (!strcmp(name, "rewinds-not"))
        return rewinds(caller, caller->rank == 1, false);
    if (!strcmp(name, "asks-behind"))
        return asks_behind(caller);
    if (!strcmp(name, "meets"))
        return meets(caller);
    if (!strcmp(name, "backed"))
        return backed(caller, false);
    if (!strcmp(name, "backed-kinds"))
        return backed(caller, true);
    if (!strncmp(name, "backed-", 7))
        return backed_wrongly(caller, name);
    if (!strcmp(name, "rates"))
        return rates(caller);
    if (!strcmp(name, "interrupt"))
        return interrupt(caller, 100, false);
    if (!strcmp(name, "die-first"))
        return interrupt(caller, 0, true);
    return misuse(caller, name);
}

static int finish(struct caller *caller, int result) {
    if (!result)
        result = capstan_end(caller->run, CAPSTAN_DONE, NULL, -1);
    const char *error = capstan_error_name(caller->run);
    bool keeps_thread = !strcmp(error, "COLLECTIVE_FAILED");
    if (result && result != WRONG)
        fprintf(stderr, "%s: %s\n", error, capstan_error(caller->run));
    capstan_close(caller->run);
    if (keeps_thread)
        _exit(result);
    for (uint32_t n = 0; n < caller->count; n++) {
        free(caller->values[n]);
        free(caller->gradients[n]);
        free(caller->means[n]);
    }
    return result;
}

static int run_case(const char *name) {
    struct caller caller = {0};
    int result = capstan_open(&caller.run, NULL, NULL, CAPSTAN_LOG);
    if (!result && !capstan_trains(caller.run)) {
        result = capstan_serve(caller.run, -1);
        capstan_close(caller.run);
        return result;
    }
    do
        result = result && result != CAPSTAN_AGAIN
                     ? result
                     : capstan_join(caller.run, 0.05);
    while (result == CAPSTAN_AGAIN);
    if (!result) {
        caller.rank = capstan_rank(caller.run);
        caller.size = capstan_size(caller.run);
        result = play(&caller, name);
    }
    return finish(&caller, result);
}

static int run_unjoined(void) {
    struct caller caller = {0};
    int result = capstan_open(&caller.run, NULL, NULL, CAPSTAN_LOG);
    if (!result)
        result = capstan_keep(caller.run, "state", "1", 1);
    return finish(&caller, result);
}

/* Two runs of one process, in turns. */
static int run_two(void) {
    static const char *const overrides[] = {"optimizer.params.lr=1", NULL};
    struct caller callers[2] = {{0}, {0}};
    enum capstan_outcome outcome;
    int result = 0;
    for (int i = 0; !result && i < 2; i++) {
        result = capstan_open(&callers[i].run, NULL, overrides, 0);
        if (!result)
            result = capstan_join(callers[i].run, -1);
        if (!result)
            result = declare(&callers[i], "w", 5, CAPSTAN_TRAINED, 0, 0);
        if (!result)
            result = capstan_start(callers[i].run, -1);
    }
    for (int s = 1; s <= 50; s++)
        for (int i = 0; !result && i < 2; i++) {
            result = push(&callers[i], 0, (float)(i + 1), CAPSTAN_FULL);
            if (!result)
                result = step(&callers[i], 1, &outcome);
            if (!result)
                result = expect_all(&callers[i], 0, (float)(-s * (i + 1)),
                                    "weights of two runs");
        }
    int second = finish(&callers[1], result);
    result = finish(&callers[0], result);
    return result ? result : second;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "two"))
        return run_two();
    return strcmp(argv[1], "unjoined") ? run_case(argv[1]) : run_unjoined();
}
