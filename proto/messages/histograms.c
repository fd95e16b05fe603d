/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/histograms.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct entry {
    struct entry *next;
    size_t bytes;
    Capstan__Histogram message;
    uint32_t numbers[]; /* bins, then counts */
};

struct histograms {
    uint64_t every;
    pthread_mutex_t mutex; /* of what follows */
    struct entry *first, **end;
    size_t bytes;
    uint64_t dropped, reported; /* reported: of them those that a message has */
    /* Of the last message. */
    struct entry *sent[HISTOGRAMS_IN_PIECE];
    Capstan__Histogram *list[HISTOGRAMS_IN_PIECE];
    unsigned num_sent;
};

struct histograms *histograms_open(uint64_t every) {
    struct histograms *histograms = calloc(1, sizeof *histograms);
    if (!histograms)
        return NULL;
    histograms->every = every;
    histograms->end = &histograms->first;
    pthread_mutex_init(&histograms->mutex, NULL);
    return histograms;
}

static void free_sent(struct histograms *histograms) {
    while (histograms->num_sent)
        free(histograms->sent[--histograms->num_sent]);
}

void histograms_close(struct histograms **where) {
    struct histograms *histograms = *where;
    *where = NULL;
    if (!histograms)
        return;
    free_sent(histograms);
    while (histograms->first) {
        struct entry *entry = histograms->first;
        histograms->first = entry->next;
        free(entry);
    }
    pthread_mutex_destroy(&histograms->mutex);
    free(histograms);
}

bool histograms_wants(const struct histograms *histograms,
                      const struct layout *layout, uint32_t p, uint64_t step) {
    return histograms && p < HISTOGRAMS_PARAMETERS &&
           layout->parameters[p].dtype == PARAMETER_FLOAT32 &&
           step % histograms->every == 0;
}

static struct entry *entry_make(const struct histogram_piece *piece,
                                const struct histogram *histogram) {
    uint32_t count = 0, i = 0;
    for (uint32_t bin = 0; bin < HISTOGRAM_BINS; bin++)
        count += histogram_is_finite(bin) && histogram->counts[bin];
    size_t bytes = sizeof(struct entry) + 2 * count * sizeof(uint32_t);
    struct entry *entry = malloc(bytes);
    if (!entry)
        return NULL;
    *entry = (struct entry){.bytes = bytes};
    Capstan__Histogram *message = &entry->message;
    capstan__histogram__init(message);
    message->step = piece->step;
    message->parameter = piece->parameter;
    message->gradient = piece->gradient;
    message->offset = piece->offset;
    message->elements = histogram->elements;
    message->n_bins = message->n_counts = count;
    message->bins = entry->numbers;
    message->counts = entry->numbers + count;
    message->sum = histogram_sum(histogram);
    message->squares = histogram_squares(histogram);
    message->least = histogram->least;
    message->most = histogram->most;
    for (uint32_t bin = 0; bin < HISTOGRAM_BINS; bin++)
        if (histogram_is_finite(bin) && histogram->counts[bin]) {
            message->bins[i] = bin;
            message->counts[i++] = histogram->counts[bin];
        }
    return entry;
}

void histograms_add(struct histograms *histograms,
                    const struct histogram_piece *piece,
                    const struct histogram *histogram) {
    struct entry *entry = entry_make(piece, histogram);
    pthread_mutex_lock(&histograms->mutex);
    if (entry && histograms->bytes + entry->bytes <= HISTOGRAMS_BYTES) {
        histograms->bytes += entry->bytes;
        *histograms->end = entry;
        histograms->end = &entry->next;
        entry = NULL;
    } else {
        histograms->dropped++;
    }
    pthread_mutex_unlock(&histograms->mutex);
    free(entry);
}

bool histograms_next(struct histograms *histograms,
                     Capstan__Histograms *message) {
    free_sent(histograms);
    capstan__histograms__init(message);
    pthread_mutex_lock(&histograms->mutex);
    while (histograms->first && histograms->num_sent < HISTOGRAMS_IN_PIECE) {
        struct entry *entry = histograms->first;
        histograms->first = entry->next;
        histograms->bytes -= entry->bytes;
        histograms->list[histograms->num_sent] = &entry->message;
        histograms->sent[histograms->num_sent++] = entry;
    }
    if (!histograms->first)
        histograms->end = &histograms->first;
    bool any =
        histograms->num_sent || histograms->dropped > histograms->reported;
    message->dropped = histograms->reported = histograms->dropped;
    pthread_mutex_unlock(&histograms->mutex);
    message->n_list = histograms->num_sent;
    message->list = histograms->list;
    return any;
}

static bool is_histogram(const Capstan__Histogram *histogram) {
    uint64_t finite = 0;
    if (histogram->n_bins != histogram->n_counts ||
        histogram->elements > UINT32_MAX || !isfinite(histogram->sum) ||
        !isfinite(histogram->squares))
        return false;
    for (size_t i = 0; i < histogram->n_bins; i++) {
        uint32_t bin = histogram->bins[i];
        if (bin >= HISTOGRAM_BINS || !histogram_is_finite(bin) ||
            (i && bin <= histogram->bins[i - 1]))
            return false;
        finite += histogram->counts[i];
    }
    return finite <= histogram->elements &&
           (!finite ||
            (isfinite(histogram->least) && isfinite(histogram->most)));
}

bool histograms_check(const Capstan__Histograms *message) {
    for (size_t i = 0; i < message->n_list; i++)
        if (!is_histogram(message->list[i]))
            return false;
    return true;
}
