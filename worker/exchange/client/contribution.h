/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer brings to a round, or to a step of its own. */
#ifndef CAPSTAN_CONTRIBUTION_H
#define CAPSTAN_CONTRIBUTION_H

enum contribution {
    CONTRIBUTION_FULL,
    CONTRIBUTION_EMPTY,      /* no bytes: the others' count without it */
    CONTRIBUTION_OVERFLOWED, /* no bytes: its gradients overflowed, and nobody's
                          are applied */
};

#endif
