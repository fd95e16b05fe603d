/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/page_points.h"

#include "chief/run.h"
#include "core/base/point_series.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct page_points {
    pthread_mutex_t mutex;
    struct point_series *points, *evaluations; /* of struct metric_point */
    char *job; /* as JSON; NULL: there is no plan yet */
};

struct page_points *page_points_open(void) {
    struct page_points *points = calloc(1, sizeof *points);
    if (!points)
        return NULL;
    pthread_mutex_init(&points->mutex, NULL);
    points->points =
        point_series_open(sizeof(struct metric_point), PAGE_POINTS);
    points->evaluations =
        point_series_open(sizeof(struct metric_point), PAGE_EVALUATIONS);
    if (!points->points || !points->evaluations)
        page_points_close(&points);
    return points;
}

void page_points_close(struct page_points **where) {
    struct page_points *points = *where;
    *where = NULL;
    if (!points)
        return;
    point_series_close(&points->points);
    point_series_close(&points->evaluations);
    pthread_mutex_destroy(&points->mutex);
    free(points->job);
    free(points);
}

static void page_points_begin(void *self, const struct run *run) {
    struct page_points *points = self;
    char *job = strdup(run->job->text);
    pthread_mutex_lock(&points->mutex);
    free(points->job);
    points->job = job;
    pthread_mutex_unlock(&points->mutex);
}

static bool is_evaluation(const struct metric_point *point) {
    return isfinite(point->values[METRIC_TEST_LOSS]) ||
           isfinite(point->values[METRIC_TEST_ACCURACY]);
}

static void page_points_write(void *self, const struct metric_point *point) {
    struct page_points *points = self;
    bool evaluates = is_evaluation(point);
    pthread_mutex_lock(&points->mutex);
    point_series_add(
        evaluates ? points->evaluations : points->points, point,
        point->values[evaluates ? METRIC_TEST_LOSS : METRIC_TRAIN_LOSS]);
    pthread_mutex_unlock(&points->mutex);
}

enum status page_points_attach(struct point_outlet *outlet,
                               const struct run *run, struct failure *why) {
    (void)why;
    if (run->page_points)
        *outlet = (struct point_outlet){.self = run->page_points,
                                        .begin = page_points_begin,
                                        .write = page_points_write};
    return STATUS_OK;
}

void page_points_add_row(json_t *columns, size_t index, const json_t *row) {
    const char *name;
    json_t *value, *column;
    json_object_foreach((json_t *)row, name, value) {
        if (!json_object_get(columns, name))
            json_object_set_new(columns, name, json_array());
        column = json_object_get(columns, name);
        while (json_array_size(column) < index)
            json_array_append_new(column, json_null());
        json_array_append(column, value);
    }
    json_object_foreach(columns, name,
                        column) if (json_array_size(column) <= index)
        json_array_append_new(column, json_null());
}

static json_t *describe_point(const struct metric_point *point) {
    json_t *row = json_pack("{s:I, s:f}", "step", (json_int_t)point->step,
                            "time", (double)point->unix_ms / 1e3);
    for (int m = 0; m < METRIC_COUNT; m++)
        if (isfinite(point->values[m]))
            json_object_set_new(row, metric_rows[m].name,
                                json_real(point->values[m]));
    return row;
}

static json_t *describe_columns(const struct metric_point *points,
                                uint32_t count) {
    json_t *columns = json_object();
    for (uint32_t i = 0; i < count; i++) {
        json_t *row = describe_point(&points[i]);
        page_points_add_row(columns, i, row);
        json_decref(row);
    }
    return columns;
}

static uint32_t copy_points(const struct point_series *series,
                            struct metric_point *to) {
    uint32_t count = point_series_count(series);
    for (uint32_t i = 0; i < count; i++)
        memcpy(&to[i], point_series_get(series, i), sizeof *to);
    return count;
}

json_t *page_points_describe(struct page_points *points) {
    struct metric_point *copy =
        malloc((PAGE_POINTS + PAGE_EVALUATIONS) * sizeof *copy);
    if (!copy)
        return NULL;
    pthread_mutex_lock(&points->mutex);
    uint32_t count = copy_points(points->points, copy);
    uint32_t evaluations = copy_points(points->evaluations, copy + count);
    uint64_t added = point_series_added(points->points);
    json_t *job = points->job ? json_loads(points->job, 0, NULL) : NULL;
    pthread_mutex_unlock(&points->mutex);
    json_t *object =
        json_pack("{s:o*, s:I, s:o, s:o}", "job", job, "added",
                  (json_int_t)added, "points", describe_columns(copy, count),
                  "evaluations", describe_columns(copy + count, evaluations));
    free(copy);
    return object;
}
