/* SPDX-License-Identifier: Apache-2.0 */
/* Records of several files through datasets of several trainers and devices. */
#define STATE struct fixture *fixture

#include "core/base/masked_crc.h"
#include "worker/data/loader.h"

#include "tests/lib/test.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { FILES = 6, RECORDS = 203, BATCH = 4, MOST = 64 };

/* Record i of all has the features i and 2 i and the label i mod 3. */
struct fixture {
    char folder[32], pattern[64];
    struct job job;
    struct job_files files;
    struct batch_spec spec;
};

static void path_of(const struct fixture *fixture, int file, char *path) {
    snprintf(path, MOST, "%s/part-%d.csv", fixture->folder, file);
}

static void write_parts(const struct fixture *fixture) {
    unsigned next = 0;
    for (int f = 0; f < FILES; f++) {
        char path[MOST];
        path_of(fixture, f, path);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(f == 2 ? "\xef\xbb\xbfx,label,y\n" : "x,label,y\n", file);
        for (int i = 0; i < 10 * f + 8 + (f == 5) * 5; i++, next++)
            fprintf(file, "%u,%u,%u\n", next, next % 3, 2 * next);
        assert_int_equal(fclose(file), 0);
    }
    assert_int_equal(next, RECORDS);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/record_dataset.XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    snprintf(fixture->pattern, sizeof fixture->pattern, "%s/part-?.csv",
             fixture->folder);
    write_parts(fixture);
    fixture->files.paths[0] = fixture->pattern;
    fixture->job = (struct job){.seed = 5,
                                .data = {.format = JOB_CSV,
                                         .shuffle = true,
                                         .shuffle_buffer = 16,
                                         .header = true,
                                         .delimiter = ",",
                                         .label = "label"}};
    fixture->spec = (struct batch_spec){
        .num_columns = 2,
        .columns = {{BATCH_FLOATS, .width = 2},
                    {BATCH_CLASSES, .width = 1, .num_classes = 3}}};
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    for (int f = 0; f < FILES; f++) {
        char path[MOST];
        path_of(fixture, f, path);
        unlink(path);
    }
    rmdir(fixture->folder);
    free(fixture);
}

FIXTURE(setup, teardown);

static struct dataset *open_dataset(struct fixture *fixture, uint32_t rank,
                                    uint32_t num_ranks, bool count) {
    struct dataset *dataset;
    struct dataset_options options = {.job = &fixture->job,
                                      .files = &fixture->files,
                                      .key = "data.train",
                                      .rank = rank,
                                      .num_ranks = num_ranks,
                                      .count = count};
    assert_ok(dataset_open(&dataset, &options, &failure));
    return dataset;
}

static struct loader *open_loader(struct fixture *fixture,
                                  const struct dataset *dataset,
                                  struct sampler_options options,
                                  uint64_t first, uint32_t readers) {
    struct loader *loader;
    options.micro_batch = BATCH;
    assert_ok(loader_open(&loader, dataset, &fixture->spec, &options, first,
                          (struct loader_prefetch){readers, 3}, &failure));
    return loader;
}

/* Counts the records of the next COUNT batches in SEEN. */
static void take(struct loader *loader, unsigned count, unsigned *seen) {
    for (unsigned b = 0; b < count; b++) {
        const struct batch *batch;
        assert_ok(loader_next(loader, &batch, &failure));
        const float *values = batch->columns[0];
        const uint32_t *labels = batch->columns[1];
        for (uint32_t i = 0; i < batch->count; i++, values += 2) {
            unsigned record = (unsigned)values[0];
            assert_true(record < RECORDS);
            assert_true(values[1] == (float)(2 * record));
            assert_int_equal(labels[i], record % 3);
            seen[record]++;
        }
    }
}

/* By file where there are two each, else by record; the plan's epoch is that of
 * the longest share. */
