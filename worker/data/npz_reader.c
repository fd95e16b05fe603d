/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of NumPy's archives, row by row. A record is a row of each, as the
 * file has it but little-endian, behind a table of where they begin. Each array
 * has an open archive of its own, whose position is its next row. The fields of
 * a structured array are arrays that lie side by side in the rows of one file;
 * tensors are read where they lie. */
#include "core/base/input_file.h"
#include "core/store/tensor_file.h"
#include "core/tensor/bf16.h"
#include "core/tensor/fp16.h"
#include "worker/data/data_file.h"
#include "worker/data/npy_header.h"
#include "worker/data/record_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_ARRAYS = 512, /* that are read */
    MAX_MEMBERS = 4096,
    ARCHIVE_BLOCK = 1 << 16,
    VALUE_ROOM = sizeof(struct record_text) + sizeof "18446744073709551615"
};

/* A kind that NumPy has not: bf16 (core/tensor/bf16.h). */
enum { BF16 = 'B' };

/* The values of an array in a record. */
struct row_values {
    uint32_t begin, count;
    uint32_t bytes; /* of a value */
    char kind;      /* as npy_header's */
};

struct npz_array {
    struct archive *archive; /* NULL: a field, or a tensor */
    char *name;
    struct npy_header header;
    size_t bytes;   /* of a row */
    uint32_t place; /* in the table of a record */
    uint32_t begin; /* in a record */
    size_t offset;  /* of a field, in an element */
    uint64_t first; /* byte of a tensor, in the tensors' bytes */
};

struct record_file {
    const char *path;
    const struct record_cut *cut;
    char all[256]; /* names of what the file has, for an error */
    struct npz_array *arrays;
    uint32_t num_arrays;
    struct data_file *npy;       /* whose fields they are, or NULL */
    struct tensor_file *tensors; /* which they are, or NULL */
    size_t element;              /* bytes of all its fields */
    uint64_t number;             /* of the next record */
    char *row;                   /* an element */
    struct row_values *record;   /* its table, and all values */
    size_t size;                 /* of each record */
};

static enum status npz_reader_no_memory(const struct record_file *file,
                                        struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "%s: no memory to read it",
                       file->path);
}

static enum status fail_of_array(const struct record_file *file,
                                 const struct npz_array *array,
                                 const char *found, struct failure *why) {
    return status_fail(why, FAILURE_DATA_DAMAGED, "%s: array %s: found %s",
                       file->path, array->name, found);
}

static enum status open_zip(const struct record_file *file,
                            struct archive **out, struct failure *why) {
    *out = archive_read_new();
    if (!*out)
        return npz_reader_no_memory(file, why);
    archive_read_support_filter_gzip(*out); /* around the archive */
    archive_read_support_filter_zstd(*out);
    if (archive_read_support_format_zip(*out) == ARCHIVE_OK &&
        archive_read_open_filename(*out, file->path, ARCHIVE_BLOCK) ==
            ARCHIVE_OK)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_UNREADABLE, "%s: cannot be read: %s",
                       file->path, archive_error_string(*out));
}

