/* A collective that adds up in the memory of fake devices (tests/fake_device.h)
 * of one process; fake_nccl.c says how it is arranged. */
#ifndef CAPSTAN_FAKE_NCCL_H
#define CAPSTAN_FAKE_NCCL_H

#include "worker/collective.h"

/* Its table: the symbol `capstan_collective`. */
const struct collective_ops *fake_nccl_ops(void);

#endif
