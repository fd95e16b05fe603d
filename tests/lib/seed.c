/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/seed.h"

#include "proto/messages/message.h"
#include "tests/lib/test.h"

void seed_open(struct philox_sequence *sequence) {
    const char *given = getenv("SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : message_random();
    print_message("# SEED=%llu\n", (unsigned long long)seed);
    philox_sequence_open(sequence, seed, 0);
}
