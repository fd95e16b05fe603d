/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/network_bound.h"

#include <math.h>

static const double FRAME = 1514, IN_A_FRAME = 1448;

double network_bound_payload(double link_gbits) {
    return link_gbits * 1e9 / 8 * IN_A_FRAME / FRAME;
}

double network_bound_link_gbits(double payload) {
    return payload * FRAME / IN_A_FRAME * 8 / 1e9;
}

/* How often all weights cross the busiest link in one direction. */
static double passes(const struct network_bound_case *given) {
    double trainers = given->num_trainers;
    if (given->allreduce)
        return 2 * (trainers - 1) / trainers;
    return fmax(1, trainers / given->num_ps) * (given->two_phase ? 2 : 1);
}

double network_bound_steps_per_second(const struct network_bound_case *given) {
    double sent = given->allreduce
                      ? given->bytes * passes(given) + given->row_bytes
                      : (given->bytes + given->row_bytes) * passes(given);
    double round = sent / network_bound_payload(given->link_gbits);
    if (!(round > 0) || !isfinite(round))
        return 0;
    return (given->synchronous ? 1 : given->num_trainers) / round;
}
