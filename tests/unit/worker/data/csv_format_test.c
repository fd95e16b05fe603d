/* SPDX-License-Identifier: Apache-2.0 */
/* Lines and fields, as they are read from a file. */
#define STATE struct fixture *fixture

#include "worker/data/csv_format.h"

#include "tests/lib/test.h"
#include "worker/data/record_reader.h"
#include "worker/data/vocabulary.h"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

struct fixture {
    char path[64];
    const struct record_reader *reader;
    struct record_file *file;
    struct csv_format *format;
    char delimiter; /* of the format */
    bool trim;
    struct record record;
    struct csv_format_row row;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->path, "/tmp/csv_format_test.XXXXXX");
    int file = mkstemp(fixture->path);
    assert_true(file >= 0);
    close(file);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    if (fixture->reader)
        fixture->reader->close(&fixture->file);
    csv_format_close(&fixture->format);
    unlink(fixture->path);
    free(fixture);
}

FIXTURE(setup, teardown);

/* The file has SIZE bytes of TEXT and is open. */
static void open_text(struct fixture *fixture, const char *text, size_t size,
                      bool quoted) {
    FILE *file = fopen(fixture->path, "wb");
    assert_int_equal(fwrite(text, 1, size, file), size);
    fclose(file);
    if (fixture->reader)
        fixture->reader->close(&fixture->file);
    fixture->reader = !quoted         ? &line_reader
                      : fixture->trim ? &trimmed_line_reader
                                      : &quoted_line_reader;
    assert_ok(fixture->reader->open(
        &fixture->file, fixture->path,
        &(struct record_cut){.delimiter = fixture->delimiter}, &failure));
}

static void open_format(struct fixture *fixture,
                        const struct csv_format_options *options) {
    csv_format_close(&fixture->format);
    assert_ok(csv_format_open(&fixture->format, options, &failure));
    fixture->delimiter = options->delimiter;
    fixture->trim = options->trim;
}

static enum status next_record(struct fixture *fixture) {
    return fixture->reader->next(fixture->file, &fixture->record, &failure);
}

static enum status next_row(struct fixture *fixture) {
    assert_int_equal(next_record(fixture), STATUS_OK);
    assert_non_null(fixture->record.bytes);
    return csv_format_read(fixture->format, &fixture->record, &fixture->row,
                           &failure);
}

static void expect_cell(const struct fixture *fixture, uint32_t column,
                        const char *text) {
    const struct record_cell *cell = &fixture->row.cells[column];
    assert_int_equal(cell->type, RECORD_TEXTS);
    assert_int_equal(cell->count, *text != 0);
    assert_int_equal(cell->texts->size, strlen(text));
    assert_memory_equal(cell->texts->bytes, text, strlen(text));
}

static void expect_end(struct fixture *fixture) {
    assert_int_equal(next_record(fixture), STATUS_OK);
    assert_null(fixture->record.bytes);
}

/* Of the values of a row of the Kaggle set: the first two and the last. */
TEST(a_criteo_line_has_its_named_columns) {
    static const char text[] =
        "1\t1\t\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\t"
        "fb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\t"
        "a8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\t"
        "e5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484\t"
        "e8b83407\t9727dd16\n";
    uint32_t count;
    open_format(fixture, &(struct csv_format_options){.criteo = true});
    const char *const *columns = csv_format_columns(fixture->format, &count);
    assert_int_equal(count, 39);
    assert_string_equal(columns[0], "I1");
    assert_string_equal(columns[12], "I13");
    assert_string_equal(columns[13], "C1");
    assert_string_equal(columns[38], "C26");
    open_text(fixture, text, sizeof text - 1, false);
    assert_ok(next_row(fixture));
    assert_true(fixture->row.label == 1 && fixture->row.weight == 1);
    expect_cell(fixture, 0, "1");
    expect_cell(fixture, 1, "");
    expect_cell(fixture, 13, "68fd1e64");
    expect_cell(fixture, 38, "9727dd16");
    expect_end(fixture);
}

