/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the gloo plugin, each a process of a test, and what all tests of it
 * play: every call at several sizes, checked. */
#ifndef CAPSTAN_GLOO_PLAY_H
#define CAPSTAN_GLOO_PLAY_H

#include "tests/lib/rank_board.h"
#include "worker/collective/collective.h"

#include <stdbool.h>
#include <stdint.h>

struct gloo_play;
typedef void gloo_play_part(struct rank_board *board, uint32_t rank,
                            const void *play);

struct gloo_play {
    const struct collective_ops *ops;
    uint32_t size;
    enum collective_algorithm algorithm;
    double timeout;
    const char *host;
    bool lanes;
    void (*prepare)(uint32_t rank, struct collective_settings *settings);
    const char *ways[RANK_BOARD_RANKS]; /* that ranks tell; NULL: any */
    bool shows; /* what it plays with; for the part's use */
};

/* The plugin of this build. */
const struct collective_ops *gloo_play_load(void);

/* In a rank's process: STATUS and TEXT are left on the board, and it ends. */
void gloo_play_end(struct rank_board *board, uint32_t rank, enum status status,
                   const char *text);

/* In a rank's process: meets the others, by STORE or the board's, or ends. */
struct collective *gloo_play_meet_by(const struct collective_store *store,
                                     struct rank_board *board, uint32_t rank,
                                     const struct gloo_play *play);
struct collective *gloo_play_meet(struct rank_board *board, uint32_t rank,
                                  const struct gloo_play *play);

/* A part: calls without end; what ends them is left on the board. */
gloo_play_part gloo_play_without_end;

/* All SIZE ranks end without a word. */
void gloo_play_expect_well(struct rank_board *board, uint32_t size);

/* All but RANK end with STATUS_RETRY and tell HOW that one failed. */
void gloo_play_expect_named(struct rank_board *board, uint32_t size,
                            uint32_t rank, const char *how);

/* In a rank's process: what a call has given, or the rank ends. */
void gloo_play_expect_call(struct rank_board *board, uint32_t rank,
                           enum status status, const struct failure *why);

/* In a rank's process: BYTES of DATA are results. */
void gloo_play_note_bits(struct rank_end *end, const void *data, size_t bytes);

/* What RANK brings at element I: both signs, many magnitudes. */
float gloo_play_value(uint32_t rank, size_t i);

/* The bits of all results of ranks that each play PART, the same on all. */
uint64_t gloo_play_run(const struct gloo_play *play, gloo_play_part *part);

/* The same of all calls at all sizes. */
uint64_t gloo_play_run_all(struct gloo_play play);

#endif
