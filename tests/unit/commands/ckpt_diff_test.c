/* SPDX-License-Identifier: Apache-2.0 */

#define STATE const char *dir

#include "commands/ckpt_diff.h"
#include "core/store/checkpoint.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

FIXTURE(checkpoint_fixture_setup_folder, checkpoint_fixture_teardown_folder);

/* What diff of A and B prints, which ends with WANTED; the caller frees it. */
static char *printed(struct ckpt_diff_options options, enum status wanted) {
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    failure = (struct failure){0};
    enum status status = ckpt_diff(&options, to, &failure);
    fclose(to);
    if (status != wanted)
        fail_msg("%d: %s%s", (int)status, failure.text, text);
    assert_true((status == STATUS_CONFIG) == (failure.text[0] != 0));
    return text;
}

static json_t *report_of(const char *a, const char *b, enum status wanted) {
    char *text = printed(
        (struct ckpt_diff_options){.a = a, .b = b, .json = true}, wanted);
    json_t *report = json_loads(text, 0, NULL);
    assert_non_null(report);
    assert_int_equal(strcspn(text, "\n"), strlen(text) - 1);
    assert_true(json_is_true(json_object_get(report, "equal")) == !wanted);
    free(text);
    return report;
}

static const char *step_of(const char *dir, uint64_t step) {
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    return textf("%s", folder);
}

static const char *below(const char *dir, const char *name) {
    return textf("%s/%s", dir, name);
}

/* Item AT of KEY. */
static const json_t *item(const json_t *report, const char *key, size_t at) {
    const json_t *found = json_array_get(json_object_get(report, key), at);
    assert_non_null(found);
    return found;
}

static json_int_t number(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static double real(const json_t *object, const char *key) {
    assert_true(json_is_real(json_object_get(object, key)));
    return json_real_value(json_object_get(object, key));
}

static const char *text_at(const json_t *object, const char *key) {
    assert_true(json_is_string(json_object_get(object, key)));
    return json_string_value(json_object_get(object, key));
}

static bool has_unlike(const json_t *report, const char *name, const char *what,
                       const char *a, const char *b) {
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(report, "unlike"), i,
                       one) if (!strcmp(text_at(one, "name"), name) &&
                                !strcmp(text_at(one, "what"),
                                        what)) return !strcmp(text_at(one, "a"),
                                                              a) &&
        !strcmp(text_at(one, "b"), b);
    return false;
}

/* Neither the number of ps nor the run, nor a job's text makes a difference. */
TEST(checkpoints_on_one_and_three_ps_are_equal) {
    struct manifest manifest;
    checkpoint_fixture_write(below(dir, "one"), 5, 1);
    checkpoint_fixture_manifest(&manifest, 5, 3);
    manifest.run++;
    free(manifest.job);
    manifest.job = strdup("{\"lr\":9}");
    checkpoint_fixture_write_manifest(below(dir, "three"), &manifest);
    json_t *report = report_of(below(dir, "one"), below(dir, "three"), 0);
    assert_int_equal(json_array_size(json_object_get(report, "tensors")), 9);
    assert_int_equal(json_array_size(json_object_get(report, "unlike")), 0);
    assert_int_equal(number(json_object_get(report, "b"), "files"), 3);
    json_decref(report);
    char *text = printed((struct ckpt_diff_options){.a = below(dir, "one"),
                                                    .b = below(dir, "three")},
                         STATUS_OK);
    assert_contains(text, "\nlayer0.weight.a: equal\n");
    assert_contains(text, "\nequal\n");
    free(text);
}

/* Every element of step 5 is 2 less than that of step 7, as far as floats
 * have it. */
