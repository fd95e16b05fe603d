/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of features against hashes that are computed here, and against some that
 * Python's xxhash gave. */
#define STATE struct fixture *fixture

#include "worker/data/features.h"

#include "tests/lib/test.h"

#include <math.h>
#include <xxhash.h>

enum { SAMPLES = 8, COLUMNS = 3 };

static const char *const columns[COLUMNS] = {"a", "b", "c"};

/* Features, and the ids of one of them. */
struct fixture {
    struct features *features;
    struct record_text texts[COLUMNS];
    struct record_cell cells[COLUMNS];
    uint32_t offsets[SAMPLES + 1];
    struct batch_ids ids;
    uint32_t samples;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->ids.offsets = fixture->offsets;
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    features_close(&fixture->features);
    free(fixture->ids.ids);
    free(fixture->ids.weights);
    free(fixture);
}

FIXTURE(setup, teardown);

static void open_features(struct fixture *fixture, const char *text) {
    assert_ok(features_open(&fixture->features, text, columns, COLUMNS, NULL,
                            &failure));
}

/* The ids of the feature NAME for the next sample, whose cells are FIXTURE's.
 */
static enum status add_sample(struct fixture *fixture, const char *name) {
    const struct record_cell *read[COLUMNS];
    uint32_t count;
    const char *const *names = features_columns(fixture->features, &count);
    uint32_t f = features_find(fixture->features, name);
    assert_int_not_equal(f, UINT32_MAX);
    for (uint32_t c = 0; c < count; c++)
        read[c] = &fixture->cells[names[c][0] - 'a'];
    return features_ids(fixture->features, f, read, &fixture->ids,
                        fixture->samples, &failure);
}

/* TEXTS for a, b and c; "" is missing. */
static void put_texts(struct fixture *fixture, const char *const *texts) {
    for (int c = 0; c < COLUMNS; c++) {
        fixture->texts[c] = (struct record_text){texts[c], strlen(texts[c])};
        fixture->cells[c] = (struct record_cell){.type = RECORD_TEXTS,
                                                 .count = *texts[c] != 0,
                                                 .texts = &fixture->texts[c]};
    }
}

static void assert_ids(struct fixture *fixture, const char *name,
                       const uint64_t *expected, uint32_t count) {
    assert_ok(add_sample(fixture, name));
    const uint32_t *offsets = &fixture->offsets[fixture->samples++];
    assert_int_equal(offsets[1] - offsets[0], count);
    for (uint32_t i = 0; i < count; i++)
        if (fixture->ids.ids[offsets[0] + i] != expected[i])
            fail_msg("%s, id %u: found %llu, expected %llu", name, i,
                     (unsigned long long)fixture->ids.ids[offsets[0] + i],
                     (unsigned long long)expected[i]);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__})
#define IDS(...) ((const uint64_t[]){__VA_ARGS__})

static uint64_t hash_of(const char *feature, const void *bytes, size_t size) {
    return XXH3_64bits_withSeed(bytes, size,
                                XXH3_64bits(feature, strlen(feature)));
}

static uint64_t word_hash(const char *feature, const char *word) {
    return hash_of(feature, word, strlen(word));
}

TEST(a_hash_is_that_of_the_value_and_the_features_name) {
    open_features(fixture,
                  "{\"a\": {\"type\": \"hash_bucket\"}, \"n\": {\"type\":"
                  " \"hash_bucket\", \"of\": \"b\", \"size\": 1e3}}");
    put_texts(fixture, TEXTS("68fd1e64", "x", ""));
    assert_ids(fixture, "a", IDS(UINT64_C(7276398754647195080)), 1);
    assert_ids(fixture, "n", IDS(word_hash("n", "x") % 1000), 1);
    put_texts(fixture, TEXTS("caf\xc3\xa9", "", ""));
    assert_ids(fixture, "a", IDS(UINT64_C(3934426723544600744)), 1);
    assert_ids(fixture, "n", NULL, 0);
}

TEST(ids_are_the_hash_modulo_any_size) {
    static const uint64_t sizes[] = {1,           2,          3,
                                     1000000,     1u << 31,   UINT32_MAX,
                                     0x100000001, 1ull << 62, INT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[96];
        snprintf(text, sizeof text,
                 "{\"a\": {\"type\": \"hash_bucket\", \"size\": %llu}}",
                 (unsigned long long)sizes[i]);
        open_features(fixture, text);
        for (int word = 0; word < 1000; word++) {
            fixture->samples = 0;
            snprintf(text, sizeof text, "%d", word);
            put_texts(fixture, TEXTS(text, "", ""));
            assert_ids(fixture, "a", IDS(word_hash("a", text) % sizes[i]), 1);
        }
        features_close(&fixture->features);
    }
}