TEST(an_epoch_has_each_record_once) {
    for (uint32_t ranks = 1; ranks < 7; ranks++) {
        unsigned seen[RECORDS] = {0};
        uint64_t batches = 0, all = 0;
        struct dataset *datasets[7];
        for (uint32_t r = 0; r < ranks; r++) {
            datasets[r] = open_dataset(fixture, r, ranks, true);
            uint64_t own = (datasets[r]->count + BATCH - 1) / BATCH;
            batches = own > batches ? own : batches;
            all += datasets[r]->count;
        }
        assert_int_equal(all, RECORDS);
        for (uint32_t r = 0; r < ranks; r++) {
            struct loader *loader = open_loader(
                fixture, datasets[r],
                (struct sampler_options){.epoch_batches = batches}, 0, r % 3);
            for (unsigned epoch = 1; epoch < 4; epoch++)
                take(loader, (unsigned)batches, seen);
            loader_close(&loader);
            dataset_free(&datasets[r]);
        }
        for (int i = 0; i < RECORDS; i++)
            assert_int_equal(seen[i], 3);
    }
}

TEST(the_longer_epoch_has_empty_batches) {
    struct dataset *dataset = open_dataset(fixture, 0, 1, true);
    struct loader *loader = open_loader(
        fixture, dataset, (struct sampler_options){.epoch_batches = 60}, 0, 2);
    const struct batch *batch;
    for (uint64_t b = 0; b < 120; b++) {
        uint64_t before = b % 60 * BATCH;
        uint32_t left = before < RECORDS ? (uint32_t)(RECORDS - before) : 0;
        uint32_t size = left < BATCH ? left : BATCH;
        assert_int_equal(loader_size(loader, b), size);
        assert_ok(loader_next(loader, &batch, NULL));
        assert_int_equal(batch->count, size);
    }
    loader_close(&loader);
    dataset_free(&dataset);
}

/* The same batches, wherever the loader begins and however many threads read;
 * shuffled, and otherwise in each epoch. */
TEST(a_loader_may_begin_anywhere) {
    for (int counted = 0; counted < 2; counted++) {
        struct dataset *dataset = open_dataset(fixture, 1, 2, counted);
        static float all[130][BATCH];
        const struct batch *batch;
        for (uint64_t first = 0; first < 120; first += 17) {
            struct loader *loader =
                open_loader(fixture, dataset, (struct sampler_options){0},
                            first, (uint32_t)first % 4);
            for (uint64_t b = first; b < 125; b++) {
                assert_ok(loader_next(loader, &batch, &failure));
                assert_int_equal(batch->number, b);
                const float *values = batch->columns[0];
                for (uint32_t i = 0; i < batch->count; i++) {
                    if (!first)
                        all[b][i] = values[2 * i];
                    assert_true(all[b][i] == values[2 * i]);
                }
            }
            loader_close(&loader);
        }
        if (counted)
            assert_true(all[0][0] !=
                        all[(dataset->count + BATCH - 1) / BATCH][0]);
        dataset_free(&dataset);
    }
}

TEST(devices_part_their_trainers_share) {
    unsigned seen[RECORDS] = {0}, once = 0;
    struct dataset *dataset = open_dataset(fixture, 0, 1, true);
    for (uint32_t device = 0; device < 4; device++) {
        struct loader *loader = open_loader(
            fixture, dataset,
            (struct sampler_options){.device = device, .num_devices = 4}, 0, 1);
        take(loader, (RECORDS / 4 + BATCH - 1) / BATCH, seen);
        loader_close(&loader);
    }
    for (int i = 0; i < RECORDS; i++)
        once += seen[i] == 1;
    assert_int_equal(once, RECORDS / 4 * 4);
    dataset_free(&dataset);
}

TEST(a_range_is_in_the_files_order) {
    struct dataset *dataset = open_dataset(fixture, 0, 1, true);
    const struct batch_source_table *table = dataset->table->batches;
    struct batch_source *source;
    struct batch_claim claim = {0};
    float values[2 * BATCH];
    uint32_t labels[BATCH];
    struct batch batch = {.columns = {values, labels}};
    unsigned next = 50;
    assert_int_equal(dataset->table->range(&source, dataset, &fixture->spec, 50,
                                           151, BATCH, NULL),
                     STATUS_OK);
    do {
        assert_int_equal(table->claim(source, &claim, NULL), STATUS_OK);
        assert_int_equal(table->fill(source, &claim, &batch, NULL), STATUS_OK);
        for (uint32_t i = 0; i < batch.count; i++)
            assert_true(values[2 * i] == (float)next++);
    } while (claim.count);
    assert_int_equal(next, 151);
    batch_claim_free(table, &claim);
    table->close(&source);
    dataset_free(&dataset);
}

