/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/tensorboard_writer.h"

#include "chief/report/event.pb-c.h"
#include "chief/report/histogram_board.h"
#include "core/base/background_file.h"
#include "core/base/masked_crc.h"
#include "core/base/time.h"
#include "core/store/fs_info.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PATH = 4096, MAX_TAG = 512, MAX_EVENT = MAX_TAG + 128 };
enum { HEAD = 12, FRAME = HEAD + 4 }; /* of a record */

struct tensorboard_writer {
    FILE *file;                         /* or, */
    struct background_file *background; /* once a thread writes */
    char path[MAX_PATH];
};

static enum status write_framed(struct tensorboard_writer *writer,
                                const void *bytes, size_t size,
                                struct failure *why) {
    if (writer->background)
        return background_file_append(writer->background, bytes, size, why);
    return fwrite(bytes, size, 1, writer->file) == 1
               ? STATUS_OK
               : status_errno(why, FAILURE_FILE_UNWRITABLE, errno, "writing %s",
                              writer->path);
}

/* A record: length, CRC of the length, SIZE bytes, CRC of the bytes; all
 * little-endian. RECORD has the bytes at their place, and room for the rest. */
static size_t frame_record(uint8_t *record, size_t size) {
    uint64_t length = htole64(size);
    uint32_t length_crc = htole32(masked_crc(&length, sizeof length));
    uint32_t crc = htole32(masked_crc(record + HEAD, size));
    memcpy(record, &length, sizeof length);
    memcpy(record + sizeof length, &length_crc, sizeof length_crc);
    memcpy(record + HEAD + size, &crc, sizeof crc);
    return HEAD + size + sizeof crc;
}

/* RECORD has room for EVENT and its frame. The size of both. */
static size_t pack_event(uint8_t *record, const Tensorboard__Event *event) {
    return frame_record(record, tensorboard__event__pack(event, record + HEAD));
}

static enum status write_event(struct tensorboard_writer *writer,
                               Tensorboard__Event *event, struct failure *why) {
    uint8_t usual[FRAME + MAX_EVENT], *record = usual;
    event->wall_time = time_calendar(); /* counts for the size */
    size_t size = tensorboard__event__get_packed_size(event);
    if (size > MAX_EVENT)
        record = malloc(FRAME + size);
    if (!record)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory for events");
    enum status status =
        write_framed(writer, record, pack_event(record, event), why);
    if (record != usual)
        free(record);
    return status;
}

/* Appends an event with one VALUE. */
static enum status write_value(struct tensorboard_writer *writer,
                               Tensorboard__Summary__Value *value,
                               uint64_t step, struct failure *why) {
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    summary.n_value = 1;
    summary.value = &value;
    event.step = (int64_t)step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    return write_event(writer, &event, why);
}

static enum status write_version(struct tensorboard_writer *writer,
                                 struct failure *why) {
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    char version[] = "brain.Event:2";
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    enum status status = write_event(writer, &event, why);
    return status ? status : tensorboard_writer_flush(writer, why);
}

/* A process may have run before within this second: NUMBER counts them. */
static enum status name_file(struct tensorboard_writer *writer, const char *dir,
                             unsigned number, struct failure *why) {
    char host[256] = "localhost", end[16] = "";
    gethostname(host, sizeof host - 1);
    if (number)
        snprintf(end, sizeof end, ".%u", number);
    int length = snprintf(writer->path, sizeof writer->path,
                          "%s/events.out.tfevents.%010.0f.%s.%ld%s", dir,
                          time_calendar(), host, (long)getpid(), end);
    if (length >= (int)sizeof writer->path)
        return status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                           "the event file's path is over %d bytes: %s/...",
                           MAX_PATH - 1, dir);
    return STATUS_OK;
}

enum status tensorboard_writer_open(struct tensorboard_writer **out,
                                    const char *dir, struct failure *why) {
    *out = NULL;
    struct tensorboard_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory for events");
    enum status status = fs_info_make_folder(dir, why);
    if (status) {
        status_context(why, "tensorboard.output_path");
        why->code = FAILURE_OUTPUT_UNUSABLE;
        status = STATUS_CONFIG;
    }
    for (unsigned n = 0; !status && !writer->file && (!n || errno == EEXIST);
         n++) {
        status = name_file(writer, dir, n, why);
        if (!status)
            writer->file = fopen(writer->path, "wxe");
    }
    if (status)
        goto fail;
    if (!writer->file) {
        status = status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                              "creating %s", writer->path);
        goto fail;
    }
    status = write_version(writer, why);
    if (status)
        goto fail;
    *out = writer;
    return STATUS_OK;
fail:
    tensorboard_writer_close(&writer);
    return status;
}

