/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/membership_view.h"

struct membership_view_entry membership_view_make_entry(uint64_t incarnation,
                                                        uint64_t from,
                                                        bool left) {
    return (struct membership_view_entry){.incarnation = from ? incarnation : 0,
                                          .from = from,
                                          .live = from && !left};
}

bool membership_view_may_start(uint64_t from, bool reported, uint64_t oldest,
                               uint64_t newest) {
    return from && !reported && oldest >= newest;
}
