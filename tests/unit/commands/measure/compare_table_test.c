/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_table.h"

#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

static const char result[] =
    "{\"job\":\"job.json\",\"rounds\":300,\"repeats\":3,\"samples_per_step\":64,"
    "\"cores\":2,\"unit\":\"examples\",\"equal_seconds\":1.5,\"cases\":["
    "{\"mode\":\"allreduce\",\"workers\":2,\"ps\":0,\"runs\":0,\"error\":"
    "\"it said \\\"no\\\", twice\",\"train_loss\":null,\"test_accuracy\":null,"
    "\"speed_up\":null,\"efficiency\":null},"
    "{\"mode\":\"ps\",\"workers\":2,\"ps\":1,\"runs\":3,\"processes\":3,"
    "\"examples_per_second\":{\"median\":5000.0,\"min\":4000.0,\"max\":6000.0,"
    "\"mean\":5010.0,\"spread\":2500.0},\"diverged\":false,"
    "\"steps_per_second\":{\"median\":39.0,\"min\":31.0,\"max\":47.0},"
    "\"bytes_per_step\":10715296.0,\"seconds_per_step\":{\"input\":0.001,"
    "\"compute\":0.01,\"waiting_for_weights\":0.012,"
    "\"waiting_for_gradients\":0.0,\"update\":0.002},\"link_gbits\":1.0,"
    "\"bound_examples_per_second\":5600.0,\"reached\":0.89,"
    "\"predicted_examples_per_second\":5500.0,\"limit\":\"ps link\","
    "\"error\":null,\"train_loss\":0.25,\"test_accuracy\":0.875,"
    "\"speed_up\":1.5,\"ideal_speed_up\":2,\"efficiency\":0.75}],"
    "\"crossover\":[{\"workers\":2,\"measured_ps\":null,\"predicted_ps\":2,"
    "\"measured_answer\":\"no difference beyond the spread: all-reduce 93k ± "
    "22 "
    "%, 1 ps 93.4k ± 14 % examples/s; add --repeats\","
    "\"predicted_answer\":\"with 1 ps both are equally fast\"}]}";

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
    assert_contains(text, part);
}

TEST(the_table_has_a_row_for_each_case) {
    char *text = print(compare_table_print);
    expect(text, "job.json: 300 rounds of 64 samples a worker; means of 3 "
                 "runs in turns; 2 cores\n");
    expect(text, "\n      2   - all-reduce   failed: it said \"no\", twice\n");
    expect(text, "\n      2   1 synchronous      5010     4000     6000     "
                 "5600     89%   0.250   0.8750  ps link\n");
    expect(text, "\n      2   1 synchronous     1.00   10.00   12.00      0.00 "
                 "  2.00    10.72     1.50     2    75%\n");
    expect(text, "\nbound with 1 Gbit/s in each direction per host\n");
    expect(text, "\nloss and accuracy after 1.5 s of training each\n");
    expect(text, "\n2 workers, measured, by means and their 95 % intervals: no "
                 "difference beyond the spread: all-reduce\n    93k ± 22 %, 1 "
                 "ps 93.4k ± 14 % examples/s; add --repeats\n2 workers, "
                 "predicted: with 1 ps both are equally fast\n");
    free(text);
}

/* The table of OBJECT, which it takes. */
static char *print_object(json_t *object) {
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(object);
    compare_table_print(to, object);
    fclose(to);
    json_decref(object);
    return text;
}

static char *print_with(const char *key, json_t *value) {
    json_t *object = json_loads(result, 0, NULL);
    json_object_set_new(object, key, value);
    return print_object(object);
}

TEST(what_a_command_does_not_report_is_said) {
    static const char reports_all[] =
        "{\"command\":\"python train.py\",\"rounds\":null,\"repeats\":3,"
        "\"samples_per_step\":32,\"unit\":\"examples\",\"equal_seconds\":2.0}";
    static const char reports_none[] =
        "{\"command\":\"python train.py\",\"rounds\":50,\"repeats\":3,"
        "\"samples_per_step\":null,\"unit\":\"steps\",\"equal_seconds\":null}";
    char *text = print_object(json_loads(reports_all, 0, NULL));
    expect(text, "python train.py: its own steps, of 32 samples a worker; "
                 "means of 3 runs");
    expect(text, " examples/s ");
    expect(text, "\nloss after 2 s of training each\n");
    free(text);
    text = print_object(json_loads(reports_none, 0, NULL));
    expect(text, "python train.py: 50 rounds; means of 3 runs");
    expect(text, " steps/s ");
    expect(text, "\nthe command reports no samples: a rate counts the steps of "
                 "all workers\n");
    expect(text, "\nthe command reports no loss: none is compared\n");
    free(text);
}