/* SIZE bytes of the member at which ARCHIVE is. */
static bool read_exactly(struct archive *archive, void *bytes, size_t size) {
    char *at = bytes;
    while (size) {
        la_ssize_t got = archive_read_data(archive, at, size);
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

/* Reads the end of ARRAY's member, where its checksum is compared. */
static enum status end_member_of(const struct record_file *file,
                                 const struct npz_array *array,
                                 struct failure *why) {
    char more;
    return archive_read_data(array->archive, &more, 1) < 0
               ? fail_of_array(file, array,
                               archive_error_string(array->archive), why)
               : STATUS_OK;
}

/* After a header was read, of which WRONG says what is wrong, or NULL. */
static enum status use_header(const struct record_file *file,
                              struct npz_array *array, const char *wrong,
                              struct failure *why) {
    if (!wrong && (__builtin_mul_overflow(array->header.row,
                                          array->header.bytes, &array->bytes) ||
                   array->bytes > RECORD_READER_MAX_BYTES / 8))
        wrong = "a row of more than 8 MiB";
    if (!wrong && !array->bytes)
        wrong = "rows without values";
    return wrong ? fail_of_array(file, array, wrong, why) : STATUS_OK;
}

/* The text of the member's header. */
static enum status read_npy_header(const struct record_file *file,
                                   struct npz_array *array,
                                   struct failure *why) {
    unsigned char prefix[NPY_HEADER_PREFIX];
    size_t before = 0, size = 0;
    char *text = malloc(NPY_HEADER_MAX_BYTES + 1);
    if (!text)
        return npz_reader_no_memory(file, why);
    if (read_exactly(array->archive, prefix, sizeof prefix))
        size = npy_header_text_bytes(prefix, &before);
    size_t read = sizeof prefix - before;
    const char *wrong = "no header of NumPy's format";
    memcpy(text, prefix + before, read);
    if (size >= read &&
        read_exactly(array->archive, text + read, size - read)) {
        text[size] = 0;
        wrong = npy_header_parse(text, &array->header);
    }
    free(text);
    return use_header(file, array, wrong, why);
}

/* Is the array of NAME, of SIZE bytes, read, as the next one? */
static bool is_wanted(struct record_file *file, const char *name, size_t size) {
    const struct record_cut *cut = file->cut;
    size_t used = strlen(file->all);
    snprintf(file->all + used, sizeof file->all - used, "%s%.*s",
             used ? ", " : "", (int)size, name);
    uint32_t place = cut->names ? 0 : file->num_arrays;
    while (place < cut->num_names && (strlen(cut->names[place]) != size ||
                                      memcmp(cut->names[place], name, size)))
        place++;
    file->arrays[file->num_arrays].place = place;
    return !cut->names || place < cut->num_names;
}

/* FAILURE_DATA_MISMATCH if FILE, which was looked through, lacks a name. */
static enum status check_wanted(const struct record_file *file,
                                struct failure *why) {
    const struct record_cut *cut = file->cut;
    for (uint32_t i = 0; i < cut->num_names; i++) {
        uint32_t a = 0;
        while (a < file->num_arrays &&
               strcmp(file->arrays[a].name, cut->names[i]) != 0)
            a++;
        if (a == file->num_arrays)
            return status_fail(why, FAILURE_DATA_MISMATCH,
                               "%s: found no array %s; it has %s (features, "
                               "data.label and data.weight name what is read)",
                               file->path, cut->names[i], file->all);
    }
    return file->num_arrays ? STATUS_OK
                            : status_fail(why, FAILURE_DATA_DAMAGED,
                                          "%s: found no array", file->path);
}

/* Moves ARRAY's archive to the member INDEX. *ENDED: there are fewer. */
static enum status move_to_member(const struct record_file *file,
                                  struct npz_array *array, uint32_t index,
                                  bool *ended, struct failure *why) {
    struct archive_entry *entry;
    enum status status = open_zip(file, &array->archive, why);
    int found = ARCHIVE_OK;
    for (uint32_t i = 0; !status && i <= index && found == ARCHIVE_OK; i++)
        found = archive_read_next_header(array->archive, &entry);
    *ended = !status && found == ARCHIVE_EOF;
    if (status || *ended)
        return status;
    if (found != ARCHIVE_OK)
        return status_fail(why, FAILURE_DATA_DAMAGED, "%s: %s", file->path,
                           archive_error_string(array->archive));
    const char *name = archive_entry_pathname(entry);
    size_t size = name ? strlen(name) : 0;
    size -= size > 4 && !strcmp(name + size - 4, ".npy") ? 4 : 0;
    if (!size)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "%s: member %u: found no name", file->path, index);
    array->name = strndup(name, size);
    return array->name ? STATUS_OK : npz_reader_no_memory(file, why);
}

static void close_array(struct npz_array *array) {
    archive_read_free(array->archive);
    free(array->name);
    *array = (struct npz_array){0};
}

/* ARRAY has as many rows as the first one. */
static enum status compare_row_counts(const struct record_file *file,
                                      const struct npz_array *array,
                                      struct failure *why) {
    if (array->header.rows == file->arrays->header.rows)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "%s: array %s: found %" PRIu64 " rows, expected %" PRIu64
                       " as in %s",
                       file->path, array->name, array->header.rows,
                       file->arrays->header.rows, file->arrays->name);
}

/* Opens member INDEX as the next array if it is read. */
static enum status npz_open_member(struct record_file *file, uint32_t index,
                                   bool *ended, struct failure *why) {
    struct npz_array *array = &file->arrays[file->num_arrays];
    enum status status = move_to_member(file, array, index, ended, why);
    if (!status &&
        (*ended || !is_wanted(file, array->name, strlen(array->name)))) {
        close_array(array);
        return STATUS_OK;
    }
    file->num_arrays++;
    if (!status)
        status = read_npy_header(file, array, why);
    return status ? status : compare_row_counts(file, array, why);
}