static const struct csv_format_options clicks = {
    .delimiter = ',', .label = "clicked", .weight = "w"};

/* 38 empty fields. */
#define TAIL                                                                   \
    "\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t"

/* Criteo's own test set has no first field. */
TEST(a_label_that_is_not_needed_may_be_missing) {
    static const char *const names[] = {"a", "y", "b"};
    static const struct csv_format_options options[] = {
        {.criteo = true, .unlabelled = true},
        {.delimiter = ',',
         .names = names,
         .num_names = 3,
         .label = "y",
         .unlabelled = true}};
    static const char *const texts[][2] = {{"none\t7" TAIL "\n", "7" TAIL "\n"},
                                           {"7,bad,9\n", "7,9\n"}};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            open_format(fixture, &options[i]);
            open_text(fixture, texts[i][j], strlen(texts[i][j]), i);
            assert_ok(next_row(fixture));
            assert_true(fixture->row.label == 0);
            assert_memory_equal(fixture->row.cells[0].texts->bytes, "7", 1);
            assert_int_equal(fixture->row.cells[0].count, 1);
            assert_int_equal(fixture->row.cells[1].count, i);
        }
    open_format(fixture, &options[1]);
    open_text(fixture, "7\n", 2, true);
    assert_error(next_row(fixture), FAILURE_DATA_DAMAGED);
    static const char *const changing[] = {"7,bad,9\n7,9\n", "7,9\n7,bad,9\n"};
    for (int j = 0; j < 2; j++) {
        open_format(fixture, &options[1]);
        open_text(fixture, changing[j], strlen(changing[j]), true);
        assert_ok(next_row(fixture));
        assert_error(next_row(fixture), FAILURE_DATA_DAMAGED);
        assert_contains(failure.text, j ? "found 3" : "found 2");
    }
}

TEST(quotes_and_line_ends_are_those_of_rfc_4180) {
    static const char text[] = "city,clicked,w,note\r\n"
                               "\"Rio, \"\"RJ\"\"\",0,2.5,\"two\nlines\"\r\n"
                               "\n"
                               "Bonn,1e0,1,\n"
                               "\"\",0,1,last";
    uint32_t count;
    open_format(fixture, &clicks);
    open_text(fixture, text, sizeof text - 1, true);
    assert_int_equal(next_record(fixture), STATUS_OK);
    assert_ok(
        csv_format_take_header(fixture->format, &fixture->record, &failure));
    const char *const *columns = csv_format_columns(fixture->format, &count);
    assert_int_equal(count, 2);
    assert_string_equal(columns[1], "note");
    assert_ok(next_row(fixture));
    assert_int_equal(fixture->record.line, 2);
    assert_true(fixture->row.label == 0 && fixture->row.weight == 2.5f);
    expect_cell(fixture, 0, "Rio, \"RJ\"");
    expect_cell(fixture, 1, "two\nlines");
    assert_ok(next_row(fixture));
    assert_int_equal(fixture->record.line, 5);
    assert_int_equal(fixture->record.number, 2);
    assert_true(fixture->row.label == 1);
    expect_cell(fixture, 1, "");
    assert_ok(next_row(fixture));
    expect_cell(fixture, 0, "");
    expect_cell(fixture, 1, "last");
    expect_end(fixture);
}