static void append(const struct fixture *fixture, const char *line) {
    char path[MOST];
    path_of(fixture, 0, path);
    FILE *file = fopen(path, "a");
    fputs(line, file);
    fclose(file);
}

/* The first failure of the loader within an epoch; else STATUS_OK. */
static void write_part(const struct fixture *fixture, int number,
                       const char *text) {
    char path[MOST];
    path_of(fixture, number, path);
    FILE *file = fopen(path, "w");
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static enum status read_epoch(struct fixture *fixture, unsigned *seen) {
    struct dataset *dataset = open_dataset(fixture, 0, 1, true);
    struct loader *loader =
        open_loader(fixture, dataset, (struct sampler_options){0}, 0, 1);
    enum status status = STATUS_OK;
    *seen = 0;
    for (uint64_t b = 0; !status && b * BATCH < dataset->count; b++) {
        const struct batch *batch;
        status = loader_next(loader, &batch, &failure);
        *seen += status ? 0 : batch->count;
    }
    loader_close(&loader);
    dataset_free(&dataset);
    return status;
}

TEST(a_bad_record_ends_the_run_or_is_skipped) {
    static const char *const bad[] = {"1,3,2\n",   "1,-1,2\n", "1,0.5,2\n",
                                      "1,,2\n",    "1,0\n",    "x,0,2\n",
                                      "1,nan,2\n", "1,0,5\"\n"};
    unsigned seen, count = sizeof bad / sizeof *bad;
    for (unsigned i = 0; i < count; i++) {
        write_parts(fixture);
        append(fixture, bad[i]);
        assert_error(read_epoch(fixture, &seen), FAILURE_BAD_RECORD);
        assert_contains(failure.text, "/part-0.csv:10: ");
    }
    write_parts(fixture);
    fixture->job.data.skip_bad_lines = true;
    for (unsigned i = 0; i < count; i++)
        append(fixture, bad[i]);
    assert_ok(read_epoch(fixture, &seen));
    assert_int_equal(seen, RECORDS);
}

/* Of one output: 0 or 1, or any number where the column has no bounds. */
TEST(a_label_is_one_of_its_columns_bounds) {
    static const struct {
        const char *line, *text;
    } bad[] = {{"1,1.5,2\n", "label: found 1.5, expected 0 or 1"},
               {"1,-1,2\n", "label: found -1, expected 0 or 1"},
               {"1,0.3,2\n", "label: found 0.3, expected 0 or 1"},
               {"1,1e39,2\n", "found \"1e39\", expected a number"},
               {"1e39,1,2\n", "found \"1e39\", expected a number"}};
    struct batch_column *label = &fixture->spec.columns[1];
    unsigned seen;
    for (int f = 0; f < FILES; f++)
        write_part(fixture, f, "x,label,y\n1,1,2\n1,0,2\n");
    *label = (struct batch_column){BATCH_FLOATS, .width = 1, .max = 1};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_part(fixture, 0, "x,label,y\n0,0,0\n");
        append(fixture, bad[i].line);
        assert_error(read_epoch(fixture, &seen), FAILURE_BAD_RECORD);
        assert_contains(failure.text, bad[i].text);
    }
    label->max = 0;
    write_part(fixture, 0, "x,label,y\n0,-1,0\n0,1.5,0\n");
    assert_ok(read_epoch(fixture, &seen));
    assert_int_equal(seen, 2 * FILES);
}