static enum status open_arrays(struct record_file *file, struct failure *why) {
    bool ended = false;
    enum status status = input_file_check(file->path, "the file of records",
                                          FAILURE_DATA_UNREADABLE, why);
    for (uint32_t index = 0; !status && !ended; index++) {
        if (file->num_arrays > MAX_ARRAYS || index > MAX_MEMBERS)
            return status_fail(why, FAILURE_DATA_DAMAGED,
                               "%s: found more than %d arrays", file->path,
                               file->num_arrays > MAX_ARRAYS ? MAX_ARRAYS
                                                             : MAX_MEMBERS);
        status = npz_open_member(file, index, &ended, why);
    }
    return status ? status : check_wanted(file, why);
}

/* Makes the table, which is the same in all records. */
static enum status allocate_record(struct record_file *file,
                                   struct failure *why) {
    uint32_t places =
        file->cut->names ? file->cut->num_names : file->num_arrays;
    size_t parsed = 0; /* about what npz_row_read takes */
    file->size = places * sizeof *file->record;
    for (uint32_t a = 0; a < file->num_arrays; a++) {
        const struct npy_header *header = &file->arrays[a].header;
        file->arrays[a].begin = (uint32_t)file->size;
        file->size += file->arrays[a].bytes;
        parsed += header->row * (2 * (size_t)header->bytes + 16);
    }
    file->size = (file->size + 3) / 4 * 4; /* the next one is aligned, too */
    if (parsed > RECORD_READER_MAX_BYTES)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "%s: found rows that may take more than 64 MiB",
                           file->path);
    file->row = malloc(file->element + 1);
    file->record = calloc(1, file->size);
    if (!file->row || !file->record)
        return npz_reader_no_memory(file, why);
    for (uint32_t a = 0; a < file->num_arrays; a++) {
        const struct npz_array *array = &file->arrays[a];
        file->record[array->place] =
            (struct row_values){array->begin, (uint32_t)array->header.row,
                                array->header.bytes, array->header.kind};
    }
    return STATUS_OK;
}

static void close_npz(struct record_file **where) {
    struct record_file *file = where ? *where : NULL;
    if (!file)
        return;
    for (uint32_t a = 0; file->arrays && a <= MAX_ARRAYS; a++)
        close_array(&file->arrays[a]);
    data_file_close(&file->npy);
    tensor_file_close(&file->tensors);
    free(file->arrays);
    free(file->row);
    free(file->record);
    free(file);
    *where = NULL;
}

/* Opens FILE's arrays. */
typedef enum status open_all(struct record_file *file, struct failure *why);

static enum status open_numpy(struct record_file **out, const char *path,
                              const struct record_cut *cut, open_all *open,
                              struct failure *why) {
    struct record_file *file = calloc(1, sizeof *file);
    *out = NULL;
    if (!file)
        return status_fail(why, FAILURE_NO_MEMORY, "%s: no memory to read it",
                           path);
    file->path = path;
    file->cut = cut;
    file->arrays = calloc(MAX_ARRAYS + 1, sizeof *file->arrays);
    enum status status =
        file->arrays ? open(file, why) : npz_reader_no_memory(file, why);
    if (!status)
        status = allocate_record(file, why);
    if (status)
        close_npz(&file);
    *out = file;
    return status;
}

static enum status open_npz(struct record_file **out, const char *path,
                            const struct record_cut *cut, struct failure *why) {
    return open_numpy(out, path, cut, open_arrays, why);
}

/* SIZE bytes of the file of a structured array. */
static enum status read_npy(struct record_file *file, void *bytes, size_t size,
                            const char *short_of, struct failure *why) {
    size_t got;
    enum status status = data_file_read(file->npy, bytes, size, &got, why);
    return status || got == size
               ? status
               : status_fail(why, FAILURE_DATA_DAMAGED, "%s: found %s",
                             file->path, short_of);
}

static enum status take_npy_field(struct record_file *file,
                                  const struct npy_field *field,
                                  struct failure *why) {
    if (!is_wanted(file, field->name, field->name_bytes))
        return STATUS_OK;
    struct npz_array *array = &file->arrays[file->num_arrays++];
    array->name = strndup(field->name, field->name_bytes);
    array->header = field->header;
    array->bytes = field->header.row * field->header.bytes;
    array->offset = field->offset;
    if (!array->name)
        return npz_reader_no_memory(file, why);
    return field->wrong ? fail_of_array(file, array, field->wrong, why)
                        : STATUS_OK;
}

