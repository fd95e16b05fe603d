/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of one parameter may overlap: a ps can be a round ahead of another, and
 * with staleness blocks have versions of their own. A histogram that lacks a
 * piece for good is given up when later steps take its place. */
#include "chief/report/histogram_board.h"

#include "chief/run.h"
#include "proto/messages/histograms.h"

#include <math.h>
#include <stdlib.h>

enum {
    STEPS = 4,       /* of one parameter, incomplete at a time */
    MOST_OPEN = 4096 /* incomplete at a time: 128 MB */
};

/* What histogram_sum adds up in the order of offsets. */
struct piece {
    uint64_t offset, elements;
    double sum, squares;
};

struct open_sum {
    uint64_t step;
    uint64_t elements; /* of all pieces so far */
    size_t count, capacity;
    struct piece *pieces;
    struct histogram_sum sum;
};

/* Of weights, or of gradients, of one parameter. */
struct series {
    struct open_sum *open[STEPS];
};

struct histogram_board {
    uint32_t num_series, num_open;
    struct series *series; /* [parameter, gradient] */
    uint64_t incomplete;   /* given up */
    uint64_t *dropped;     /* [slots]: pieces that members had no room for */
};

static void open_sum_close(struct histogram_board *board,
                           struct open_sum **where) {
    if (!*where)
        return;
    free((*where)->pieces);
    free(*where);
    *where = NULL;
    board->num_open--;
}

static struct histogram_board *open_board(struct run *run) {
    const struct layout *layout = run->plan.layout;
    struct histogram_board *board = calloc(1, sizeof *board);
    if (!board)
        return NULL;
    board->num_series = layout->num_parameters < HISTOGRAMS_PARAMETERS
                            ? layout->num_parameters
                            : HISTOGRAMS_PARAMETERS;
    board->series = calloc(2 * board->num_series + 1, sizeof *board->series);
    board->dropped = calloc(run->roster.count + 1, sizeof *board->dropped);
    if (!board->series || !board->dropped) {
        free(board->series);
        free(board->dropped);
        free(board);
        return NULL;
    }
    if (layout->num_parameters > HISTOGRAMS_PARAMETERS)
        log_warning(run->log, "histograms_incomplete",
                    "histograms are of the first %d of %u parameters",
                    HISTOGRAMS_PARAMETERS, layout->num_parameters);
    return board;
}

/* Where STEP of SERIES is put together. It takes the place of the oldest if
 * there is none; NULL: STEP is older, or there is no memory. */
static struct open_sum **find_open_sum(struct histogram_board *board,
                                       struct series *series, uint64_t step) {
    struct open_sum **at = &series->open[0];
    for (int i = 0; i < STEPS; i++)
        if (series->open[i] && series->open[i]->step == step)
            return &series->open[i];
    for (int i = 1; i < STEPS && *at; i++)
        if (!series->open[i] || series->open[i]->step < (*at)->step)
            at = &series->open[i];
    if (*at && (*at)->step > step)
        return NULL;
    board->incomplete += *at != NULL;
    open_sum_close(board, at);
    *at = board->num_open < MOST_OPEN ? calloc(1, sizeof **at) : NULL;
    if (!*at)
        return NULL;
    board->num_open++;
    (*at)->step = step;
    (*at)->sum.least = INFINITY;
    (*at)->sum.most = -INFINITY;
    return at;
}

static bool add_piece(struct open_sum *open, const Capstan__Histogram *from) {
    struct histogram_sum *sum = &open->sum;
    uint64_t finite = 0;
    if (open->count == open->capacity) {
        size_t capacity = 2 * open->capacity + 4;
        struct piece *pieces =
            realloc(open->pieces, capacity * sizeof *open->pieces);
        if (!pieces)
            return false;
        open->pieces = pieces;
        open->capacity = capacity;
    }
    open->pieces[open->count++] =
        (struct piece){from->offset, from->elements, from->sum, from->squares};
    for (size_t i = 0; i < from->n_bins; i++) {
        sum->counts[histogram_place(from->bins[i])] += from->counts[i];
        finite += from->counts[i];
    }
    sum->finite += finite;
    sum->nonfinite += from->elements - finite;
    sum->least = finite ? fmin(sum->least, from->least) : sum->least;
    sum->most = finite ? fmax(sum->most, from->most) : sum->most;
    open->elements += from->elements;
    return true;
}

static int by_offset(const void *a, const void *b) {
    const struct piece *one = a, *other = b;
    return (one->offset > other->offset) - (one->offset < other->offset);
}

/* Adds the pieces' sums in the order of the parameter, so that they do not
 * depend on who sent first. False: some values are missing, others are there
 * twice. */
static bool add_sums(struct open_sum *open) {
    uint64_t offset = 0;
    qsort(open->pieces, open->count, sizeof *open->pieces, by_offset);
    for (size_t i = 0; i < open->count; i++) {
        if (open->pieces[i].offset != offset)
            return false;
        offset += open->pieces[i].elements;
        open->sum.sum += open->pieces[i].sum;
        open->sum.squares += open->pieces[i].squares;
    }
    return true;
}

static void take_piece(struct run *run, struct histogram_board *board,
                       const Capstan__Histogram *from) {
    const struct layout *layout = run->plan.layout;
    char tag[LAYOUT_MAX_NAME + 16];
    if (from->parameter >= board->num_series ||
        from->step <= run->plan.schedule.start)
        return;
    const struct parameter *parameter = &layout->parameters[from->parameter];
    struct series *series =
        &board->series[2 * from->parameter + from->gradient];
    struct open_sum **open = find_open_sum(board, series, from->step);
    if (!open || !add_piece(*open, from)) {
        board->incomplete += !open;
        return;
    }
    if ((*open)->elements < parameter->elements)
        return;
    snprintf(tag, sizeof tag, "%s/%s", from->gradient ? "gradients" : "weights",
             parameter->name);
    if ((*open)->elements == parameter->elements && add_sums(*open))
        point_outlets_write_histogram(&run->metrics.outlets, tag, from->step,
                                      &(*open)->sum);
    else
        board->incomplete++;
    open_sum_close(board, open);
}

void histogram_board_receive(struct run *run, const struct roster_slot *slot,
                             const Capstan__Histograms *message) {
    if (!run->plan.layout || !run->job->histogram_every_steps)
        return;
    if (!run->metrics.histograms)
        run->metrics.histograms = open_board(run);
    struct histogram_board *board = run->metrics.histograms;
    if (!board)
        return;
    board->dropped[slot - run->roster.slots] = message->dropped;
    for (size_t i = 0; i < message->n_list; i++)
        take_piece(run, board, message->list[i]);
}

void histogram_board_close(struct run *run) {
    struct histogram_board *board = run->metrics.histograms;
    uint64_t dropped = 0;
    run->metrics.histograms = NULL;
    if (!board)
        return;
    for (uint32_t s = 0; s < 2 * board->num_series; s++)
        for (int i = 0; i < STEPS; i++) {
            board->incomplete += board->series[s].open[i] != NULL;
            open_sum_close(board, &board->series[s].open[i]);
        }
    for (uint32_t i = 0; i < run->roster.count; i++)
        dropped += board->dropped[i];
    if (board->incomplete || dropped)
        log_warning(run->log, "histograms_incomplete",
                    "%llu histograms were not written, as pieces of them were "
                    "missing; %llu pieces had no room where they were made: a "
                    "larger tensorboard.histogram_every_steps makes fewer",
                    (unsigned long long)board->incomplete,
                    (unsigned long long)dropped);
    free(board->series);
    free(board->dropped);
    free(board);
}
