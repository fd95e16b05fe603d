/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of the pieces of parameters that this process updates, on their
 * way to the chief. Whoever updates a piece adds them, from any thread; the
 * control client sends them. */
#ifndef CAPSTAN_HISTOGRAMS_H
#define CAPSTAN_HISTOGRAMS_H

#include "core/tensor/histogram.h"
#include "core/tensor/layout.h"
#include "proto/messages/control.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HISTOGRAMS_PARAMETERS = 1000,  /* the first of a model have them */
    HISTOGRAMS_BYTES = 64 << 20,   /* that wait to be sent */
    HISTOGRAMS_IN_PIECE = 16,      /* in a message: at most 400 KB */
    HISTOGRAMS_UNACKNOWLEDGED = 16 /* messages, while it trains */
};

struct histograms;

/* Of each update whose number is a multiple of EVERY. NULL: no memory. */
struct histograms *histograms_open(uint64_t every);

/* Accepts a pointer to NULL. */
void histograms_close(struct histograms **histograms);

/* Are there some of update STEP of parameter P of LAYOUT? False if HISTOGRAMS
 * is NULL. */
bool histograms_wants(const struct histograms *histograms,
                      const struct layout *layout, uint32_t p, uint64_t step);

/* What a histogram is of: as in the message. */
struct histogram_piece {
    uint64_t step, offset;
    uint32_t parameter;
    bool gradient;
};

/* Adds HISTOGRAM of PIECE, or counts it as dropped if there is no room. */
void histograms_add(struct histograms *histograms,
                    const struct histogram_piece *piece,
                    const struct histogram *histogram);

/* The next MESSAGE, whose bytes are kept until the next call. False: there is
 * none. */
bool histograms_next(struct histograms *histograms,
                     Capstan__Histograms *message);

/* Are lists and numbers those of histograms? */
bool histograms_check(const Capstan__Histograms *message);

#endif