/* Makes arrays of the fields that TEXT, the header, names. */
static enum status take_fields(struct record_file *file, const char *text,
                               struct failure *why) {
    struct npy_field *fields = calloc(MAX_ARRAYS, sizeof *fields);
    uint32_t count = 0;
    if (!fields)
        return npz_reader_no_memory(file, why);
    const char *wrong = npy_header_parse_fields(text, fields, MAX_ARRAYS,
                                                &count, &file->element);
    if (!wrong && !file->element)
        wrong = "elements without values";
    if (!wrong && file->element > RECORD_READER_MAX_BYTES / 8)
        wrong = "an element of more than 8 MiB";
    enum status status = wrong ? status_fail(why, FAILURE_DATA_DAMAGED,
                                             "%s: found %s", file->path, wrong)
                               : STATUS_OK;
    for (uint32_t f = 0; !status && f < count; f++)
        status = take_npy_field(file, &fields[f], why);
    free(fields);
    return status ? status : check_wanted(file, why);
}

static enum status npz_open_fields(struct record_file *file,
                                   struct failure *why) {
    static const char none[] = "no header of NumPy's format";
    unsigned char prefix[NPY_HEADER_PREFIX];
    size_t before = 0, size = 0;
    char *text = malloc(NPY_HEADER_MAX_BYTES + 1);
    enum status status =
        text ? data_file_open(&file->npy, file->path, "records", why)
             : npz_reader_no_memory(file, why);
    if (!status)
        status = read_npy(file, prefix, sizeof prefix, none, why);
    if (!status)
        size = npy_header_text_bytes(prefix, &before);
    size_t read = sizeof prefix - before;
    if (!status && size < read)
        status = status_fail(why, FAILURE_DATA_DAMAGED, "%s: found %s",
                             file->path, none);
    if (!status)
        status = read_npy(file, text + read, size - read, none, why);
    if (!status) {
        memcpy(text, prefix + before, read);
        text[size] = 0;
        status = take_fields(file, text, why);
    }
    free(text);
    return status;
}

static enum status open_npy(struct record_file **out, const char *path,
                            const struct record_cut *cut, struct failure *why) {
    return open_numpy(out, path, cut, npz_open_fields, why);
}

/* NumPy's kind and size of the values of a tensor of DTYPE; false: its values
 * are not read. */
static bool take_dtype(const char *dtype, struct npy_header *header) {
    static const struct {
        const char *dtype;
        char kind;
        uint32_t bytes;
    } types[] = {{"F32", 'f', 4},   {"F64", 'f', 8}, {"F16", 'f', 2},
                 {"BF16", BF16, 2}, {"I64", 'i', 8}, {"I32", 'i', 4},
                 {"I16", 'i', 2},   {"I8", 'i', 1},  {"U64", 'u', 8},
                 {"U32", 'u', 4},   {"U16", 'u', 2}, {"U8", 'u', 1},
                 {"BOOL", 'b', 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].dtype, dtype)) {
            header->kind = types[i].kind;
            header->bytes = types[i].bytes;
            return true;
        }
    return false;
}

/* The rows of TENSOR as ARRAY's. */
static enum status take_tensor(const struct record_file *file,
                               const struct tensor_info *tensor,
                               struct npz_array *array, struct failure *why) {
    struct npy_header *header = &array->header;
    const char *wrong = NULL;
    array->name = strdup(tensor->name);
    array->first = tensor->begin;
    if (!array->name)
        return npz_reader_no_memory(file, why);
    size_t dims = json_array_size(tensor->shape);
    header->rows =
        (uint64_t)json_integer_value(json_array_get(tensor->shape, 0));
    header->row = 1;
    for (size_t d = 1; d < dims; d++)
        header->row *=
            (uint64_t)json_integer_value(json_array_get(tensor->shape, d));
    if (!dims)
        wrong = "no dimension, expected the samples as the first";
    else if (!take_dtype(tensor->dtype, header))
        wrong = "a dtype that is not read; allowed are F16, BF16, F32, F64, "
                "integers and BOOL";
    enum status status = use_header(file, array, wrong, why);
    uint64_t bytes;
    if (!status &&
        (__builtin_mul_overflow(array->bytes, header->rows, &bytes) ||
         bytes != tensor->bytes))
        status =
            fail_of_array(file, array, "other bytes than its shape has", why);
    return status;
}