/* HEADER's faults, where the first file's is "a,clicked,w". */
TEST(a_header_that_does_not_fit_is_named) {
    static const struct {
        const char *header, *text;
    } cases[] = {
        {"a,click,w", "column 2: found \"click\", expected \"clicked\""},
        {"a,clicked", "found 2 columns, expected 3"},
        {"a,\"clicked,w", "a quote of the header is misplaced"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char first[] = "a,clicked,w", later[32];
        struct record record = {.bytes = first, .size = strlen(first)};
        open_format(fixture, &clicks);
        assert_ok(csv_format_take_header(fixture->format, &record, &failure));
        strcpy(later, cases[i].header);
        record = (struct record){.bytes = later, .size = strlen(later)};
        assert_int_equal(
            csv_format_take_header(fixture->format, &record, &failure),
            STATUS_CONFIG);
        assert_contains(failure.text, cases[i].text);
    }
    static const struct {
        const char *header, *text;
    } first[] = {
        {"a,b,w", "data.label: found \"clicked\"; allowed: a column: a, b, w"},
        {"clicked,b", "data.weight: found \"w\""},
        {"b,clicked,b,w", "columns 1 and 3 are both named \"b\""},
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        char header[32];
        strcpy(header, first[i].header);
        struct record record = {.bytes = header, .size = strlen(header)};
        open_format(fixture, &clicks);
        assert_int_equal(
            csv_format_take_header(fixture->format, &record, &failure),
            STATUS_CONFIG);
        assert_contains(failure.text, first[i].text);
    }
}

TEST(a_bad_line_is_named_by_its_column) {
    static const char *const names[] = {"clicked", "city"};
    static const struct csv_format_options options = {
        .delimiter = ';', .names = names, .num_names = 2, .label = "clicked"};
    static const struct {
        const char *line, *text;
    } cases[] = {
        {"yes;Bonn", "column 1 (clicked): found \"yes\", expected a number"},
        {";Bonn", "column 1 (clicked): found \"\", expected a number"},
        {"1", "found 1 field, expected 2"},
        {"1;Bonn;2", "found 3 fields, expected 2"},
        {"1;\"Bonn\"x", "is not followed by ';'"},
    };
    open_format(fixture, &options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_text(fixture, cases[i].line, strlen(cases[i].line), true);
        assert_error(next_row(fixture), FAILURE_DATA_DAMAGED);
        assert_contains(failure.text, cases[i].text);
    }
}

/* A line that is bad, then those of which these are the first columns. */
static void expect_one_bad(struct fixture *fixture, const char *text,
                           const char *const *columns) {
    open_text(fixture, text, strlen(text), true);
    assert_error(next_row(fixture), FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "a quote stands within");
    for (; *columns; columns++) {
        assert_ok(next_row(fixture));
        expect_cell(fixture, 0, *columns);
    }
    expect_end(fixture);
}

TEST(a_quote_that_does_not_end_costs_its_line) {
    static const char *const names[] = {"city", "clicked"};
    static const struct csv_format_options options = {
        .delimiter = ';', .names = names, .num_names = 2, .label = "clicked"};
    open_format(fixture, &options);
    expect_one_bad(fixture, "\"Bonn;1\nRio;1\nLima;0\n",
                   (const char *const[]){"Rio", "Lima", NULL});
    expect_one_bad(fixture, "\"Bonn;1", (const char *const[]){NULL});
    expect_one_bad(fixture, "\"Bonn;1\nRio;1\n\"Li\nma\";0\n\"Oslo\";1\n",
                   (const char *const[]){"Rio", "Li\nma", "Oslo", NULL});
    expect_one_bad(fixture, "\"Bo\"nn\";1\n\"Rio\";1\n",
                   (const char *const[]){"Rio", NULL});
    size_t size = (size_t)66 << 20;
    char *text = malloc(size + 1);
    for (size_t at = 0; at < size; at += 6)
        memcpy(text + at, "Rio;1\n", 6);
    text[size / 6 * 6] = 0;
    text[0] = '"'; /* more than the longest record to the file's end */
    open_text(fixture, text, strlen(text), true);
    assert_error(next_row(fixture), FAILURE_DATA_DAMAGED);
    for (size_t line = 1; line < size / 6; line++)
        assert_ok(next_row(fixture));
    expect_end(fixture);
    free(text);
}

/* Whatever it is; behind another letter a quote is text. */
TEST(a_quote_begins_a_field_behind_a_delimiter) {
    static const char *const names[] = {"clicked", "city"};
    static const char delimiters[] = ",;|\t .";
    for (const char *delimiter = delimiters; *delimiter; delimiter++) {
        open_format(fixture,
                    &(struct csv_format_options){.delimiter = *delimiter,
                                                 .names = names,
                                                 .num_names = 2,
                                                 .label = "clicked"});
        const char *text =
            textf("1%csize(\")\n0%c\"say \"\"a\n%cb\"\"\"\n1%cRio\n",
                  *delimiter, *delimiter, *delimiter, *delimiter);
        const char *city = textf("say \"a\n%cb\"", *delimiter);
        open_text(fixture, text, strlen(text), true);
        const char *const cities[] = {"size(\")", city, "Rio"};
        for (int c = 0; c < 3; c++) {
            assert_ok(next_row(fixture));
            expect_cell(fixture, 0, cities[c]);
        }
        expect_end(fixture);
    }
}

/* A header and two lines of which the second has a field of nothing. */
static const char spaced[] = " a , \"b\"  ,clicked \n"
                             "  x  y , \" say \"\"a\"\", \nb\" ,1\n"
                             "\t, ,  0 \n"
                             "   \n";

TEST(spaces_around_a_field_are_no_part_of_it) {
    uint32_t count;
    open_format(fixture, &(struct csv_format_options){.delimiter = ',',
                                                      .trim = true,
                                                      .label = "clicked"});
    open_text(fixture, spaced, strlen(spaced), true);
    assert_int_equal(next_record(fixture), STATUS_OK);
    assert_ok(
        csv_format_take_header(fixture->format, &fixture->record, &failure));
    const char *const *columns = csv_format_columns(fixture->format, &count);
    assert_int_equal(count, 2);
    assert_string_equal(columns[0], "a");
    assert_string_equal(columns[1], "b");
    assert_ok(next_row(fixture));
    expect_cell(fixture, 0, "x  y");
    expect_cell(fixture, 1, " say \"a\", \nb");
    assert_true(fixture->row.label == 1);
    assert_ok(next_row(fixture));
    assert_int_equal(fixture->record.line, 4);
    expect_cell(fixture, 0, "\t");
    expect_cell(fixture, 1, "");
    assert_true(fixture->row.label == 0);
    expect_end(fixture);
}

/* As RFC 4180 says, and where the fields are between spaces. */
TEST(spaces_that_are_not_trimmed_are_read) {
    static const char *const names[] = {"a", "b"};
    for (int i = 0; i < 2; i++) {
        open_format(fixture,
                    &(struct csv_format_options){.delimiter = i ? ' ' : ',',
                                                 .trim = i,
                                                 .names = names,
                                                 .num_names = 2});
        open_text(fixture, i ? " \"x\"\n" : " x , \"y\"\n", i ? 5 : 9, true);
        assert_ok(next_row(fixture));
        expect_cell(fixture, 0, i ? "" : " x ");
        expect_cell(fixture, 1, i ? "x" : " \"y\"");
        expect_end(fixture);
    }
}

/* Whole fields alone, as they are without spaces and quotes. */
TEST(words_may_mean_no_value) {
    static const char *const names[] = {"a", "b", "clicked"};
    static const char *const words[] = {"NA", "?"};
    static const char text[] = "NA, ? ,1\n"
                               "\"NA\",NAN,0\n"
                               "na,??,0\n"
                               "1,2,?\n";
    static const char *const expected[][2] = {
        {NULL, NULL}, {NULL, "NAN"}, {"na", "??"}};
    open_format(fixture, &(struct csv_format_options){.delimiter = ',',
                                                      .trim = true,
                                                      .names = names,
                                                      .num_names = 3,
                                                      .missing = words,
                                                      .num_missing = 2,
                                                      .label = "clicked"});
    open_text(fixture, text, strlen(text), true);
    for (int r = 0; r < 3; r++) {
        assert_ok(next_row(fixture));
        for (uint32_t c = 0; c < 2; c++)
            if (expected[r][c])
                expect_cell(fixture, c, expected[r][c]);
            else
                assert_int_equal(fixture->row.cells[c].count, 0);
    }
    assert_error(next_row(fixture), FAILURE_DATA_DAMAGED);
}

static const char people[] = "label,city\n1,Bonn\n0,Rio\n";

/* The file has PEOPLE in an archive of FORMAT, or alone, packed by FILTER. */
static void write_archive(const struct fixture *fixture, const char *format,
                          const char *filter) {
    struct archive *archive = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, "people.csv");
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_size(entry, sizeof people - 1);
    assert_int_equal(archive_write_set_format_by_name(archive, format),
                     ARCHIVE_OK);
    if (filter)
        assert_int_equal(archive_write_add_filter_by_name(archive, filter),
                         ARCHIVE_OK);
    assert_int_equal(archive_write_open_filename(archive, fixture->path),
                     ARCHIVE_OK);
    assert_int_equal(archive_write_header(archive, entry), ARCHIVE_OK);
    archive_write_data(archive, people, sizeof people - 1);
    archive_entry_free(entry);
    assert_int_equal(archive_write_close(archive), ARCHIVE_OK);
    archive_write_free(archive);
}

