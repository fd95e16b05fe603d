/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/tensorboard_writer.h"

#include "chief/report/event.pb-c.h"
#include "core/base/masked_crc.h"
#include "core/base/time.h"
#include "core/store/fs_info.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PATH = 4096, MAX_TAG = 512, MAX_EVENT = MAX_TAG + 128 };

struct tensorboard_writer {
    FILE *file;
    char path[MAX_PATH];
};

/* Writes one record: length, CRC of the length, bytes, CRC of the bytes; all
 * little-endian. */
static enum status tensorboard_writer_write_record(
    struct tensorboard_writer *writer, uint8_t *bytes, size_t size,
    struct failure *why) {
    uint64_t length = htole64(size);
    uint32_t length_crc = htole32(masked_crc(&length, sizeof length));
    uint32_t crc = htole32(masked_crc(bytes, size));
    FILE *file = writer->file;
    if (fwrite(&length, sizeof length, 1, file) != 1 ||
        fwrite(&length_crc, sizeof length_crc, 1, file) != 1 ||
        fwrite(bytes, size, 1, file) != 1 ||
        fwrite(&crc, sizeof crc, 1, file) != 1)
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno, "writing %s",
                            writer->path);
    return STATUS_OK;
}

static enum status write_event(struct tensorboard_writer *writer,
                               Tensorboard__Event *event, struct failure *why) {
    uint8_t usual[MAX_EVENT], *bytes = usual;
    event->wall_time = time_calendar();
    size_t size = tensorboard__event__get_packed_size(event);
    if (size > sizeof usual)
        bytes = malloc(size);
    if (!bytes)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory for events");
    tensorboard__event__pack(event, bytes);
    enum status status =
        tensorboard_writer_write_record(writer, bytes, size, why);
    if (bytes != usual)
        free(bytes);
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

static enum status name_file(struct tensorboard_writer *writer, const char *dir,
                             struct failure *why) {
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    int length = snprintf(writer->path, sizeof writer->path,
                          "%s/events.out.tfevents.%010.0f.%s.%ld", dir,
                          time_calendar(), host, (long)getpid());
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
    } else {
        status = name_file(writer, dir, why);
    }
    if (status)
        goto fail;
    writer->file = fopen(writer->path, "wxe");
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

enum status tensorboard_writer_restart(struct tensorboard_writer *writer,
                                       uint64_t step, struct failure *why) {
    Tensorboard__SessionLog log = TENSORBOARD__SESSION_LOG__INIT;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    log.status = TENSORBOARD__SESSION_LOG__SESSION_STATUS__START;
    event.step = (int64_t)step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SESSION_LOG;
    event.session_log = &log;
    enum status status = write_event(writer, &event, why);
    return status ? status : tensorboard_writer_flush(writer, why);
}

enum status tensorboard_writer_flush(struct tensorboard_writer *writer,
                                     struct failure *why) {
    if (fflush(writer->file))
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno, "writing %s",
                            writer->path);
    return STATUS_OK;
}

void tensorboard_writer_close(struct tensorboard_writer **writer) {
    if (!*writer)
        return;
    if ((*writer)->file)
        fclose((*writer)->file);
    free(*writer);
    *writer = NULL;
}