static enum status take_tensors(struct record_file *file,
                                const struct tensor_info *tensors, size_t count,
                                struct failure *why) {
    enum status status = STATUS_OK;
    for (size_t t = 0; !status && t < count; t++) {
        const char *name = tensors[t].name;
        if (!is_wanted(file, name, strlen(name)))
            continue;
        if (file->num_arrays == MAX_ARRAYS)
            return status_fail(why, FAILURE_DATA_DAMAGED,
                               "%s: found more than %d tensors", file->path,
                               MAX_ARRAYS);
        struct npz_array *array = &file->arrays[file->num_arrays++];
        status = take_tensor(file, &tensors[t], array, why);
        if (!status)
            status = compare_row_counts(file, array, why);
    }
    return status ? status : check_wanted(file, why);
}

static enum status open_tensors(struct record_file *file, struct failure *why) {
    enum status status = tensor_file_open(&file->tensors, file->path, why);
    if (status)
        return status;
    size_t count = tensor_file_list(file->tensors, NULL, 0);
    struct tensor_info *tensors = calloc(count + 1, sizeof *tensors);
    if (!tensors)
        return npz_reader_no_memory(file, why);
    tensor_file_list(file->tensors, tensors, count);
    status = take_tensors(file, tensors, count, why);
    free(tensors);
    return status;
}

static enum status open_safetensors(struct record_file **out, const char *path,
                                    const struct record_cut *cut,
                                    struct failure *why) {
    return open_numpy(out, path, cut, open_tensors, why);
}

/* Makes the values of ROW, which HEADER describes, little-endian. */
static void swap_bytes(const struct npy_header *header, char *row) {
    uint32_t unit = header->kind == 'U' ? 4 : header->bytes;
    size_t size = header->row * header->bytes;
    for (char *value = row; value < row + size; value += unit)
        for (uint32_t i = 0; i < unit / 2; i++) {
            char byte = value[i];
            value[i] = value[unit - 1 - i];
            value[unit - 1 - i] = byte;
        }
}

/* ARRAY's next row, to the record. */
static enum status read_array_row(struct record_file *file,
                                  const struct npz_array *array,
                                  struct failure *why) {
    char *to = (char *)file->record + array->begin;
    enum status status = STATUS_OK;
    if (file->npy)
        memcpy(to, file->row + array->offset, array->bytes);
    else if (file->tensors)
        status = tensor_file_read_bytes(
            file->tensors, array->first + file->number * array->bytes, to,
            array->bytes, why);
    else if (!read_exactly(array->archive, to, array->bytes))
        status =
            fail_of_array(file, array, "fewer rows than its header says", why);
    else if (file->number + 1 == array->header.rows)
        status = end_member_of(file, array, why);
    if (!status && array->header.big)
        swap_bytes(&array->header, to);
    return status;
}

static enum status next_row(struct record_file *file, struct record *record,
                            struct failure *why) {
    *record = (struct record){0};
    if (file->number == file->arrays->header.rows)
        return STATUS_OK;
    enum status status = STATUS_OK;
    if (file->npy)
        status = read_npy(file, file->row, file->element,
                          "fewer elements than its header says", why);
    for (uint32_t a = 0; !status && a < file->num_arrays; a++)
        status = read_array_row(file, &file->arrays[a], why);
    if (!status)
        *record = (struct record){.bytes = (char *)file->record,
                                  .size = file->size,
                                  .number = file->number++};
    return status;
}