TEST(a_large_loss_keeps_its_column) {
    json_t *object = json_loads(result, 0, NULL);
    json_t *cases = json_incref(json_object_get(object, "cases"));
    json_decref(object);
    json_object_set_new(json_array_get(cases, 1), "train_loss",
                        json_real(3.98394609e34));
    char *text = print_with("cases", cases);
    expect(text, " 89% >999999   0.8750  ps link\n");
    free(text);
}

TEST(a_diverged_run_is_marked) {
    char *text = print(compare_table_print);
    assert_null(strstr(text, "diverged"));
    free(text);
    json_t *object = json_loads(result, 0, NULL);
    json_t *cases = json_incref(json_object_get(object, "cases"));
    json_decref(object);
    for (size_t i = 0; i < 2; i++)
        json_object_set_new(json_array_get(cases, i), "diverged", json_true());
    text = print_with("cases", cases);
    expect(text,
           "\n      2   - all-reduce   diverged: it said \"no\", twice\n");
    expect(text, " 89%   0.250!  0.8750  ps link\n");
    expect(text, "\n! diverged: the loss is NaN\n");
    free(text);
}

TEST(shared_cores_and_a_missing_link_are_noted) {
    static const char more[] = "up to 3 processes (workers and ps) share 2 "
                               "cores";
    char *text = print_with("assumed_link_gbits", json_real(0.1));
    expect(text, more);
    expect(text, "--link-gbits 0.1 does not apply to processes of one machine");
    free(text);
    text = print_with("cores", json_integer(3));
    assert_null(strstr(text, "up to 3 processes"));
    assert_null(strstr(text, "--link-gbits 0.1"));
    expect(text, "; 3 cores\n");
    free(text);
    text = print_with("cores", json_null());
    assert_null(strstr(text, "up to 3 processes"));
    expect(text, "; across a cluster\n");
    free(text);
}

TEST(workers_of_one_gpu_are_noted) {
    json_t *object = json_loads(result, 0, NULL);
    json_t *cases = json_incref(json_object_get(object, "cases"));
    json_t *last = json_array_get(cases, 1);
    json_decref(object);
    json_object_set_new(last, "replicas", json_integer(4));
    json_object_set_new(last, "devices", json_integer(4));
    char *text = print_with("cases", json_deep_copy(cases));
    assert_null(strstr(text, "GPU"));
    free(text);
    json_object_set_new(last, "devices", json_integer(1));
    text = print_with("cases", cases);
    expect(text, "\nup to 4 workers share 1 GPU and slow each other down");
    free(text);
}

/* Where the last letter of WORD stands in its line. */
static long end_of(const char *line, const char *word) {
    const char *found = strstr(line, word);
    if (!found)
        fail_msg("'%s' is not in:\n%s", word, line);
    return found - line + (long)strlen(word);
}

TEST(headings_stand_above_their_columns) {
    char *text = print(compare_table_print);
    const char *heads = strstr(text, "workers  ps");
    const char *row = strstr(text, "      2   1");
    assert_int_equal(end_of(heads, "reached"), end_of(row, "89%"));
    assert_int_equal(end_of(heads, "accuracy"), end_of(row, "0.8750"));
    assert_int_equal(end_of(heads, " limit") + 2, end_of(row, "ps link"));
    heads = strstr(heads + 1, "workers  ps");
    row = strstr(row + 1, "      2   1");
    assert_int_equal(end_of(heads, "compute"), end_of(row, "10.00"));
    assert_int_equal(end_of(heads, "update"), end_of(row, " 2.00"));
    assert_int_equal(end_of(heads, "ideal"), end_of(row, "1.50     2"));
    assert_int_equal(end_of(heads, "T1/nTn"), end_of(row, "75%"));
    free(text);
}