TEST(norm_and_largest_difference_are_those_of_a_plain_loop) {
    checkpoint_fixture_write(dir, 5, 1);
    checkpoint_fixture_write(dir, 7, 2);
    json_t *report = report_of(step_of(dir, 5), step_of(dir, 7), 1);
    static const uint64_t elements[] = {60000, 300, 30000};
    for (uint32_t t = 0; t < 9; t++) {
        const json_t *tensor = item(report, "tensors", t);
        const json_t *largest = json_object_get(tensor, "largest");
        double squares = 0, most = -1;
        uint64_t at = 0;
        for (uint64_t e = 0; e < elements[t / 3]; e++) {
            double a = checkpoint_fixture_value(5, t / 3, t % 3, e);
            double b = checkpoint_fixture_value(7, t / 3, t % 3, e);
            squares += (a - b) * (a - b);
            if (fabs(a - b) > most) {
                most = fabs(a - b);
                at = e;
            }
        }
        assert_int_equal(number(tensor, "different"), elements[t / 3]);
        assert_true(real(tensor, "norm") == sqrt(squares));
        assert_true(real(largest, "difference") == most);
        assert_int_equal(number(largest, "element"), at);
        assert_true(real(largest, "a") ==
                    (double)checkpoint_fixture_value(5, t / 3, t % 3, at));
    }
    assert_true(has_unlike(report, "run", "step", "5", "7"));
    assert_true(has_unlike(report, "run", "samples", "320", "448"));
    assert_true(
        has_unlike(report, "layer1.weight", "counted updates", "1", "2"));
    assert_string_equal(text_at(item(report, "tensors", 1), "slot"), "a");
    json_decref(report);
}

TEST(of_a_directory_the_step_or_the_newest_counts) {
    checkpoint_fixture_write(below(dir, "a"), 5, 1);
    checkpoint_fixture_write(below(dir, "a"), 7, 1);
    checkpoint_fixture_write(below(dir, "b"), 5, 1);
    struct ckpt_diff_options options = {.a = below(dir, "a"),
                                        .b = below(dir, "b")};
    char *text = printed(options, STATUS_FAILED);
    assert_contains(text, "a/step-000000007 (step 7, epoch 2, 448 samples)");
    assert_contains(text, "run: step 7 and 5\n");
    assert_contains(text, " at [0, 0]: 7 and 5\n");
    assert_contains(text, "\ndifferent\n");
    free(text);
    options.has_step = true;
    options.step = 5;
    free(printed(options, STATUS_OK));
    options.step = 7;
    free(printed(options, STATUS_CONFIG));
    assert_contains(failure.text, "b has no checkpoint of step 7");
    options.a = step_of(options.b, 5);
    free(printed(options, STATUS_CONFIG));
    assert_contains(failure.text, "another step than --step 7");
}

TEST(a_missing_or_damaged_one_is_an_error) {
    char *path = strdup(below(dir, "b"));
    checkpoint_fixture_write(below(dir, "a"), 5, 1);
    struct ckpt_diff_options options = {.a = below(dir, "a"), .b = path};
    free(printed(options, STATUS_CONFIG));
    assert_contains(failure.text, "cannot open");
    assert_int_equal(checkpoint_make_folder(path, 5, &failure), 0);
    free(printed(options, STATUS_CONFIG));
    assert_contains(failure.text, "no complete checkpoint");
    checkpoint_fixture_write(path, 5, 2);
    free(printed(options, STATUS_OK));
    assert_int_equal(
        truncate(textf("%s/ps-1-of-2-0000000000abcdef.mdb", step_of(path, 5)),
                 5000),
        0);
    free(printed(options, STATUS_CONFIG));
    assert_contains(failure.text, "ps-1-of-2");
    free(path);
}

/* Layers with other names, shapes and optimizers are listed; what both have is
 * compared, also where the blocks have other sizes. */
