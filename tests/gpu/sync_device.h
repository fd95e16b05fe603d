/* SPDX-License-Identifier: Apache-2.0 */
/* Any device as one whose memory is the host's and whose calls are done when
 * they return, so that a test of the CPU's ops is one of every device's. Slow:
 * each call copies what it reads and what it may write there, and back. */
#ifndef CAPSTAN_SYNC_DEVICE_H
#define CAPSTAN_SYNC_DEVICE_H

#include "worker/ops/device.h"

/* Its table; of it devices are opened by sync_device_open alone. */
const struct device_ops *sync_device_ops(void);

/* Opens device 0 of OPS behind it, on one thread of the host. */
enum status sync_device_open(struct device **out, const struct device_ops *ops,
                             struct failure *why) MUST_CHECK;

/* The plugin that lies beside the program under test (CAPSTAN, else
 * build/capstan), or NULL with WHY when it cannot work here. */
const struct device_ops *sync_device_plugin(struct failure *why);

#endif
