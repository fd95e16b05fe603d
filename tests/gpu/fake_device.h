/* SPDX-License-Identifier: Apache-2.0 */
/* A device on the CPU for tests, with what makes a GPU hard: memory of its own
 * that the host cannot touch, streams that go on by themselves, copies that
 * read and write late, failures. What is computed has ops_cpu's bits, so that a
 * wait that is missing somewhere shows as other numbers. Misuse ends the
 * process with a line that says what it was. Also built as the plugin
 * build/fake/capstan-cuda.so, where CAPSTAN_FAKE_DEVICE says how it is:
 * "devices=2,order=1,lose=100". */
#ifndef CAPSTAN_FAKE_DEVICE_H
#define CAPSTAN_FAKE_DEVICE_H

#include "tests/gpu/fake_streams.h"
#include "worker/ops/device.h"

#include <stdbool.h>
#include <stdint.h>

struct fake_device_settings {
    enum fake_device_order order;
    uint64_t seed;    /* of FAKE_DEVICE_RANDOM */
    uint32_t devices; /* there are so many */
    uint64_t memory;  /* bytes of each; 0: 64 MiB */
    uint64_t lose_at; /* the loser is lost at this call (from 1); 0: never */
    uint32_t lost_device; /* device */
    uint64_t hang_at;     /* from this call on nothing is ever done; 0: never */
    uint64_t
        fail_allocation; /* the allocation without memory (from 1); 0: none */
    uint32_t machine;    /* whose devices they are: others have other ids */
    uint32_t first;      /* of the machine's devices that is shown here */
    bool unsupported;    /* than the build */
    bool before_tf32;    /* of compute capability 7 */
    bool unpinnable;     /* no memory can be pinned */
    bool without_ids;    /* no device tells its id */
};

/* Of devices that are opened from now on. */
void fake_device_configure(const struct fake_device_settings *plan);

/* Its table: the symbol `capstan_device`. */
const struct device_ops *fake_device_ops(void);

/* Calls made to DEVICE that go to a stream, and bytes that were copied. */
bool fake_device_has_graphs(const struct device *device);
uint64_t fake_device_calls(const struct device *device);
uint64_t fake_device_uploaded(const struct device *device);
uint64_t fake_device_downloaded(const struct device *device);

#endif
