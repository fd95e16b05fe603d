/* SPDX-License-Identifier: Apache-2.0 */
/* Shows progress to people: on a terminal one line that is redrawn in place,
 * elsewhere a log line at each point of the run (the job's steps_per_print) and
 * every few seconds between points. It only takes numbers. */
#ifndef CAPSTAN_PROGRESS_H
#define CAPSTAN_PROGRESS_H

#include "core/base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Steps, percentage and time left are those of the whole run. A NAN is unknown
 * and not shown. */
struct progress_numbers {
    uint64_t step, total_steps; /* total 0: unknown */
    uint64_t epoch, epochs;     /* from 1; epochs 0: the run counts steps */
    double loss;
    /* Set only at the end of an epoch, as is what the scores of two classes
     * give: AUC, NAN without a finite loss or of labels that are all alike. */
    double accuracy, test_loss, auc;
    bool has_scores;            /* the test loss is their logloss */
    double share;               /* of the test set that they cover */
    double examples_per_second; /* of all trainers */
    double seconds_left;
    uint64_t rows;        /* in tables; 0: there are none */
    double row_bytes;     /* of them that a trainer sends in a step */
    double network_share; /* of the steps that the network allows; 0: unknown */
    double stalled; /* seconds without a step if that is unusual, else 0; then
                       rate and time left are not shown */
    const char *cause; /* of the stall: "waiting for worker 1"; NULL: unknown */
};

/* Write the text without a newline, truncated to SIZE - 1 bytes (SIZE >= 1).
 * The bar text is at most COLUMNS wide: if space is short, the bar shrinks and
 * is dropped first, then the rate, the loss and the time left. */
void progress_bar_text(char *text, size_t size,
                       const struct progress_numbers *numbers,
                       unsigned columns);
void progress_line_text(char *text, size_t size,
                        const struct progress_numbers *numbers);
void progress_epoch_text(char *text, size_t size,
                         const struct progress_numbers *numbers);

/* "loss 0.4123", or with an exponent if it is large or tiny. */
void progress_loss_text(char *text, size_t size, double loss);

struct progress {
    const struct log *log;
    int64_t last; /* when something was shown last */
    bool written; /* a log line was written since then */
    bool drawn;   /* the bar is on the terminal's last line */
};

/* Borrows LOG until progress_close; its `terminal` selects bar or lines. NULL:
 * shows nothing. */
void progress_open(struct progress *progress, const struct log *log,
                   int64_t now);

/* A log line for a point; nothing on a terminal. */
void progress_point(struct progress *progress,
                    const struct progress_numbers *numbers);

/* Cheap if nothing is due; call it at each report. Redraws the bar at most 10
 * times a second, at the terminal's current width; writes a log line if there
 * was none for 5 s. */
void progress_update(struct progress *progress,
                     const struct progress_numbers *numbers, int64_t now);

/* Writes a log line for an epoch or evaluation that has ended. */
void progress_epoch(struct progress *progress,
                    const struct progress_numbers *numbers);

/* Clears the bar. */
void progress_close(struct progress *progress);

#endif
