/* SPDX-License-Identifier: Apache-2.0 */
/* A chief's run before there is a plan, whose answers go to a link that nobody
 * reads: for tests of what trainers tell the chief. */
#ifndef CAPSTAN_RUN_FIXTURE_H
#define CAPSTAN_RUN_FIXTURE_H

#include "chief/run.h"
#include "tests/lib/link_fixture.h"

#include <stdint.h>

struct run_fixture {
    struct link_fixture *wire;
    struct job job; /* of a micro batch of 10 */
    struct run run;
    uint32_t peer; /* of who has joined, if a test says so */
};

/* In a cmocka setup: *STATE is a struct run_fixture of so many WORKERS, none of
 * which has joined, on hosts "h0", "h1" ... */
void run_fixture_setup(void **state, uint32_t workers);
int run_fixture_teardown(void **state);

#endif