TEST(integers_are_hashed_in_decimal) {
    const int64_t numbers[] = {-7, 0, INT64_MIN, INT64_MAX};
    open_features(fixture, "{\"a\": {\"type\": \"hash_bucket\"}}");
    fixture->cells[0] = (struct record_cell){
        .type = RECORD_INTEGERS, .count = 4, .integers = numbers};
    assert_ids(fixture, "a",
               IDS(UINT64_C(2479976608229618176), word_hash("a", "0"),
                   word_hash("a", "-9223372036854775808"),
                   word_hash("a", "9223372036854775807")),
               4);
}

TEST(an_empty_value_of_a_list_gives_no_id) {
    const struct record_text words[] = {{"x", 1}, {"", 0}, {"x", 1}};
    open_features(fixture, "{\"a\": {\"type\": \"hash_bucket\"}}");
    fixture->cells[0] =
        (struct record_cell){.type = RECORD_TEXTS, .count = 3, .texts = words};
    assert_ids(fixture, "a", IDS(word_hash("a", "x"), word_hash("a", "x")), 2);
}

TEST(words_and_buckets_are_ids_as_well) {
    open_features(
        fixture,
        "{\"v\": {\"type\": \"vocabulary\", \"of\": \"a\", \"values\":"
        " [\"red\", \"blue\"]}, \"k\": {\"type\": \"bucketized\","
        " \"of\": \"b\", \"boundaries\": [0, 10], \"default_value\": 11}}");
    put_texts(fixture, TEXTS("blue", "10", ""));
    assert_ids(fixture, "v", IDS(1), 1);
    assert_ids(fixture, "k", IDS(2), 1);
    put_texts(fixture, TEXTS("green", "-1", ""));
    assert_ids(fixture, "v", NULL, 0);
    assert_ids(fixture, "k", IDS(0), 1);
    put_texts(fixture, TEXTS("", "", ""));
    assert_ids(fixture, "v", NULL, 0);
    assert_ids(fixture, "k", IDS(2), 1);
    assert_int_equal(features_info(fixture->features, 0).gives,
                     FEATURE_FLOATS | FEATURE_IDS);
}

TEST(a_missing_number_has_no_bucket) {
    open_features(fixture,
                  "{\"k\": {\"type\": \"bucketized\", \"of\": \"b\","
                  " \"boundaries\": [-1, 10]}, \"axk\": {\"type\":"
                  " \"crossed\", \"of\": [\"a\", \"k\"], \"size\": 1000}}");
    put_texts(fixture, TEXTS("x", "", ""));
    assert_ids(fixture, "k", NULL, 0);
    assert_ids(fixture, "axk", NULL, 0);
    put_texts(fixture, TEXTS("x", "0", ""));
    assert_ids(fixture, "k", IDS(1), 1);
}

TEST(an_identity_is_the_value_itself) {
    const int64_t negative = -1;
    open_features(fixture, "{\"a\": {\"type\": \"identity\"}, \"b\": {\"type\":"
                           " \"identity\", \"size\": 10}}");
    put_texts(fixture, TEXTS("18446744073709551615", "9", ""));
    assert_ids(fixture, "a", IDS(UINT64_MAX), 1);
    assert_ids(fixture, "b", IDS(9), 1);
    put_texts(fixture, TEXTS("-1", "10", ""));
    assert_error(add_sample(fixture, "a"), FAILURE_DATA_DAMAGED);
    assert_string_equal(failure.text,
                        "column a: found \"-1\", expected an id from 0 to "
                        "18446744073709551615");
    assert_error(add_sample(fixture, "b"), FAILURE_DATA_DAMAGED);
    assert_string_equal(failure.text,
                        "column b: found \"10\", expected an id from 0 to 9");
    fixture->cells[0] = fixture->cells[1] = (struct record_cell){
        .type = RECORD_INTEGERS, .count = 1, .integers = &negative};
    assert_ids(fixture, "a", IDS(UINT64_MAX), 1);
    assert_error(add_sample(fixture, "b"), FAILURE_DATA_DAMAGED);
}