enum status tensorboard_writer_add_scalar(struct tensorboard_writer *writer,
                                          const char *tag, uint64_t step,
                                          double value, struct failure *why) {
    if (strlen(tag) > MAX_TAG)
        return status_fail(why, FAILURE_NAME_TOO_LONG,
                           "the tag of a scalar is over %d bytes: %s", MAX_TAG,
                           tag);
    Tensorboard__Summary__Value scalar = TENSORBOARD__SUMMARY__VALUE__INIT;
    scalar.tag = (char *)tag; /* packing does not modify it */
    scalar.value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
    scalar.simple_value = (float)value;
    return write_value(writer, &scalar, step, why);
}

/* Fills in LIMITS and COUNTS [HISTOGRAM_BINS]; returns how many there are. */
static size_t fill_buckets(const struct histogram_sum *histogram,
                           double *limits, double *counts) {
    size_t count = 0;
    for (uint32_t place = 0; place < HISTOGRAM_BINS; place++) {
        bool next = place + 1 < HISTOGRAM_BINS && histogram->counts[place + 1];
        if (!histogram->counts[place] && !next)
            continue;
        limits[count] = histogram_limit(place);
        counts[count++] = (double)histogram->counts[place];
    }
    return count;
}

enum status tensorboard_writer_add_histogram(
    struct tensorboard_writer *writer, const char *tag, uint64_t step,
    const struct histogram_sum *histogram, struct failure *why) {
    Tensorboard__HistogramProto proto = TENSORBOARD__HISTOGRAM_PROTO__INIT;
    Tensorboard__Summary__Value value = TENSORBOARD__SUMMARY__VALUE__INIT;
    double limits[HISTOGRAM_BINS], counts[HISTOGRAM_BINS];
    proto.min = histogram->least;
    proto.max = histogram->most;
    proto.num = (double)histogram->finite;
    proto.sum = histogram->sum;
    proto.sum_squares = histogram->squares;
    proto.n_bucket = proto.n_bucket_limit =
        fill_buckets(histogram, limits, counts);
    proto.bucket_limit = limits;
    proto.bucket = counts;
    value.tag = (char *)tag; /* packing does not modify it */
    value.value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_HISTO;
    value.histo = &proto;
    return write_value(writer, &value, step, why);
}

/* TensorBoard reads the metadata of summaries that have a tensor, if only one
 * without elements. */
enum status tensorboard_writer_add_plugin(struct tensorboard_writer *writer,
                                          const char *tag, const char *plugin,
                                          uint8_t *content, size_t size,
                                          struct failure *why) {
    Tensorboard__SummaryMetadata__PluginData data =
        TENSORBOARD__SUMMARY_METADATA__PLUGIN_DATA__INIT;
    Tensorboard__SummaryMetadata metadata = TENSORBOARD__SUMMARY_METADATA__INIT;
    Tensorboard__TensorShape__Dim none = TENSORBOARD__TENSOR_SHAPE__DIM__INIT;
    Tensorboard__TensorShape__Dim *dims[] = {&none};
    Tensorboard__TensorShape shape = TENSORBOARD__TENSOR_SHAPE__INIT;
    Tensorboard__Tensor tensor = TENSORBOARD__TENSOR__INIT;
    Tensorboard__Summary__Value value = TENSORBOARD__SUMMARY__VALUE__INIT;
    data.plugin_name = (char *)plugin; /* packing modifies neither it nor TAG */
    data.content = (ProtobufCBinaryData){.len = size, .data = content};
    metadata.plugin_data = &data;
    shape.n_dim = 1;
    shape.dim = dims;
    tensor.dtype = TENSORBOARD__TENSOR__DATA_TYPE__DT_FLOAT;
    tensor.tensor_shape = &shape;
    value.tag = (char *)tag;
    value.metadata = &metadata;
    value.value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_TENSOR;
    value.tensor = &tensor;
    return write_value(writer, &value, 0, why);
}

static size_t pack_restart(uint8_t *record, uint64_t step) {
    Tensorboard__SessionLog log = TENSORBOARD__SESSION_LOG__INIT;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    log.status = TENSORBOARD__SESSION_LOG__SESSION_STATUS__START;
    event.step = (int64_t)step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SESSION_LOG;
    event.session_log = &log;
    event.wall_time = time_calendar();
    return pack_event(record, &event);
}

enum status tensorboard_writer_restart(struct tensorboard_writer *writer,
                                       uint64_t step, struct failure *why) {
    uint8_t record[FRAME + MAX_EVENT];
    enum status status =
        write_framed(writer, record, pack_restart(record, step), why);
    return status ? status : tensorboard_writer_flush(writer, why);
}

/* The next record of FILE with its frame, which the caller frees; NULL: none
 * that is whole. */