/* The file has PEOPLE in units of BYTES, big-endian or not, behind a byte order
 * mark or none; or with its lines ended by CR. */
static void write_units(const struct fixture *fixture, unsigned bytes, bool big,
                        bool mark) {
    FILE *file = fopen(fixture->path, "wb");
    for (size_t i = mark ? 0 : 1; i < sizeof people; i++) {
        unsigned unit = i ? (unsigned char)people[i - 1] : 0xfeff;
        if (bytes == 1)
            fputc(unit == '\n' ? '\r' : (int)unit, file);
        for (unsigned b = 0; bytes > 1 && b < bytes; b++)
            fputc((int)(unit >> 8 * (big ? bytes - 1 - b : b) & 255), file);
    }
    assert_int_equal(fclose(file), 0);
}

static void expect_no_text(struct fixture *fixture, const char *found,
                           const char *advice) {
    static const struct record_reader *const readers[] = {
        &line_reader, &quoted_line_reader, &trimmed_line_reader,
        &commented_line_reader};
    const struct record_cut cut = {.delimiter = ','};
    for (int r = 0; r < 4; r++) {
        struct record_file *file;
        struct record record;
        enum status status =
            readers[r]->open(&file, fixture->path, &cut, &failure);
        if (!status)
            status = readers[r]->next(file, &record, &failure);
        assert_error(status, FAILURE_DATA_UNREADABLE);
        readers[r]->close(&file);
        if (!strstr(failure.text, found) || !strstr(failure.text, advice))
            fail_msg("%s", failure.text);
    }
    struct vocabulary *words;
    assert_error(vocabulary_open(&words, fixture->path, NULL, &failure),
                 FAILURE_DATA_UNREADABLE);
}

