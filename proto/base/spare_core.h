/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a thread may wait awake: only where that keeps no other from its
 * core. */
#ifndef CAPSTAN_SPARE_CORE_H
#define CAPSTAN_SPARE_CORE_H

#include <stdbool.h>
#include <stdint.h>

/* Zero at the start. */
struct spare_core {
    int64_t looked;
    unsigned crowded; /* looks in a row that found none */
    bool known;
};

/* Has this process, at NOW, a core for each of WANTED threads, itself among
 * them, and do no more threads run on the machine than it has cores? Looks at
 * /proc/loadavg each 20 ms at most, and believes that all are taken when three
 * looks in a row say so; false where it cannot be read. */
bool spare_core(struct spare_core *core, unsigned wanted, int64_t now);

#endif
