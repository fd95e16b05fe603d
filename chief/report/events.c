/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/events.h"

#include "chief/report/event.pb-c.h"
#include "proto/base/time.h"
#include "proto/store/disk.h"

#include <endian.h>
#include <errno.h>
#include <isa-l/crc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PATH = 4096, MAX_TAG = 512, MAX_EVENT = MAX_TAG + 128 };

struct events {
    FILE *file;
    char path[MAX_PATH];
};

/* ISA-L's crc32_iscsi leaves the inversion at both ends to its caller; the
 * mask is TFRecord's, which keeps a CRC of data with CRCs in it sound. */
static uint32_t masked_crc(uint8_t *bytes, size_t size) {
    uint32_t crc = ~crc32_iscsi(bytes, (int)size, 0xffffffffu);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* One record: length, its CRC, the bytes, their CRC; all little-endian. */
static enum status write_record(struct events *events, uint8_t *bytes,
                                size_t size, struct failure *why) {
    uint64_t length = htole64(size);
    uint32_t length_crc =
        htole32(masked_crc((uint8_t *)&length, sizeof length));
    uint32_t crc = htole32(masked_crc(bytes, size));
    FILE *file = events->file;
    if (fwrite(&length, sizeof length, 1, file) != 1 ||
        fwrite(&length_crc, sizeof length_crc, 1, file) != 1 ||
        fwrite(bytes, size, 1, file) != 1 ||
        fwrite(&crc, sizeof crc, 1, file) != 1)
        return status_errno(why, STATUS_FAILED, errno, "writing %s",
                            events->path);
    return STATUS_OK;
}

static enum status write_event(struct events *events, Tensorboard__Event *event,
                               struct failure *why) {
    uint8_t bytes[MAX_EVENT];
    event->wall_time = time_calendar();
    size_t size = tensorboard__event__pack(event, bytes);
    return write_record(events, bytes, size, why);
}

static enum status write_version(struct events *events, struct failure *why) {
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    char version[] = "brain.Event:2";
    event.what_case = TENSORBOARD__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    enum status status = write_event(events, &event, why);
    return status ? status : events_flush(events, why);
}

static enum status name_file(struct events *events, const char *dir,
                             struct failure *why) {
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    int length = snprintf(events->path, sizeof events->path,
                          "%s/events.out.tfevents.%010.0f.%s.%ld", dir,
                          time_calendar(), host, (long)getpid());
    if (length >= (int)sizeof events->path)
        return status_fail(why, STATUS_CONFIG,
                           "the event file's path is over %d bytes: %s/...",
                           MAX_PATH - 1, dir);
    return STATUS_OK;
}

enum status events_open(struct events **out, const char *dir,
                        struct failure *why) {
    *out = NULL;
    struct events *events = calloc(1, sizeof *events);
    if (!events)
        return status_fail(why, STATUS_RETRY, "out of memory for events");
    enum status status = disk_make_folder(dir, why);
    if (status) {
        status_context(why, "tensorboard.output_path");
        status = why->status = STATUS_CONFIG;
    } else {
        status = name_file(events, dir, why);
    }
    if (status)
        goto fail;
    events->file = fopen(events->path, "wxe");
    if (!events->file) {
        status = status_errno(why, STATUS_CONFIG, errno, "creating %s",
                              events->path);
        goto fail;
    }
    status = write_version(events, why);
    if (status)
        goto fail;
    *out = events;
    return STATUS_OK;
fail:
    events_close(&events);
    return status;
}

enum status events_scalar(struct events *events, const char *tag, uint64_t step,
                          double value, struct failure *why) {
    if (strlen(tag) > MAX_TAG)
        return status_fail(why, STATUS_FAILED,
                           "the tag of a scalar is over %d bytes: %s", MAX_TAG,
                           tag);
    Tensorboard__Summary__Value scalar = TENSORBOARD__SUMMARY__VALUE__INIT;
    Tensorboard__Summary__Value *scalars[] = {&scalar};
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    scalar.tag = (char *)tag; /* packing only reads it */
    scalar.value_case = TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE;
    scalar.simple_value = (float)value;
    summary.n_value = 1;
    summary.value = scalars;
    event.step = (int64_t)step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    return write_event(events, &event, why);
}

enum status events_restart(struct events *events, uint64_t step,
                           struct failure *why) {
    Tensorboard__SessionLog log = TENSORBOARD__SESSION_LOG__INIT;
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    log.status = TENSORBOARD__SESSION_LOG__SESSION_STATUS__START;
    event.step = (int64_t)step;
    event.what_case = TENSORBOARD__EVENT__WHAT_SESSION_LOG;
    event.session_log = &log;
    enum status status = write_event(events, &event, why);
    return status ? status : events_flush(events, why);
}

enum status events_flush(struct events *events, struct failure *why) {
    if (fflush(events->file))
        return status_errno(why, STATUS_FAILED, errno, "writing %s",
                            events->path);
    return STATUS_OK;
}

void events_close(struct events **events) {
    if (!*events)
        return;
    if ((*events)->file)
        fclose((*events)->file);
    free(*events);
    *events = NULL;
}
