/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/metric.h"

#include "tests/lib/test.h"

#include <stdlib.h>

static void expect_name(enum metric metric, const char *expected) {
    char name[64];
    metric_prometheus_name(metric, name, sizeof name);
    assert_string_equal(name, expected);
}

TEST(the_name_in_prometheus_has_unit_and_kind) {
    expect_name(METRIC_TRAIN_LOSS, "capstan_train_loss");
    expect_name(METRIC_STEPS, "capstan_steps_total");
    expect_name(METRIC_INPUT_TIME, "capstan_input_time_seconds_total");
    expect_name(METRIC_SENT, "capstan_sent_bytes_total");
    expect_name(METRIC_MEMORY, "capstan_memory_bytes");
    expect_name(METRIC_ROW_BYTES, "capstan_row_bytes");
    expect_name(METRIC_CHECKPOINT_AGE, "capstan_checkpoint_age_seconds");
}

/* promtool's rules: lower case; "_total" is for counters. */
TEST(names_are_their_own_and_of_small_letters) {
    char names[METRIC_COUNT][64];
    for (int m = 0; m < METRIC_COUNT; m++) {
        const struct metric_row *row = &metric_rows[m];
        assert_true(strlen(row->name) < 32 && *row->help && row->sources);
        assert_int_equal(strspn(row->name, "abcdefghijklmnopqrstuvwxyz_"),
                         strlen(row->name));
        metric_prometheus_name(m, names[m], sizeof names[m]);
        for (int other = 0; other < m; other++)
            assert_string_not_equal(names[other], names[m]);
    }
}

/* "chief, trainer" */
static void list_sources(unsigned sources, char *text, size_t size) {
    static const struct {
        unsigned source;
        const char *name;
    } names[] = {{METRIC_OF_POINT, "points"},
                 {METRIC_OF_CHIEF, "chief"},
                 {METRIC_OF_PS, "ps"},
                 {METRIC_OF_TRAINER, "trainer"},
                 {METRIC_OF_PROCESS, "every process"}};
    size_t length = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (sources & names[i].source)
            length += (size_t)snprintf(text + length, size - length, "%s%s",
                                       length ? ", " : "", names[i].name);
}

/* The table of docs/metrics.md; the caller frees it. */
static char *print_table(void) {
    char *text = NULL, name[64], sources[64], tag[64];
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    fprintf(out, "| name | in Prometheus | in TensorBoard | from | what it is "
                 "|\n|---|---|---|---|---|\n");
    for (int m = 0; m < METRIC_COUNT; m++) {
        const struct metric_row *row = &metric_rows[m];
        metric_prometheus_name(m, name, sizeof name);
        list_sources(row->sources, sources, sizeof sources);
        snprintf(tag, sizeof tag, "`%s`", row->tag ? row->tag : "");
        fprintf(out, "| `%s` | `%s` | %s | %s%s | %s |\n", row->name, name,
                row->tag ? tag : "", sources, row->by_rank ? ", by rank" : "",
                row->help);
    }
    fclose(out);
    return text;
}

TEST(the_documentation_has_the_table_of_the_rows) {
    static char page[65536];
    char *table = print_table();
    FILE *file = fopen("docs/metrics.md", "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
    bool found = strstr(page, table);
    if (!found)
        printf("docs/metrics.md does not have this table:\n%s\n", table);
    assert_true(found);
    free(table);
}