TEST(models_that_differ_are_listed) {
    static const struct parameter parameters[] = {
        {.name = "new", .num_dims = 2, .dims = {2200, 4000}, .group = 1},
        {.name = "layer0.weight", .num_dims = 2, .dims = {300, 200}},
        {.name = "layer0.bias", .num_dims = 2, .dims = {150, 2}},
    };
    struct manifest manifest;
    checkpoint_fixture_write(below(dir, "a"), 5, 1);
    checkpoint_fixture_manifest(&manifest, 5, 1);
    layout_free(&manifest.layout);
    assert_ok(layout_build(&manifest.layout, parameters, 3, &failure));
    assert_true(manifest.layout->block_elements > 1 << 14);
    free(manifest.block_file);
    manifest.block_file =
        calloc(manifest.layout->num_blocks, sizeof *manifest.block_file);
    manifest.num_rules = 2;
    manifest.rules = realloc(manifest.rules, 2 * sizeof *manifest.rules);
    manifest.rules[1] = (struct manifest_rule){.name = "SGD"};
    strcpy(manifest.rules->name, "Own");
    strcpy(manifest.rules->slot_names[1], "c");
    checkpoint_fixture_write_manifest(below(dir, "b"), &manifest);
    json_t *report = report_of(below(dir, "a"), below(dir, "b"), 1);
    assert_true(has_unlike(report, "layer0.bias", "shape", "[300] float32",
                           "[150, 2] float32"));
    assert_true(
        has_unlike(report, "layer0.weight", "optimizer", "Adam", "Own"));
    const json_t *only = item(report, "only_in_a", 0);
    assert_string_equal(text_at(only, "name"), "layer0.weight");
    assert_string_equal(text_at(only, "slot"), "b");
    assert_string_equal(text_at(item(report, "only_in_a", 1), "name"),
                        "layer1.weight");
    assert_string_equal(text_at(item(report, "only_in_b", 0), "slot"), "c");
    assert_string_equal(text_at(item(report, "only_in_b", 1), "name"), "new");
    /* It is parameter 0 there and 1 here: each element has 100 more. */
    const json_t *weights = item(report, "tensors", 0);
    assert_int_equal(number(weights, "different"), 60000);
    assert_true(fabs(real(weights, "norm") - 100 * sqrt(60000)) < 1e-6);
    json_decref(report);
}

TEST(rows_are_matched_by_id_on_any_number_of_ps) {
    checkpoint_fixture_write_tables(below(dir, "a"), 5, 1, 16);
    checkpoint_fixture_write_tables(below(dir, "b"), 5, 3, 16);
    json_t *report = report_of(below(dir, "a"), below(dir, "b"), 0);
    const json_t *e1 = item(report, "tables", 0);
    assert_int_equal(number(json_object_get(e1, "rows"), "a"), 20000);
    assert_int_equal(number(item(e1, "tensors", 2), "elements"), 60000);
    json_decref(report);
    checkpoint_fixture_write_tables(below(dir, "c"), 5, 2, 8);
    report = report_of(below(dir, "a"), below(dir, "c"), 0);
    assert_int_equal(json_array_size(json_object_get(report, "unlike")), 0);
    assert_true(
        json_is_true(json_object_get(item(report, "tables", 2), "equal")));
    json_decref(report);
    /* Each partition has counted the updates of its step. */
    checkpoint_fixture_write_tables(below(dir, "d"), 6, 2, 8);
    report = report_of(below(dir, "a"), below(dir, "d"), 1);
    assert_true(has_unlike(report, "tables", "counted updates", "5", "6"));
    json_decref(report);
}

/* A delta has the rows of its base but for those that it removed. */
TEST(a_delta_is_compared_with_its_base) {
    unsigned removed = 0;
    for (uint32_t i = 0; i < CHECKPOINT_FIXTURE_IDS; i++)
        removed += checkpoint_fixture_is_removed(i);
    checkpoint_fixture_write_tables(dir, 5, 1, 4);
    checkpoint_fixture_write_delta(dir, 8, 2, 5);
    json_t *report = report_of(step_of(dir, 5), step_of(dir, 8), 1);
    const json_t *e1 = item(report, "tables", 0);
    assert_int_equal(number(json_object_get(report, "b"), "base"), 5);
    assert_int_equal(number(e1, "only_in_a"), removed);
    assert_int_equal(number(e1, "only_in_b"), 0);
    assert_int_equal(number(json_object_get(e1, "rows"), "b"), 20000 - removed);
    assert_int_equal(number(e1, "different"), 0);
    assert_int_equal(number(e1, "counts_differ"), 0);
    json_decref(report);
    report = report_of(step_of(dir, 8), step_of(dir, 5), 1);
    e1 = item(report, "tables", 0);
    assert_int_equal(number(e1, "only_in_a"), 0);
    assert_int_equal(number(e1, "only_in_b"), removed);
    assert_int_equal(number(e1, "different"), 0);
    json_decref(report);
}
