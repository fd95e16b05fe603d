/* SPDX-License-Identifier: Apache-2.0 */
/* How far the run is, for people: on a terminal one line that is redrawn in
 * place, elsewhere a log line at each point of the run (the job's
 * steps_per_print), and now and then between two. Driven by numbers only. */
#ifndef CAPSTAN_PROGRESS_H
#define CAPSTAN_PROGRESS_H

#include "proto/base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Steps, share and time left are of the whole run. A NAN is not known and is
 * left out. */
struct progress_numbers {
    uint64_t step, total_steps; /* total 0: not known */
    uint64_t epoch, epochs;     /* from 1; epochs 0: the run counts steps */
    double loss, accuracy;      /* accuracy: at the end of an epoch only */
    double share;               /* of the test set that accuracy is over */
    double examples_per_second; /* of all trainers */
    double seconds_left;
    double stalled;    /* seconds without a step, where that is unusual, or 0:
                        then there is neither rate nor time left */
    const char *cause; /* of that: "waiting for worker 1"; NULL: not known */
};

/* The text of each, without a newline, cut at SIZE - 1 bytes (SIZE >= 1).
 * The bar is at most COLUMNS wide: room too small for all shortens the bar
 * and drops first it, then the rate, the loss and the time left. */
void progress_bar_text(char *text, size_t size,
                       const struct progress_numbers *numbers,
                       unsigned columns);
void progress_line_text(char *text, size_t size,
                        const struct progress_numbers *numbers);
void progress_epoch_text(char *text, size_t size,
                         const struct progress_numbers *numbers);

/* "loss 0.4123", or with an exponent what is large or tiny. */
void progress_loss_text(char *text, size_t size, double loss);

struct progress {
    const struct log *log;
    int64_t last; /* when something was last shown */
    bool written; /* a line since then */
    bool drawn;   /* a bar stands on the terminal's last line */
};

/* Borrows LOG until the close: its `terminal` chooses between bar and lines;
 * NULL is silence. */
void progress_open(struct progress *progress, const struct log *log,
                   int64_t now);

/* A log line for a point; nothing on a terminal. */
void progress_point(struct progress *progress,
                    const struct progress_numbers *numbers);

/* Cheap when nothing is due: call it at each report. The bar is redrawn at
 * most 10 times a second, and fitted to the terminal's present width; a log
 * line comes where there was none for 5 s. */
void progress_update(struct progress *progress,
                     const struct progress_numbers *numbers, int64_t now);

/* A log line for the epoch (or the evaluation) that ended. */
void progress_epoch(struct progress *progress,
                    const struct progress_numbers *numbers);

/* Clears the bar. */
void progress_close(struct progress *progress);

#endif