TEST(a_file_that_shrinks_is_noticed) {
    struct dataset *dataset = open_dataset(fixture, 0, 1, true);
    struct loader *loader =
        open_loader(fixture, dataset, (struct sampler_options){0}, 0, 0);
    enum status status = STATUS_OK;
    char path[MOST];
    path_of(fixture, 5, path);
    assert_int_equal(truncate(path, 20), 0);
    for (uint64_t b = 0; !status && b * BATCH < RECORDS; b++) {
        const struct batch *batch;
        status = loader_next(loader, &batch, &failure);
    }
    assert_error(status, FAILURE_DATA_MISMATCH);
    loader_close(&loader);
    dataset_free(&dataset);
}

/* The last file, before it is read first, or between two epochs; also where the
 * counted records fill whole windows. */
TEST(a_file_that_grows_is_named) {
    static const struct {
        uint64_t buffer;
        unsigned epochs;
    } cases[] = {{16, 0}, {7, 0}, {7, 1}};
    char path[MOST];
    path_of(fixture, FILES - 1, path);
    assert_int_equal(RECORDS % 7, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned seen[RECORDS] = {0}, batches = (RECORDS + BATCH - 1) / BATCH;
        const struct batch *batch;
        enum status status = STATUS_OK;
        write_parts(fixture);
        fixture->job.data.shuffle_buffer = cases[i].buffer;
        struct dataset *dataset = open_dataset(fixture, 0, 1, true);
        struct loader *loader =
            open_loader(fixture, dataset, (struct sampler_options){0}, 0, 0);
        take(loader, cases[i].epochs * batches, seen);
        FILE *file = fopen(path, "a");
        fputs("1,1,2\n2,2,4\n3,0,6\n", file);
        fclose(file);
        for (unsigned b = 0; !status && b < batches; b++)
            status = loader_next(loader, &batch, &failure);
        assert_error(status, FAILURE_DATA_MISMATCH);
        assert_contains(failure.text, path);
        loader_close(&loader);
        dataset_free(&dataset);
    }
}

/* Nothing depends on how many records there are, also where a resumed run has
 * counted them to find its place; the first file has none then. */
TEST(without_epochs_a_file_may_grow) {
    fixture->job.data.shuffle_buffer = 7;
    for (unsigned first = 0; first < 3; first += 2) {
        const struct batch *batch;
        bool read = false;
        write_parts(fixture);
        write_part(fixture, 0, "x,label,y\n");
        struct dataset *dataset = open_dataset(fixture, 0, 1, false);
        struct loader *loader = open_loader(
            fixture, dataset, (struct sampler_options){0}, first, 0);
        append(fixture, "777,1,2\n");
        for (unsigned b = 0; b < 3 * RECORDS / BATCH; b++) {
            assert_ok(loader_next(loader, &batch, &failure));
            for (uint32_t i = 0; i < batch->count; i++)
                read |= ((float *)batch->columns[0])[2 * i] == 777;
        }
        assert_true(read);
        loader_close(&loader);
        dataset_free(&dataset);
    }
}

/* A member whose first bytes are damaged would be left out without a word;
 * zeros behind the last one, with which files are padded, are none. */
TEST(bytes_between_gzip_members_are_damage) {
    static const char zeros[100];
    char path[MOST];
    unsigned seen;
    struct stat about;
    path_of(fixture, 0, path);
    for (int damaged = 0; damaged < 2; damaged++) {
        gzFile first = gzopen(path, "w");
        gzputs(first, "x,label,y\n0,0,0\n");
        assert_int_equal(gzclose(first), Z_OK);
        assert_int_equal(stat(path, &about), 0);
        gzFile second = gzopen(path, "a");
        gzputs(second, "1,1,2\n");
        assert_int_equal(gzclose(second), Z_OK);
        FILE *file = fopen(path, "r+");
        if (damaged) {
            fseek(file, about.st_size, SEEK_SET);
            fputc(0x1e, file);
        }
        fseek(file, 0, SEEK_END);
        fwrite(zeros, 1, sizeof zeros, file);
        assert_int_equal(fclose(file), 0);
        if (!damaged) {
            assert_ok(read_epoch(fixture, &seen));
            assert_int_equal(seen, RECORDS - 8 + 2);
            continue;
        }
        struct dataset *dataset;
        struct dataset_options options = {.job = &fixture->job,
                                          .files = &fixture->files,
                                          .key = "data.train",
                                          .num_ranks = 1,
                                          .count = true};
        assert_error(dataset_open(&dataset, &options, &failure),
                     FAILURE_DATA_DAMAGED);
        assert_contains(failure.text, "no gzip member");
    }
}

