/* SPDX-License-Identifier: Apache-2.0 */
/* How long rounds of a synchronous run take whose trainers compute nothing: the
 * exchange alone, of one tensor.
 *
 *     capstan local --ps 1 --workers 2 -- build/tests/round_times 2000 65536
 *
 * Rank 0 prints, of the rounds after the first tenth, the median and the 99th
 * percentile in milliseconds, and how many there are in a second. */
#include "library/capstan.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_ROUNDS = 1 << 20 };

static double durations[MOST_ROUNDS];

static void must(capstan_run *run, int result) {
    if (!result)
        return;
    fprintf(stderr, "round_times: %s\n", capstan_error(run));
    exit(result);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void train(capstan_run *run, const float *gradient, size_t bytes,
                  uint32_t rounds) {
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    uint32_t first = rounds / 10, count = 0;
    double begin = 0, last = 0;
    for (uint32_t i = 0; i < rounds && outcome == CAPSTAN_GOES_ON; i++) {
        must(run, capstan_push(run, 0, gradient, bytes, CAPSTAN_FULL));
        must(run, capstan_step(run, 0, 1, 0, &outcome, -1));
        must(run, capstan_wait(run, CAPSTAN_ALL, -1));
        double now = seconds();
        if (i == first)
            begin = now;
        else if (i > first)
            durations[count++] = now - last;
        last = now;
    }
    if (!count || capstan_rank(run))
        return;
    qsort(durations, count, sizeof *durations, ascending);
    printf("%.4f %.4f %.1f\n", 1e3 * durations[count / 2],
           1e3 * durations[(size_t)count * 99 / 100], count / (last - begin));
}

int main(int argc, char **argv) {
    const char *set[] = {"strategy.type=ps", NULL};
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000;
    uint32_t floats = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 65536;
    uint32_t tensor, dims[] = {floats};
    capstan_run *run;
    if (rounds < 10 || rounds > MOST_ROUNDS || !floats)
        return 2;
    must(run, capstan_open(&run, NULL, set, 0));
    if (!capstan_trains(run))
        return capstan_serve(run, -1);
    must(run, capstan_join(run, -1));
    float *values = calloc(floats, sizeof *values),
          *gradient = calloc(floats, sizeof *gradient);
    if (!values || !gradient)
        return 1;
    struct capstan_tensor weights = {
        .name = "weights", .num_dims = 1, .dims = dims, .values = values};
    must(run, capstan_declare(run, &weights, &tensor));
    must(run, capstan_start(run, -1));
    train(run, gradient, floats * sizeof *gradient, rounds);
    int result = capstan_end(run, CAPSTAN_DONE, NULL, -1);
    capstan_close(run);
    free(values);
    free(gradient);
    return result;
}