/* A number of NumPy, sign-extended. */
static int64_t integer_at(const char *at, char kind, uint32_t bytes) {
    uint64_t value = 0;
    unsigned unused = 64 - 8 * bytes;
    memcpy(&value, at, bytes);
    value = le64toh(value);
    return kind == 'i' ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

/* UTF-8 of the code point CODE. */
static char *put_utf8(char *at, uint32_t code) {
    static const unsigned char firsts[] = {0, 0xc0, 0xe0, 0xf0};
    unsigned more = (code >= 0x80) + (code >= 0x800) + (code >= 0x10000);
    *at++ = (char)(firsts[more] | (code >> 6 * more & (more == 3 ? 7 : 0x7f)));
    while (more--)
        *at++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return at;
}

/* The text at AT without the zeros at its end, or the digits of an integer:
 * either there or at *TO, which moves behind it. */
static struct record_text text_at(const char *at,
                                  const struct row_values *values, char **to) {
    char kind = values->kind, *begin = *to;
    uint32_t unit = kind == 'U' ? 4 : 1, size = values->bytes;
    if (kind == 'u')
        *to += snprintf(begin, VALUE_ROOM, "%" PRIu64,
                        (uint64_t)integer_at(at, kind, size));
    while (kind != 'u' && size && !integer_at(at + size - unit, 'u', unit))
        size -= unit;
    for (uint32_t i = 0; kind == 'U' && i < size; i += unit)
        *to = put_utf8(*to, (uint32_t)integer_at(at + i, 'u', unit));
    return kind == 'S' ? (struct record_text){at, size}
                       : (struct record_text){begin, (size_t)(*to - begin)};
}

static float float_at(const char *at, char kind, uint32_t bytes) {
    double wide;
    float value;
    uint16_t half;
    if (bytes == 4) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (bytes == 8) {
        memcpy(&wide, at, sizeof wide);
        return (float)wide;
    }
    memcpy(&half, at, sizeof half);
    return kind == BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

/* Cells have no integers of 2^63 or more: a row with one is a list of texts,
 * which features read as CSV's. */
static bool exceeds_int64(const struct row_values *values, const char *at) {
    bool wide = values->kind == 'u' && values->bytes == sizeof(uint64_t);
    for (uint32_t i = 0; wide && i < values->count; i++, at += sizeof(uint64_t))
        if (integer_at(at, 'u', sizeof(uint64_t)) < 0)
            return true;
    return false;
}

/* The VALUES at AT become CELL's, at TO, and behind them the bytes of texts. */
static void take_values(const struct row_values *values, const char *at,
                        void *to, struct record_cell *cell) {
    float *floats = to;
    int64_t *integers = to;
    struct record_text *texts = to;
    uint32_t count = values->count, bytes = values->bytes;
    char kind = values->kind, *next = (char *)(texts + count);
    *cell = (struct record_cell){.type = RECORD_INTEGERS,
                                 .count = count,
                                 .texts = texts,
                                 .integers = integers,
                                 .floats = floats};
    if (kind == 'f' || kind == BF16) {
        cell->type = RECORD_FLOATS;
        for (uint32_t i = 0; i < count; i++)
            floats[i] = float_at(at + i * bytes, kind, bytes);
    } else if (kind == 'S' || kind == 'U' || exceeds_int64(values, at)) {
        cell->type = RECORD_TEXTS;
        for (uint32_t i = 0; i < count; i++)
            texts[i] = text_at(at + i * bytes, values, &next);
    } else {
        for (uint32_t i = 0; i < count; i++)
            integers[i] = integer_at(at + i * bytes, kind, bytes);
    }
}

/* What take_values writes to. */
static size_t room_of(const struct row_values *values) {
    return (values->count * (VALUE_ROOM + (size_t)values->bytes) + 7) / 8 * 8;
}

enum status npz_row_read(struct npz_row *row, uint32_t count,
                         const struct record *record,
                         const struct record_cell **cells,
                         struct failure *why) {
    const struct row_values *table = (const void *)record->bytes;
    size_t room = count * sizeof *row->cells;
    for (uint32_t c = 0; c < count; c++)
        room += room_of(&table[c]);
    if (room > row->room) {
        free(row->cells);
        row->cells = malloc(room);
        row->room = row->cells ? room : 0;
    }
    if (room > row->room)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the values");
    char *to = (char *)(row->cells + count);
    for (uint32_t c = 0; c < count; to += room_of(&table[c++]))
        take_values(&table[c], record->bytes + table[c].begin, to,
                    &row->cells[c]);
    *cells = row->cells;
    return STATUS_OK;
}

static void visit_names(const struct record_file *file,
                        void (*visit)(void *context,
                                      const struct record_text *name),
                        void *context) {
    for (uint32_t a = 0; a < file->num_arrays; a++) {
        const char *name = file->arrays[a].name;
        visit(context, &(struct record_text){name, strlen(name)});
    }
}

const struct record_reader npz_reader = {"npz", open_npz, next_row,   close_npz,
                                         NULL,  NULL,     visit_names};
const struct record_reader npy_reader = {"npy", open_npy, next_row,   close_npz,
                                         NULL,  NULL,     visit_names};
const struct record_reader safetensors_reader = {
    "safetensors", open_safetensors, next_row, close_npz, NULL,
    NULL,          visit_names};