TEST(a_cross_hashes_its_parts_ids_before_any_modulo) {
    open_features(
        fixture,
        "{\"axb\": {\"type\": \"crossed\", \"of\": [\"a\", \"b\"], \"size\":"
        " 1000}, \"a\": {\"type\": \"hash_bucket\", \"size\": 2}}");
    put_texts(fixture, TEXTS("68fd1e64", "x", ""));
    assert_ids(fixture, "axb", IDS(480), 1); /* from Python */
    assert_ids(fixture, "a", IDS(UINT64_C(7276398754647195080) % 2), 1);
    put_texts(fixture, TEXTS("68fd1e64", "", ""));
    assert_ids(fixture, "axb", NULL, 0);
}

TEST(a_cross_has_all_combinations_of_its_parts) {
    const struct record_text a[] = {{"x", 1}, {"y", 1}}, b[] = {{"2", 1}};
    const int64_t c[] = {5, 6, 7};
    const uint64_t size = UINT64_C(1) << 62;
    uint64_t expected[6];
    open_features(
        fixture,
        "{\"all\": {\"type\": \"crossed\", \"of\": [\"a\", \"k\", \"inner\"],"
        " \"size\": 4611686018427387904}, \"k\": {\"type\": \"bucketized\","
        " \"of\": \"b\", \"boundaries\": [0, 1]}, \"inner\": {\"type\":"
        " \"crossed\", \"of\": [\"c\", \"k\"], \"size\": 3}}");
    fixture->cells[0] = (struct record_cell){RECORD_TEXTS, 2, .texts = a};
    fixture->cells[1] = (struct record_cell){RECORD_TEXTS, 1, .texts = b};
    fixture->cells[2] = (struct record_cell){RECORD_INTEGERS, 3, .integers = c};
    for (int i = 0; i < 6; i++) {
        const uint64_t inner[] = {
            hash_of("c", (char[]){(char)('5' + i % 3)}, 1), 2};
        const uint64_t parts[] = {hash_of("a", a[i / 3].bytes, 1), 2,
                                  hash_of("inner", inner, sizeof inner)};
        expected[i] = hash_of("all", parts, sizeof parts) % size;
    }
    assert_ids(fixture, "all", expected, 6);
    assert_ids(fixture, "all", expected, 6);
}

TEST(a_cross_of_too_many_combinations_is_refused) {
    static int64_t many[1 << 16];
    open_features(fixture, "{\"x\": {\"type\": \"crossed\", \"of\": [\"a\","
                           " \"b\"], \"size\": 10}}");
    fixture->cells[0] =
        (struct record_cell){RECORD_INTEGERS, 1 << 15, .integers = many};
    fixture->cells[1] =
        (struct record_cell){RECORD_INTEGERS, 2, .integers = many};
    assert_ok(add_sample(fixture, "x"));
    assert_int_equal(fixture->offsets[1], 1 << 16);
    fixture->cells[1].count = 3;
    assert_error(add_sample(fixture, "x"), FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "feature x");
    fixture->cells[1].count = 0;
    assert_ids(fixture, "x", NULL, 0);
}

TEST(pairs_keep_their_weights) {
    const int64_t keys[] = {3, -1};
    const float weights[] = {0.5f, -2};
    assert_ok(features_open_pairs(
        &fixture->features,
        "{\"x\": {\"type\": \"identity\", \"of\": \"a\"}, \"h\": {\"type\":"
        " \"hash_bucket\", \"of\": \"a\", \"size\": 100}, \"xx\": {"
        "\"type\": \"crossed\", \"of\": [\"a\", \"x\"], \"size\": 9}}",
        "a", &failure));
    fixture->cells[0] = (struct record_cell){RECORD_PAIRS, 2, .integers = keys,
                                             .floats = weights};
    assert_true(features_info(fixture->features, 0).weighted);
    assert_true(features_info(fixture->features, 1).weighted);
    assert_false(features_info(fixture->features, 2).weighted);
    assert_ids(fixture, "x", IDS(3, UINT64_MAX), 2);
    assert_ids(fixture, "h",
               IDS(word_hash("h", "3") % 100,
                   word_hash("h", "18446744073709551615") % 100),
               2);
    for (int i = 0; i < 4; i++)
        assert_true(fixture->ids.weights[i] == weights[i % 2]);
    free(fixture->ids.weights);
    fixture->ids = (struct batch_ids){.offsets = fixture->ids.offsets,
                                      .ids = fixture->ids.ids};
    assert_ok(add_sample(fixture, "xx"));
    assert_null(fixture->ids.weights);
}