static bool always(void *context) {
    ++*(unsigned *)context;
    return true;
}

/* Reading that takes long ends when the trainer has to. */
TEST(counting_can_be_ended) {
    struct dataset *dataset;
    unsigned asked = 0;
    struct dataset_options options = {.job = &fixture->job,
                                      .files = &fixture->files,
                                      .key = "data.train",
                                      .num_ranks = 1,
                                      .count = true,
                                      .is_cancelled = always,
                                      .cancel_context = &asked};
    char path[MOST];
    path_of(fixture, 0, path);
    FILE *file = fopen(path, "a");
    for (int i = 0; i < 70000; i++)
        fputs("1,0,2\n", file);
    fclose(file);
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_TERMINATED);
    assert_int_equal(asked, 1);
}

TEST(a_batch_may_have_only_bad_records) {
    unsigned seen;
    fixture->job.data.skip_bad_lines = true;
    fixture->job.data.shuffle = false;
    for (int i = 0; i < 3 * BATCH; i++)
        append(fixture, "1,9,2\n");
    assert_ok(read_epoch(fixture, &seen));
    assert_int_equal(seen, RECORDS);
}

/* Without features the columns' order is the inputs'. */
TEST(a_test_set_has_the_training_sets_columns) {
    struct dataset *train = open_dataset(fixture, 0, 1, false), *test;
    for (int f = 0; f < FILES; f++) {
        char path[MOST];
        path_of(fixture, f, path);
        FILE *file = fopen(path, "w");
        fputs("y,label,x\n1,0,2\n", file);
        fclose(file);
    }
    test = open_dataset(fixture, 0, 1, false);
    assert_ok(dataset_compare_columns(train, train, "data.test", &failure));
    assert_error(dataset_compare_columns(train, test, "data.test", &failure),
                 FAILURE_DATA_MISMATCH);
    dataset_free(&train);
    dataset_free(&test);
}

/* A name with brackets is no pattern where there is such a file. */
TEST(a_file_may_have_brackets_in_its_name) {
    char plain[MOST], path[MOST];
    path_of(fixture, 0, plain);
    snprintf(path, sizeof path, "%s/part[0].csv", fixture->folder);
    assert_int_equal(rename(plain, path), 0);
    fixture->files.paths[0] = path;
    struct dataset *dataset = open_dataset(fixture, 0, 1, true);
    assert_int_equal(dataset->count, 8);
    dataset_free(&dataset);
    assert_int_equal(unlink(path), 0);
}

TEST(a_share_without_records_is_refused) {
    struct dataset *dataset;
    struct dataset_options options = {.job = &fixture->job,
                                      .files = &fixture->files,
                                      .key = "data.train",
                                      .rank = RECORDS,
                                      .num_ranks = RECORDS + 1,
                                      .count = true};
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_DATA_TOO_SMALL);
    options.count = false;
    assert_ok(dataset_open(&dataset, &options, NULL));
    struct loader *loader =
        open_loader(fixture, dataset, (struct sampler_options){0}, 0, 0);
    const struct batch *batch;
    assert_error(loader_next(loader, &batch, &failure), FAILURE_DATA_TOO_SMALL);
    loader_close(&loader);
    dataset_free(&dataset);
}