TEST(what_is_no_text_is_refused_with_a_way_out) {
    static const char *const archives[][4] = {
        {"zip", NULL, "a zip archive", "unzip"},
        {"raw", "xz", "xz", "xz -d"},
        {"raw", "bzip2", "bzip2", "bzip2 -d"},
        {"ustar", NULL, "a tar archive", "tar -xf"},
        {"ustar", "gzip", "a tar archive", "tar -xf"},
        {"gnutar", "zstd", "a tar archive", "tar -xf"},
        {"ustar", "xz", "xz", "xz -d"}};
    for (size_t i = 0; i < sizeof archives / sizeof *archives; i++) {
        write_archive(fixture, archives[i][0], archives[i][1]);
        expect_no_text(fixture, archives[i][2], archives[i][3]);
    }
    for (unsigned i = 0; i < 8; i++) {
        write_units(fixture, i & 1 ? 2 : 4, i & 2, i & 4);
        expect_no_text(fixture, "UTF-16", "iconv");
    }
    write_units(fixture, 1, false, false);
    expect_no_text(fixture, "CR alone", "tr '");
}

enum { ROWS = 400, FIELDS = 3, LONGEST_FIELD = 40000 };

static size_t write_spaces(unsigned *seed, bool spaces, char *text) {
    size_t count = spaces ? rand_r(seed) % 4 : 0;
    memset(text, ' ', count);
    return count;
}