TEST(pairs_without_features_are_one_of_their_own) {
    assert_ok(features_open_pairs(&fixture->features, NULL, "x", &failure));
    assert_int_equal(features_count(fixture->features), 1);
    assert_int_equal(features_width(fixture->features), 0);
    struct feature_info info = features_info(fixture->features, 0);
    assert_string_equal(info.name, "x");
    assert_int_equal(info.gives, FEATURE_IDS);
    assert_true(info.weighted);
    features_close(&fixture->features);
    assert_error(features_open_pairs(&fixture->features,
                                     "{\"x\": {\"type\": \"numeric\"}}", "x",
                                     &failure),
                 FAILURE_JOB_INVALID);
}

/* What was there before the sample stays as it was. */
TEST(a_sample_that_fails_leaves_no_ids) {
    const float number = 1;
    open_features(fixture, "{\"x\": {\"type\": \"crossed\", \"of\": [\"a\","
                           " \"b\"], \"size\": 10000}}");
    put_texts(fixture, TEXTS("p", "q", ""));
    assert_ok(add_sample(fixture, "x"));
    uint64_t first = fixture->ids.ids[0];
    fixture->samples = 1;
    fixture->cells[1] =
        (struct record_cell){RECORD_FLOATS, 1, .floats = &number};
    assert_error(add_sample(fixture, "x"), FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "column b");
    put_texts(fixture, TEXTS("p", "q", ""));
    assert_ids(fixture, "x", &first, 1);
    assert_int_equal(fixture->offsets[2], 2);
}

TEST(an_embeddings_rows_begin_as_it_says) {
    open_features(fixture,
                  "{\"a\": {\"type\": \"identity\"}, \"e\": {\"type\":"
                  " \"embedding\", \"of\": \"a\", \"dim\": 16, \"init\":"
                  " {\"type\": \"normal\", \"mean\": 1, \"std\": 0.5}}}");
    struct initializer init = features_info(fixture->features, 1).init;
    assert_int_equal(init.kind, INITIALIZER_NORMAL);
    assert_true(init.shift == 1 && init.bound == 0.5f);
}

TEST(an_embedding_names_ids_and_its_table) {
    open_features(
        fixture,
        "{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 16},"
        " \"f\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4,"
        " \"combiner\": \"sqrtn\", \"init_range\": 0, \"admit\": {\"count\":"
        " 3}, \"expire\": {\"steps\": 100000}, \"max_rows\": 1e9},"
        " \"a\": {\"type\": \"hash_bucket\", \"admit\": {\"count\": 2},"
        " \"expire\": {\"steps\": 7}, \"max_rows\": 8}}");
    struct feature_info e = features_info(fixture->features, 0);
    struct feature_info f = features_info(fixture->features, 1);
    struct feature_info a = features_info(fixture->features, 2);
    assert_int_equal(features_width(fixture->features), 0);
    assert_int_equal(e.gives, FEATURE_ROWS);
    assert_int_equal(e.width, 16);
    assert_int_equal(e.of, 2);
    assert_int_equal(e.combiner, BATCH_MEAN);
    assert_true(e.init.bound == 0.25f);
    assert_int_equal(e.admit + e.expire + e.max_rows, 0);
    assert_int_equal(f.combiner, BATCH_SQRTN);
    assert_true(f.init.bound == 0);
    assert_int_equal(f.admit, 3);
    assert_int_equal(f.expire, 100000);
    assert_int_equal(f.max_rows, 1000000000);
    assert_int_equal(a.gives, FEATURE_IDS);
    assert_int_equal(a.admit, 2);
    assert_int_equal(a.expire, 7);
    assert_int_equal(a.max_rows, 8);
}

TEST(what_limits_ids_says_how_many_there_are) {
    static const uint64_t expected[] = {0, 9, 5, 0, 7, 2, 3};
    open_features(
        fixture,
        "{\"any\": {\"type\": \"hash_bucket\", \"of\": \"a\"},"
        " \"nine\": {\"type\": \"hash_bucket\", \"of\": \"a\", \"size\": 9},"
        " \"five\": {\"type\": \"identity\", \"of\": \"a\", \"size\": 5},"
        " \"all\": {\"type\": \"identity\", \"of\": \"a\"},"
        " \"cross\": {\"type\": \"crossed\", \"of\": [\"any\", \"nine\"],"
        " \"size\": 7},"
        " \"words\": {\"type\": \"vocabulary\", \"of\": \"a\", \"values\":"
        " [\"x\", \"y\"]},"
        " \"ages\": {\"type\": \"bucketized\", \"of\": \"b\","
        " \"boundaries\": [1, 2]}}");
    for (uint32_t f = 0; f < 7; f++)
        assert_int_equal(features_info(fixture->features, f).num_ids,
                         expected[f]);
}

