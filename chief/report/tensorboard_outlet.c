/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/tensorboard_outlet.h"

#include "chief/report/histogram_board.h"
#include "chief/report/tensorboard_writer.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "core/base/time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct tensorboard_outlet {
    const struct log *log;
    struct tensorboard_writer *writer; /* NULL: it has failed */
    int64_t stop_limit;
};

static void tensorboard_outlet_stop(struct tensorboard_outlet *outlet,
                                    enum status status,
                                    const struct failure *why) {
    if (!status)
        return;
    log_warning(outlet->log, "tensorboard_write_failed",
                "no more TensorBoard events: %s", why->text);
    tensorboard_writer_close(&outlet->writer);
}

static void tensorboard_outlet_begin(void *self, const struct run *run) {
    struct tensorboard_outlet *outlet = self;
    uint64_t start = run->metrics.points.start;
    struct failure why;
    if (outlet->writer)
        tensorboard_outlet_stop(
            outlet,
            tensorboard_writer_detach(outlet->writer,
                                      run_tests_again(run) ? start : 0, &why),
            &why);
    if ((run->plan.has_restored || rewind_is_second(run) || run->term) &&
        outlet->writer)
        tensorboard_outlet_stop(
            outlet, tensorboard_writer_restart(outlet->writer, start + 1, &why),
            &why);
}

static void write_scalar(void *self, const char *tag, uint64_t step,
                         double value) {
    struct tensorboard_outlet *outlet = self;
    struct failure why;
    if (outlet->writer && isfinite(value))
        tensorboard_outlet_stop(outlet,
                                tensorboard_writer_add_scalar(
                                    outlet->writer, tag, step, value, &why),
                                &why);
}

static void write_scalars(void *self, const struct metric_point *point) {
    for (int m = 0; m < METRIC_COUNT; m++)
        if (metric_rows[m].tag)
            write_scalar(self, metric_rows[m].tag, point->step,
                         point->values[m]);
}

/* TensorBoard's histograms have no place for values that are not finite. */
static void write_histogram(void *self, const char *tag, uint64_t step,
                            const struct histogram_sum *histogram) {
    struct tensorboard_outlet *outlet = self;
    struct failure why;
    char apart[256];
    snprintf(apart, sizeof apart, "nonfinite/%s", tag);
    if (histogram->nonfinite)
        write_scalar(self, apart, step, (double)histogram->nonfinite);
    if (outlet->writer && histogram->finite)
        tensorboard_outlet_stop(outlet,
                                tensorboard_writer_add_histogram(
                                    outlet->writer, tag, step, histogram, &why),
                                &why);
}

static void tensorboard_outlet_flush(void *self) {
    struct tensorboard_outlet *outlet = self;
    struct failure why;
    if (outlet->writer)
        tensorboard_outlet_stop(
            outlet, tensorboard_writer_flush(outlet->writer, &why), &why);
}

static void tensorboard_outlet_close(void *self) {
    struct tensorboard_outlet *outlet = self;
    struct failure why;
    enum status status = tensorboard_writer_finish(
        &outlet->writer, time_now() + outlet->stop_limit, &why);
    tensorboard_outlet_stop(outlet, status, &why);
    free(outlet);
}

enum status tensorboard_outlet_open(struct point_outlet *out,
                                    const struct run *run,
                                    struct failure *why) {
    if (!run->job->events_dir)
        return STATUS_OK;
    struct tensorboard_outlet *outlet = calloc(1, sizeof *outlet);
    if (!outlet)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory for events");
    outlet->log = run->log;
    outlet->stop_limit = time_from_seconds(run->job->timeouts.stop);
    enum status status =
        tensorboard_writer_open(&outlet->writer, run->job->events_dir, why);
    if (status) {
        free(outlet);
        return status;
    }
    *out = (struct point_outlet){
        .self = outlet,
        .begin = tensorboard_outlet_begin,
        .write = write_scalars,
        .write_tagged = write_scalar,
        .write_histogram = write_histogram,
        .flush = tensorboard_outlet_flush,
        .close = tensorboard_outlet_close,
    };
    return STATUS_OK;
}
