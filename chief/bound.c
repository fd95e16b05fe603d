#include "chief/bound.h"

#include <math.h>

static const double FRAME = 1514, IN_A_FRAME = 1448;

double bound_payload(double link_gbits) {
    return link_gbits * 1e9 / 8 * IN_A_FRAME / FRAME;
}

double bound_link_gbits(double payload) {
    return payload * FRAME / IN_A_FRAME * 8 / 1e9;
}

double bound_steps_per_second(const struct bound_case *given) {
    double once = given->bytes / bound_payload(given->link_gbits);
    double each_ps = (double)given->num_trainers / given->num_ps;
    double round = once * fmax(1, each_ps) * (given->twice ? 2 : 1);
    if (!(round > 0) || !isfinite(round))
        return 0;
    return (given->synchronous ? 1 : given->num_trainers) / round;
}