TEST(wrong_settings_of_ids_are_refused) {
    static const struct {
        const char *text, *said;
    } wrong[] = {
        {"{\"a\": {\"type\": \"hash_bucket\", \"size\": 0}}",
         "features.a.size: found 0"},
        {"{\"a\": {\"type\": \"hash_bucket\", \"size\": 1.5}}",
         "features.a.size: found 1.5"},
        {"{\"a\": {\"type\": \"hash_bucket\", \"dim\": 4}}",
         "features.a.dim: unknown key"},
        {"{\"a\": {\"type\": \"hash_bucket\", \"admit\": 3}}",
         "features.a.admit: found 3"},
        {"{\"a\": {\"type\": \"hash_bucket\", \"admit\": {\"count\": 65536}}}",
         "features.a.admit.count: found 65536"},
        {"{\"a\": {\"type\": \"identity\", \"expire\": {\"count\": 5}}}",
         "features.a.expire: found"},
        {"{\"z\": {\"type\": \"hash_bucket\"}}", "features.z: found"},
        {"{\"x\": {\"type\": \"crossed\", \"of\": [\"a\", \"b\"]}}",
         "features.x.size: missing"},
        {"{\"x\": {\"type\": \"crossed\", \"of\": [\"a\"], \"size\": 9}}",
         "features.x.of: found [\"a\"]"},
        {"{\"x\": {\"type\": \"crossed\", \"of\": [\"a\", \"z\"],"
         " \"size\": 9}}",
         "features.x.of: found \"z\" (a string); allowed: a feature that gives "
         "ids, or a column: a, b, c"},
        {"{\"x\": {\"type\": \"crossed\", \"of\": [\"a\", \"y\"], \"size\": 9},"
         " \"y\": {\"type\": \"crossed\", \"of\": [\"x\", \"b\"], \"size\":"
         " 9}}",
         "none that contains itself"},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4}}",
         "features.e.of: found \"a\""},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4},"
         " \"a\": {\"type\": \"numeric\"}}",
         "features.e.of: found \"a\""},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\"},"
         " \"a\": {\"type\": \"identity\"}}",
         "features.e.dim: missing"},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4097},"
         " \"a\": {\"type\": \"identity\"}}",
         "features.e.dim: found 4097"},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4,"
         " \"combiner\": \"max\"}, \"a\": {\"type\": \"identity\"}}",
         "features.e.combiner: found \"max\""},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4,"
         " \"init_range\": -1}, \"a\": {\"type\": \"identity\"}}",
         "features.e.init_range: found -1"},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4,"
         " \"init\": \"he_normal\"}, \"a\": {\"type\": \"identity\"}}",
         "features.e.init: found \"he_normal\""},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4,"
         " \"init\": \"zeros\", \"init_range\": 1}, \"a\": {\"type\":"
         " \"identity\"}}",
         "features.e.init_range: found 1"},
        {"{\"e\": {\"type\": \"embedding\", \"of\": \"a\", \"dim\": 4},"
         " \"a\": {\"type\": \"identity\"}, \"x\": {\"type\": \"crossed\","
         " \"of\": [\"e\", \"a\"], \"size\": 9}}",
         "features.x.of: found \"e\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_error(features_open(&fixture->features, wrong[i].text, columns,
                                   COLUMNS, NULL, &failure),
                     FAILURE_JOB_INVALID);
        assert_contains(failure.text, wrong[i].said);
    }
}

/* Columns are not known yet: any name may be one. */
TEST(a_job_is_checked_without_its_files) {
    struct diagnostics good = {.where = "job"}, bad = {.where = "job"};
    struct features *features;
    features_check(&features,
                   "{\"x\": {\"type\": \"crossed\", \"of\": [\"p\", \"q\"],"
                   " \"size\": 9}, \"e\": {\"type\": \"embedding\", \"of\":"
                   " \"x\", \"dim\": 2}, \"v\": {\"type\": \"vocabulary\","
                   " \"file\": \"/no\"}}",
                   NULL, 0, false, &good);
    assert_int_equal(good.count, 0);
    assert_non_null(features);
    features_close(&features);
    features_check(&features,
                   "{\"e\": {\"type\": \"embedding\", \"of\": \"x\", \"dim\":"
                   " 0}, \"x\": {\"type\": \"crossed\", \"of\": [\"x\", \"q\"],"
                   " \"size\": 9}}",
                   NULL, 0, false, &bad);
    assert_int_equal(bad.count, 2);
    assert_null(features);
}
