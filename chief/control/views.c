/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/views.h"

struct views_entry views_list(uint64_t incarnation, uint64_t from, bool left) {
    return (struct views_entry){.incarnation = from ? incarnation : 0,
                                .from = from,
                                .live = from && !left};
}

bool views_may_start(uint64_t from, bool told, uint64_t oldest,
                     uint64_t newest) {
    return from && !told && oldest >= newest;
}
