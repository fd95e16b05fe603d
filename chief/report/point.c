/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/point.h"

#include "chief/report/json_lines.h"
#include "chief/report/mlflow_outlet.h"
#include "chief/report/page_points.h"
#include "chief/report/tensorboard_outlet.h"
#include "core/base/time.h"

#include <math.h>

/* In the order of struct point_outlets. */
static point_outlet_open *const outlet_openers[POINT_OUTLETS] = {
    tensorboard_outlet_open,
    json_lines_open,
    page_points_attach,
    mlflow_outlet_open,
};

struct metric_point metric_point_start(uint64_t step) {
    struct metric_point point = {
        .step = step, .unix_ms = (int64_t)(time_calendar() * 1e3 + 0.5)};
    for (int m = 0; m < METRIC_COUNT; m++)
        point.values[m] = NAN;
    return point;
}

enum status point_outlets_open(struct point_outlets *outlets,
                               const struct run *run, struct failure *why) {
    enum status status = STATUS_OK;
    for (int i = 0; i < POINT_OUTLETS && !status; i++)
        status = outlet_openers[i](&outlets->list[i], run, why);
    return status;
}

void point_outlets_begin(struct point_outlets *outlets, const struct run *run) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].begin)
            outlets->list[i].begin(outlets->list[i].self, run);
}

void point_outlets_write(struct point_outlets *outlets,
                         const struct metric_point *point) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].write)
            outlets->list[i].write(outlets->list[i].self, point);
}

void point_outlets_write_tagged(struct point_outlets *outlets, const char *tag,
                                uint64_t step, double value) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].write_tagged)
            outlets->list[i].write_tagged(outlets->list[i].self, tag, step,
                                          value);
}

void point_outlets_write_histogram(struct point_outlets *outlets,
                                   const char *tag, uint64_t step,
                                   const struct histogram_sum *histogram) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].write_histogram)
            outlets->list[i].write_histogram(outlets->list[i].self, tag, step,
                                             histogram);
}

void point_outlets_flush(struct point_outlets *outlets) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].flush)
            outlets->list[i].flush(outlets->list[i].self);
}

void point_outlets_end(struct point_outlets *outlets, const struct run *run,
                       json_t *summary) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].end)
            outlets->list[i].end(outlets->list[i].self, run, summary);
}

void point_outlets_close(struct point_outlets *outlets) {
    for (int i = 0; i < POINT_OUTLETS; i++)
        if (outlets->list[i].close)
            outlets->list[i].close(outlets->list[i].self);
    *outlets = (struct point_outlets){0};
}