TEST(missing_files_and_columns_are_named) {
    struct dataset *dataset;
    struct dataset_options options = {.job = &fixture->job,
                                      .files = &fixture->files,
                                      .key = "data.test",
                                      .num_ranks = 1};
    fixture->job.data.label = "click";
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_DATA_MISMATCH);
    fixture->files.paths[1] = fixture->pattern;
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_DATA_MISMATCH);
    fixture->files.paths[1] = NULL;
    fixture->files.paths[0] = "/no/*.csv";
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_DATA_UNREADABLE);
    assert_string_equal(failure.text, "data.test: /no/*.csv: no such file");
    fixture->files.paths[0] = "/**";
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_DATA_UNREADABLE);
    assert_contains(failure.text, "data.test: /**: found **");
}

/* An array of NumPy of two elements, whose fields are x and y. */
static void write_npy(const struct fixture *fixture) {
    static const char header[] =
        "{'descr': [('x', '|u1'), ('y', '|u1')], 'fortran_order': False, "
        "'shape': (2,), }\n";
    uint8_t size = sizeof header - 1;
    char path[MOST];
    path_of(fixture, 0, path);
    FILE *file = fopen(path, "w");
    fputs("\x93NUMPY\x01", file);
    fwrite((char[]){0, (char)size, 0}, 1, 3, file);
    fputs(header, file);
    fwrite((char[]){1, 0, 2, 1}, 1, 4, file);
    assert_int_equal(fclose(file), 0);
}

/* To train on the first file alone. */
static struct dataset_options options_of_first(struct fixture *fixture,
                                               struct log *log) {
    log_open(log, "test", -1);
    fixture->pattern[strlen(fixture->pattern) - strlen("?.csv")] = '0';
    return (struct dataset_options){.job = &fixture->job,
                                    .files = &fixture->files,
                                    .key = "data.train",
                                    .num_ranks = 1,
                                    .log = log};
}

/* An Example may lack any name, but not the label. */
TEST(a_label_that_no_example_has_is_an_error_at_once) {
    struct dataset *dataset;
    struct log log;
    struct dataset_options options = options_of_first(fixture, &log);
    write_npy(fixture);
    fixture->job.data.format = JOB_NPY;
    fixture->job.features = "{\"x\": {\"type\": \"numeric\"}}";
    assert_error(dataset_open(&dataset, &options, &failure),
                 FAILURE_DATA_MISMATCH);
    assert_contains(failure.text, "data.label");
    assert_contains(failure.text, "part-0.csv");
    assert_contains(failure.text, "x, y");
    fixture->job.data.label = "y";
    assert_ok(dataset_open(&dataset, &options, NULL));
    dataset_free(&dataset);
}

static void write_with_checksum(FILE *file, const void *bytes, size_t size) {
    uint32_t checksum = masked_crc(bytes, size);
    fwrite(bytes, 1, size, file);
    fwrite(&checksum, sizeof checksum, 1, file);
}

/* A TFRecord of one Example, whose values a000 to a299 are 1. */
static void write_many_names(const struct fixture *fixture) {
    enum { NAMES = 300, ENTRY = 15 };
    char bytes[3 + NAMES * ENTRY + 1] = {
        '\n', (char)(0x80 | NAMES * ENTRY % 128), NAMES * ENTRY / 128};
    char path[MOST];
    uint64_t size = sizeof bytes - 1;
    path_of(fixture, 0, path);
    for (int n = 0; n < NAMES; n++)
        snprintf(bytes + 3 + n * ENTRY, ENTRY + 1,
                 "\n\x0d\n\x04"
                 "a%03d\x12\x05\x1a\x03\n\x01\x01",
                 n);
    FILE *file = fopen(path, "w");
    write_with_checksum(file, &size, sizeof size);
    write_with_checksum(file, bytes, size);
    assert_int_equal(fclose(file), 0);
}

/* Only so many names are noted; a label behind them is none that is missing. */
TEST(a_label_behind_hundreds_of_names_is_found) {
    struct dataset *dataset;
    struct log log;
    struct dataset_options options = options_of_first(fixture, &log);
    write_many_names(fixture);
    fixture->job.data.format = JOB_TFRECORD;
    fixture->job.data.label = "a299";
    fixture->job.features = "{\"a000\": {\"type\": \"numeric\"}}";
    assert_ok(dataset_open(&dataset, &options, &failure));
    dataset_free(&dataset);
}
