/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/metric.h"

#include <stdio.h>
#include <string.h>

enum { POINT_AND_CHIEF = METRIC_OF_POINT | METRIC_OF_CHIEF };

#define METRIC_ROW(ID, NAME, UNIT, KIND, SOURCES, BY_RANK, TAG, HELP)          \
    [METRIC_##ID] = {NAME, UNIT, METRIC_##KIND, SOURCES, BY_RANK, TAG, HELP},
const struct metric_row metric_rows[METRIC_COUNT] = {METRIC_ROWS(METRIC_ROW)};

static bool ends_in_unit(const char *name, const char *unit) {
    size_t length = strlen(name), size = strlen(unit);
    return length >= size && !strcmp(name + length - size, unit);
}

void metric_prometheus_name(enum metric metric, char *name, size_t size) {
    const struct metric_row *row = &metric_rows[metric];
    bool has_unit = ends_in_unit(row->name, row->unit);
    snprintf(name, size, "capstan_%s%s%s%s", row->name, has_unit ? "" : "_",
             has_unit ? "" : row->unit,
             row->kind == METRIC_COUNTER ? "_total" : "");
}