/* Of the widest figures there may be, and the longest name of a limit. */
TEST(no_line_is_wider_than_100_columns) {
    char *text;
    size_t size;
    json_t *object = json_loads(result, 0, NULL);
    json_t *cases = json_object_get(object, "cases");
    json_t *measured = json_array_get(cases, 1);
    FILE *to = open_memstream(&text, &size);
    json_object_set_new(object, "job",
                        json_string("a/folder/of/jobs/with/long/names.json"));
    json_object_set_new(measured, "limit", json_string("ps arithmetic"));
    json_object_set_new(json_object_get(measured, "examples_per_second"),
                        "mean", json_real(99999999));
    json_object_set_new(
        json_array_get(cases, 0), "error",
        json_string("optimizer.params.lr: found \"fast\" (a string); allowed: "
                    "a number, at least 0; and more of the kind that a case "
                    "can fail for, over several lines"));
    compare_table_print(to, object);
    fclose(to);
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        if (length > 100)
            fail_msg("%zu columns: %.*s", length, (int)length, line);
        line += length + (line[length] == '\n');
    }
    expect(text, "\n                         least 0; and more");
    json_decref(object);
    free(text);
}

TEST(models_of_two_classes_show_their_auc) {
    char *text;
    size_t size;
    json_t *object = json_loads(result, 0, NULL);
    json_t *one = json_array_get(json_object_get(object, "cases"), 1);
    json_object_set_new(one, "test_auc", json_real(0.75));
    json_object_set_new(one, "test_logloss", json_real(0.5));
    FILE *to = open_memstream(&text, &size);
    compare_table_print(to, object);
    compare_table_csv(to, object);
    fclose(to);
    expect(text, " loss      AUC  limit\n");
    expect(text, " 0.250   0.7500  ps link\n");
    expect(text, "loss and AUC after 1.5 s of training each\n");
    expect(text, ",\"ps link\",\"\",0.75,0.5\r\n");
    json_decref(object);
    free(text);
}

/* Accuracies of five cases, the last but one of a diverged one. */
TEST(an_accuracy_far_from_the_others_is_marked) {
    static const double accuracies[] = {0.82, 0.83, 0.231, 0.1, 0.79};
    json_t *object = json_loads(result, 0, NULL);
    json_t *cases = json_object_get(object, "cases");
    json_t *one = json_deep_copy(json_array_get(cases, 1));
    json_array_clear(cases);
    for (size_t i = 0; i < sizeof accuracies / sizeof *accuracies; i++) {
        json_array_append_new(cases, json_deep_copy(one));
        json_object_set_new(json_array_get(cases, i), "test_accuracy",
                            json_real(accuracies[i]));
    }
    json_object_set_new(json_array_get(cases, 3), "diverged", json_true());
    json_decref(one);
    char *text = print_object(object);
    expect(text, " 0.250   0.8200  ps");
    expect(text, " 0.250*  0.2310  ps");
    expect(text, " 0.250!  0.1000  ps");
    expect(text, " 0.250   0.7900  ps");
    expect(text,
           "\n* its accuracy is more than 0.05 from the median of the others'");
    free(text);
}

TEST(no_number_has_an_exponent) {
    static const struct {
        double value;
        int digits;
        const char *text;
    } numbers[] = {
        {1600, 3, "1600"},
        {1.0, 3, "1"},
        {0.607, 3, "0.607"},
        {102400, 4, "102400"},
        {1.2345, 3, "1.23"},
        {99.996, 4, "100"},
        {0.00012345, 2, "0.00012"},
        {12345.6, 4, "12346"},
        {0, 4, "0"},
        {20, 4, "20"},
        {-0.5, 2, "-0.5"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[COMPARE_TABLE_DIGITS];
        compare_table_digits(text, numbers[i].digits, numbers[i].value);
        assert_string_equal(text, numbers[i].text);
    }
    json_t *object = json_loads(result, 0, NULL);
    json_t *one = json_array_get(json_object_get(object, "cases"), 1);
    json_object_set_new(one, "train_loss", json_real(3.2e25));
    json_object_set_new(one, "link_gbits", json_real(1600));
    char *text = print_object(object);
    expect(text, " >999999 ");
    expect(text, "\nbound with 1600 Gbit/s in each direction per host\n");
    free(text);
}

TEST(csv_has_a_line_for_each_case) {
    char *text = print(compare_table_csv);
    int commas[3] = {0}, line = 0;
    expect(text, "mode,workers,ps,runs,examples_per_second,");
    expect(text, "\r\n\"allreduce\",2,0,0,,,,");
    expect(text, ",\"\",\"it said \"\"no\"\", twice\",,\r\n");
    expect(text, "\r\n\"ps\",2,1,3,5000,4000,6000,39,5600,5500,0.89,0.001,");
    expect(text, ",1.5,2,0.75,0.25,0.875,5010,2500,0,\"ps link\",\"\",,\r\n");
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
