/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/event_files.h"

#include "chief/report/event.pb-c.h"
#include "tests/lib/test.h"

#include <glob.h>
#include <limits.h>

/* The next record, whose CRCs tensorboard_writer_test has checked; NULL: there
 * is none, or who wrote it was killed meanwhile. */
static Tensorboard__Event *read_event(FILE *file) {
    uint64_t length;
    uint32_t crc;
    uint8_t bytes[1024];
    if (fread(&length, sizeof length, 1, file) != 1)
        return NULL;
    assert_in_range(length, 1, sizeof bytes);
    if (fread(&crc, sizeof crc, 1, file) != 1 ||
        fread(bytes, length, 1, file) != 1 ||
        fread(&crc, sizeof crc, 1, file) != 1)
        return NULL;
    return tensorboard__event__unpack(NULL, length, bytes);
}

static unsigned restart(const struct event_point *points, unsigned count,
                        struct event_point *left, int64_t step) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (points[i].step < step)
            left[kept++] = points[i];
    return kept;
}

static unsigned read_file(const char *path, const char *tag,
                          struct event_point *points, unsigned count,
                          unsigned size) {
    Tensorboard__Event *event;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    while ((event = read_event(file))) {
        if (event->what_case == TENSORBOARD__EVENT__WHAT_SESSION_LOG)
            count = restart(points, count, points, event->step);
        if (event->what_case == TENSORBOARD__EVENT__WHAT_SUMMARY &&
            !strcmp(event->summary->value[0]->tag, tag)) {
            assert_true(count < size);
            points[count++] = (struct event_point){
                event->step, event->summary->value[0]->simple_value};
        }
        tensorboard__event__free_unpacked(event, NULL);
    }
    fclose(file);
    return count;
}

static void find(const char *folder, glob_t *files) {
    assert_int_equal(
        glob(textf("%s/events.out.tfevents.*", folder), 0, NULL, files), 0);
}

unsigned event_files_read(const char *folder, const char *tag,
                          struct event_point *points, unsigned size) {
    unsigned count = 0;
    glob_t files;
    find(folder, &files);
    for (size_t i = 0; i < files.gl_pathc; i++)
        count = read_file(files.gl_pathv[i], tag, points, count, size);
    globfree(&files);
    return count;
}

const char *event_files_text(const char *folder, const char *tag) {
    static char text[4096];
    struct event_point points[200];
    unsigned count = event_files_read(folder, tag, points, 200);
    size_t used = 0;
    text[0] = 0;
    for (unsigned i = 0; i < count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d:%g ",
                                 (int)points[i].step, points[i].value);
    return text;
}

static void note_tags(const char *path, char *text, size_t size) {
    Tensorboard__Event *event;
    char tag[600];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    while ((event = read_event(file))) {
        size_t used = strlen(text);
        tag[0] = 0;
        if (event->what_case == TENSORBOARD__EVENT__WHAT_SUMMARY)
            snprintf(tag, sizeof tag, "%s ", event->summary->value[0]->tag);
        if (!strstr(text, tag))
            snprintf(text + used, size - used, "%s", tag);
        tensorboard__event__free_unpacked(event, NULL);
    }
    fclose(file);
}

char *event_files_tags(const char *folder) {
    static char text[4096];
    glob_t files;
    text[0] = 0;
    find(folder, &files);
    for (size_t i = 0; i < files.gl_pathc; i++)
        note_tags(files.gl_pathv[i], text, sizeof text);
    globfree(&files);
    return text;
}
