/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the gloo plugin, each a process of a test, and what all tests of it
 * play: every call at several sizes, checked. */
#ifndef CAPSTAN_GLOO_FIXTURE_H
#define CAPSTAN_GLOO_FIXTURE_H

#include "tests/lib/rendezvous_fake.h"
#include "worker/collective/collective.h"

#include <stdbool.h>
#include <stdint.h>

struct gloo_fixture;
typedef void gloo_fixture_body(struct rendezvous_fake *rendezvous,
                               uint32_t rank, const void *fixture);

struct gloo_fixture {
    const struct collective_ops *ops;
    uint32_t size;
    enum collective_algorithm algorithm;
    double timeout;
    const char *host;
    bool shm;
    void (*prepare)(uint32_t rank, struct collective_settings *settings);
    const char
        *transports[RENDEZVOUS_FAKE_RANKS]; /* that ranks tell; NULL: any */
    bool shares_memory; /* what it plays with; for the part's use */
};

/* The plugin of this build. */
const struct collective_ops *gloo_fixture_load(void);

/* In a rank's process: STATUS and TEXT are left on the board, and it ends. */
void gloo_fixture_end(struct rendezvous_fake *rendezvous, uint32_t rank,
                      enum status status, const char *text);

/* In a rank's process: meets the others, by STORE or the board's, or ends. */
struct collective *gloo_fixture_connect_by(const struct collective_store *store,
                                           struct rendezvous_fake *rendezvous,
                                           uint32_t rank,
                                           const struct gloo_fixture *fixture);
struct collective *gloo_fixture_connect(struct rendezvous_fake *rendezvous,
                                        uint32_t rank,
                                        const struct gloo_fixture *fixture);

/* A part: calls without end; what ends them is left on the board. */
gloo_fixture_body gloo_fixture_call_forever;

/* All SIZE ranks end without a word. */
void gloo_fixture_expect_success(struct rendezvous_fake *rendezvous,
                                 uint32_t size);

/* All but RANK end with STATUS_RETRY and tell HOW that one failed. */
void gloo_fixture_expect_failed_rank(struct rendezvous_fake *rendezvous,
                                     uint32_t size, uint32_t rank,
                                     const char *how);

/* In a rank's process: what a call has given, or the rank ends. */
void gloo_fixture_expect_call(struct rendezvous_fake *rendezvous, uint32_t rank,
                              enum status status, const struct failure *why);

/* In a rank's process: COUNT values of DATA are results. */
void gloo_fixture_record_bits(struct rank_result *end, const float *data,
                              size_t count);

/* What RANK brings at element I: both signs, many magnitudes. */
float gloo_fixture_value(uint32_t rank, size_t i);

/* The bits of all results of ranks that each play PART, the same on all. */
uint64_t gloo_fixture_run(const struct gloo_fixture *fixture,
                          gloo_fixture_body *part);

/* The same of all calls at all sizes. */
uint64_t gloo_fixture_run_all(struct gloo_fixture fixture);

#endif
