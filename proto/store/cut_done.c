/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/cut_done.h"

Capstan__CutDone cut_done_written(uint64_t id, const struct shard_info *file,
                                  const char *holder, double seconds) {
    Capstan__CutDone done = CAPSTAN__CUT_DONE__INIT;
    done.id = id;
    done.written = true;
    done.name = (char *)file->name;
    done.size = file->size;
    done.hash_low = file->hash[0];
    done.hash_high = file->hash[1];
    done.holder = (char *)holder;
    done.seconds = seconds;
    return done;
}

Capstan__CutDone cut_done_held(uint64_t id, bool first, uint64_t step) {
    Capstan__CutDone done = CAPSTAN__CUT_DONE__INIT;
    done.id = id;
    done.has_step = first;
    done.step = first ? step : 0;
    return done;
}

Capstan__CutDone cut_done_failed(uint64_t id, const char *text) {
    Capstan__CutDone done = CAPSTAN__CUT_DONE__INIT;
    done.id = id;
    done.error = (char *)text;
    return done;
}
