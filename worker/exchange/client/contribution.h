/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's contribution to a round or to an asynchronous step. */
#ifndef CAPSTAN_CONTRIBUTION_H
#define CAPSTAN_CONTRIBUTION_H

enum contribution {
    CONTRIBUTION_FULL,
    CONTRIBUTION_ZERO, /* no bytes: a gradient of zero, which counts in the mean
                        */
    CONTRIBUTION_EMPTY,      /* no bytes: the mean is over the other trainers */
    CONTRIBUTION_OVERFLOWED, /* no bytes: its gradients overflowed, so that the
                                round applies none */
};

#endif
