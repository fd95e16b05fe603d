/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/bench_iteration.h"

#include "core/base/time.h"

#include <math.h>
#include <stdlib.h>

void bench_iteration_record(struct bench_iteration *iteration,
                            int64_t nanoseconds) {
    if (iteration->latencies && iteration->samples < iteration->capacity)
        iteration->latencies[iteration->samples++] = nanoseconds;
}

bool bench_iteration_continues(const struct bench_iteration *bench_iteration,
                               uint64_t started, int64_t elapsed) {
    if (bench_iteration->stop && atomic_load(bench_iteration->stop))
        return false;
    if (bench_iteration->times)
        return started < bench_iteration->times;
    return started == 0 || elapsed < bench_iteration->duration;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The index among COUNT sorted values of the one that SHARE of them do not
 * exceed. */
static size_t nearest_rank(size_t count, double share) {
    double rank = ceil(share * (double)count);
    if (rank < 1)
        return 0;
    return rank > (double)count ? count - 1 : (size_t)rank - 1;
}

double bench_iteration_median(double *values, size_t count) {
    if (!count)
        return NAN;
    qsort(values, count, sizeof *values, by_value);
    size_t middle = count / 2;
    return count % 2 ? values[middle]
                     : (values[middle - 1] + values[middle]) / 2;
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double bench_iteration_latency_us(struct bench_iteration *iteration,
                                  double share) {
    if (!iteration->samples)
        return NAN;
    qsort(iteration->latencies, iteration->samples,
          sizeof *iteration->latencies, by_time);
    return (double)
               iteration->latencies[nearest_rank(iteration->samples, share)] /
           (double)TIME_US;
}

static double bench_iteration_rate(uint64_t count, int64_t elapsed) {
    return elapsed > 0 ? (double)count / time_to_seconds(elapsed) : 0;
}

double bench_iteration_vectors_s(const struct bench_iteration *iteration) {
    return bench_iteration_rate(iteration->vectors, iteration->elapsed);
}

double bench_iteration_messages_s(const struct bench_iteration *iteration) {
    return bench_iteration_rate(iteration->messages, iteration->elapsed);
}

const char *bench_iteration_kind_name(enum bench_iteration_kind kind) {
    static const char *const names[BENCH_ITERATION_KINDS] = {"push", "pull",
                                                             "push_pull"};
    return names[kind];
}
