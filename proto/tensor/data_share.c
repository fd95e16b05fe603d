/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/data_share.h"

uint64_t data_share_samples(uint64_t samples, uint64_t replicas) {
    return (samples + replicas - 1) / replicas;
}

uint64_t data_share_batches(uint64_t samples, uint64_t replicas, uint64_t micro,
                            bool drop_last) {
    uint64_t share = data_share_samples(samples, replicas);
    return (share + (drop_last ? 0 : micro - 1)) / micro;
}