/* Writes a random field at TEXT, quoted, between SPACES or none, and what it is
 * at PLAIN. */
static size_t write_field(unsigned *seed, bool spaces, char *text, char *plain,
                          size_t *size) {
    static const char letters[] = "ab,\"\n\r;\xc3\xa9 \t";
    size_t length = rand_r(seed) % (rand_r(seed) % 50 ? 9 : LONGEST_FIELD);
    size_t at = write_spaces(seed, spaces, text);
    text[at++] = '"';
    for (size_t i = 0; i < length; i++) {
        plain[i] = letters[rand_r(seed) % (sizeof letters - 1)];
        text[at++] = plain[i];
        if (plain[i] == '"')
            text[at++] = '"';
    }
    text[at++] = '"';
    *size = length;
    return at + write_spaces(seed, spaces, text + at);
}

/* Fields longer than a read of the file too. */
static void expect_random_fields(struct fixture *fixture, bool trim) {
    static const char *const names[] = {"a", "b", "c"};
    const struct csv_format_options options = {
        .delimiter = ',', .trim = trim, .names = names, .num_names = FIELDS};
    size_t room = (size_t)ROWS * FIELDS * (2 * LONGEST_FIELD + 10), used = 0;
    char *text = malloc(room), *plain = malloc(room), *at = plain;
    size_t sizes[ROWS][FIELDS];
    unsigned seed = 5;
    for (int r = 0; r < ROWS; r++)
        for (int f = 0; f < FIELDS; f++) {
            used += write_field(&seed, trim, text + used, at, &sizes[r][f]);
            at += sizes[r][f];
            text[used++] = f + 1 < FIELDS ? ',' : '\n';
        }
    open_format(fixture, &options);
    open_text(fixture, text, used, true);
    at = plain;
    for (int r = 0; r < ROWS; r++) {
        assert_ok(next_row(fixture));
        for (int f = 0; f < FIELDS; f++) {
            const struct record_text *found = fixture->row.cells[f].texts;
            assert_int_equal(found->size, sizes[r][f]);
            assert_memory_equal(found->bytes, at, found->size);
            at += found->size;
        }
    }
    expect_end(fixture);
    free(text);
    free(plain);
}

TEST(random_fields_come_back) {
    expect_random_fields(fixture, false);
    expect_random_fields(fixture, true);
}

/* Bytes at random: an error or rows, and never a read outside of them. */
TEST(no_bytes_do_harm) {
    static const char letters[] = "01.,\"\n\r\t;e-\0x ";
    static const char *const names[] = {"clicked", "b"};
    const struct csv_format_options options[] = {
        {.criteo = true},
        {.delimiter = ',',
         .trim = true,
         .names = names,
         .num_names = 2,
         .label = "clicked"},
        {.delimiter = ',', .names = names, .num_names = 2, .label = "clicked"}};
    unsigned seed = 9;
    for (int i = 0; i < 3000; i++) {
        char text[64];
        size_t size = rand_r(&seed) % sizeof text;
        for (size_t b = 0; b < size; b++)
            text[b] = letters[rand_r(&seed) % (sizeof letters - 1)];
        open_format(fixture, &options[i % 3]);
        open_text(fixture, text, size, i % 3);
        while (!next_record(fixture) && fixture->record.bytes) {
            char *copy = malloc(fixture->record.size);
            memcpy(copy, fixture->record.bytes, fixture->record.size);
            fixture->record.bytes = copy;
            enum status status = csv_format_read(
                fixture->format, &fixture->record, &fixture->row, &failure);
            assert_true(!status || status == STATUS_CONFIG);
            free(copy);
        }
    }
}
