/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/snapshot/cut_round.h"

void cut_round_ask(struct cut_round *cut, uint32_t num_ps) {
    *cut = (struct cut_round){.stage = CUT_ASKING, .num_ps = num_ps};
}

void cut_round_take(struct cut_round *cut, uint32_t num_ps) {
    *cut = (struct cut_round){.stage = CUT_TAKING, .num_ps = num_ps};
}

bool cut_round_marked(struct cut_round *cut, uint64_t highest, uint64_t last) {
    if (cut->stage != CUT_ASKING)
        return false;
    if (highest > cut->highest)
        cut->highest = highest;
    if (++cut->marked < cut->num_ps)
        return false;
    cut->stage = CUT_TAKING;
    cut->round = cut->highest < last ? cut->highest + 1 : last;
    return true;
}

bool cut_round_held(struct cut_round *cut) {
    if (++cut->held < cut->num_ps)
        return false;
    cut->stage = CUT_HELD;
    return true;
}

bool cut_round_done(struct cut_round *cut) {
    return ++cut->done == cut->num_ps;
}