static uint8_t *read_event_record(FILE *file, size_t *size) {
    enum { LARGEST = 1 << 20 };
    uint8_t head[HEAD];
    uint64_t length;
    uint32_t crc;
    if (fread(head, sizeof head, 1, file) != 1)
        return NULL;
    memcpy(&length, head, sizeof length);
    memcpy(&crc, head + sizeof length, sizeof crc);
    *size = le64toh(length);
    if (le32toh(crc) != masked_crc(&length, sizeof length) || *size > LARGEST)
        return NULL;
    uint8_t *record = malloc(FRAME + *size);
    if (!record)
        return NULL;
    memcpy(record, head, sizeof head);
    bool whole = fread(record + HEAD, *size + sizeof crc, 1, file) == 1;
    if (whole)
        memcpy(&crc, record + HEAD + *size, sizeof crc);
    if (whole && le32toh(crc) == masked_crc(record + HEAD, *size)) {
        *size += FRAME;
        return record;
    }
    free(record);
    return NULL;
}

static bool is_test(const Tensorboard__Summary *summary) {
    static const char begin[] = "test/";
    for (size_t i = 0; i < summary->n_value; i++)
        if (!strncmp(summary->value[i]->tag, begin, sizeof begin - 1))
            return true;
    return false;
}

/* Adds to KEPT what the RECORD of SIZE bytes tells of STEP but for tests, or
 * takes away what it says is taken again. */
static void sort_record(FILE *kept, const uint8_t *record, size_t size,
                        uint64_t step) {
    Tensorboard__Event *event =
        tensorboard__event__unpack(NULL, size - FRAME, record + HEAD);
    if (!event)
        return;
    if (event->what_case == TENSORBOARD__EVENT__WHAT_SESSION_LOG &&
        (uint64_t)event->step <= step)
        fseek(kept, 0, SEEK_SET);
    if (event->what_case == TENSORBOARD__EVENT__WHAT_SUMMARY &&
        (uint64_t)event->step == step && !is_test(event->summary))
        fwrite(record, size, 1, kept);
    tensorboard__event__free_unpacked(event, NULL);
}

static void sort_file(FILE *kept, const char *path, uint64_t step) {
    FILE *file = fopen(path, "re");
    size_t size;
    for (uint8_t *record; file && (record = read_event_record(file, &size));
         free(record))
        sort_record(kept, record, size, step);
    if (file)
        fclose(file);
}

/* What the event files of the folder of PATH have of STEP but for tests. */
static void sort_folder(FILE *kept, const char *path, uint64_t step) {
    static const char names[] = "events.out.tfevents.";
    struct dirent **found;
    char folder[MAX_PATH], one[MAX_PATH + 256];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path),
             path);
    int count = scandir(folder, &found, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(one, sizeof one, "%s/%s", folder, found[i]->d_name);
        if (!strncmp(found[i]->d_name, names, sizeof names - 1))
            sort_file(kept, one, step);
        free(found[i]);
    }
    if (count >= 0)
        free(found);
}

/* Readers can be told to drop all of a step only: what stays is said again. */
static enum status replace_tests(int descriptor, const char *path,
                                 uint64_t step, struct failure *why) {
    char *bytes = NULL;
    uint8_t record[FRAME + MAX_EVENT];
    size_t size, restart = pack_restart(record, step);
    FILE *kept = open_memstream(&bytes, &size);
    if (!kept)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory for events");
    sort_folder(kept, path, step);
    fclose(kept);
    bool written = write(descriptor, record, restart) == (ssize_t)restart &&
                   write(descriptor, bytes, size) == (ssize_t)size;
    int error = errno;
    free(bytes);
    return written ? STATUS_OK
                   : status_errno(why, FAILURE_FILE_UNWRITABLE, error,
                                  "writing %s", path);
}

enum status tensorboard_writer_flush(struct tensorboard_writer *writer,
                                     struct failure *why) {
    if (writer->file && fflush(writer->file))
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno, "writing %s",
                            writer->path);
    return STATUS_OK;
}

enum status tensorboard_writer_detach(struct tensorboard_writer *writer,
                                      uint64_t tests_of, struct failure *why) {
    int descriptor = fcntl(fileno(writer->file), F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno, "writing %s",
                            writer->path);
    fclose(writer->file);
    writer->file = NULL;
    return background_file_open(&writer->background, descriptor, writer->path,
                                tests_of ? replace_tests : NULL, tests_of, why);
}

enum status tensorboard_writer_finish(struct tensorboard_writer **writer,
                                      int64_t until, struct failure *why) {
    enum status status = STATUS_OK;
    if (*writer && (*writer)->background)
        status = background_file_close(&(*writer)->background, until, why);
    else if (*writer)
        status = tensorboard_writer_flush(*writer, why);
    tensorboard_writer_close(writer);
    return status;
}

void tensorboard_writer_close(struct tensorboard_writer **writer) {
    struct failure ignored;
    if (!*writer)
        return;
    if ((*writer)->file)
        fclose((*writer)->file);
    enum status status =
        background_file_close(&(*writer)->background, time_now(), &ignored);
    (void)status;
    free(*writer);
    *writer = NULL;
}
