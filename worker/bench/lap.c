/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/lap.h"

#include "proto/base/time.h"

#include <math.h>
#include <stdlib.h>

void lap_note(struct lap *lap, int64_t nanoseconds) {
    if (lap->latencies && lap->samples < lap->room)
        lap->latencies[lap->samples++] = nanoseconds;
}

bool lap_goes_on(const struct lap *lap, uint64_t begun, int64_t elapsed) {
    if (lap->stop && atomic_load(lap->stop))
        return false;
    if (lap->times)
        return begun < lap->times;
    return begun == 0 || elapsed < lap->duration;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of COUNT sorted values, the one that SHARE of them do not exceed. */
static size_t nearest_rank(size_t count, double share) {
    double rank = ceil(share * (double)count);
    if (rank < 1)
        return 0;
    return rank > (double)count ? count - 1 : (size_t)rank - 1;
}

double lap_percentile(double *values, size_t count, double share) {
    if (!count)
        return NAN;
    qsort(values, count, sizeof *values, by_value);
    return values[nearest_rank(count, share)];
}

double lap_median(double *values, size_t count) {
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

double lap_latency_us(struct lap *lap, double share) {
    if (!lap->samples)
        return NAN;
    qsort(lap->latencies, lap->samples, sizeof *lap->latencies, by_time);
    return (double)lap->latencies[nearest_rank(lap->samples, share)] /
           (double)TIME_US;
}

static double rate(uint64_t count, int64_t elapsed) {
    return elapsed > 0 ? (double)count / time_to_seconds(elapsed) : 0;
}

double lap_vectors_s(const struct lap *lap) {
    return rate(lap->vectors, lap->elapsed);
}

double lap_messages_s(const struct lap *lap) {
    return rate(lap->messages, lap->elapsed);
}

const char *lap_kind_name(enum lap_kind kind) {
    static const char *const names[LAP_KINDS] = {"push", "pull", "push_pull"};
    return names[kind];
}
