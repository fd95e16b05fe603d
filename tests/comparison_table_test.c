#include "chief/comparison_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char result[] =
    "{\"job\":\"job.json\",\"rounds\":300,\"repeats\":3,\"samples_per_step\":64,"
    "\"cores\":2,\"equal_seconds\":1.5,\"cases\":["
    "{\"mode\":\"allreduce\",\"workers\":2,\"ps\":0,\"runs\":0,\"error\":"
    "\"it said \\\"no\\\", twice\",\"train_loss\":null,\"test_accuracy\":null,"
    "\"speed_up\":null,\"efficiency\":null},"
    "{\"mode\":\"ps\",\"workers\":2,\"ps\":1,\"runs\":3,"
    "\"examples_per_second\":{\"median\":5000.0,\"min\":4000.0,\"max\":6000.0},"
    "\"steps_per_second\":{\"median\":39.0,\"min\":31.0,\"max\":47.0},"
    "\"bytes_per_step\":10715296.0,\"seconds_per_step\":{\"input\":0.001,"
    "\"compute\":0.01,\"waiting_for_weights\":0.012,"
    "\"waiting_for_gradients\":0.0,\"update\":0.002},\"link_gbits\":1.0,"
    "\"bound_examples_per_second\":5600.0,\"reached\":0.89,"
    "\"predicted_examples_per_second\":5500.0,\"limit\":\"ps link\","
    "\"error\":null,\"train_loss\":0.25,\"test_accuracy\":0.875,"
    "\"speed_up\":1.5,\"efficiency\":0.75}],"
    "\"crossover\":[{\"workers\":2,\"measured_ps\":null,\"predicted_ps\":2}]}";

static char *print(void (*how)(FILE *, const json_t *)) {
    char *text;
    size_t size;
    json_t *object = json_loads(result, 0, NULL);
    FILE *to = open_memstream(&text, &size);
    assert_non_null(object);
    how(to, object);
    fclose(to);
    json_decref(object);
    return text;
}

static void expect(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

static void people_get_a_row_a_case(void **state) {
    (void)state;
    char *text = print(comparison_table_print);
    expect(text, "job.json: 300 rounds of 64 samples a worker; medians of 3 "
                 "runs in turns; 2 cores\n");
    expect(text, "\n      2   - all-reduce   failed: it said \"no\", twice\n");
    expect(text, "\n      2   1 synchronous       5000      4000      6000     "
                 " 5600     89% |   1.00   10.00   12.00      0.00   2.00 |   "
                 "10.72     1.50    75%   0.250   0.8750  ps link\n");
    expect(text, "\nbound with 1 Gbit/s each way a host\n");
    expect(text, "\nloss and accuracy after 1.5 s of training each\n");
    expect(text, "\n2 workers: a round by ps is as fast as all-reduce from 2 "
                 "on by the formulas (of the exchange alone m >= "
                 "n^2/(2(n-1)))\n");
    free(text);
}

static void headings_stand_above_their_columns(void **state) {
    (void)state;
    char *text = print(comparison_table_print);
    const char *heads = strstr(text, "workers  ps");
    const char *row = strstr(text, "      2   1");
    const char *reached = strstr(heads, "reached"),
               *limit = strstr(heads, "limit");
    assert_int_equal(reached + strlen("reached") - heads,
                     strstr(row, "89%") + strlen("89%") - row);
    assert_int_equal(limit - heads, strstr(row, "ps link") - row);
    free(text);
}

static void spreadsheets_get_a_line_a_case(void **state) {
    (void)state;
    char *text = print(comparison_table_csv);
    int commas[3] = {0}, line = 0;
    expect(text, "mode,workers,ps,runs,examples_per_second,");
    expect(text, "\r\n\"allreduce\",2,0,0,,,,");
    expect(text, ",\"\",\"it said \"\"no\"\", twice\"\r\n");
    expect(text, "\r\n\"ps\",2,1,3,5000,4000,6000,39,5600,5500,0.89,0.001,");
    expect(text, ",1.5,0.75,0.25,0.875,\"ps link\",\"\"\r\n");
    bool quoted = false;
    for (const char *at = text; *at && line < 3; at++) {
        quoted ^= *at == '"';
        commas[line] += *at == ',' && !quoted;
        line += *at == '\n';
    }
    assert_int_equal(commas[1], commas[0]);
    assert_int_equal(commas[2], commas[0]);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(people_get_a_row_a_case),
        cmocka_unit_test(headings_stand_above_their_columns),
        cmocka_unit_test(spreadsheets_get_a_line_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
