/* SPDX-License-Identifier: Apache-2.0 */
/* A collective that adds up in the memory of fake devices
 * (tests/gpu/fake_device.h) of one process; fake_nccl.c says how it is
 * arranged. */
#ifndef CAPSTAN_FAKE_NCCL_H
#define CAPSTAN_FAKE_NCCL_H

#include "worker/collective/collective.h"

/* Its table: the symbol `capstan_collective`. */
const struct collective_ops *fake_nccl_ops(void);

/* How often a rank has left a group that nobody had aborted: NCCL's would then
 * wait for all others. */
unsigned fake_nccl_unaborted_exits(void);

#endif
