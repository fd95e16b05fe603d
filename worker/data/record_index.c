/* SPDX-License-Identifier: Apache-2.0 */
/* The file that keeps an index has a header, the marks and the hash of both. It
 * is locked while one process makes it. What cannot be kept is not an error. */
#include "worker/data/record_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { VERSION = 1, READS_BETWEEN = 65536 };
static const double lock_poll = 0.1; /* seconds */
static const double lock_limit = 600;

/* Of the data file: what the index is of. */
struct index_head {
    uint64_t version, name; /* NAME: hash of path, reader and cut */
    uint64_t inode, size;
    struct timespec modified, changed;
    uint64_t records, num_marks;
};

static enum status index_no_memory(const struct record_index_options *options,
                                   struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "%s: no memory for the index of its records",
                       options->path);
}

static bool index_is_cancelled(const struct record_index_options *options) {
    return options->is_cancelled &&
           options->is_cancelled(options->cancel_context);
}

void record_index_close(struct record_index **index) {
    if (!index || !*index)
        return;
    free((*index)->marks);
    free(*index);
    *index = NULL;
}

/* Makes FOLDER/NAME, and FOLDER; -1: it cannot be. */
static int open_kept(const char *folder, uint64_t name) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s", folder);
    if (length <= 0 || (size_t)length + 32 > sizeof path)
        return -1;
    for (char *slash = strchr(path + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
    snprintf(path + length, sizeof path - (size_t)length, "/%016" PRIx64 ".idx",
             name);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* $XDG_CACHE_HOME/capstan, or as the XDG Base Directory Specification says
 * where that is not set. False: there is no home. */
static bool default_folder(char *folder, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && *cache == '/')
        length = snprintf(folder, size, "%s/capstan/records", cache);
    else if (home && *home == '/')
        length = snprintf(folder, size, "%s/.cache/capstan/records", home);
    return length > 0 && (size_t)length < size;
}

/* Locks FILE once no other process makes an index there, or goes on without:
 * after lock_limit, for the other may stand still, and on a file system without
 * locks. What is stored there has a hash. */
static enum status lock_kept(const struct record_index_options *options,
                             int file, struct failure *why) {
    for (double waited = 0; waited < lock_limit; waited += lock_poll) {
        if (!flock(file, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
            return STATUS_OK;
        if (index_is_cancelled(options))
            return status_fail(why, FAILURE_TERMINATED,
                               "%s: waiting for another process of this host, "
                               "which counts its records, was ended",
                               options->path);
        usleep((useconds_t)(lock_poll * 1e6));
    }
    return STATUS_OK;
}

static uint64_t hash_index(const struct index_head *head,
                           const struct record_position *marks) {
    return XXH3_64bits_withSeed(marks, head->num_marks * sizeof *marks,
                                XXH3_64bits(head, sizeof *head));
}

static bool pread_all(int file, void *bytes, size_t size, off_t at) {
    return pread(file, bytes, size, at) == (ssize_t)size;
}

/* Reads what FILE keeps, if it is of the data file that WANTED describes. */
static bool load_index(int file, const struct index_head *wanted,
                       struct record_index *index) {
    struct index_head head;
    struct stat about;
    uint64_t hash;
    if (fstat(file, &about) || !pread_all(file, &head, sizeof head, 0) ||
        memcmp(&head, wanted, offsetof(struct index_head, records)))
        return false;
    uint64_t bytes = (uint64_t)about.st_size - sizeof head;
    if (head.num_marks > bytes / sizeof *index->marks)
        return false;
    size_t size = head.num_marks * sizeof *index->marks;
    index->marks = malloc(size + 1);
    if (!index->marks || !pread_all(file, index->marks, size, sizeof head) ||
        !pread_all(file, &hash, sizeof hash, (off_t)(sizeof head + size)) ||
        hash != hash_index(&head, index->marks)) {
        free(index->marks);
        index->marks = NULL;
        return false;
    }
    index->records = head.records;
    index->num_marks = head.num_marks;
    return true;
}

static void store_index(int file, const struct index_head *of,
                        const struct record_index *index) {
    struct index_head head = *of;
    head.records = index->records;
    head.num_marks = index->num_marks;
    size_t size = head.num_marks * sizeof *index->marks;
    uint64_t hash = hash_index(&head, index->marks);
    if (ftruncate(file, 0) ||
        pwrite(file, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        pwrite(file, index->marks, size, sizeof head) != (ssize_t)size ||
        pwrite(file, &hash, sizeof hash, (off_t)(sizeof head + size)) !=
            (ssize_t)sizeof hash)
        (void)!ftruncate(file, 0); /* a full disk: nothing is kept */
}

static bool add_mark(struct record_index *index,
                     const struct record_position *position) {
    if (!(index->num_marks & (index->num_marks - 1))) {
        size_t room = index->num_marks ? 2 * index->num_marks : 1;
        struct record_position *marks =
            realloc(index->marks, room * sizeof *marks);
        if (!marks)
            return false;
        index->marks = marks;
    }
    index->marks[index->num_marks++] = *position;
    return true;
}

/* Reads all records. */
static enum status count_records(const struct record_index_options *options,
                                 struct record_index *index,
                                 struct failure *why) {
    const struct record_reader *reader = options->reader;
    struct record record = {.bytes = ""};
    struct record_file *file;
    enum status status = reader->open(&file, options->path, &options->cut, why);
    while (!status) {
        struct record_position position;
        bool marks = index->records % RECORD_INDEX_STEP == 0 &&
                     reader->position && reader->position(file, &position);
        status = reader->next(file, &record, why);
        if (status || !record.bytes)
            break;
        if (marks && !add_mark(index, &position))
            status = index_no_memory(options, why);
        if (++index->records % READS_BETWEEN == 0 &&
            index_is_cancelled(options))
            status = status_fail(why, FAILURE_TERMINATED,
                                 "%s: reading it was ended", options->path);
    }
    reader->close(&file);
    return status;
}

static uint64_t name_of(const struct record_index_options *options) {
    char *real = realpath(options->path, NULL);
    const char *path = real ? real : options->path;
    uint64_t kind = XXH3_64bits_withSeed(options->reader->name,
                                         strlen(options->reader->name),
                                         (unsigned char)options->cut.delimiter);
    for (uint32_t i = 0; i < options->cut.num_names; i++)
        kind = XXH3_64bits_withSeed(options->cut.names[i],
                                    strlen(options->cut.names[i]), kind);
    uint64_t name = XXH3_64bits_withSeed(path, strlen(path), kind);
    free(real);
    return name;
}

static int open_folder(const struct record_index_options *options,
                       uint64_t name) {
    char folder[PATH_MAX];
    if (options->kept_in)
        return open_kept(options->kept_in, name);
    return default_folder(folder, sizeof folder) ? open_kept(folder, name) : -1;
}

enum status record_index_open(struct record_index **out,
                              const struct record_index_options *options,
                              struct failure *why) {
    struct record_index *index = calloc(1, sizeof *index);
    struct index_head head = {.version = VERSION, .name = name_of(options)};
    struct stat about;
    *out = index;
    if (!index)
        return index_no_memory(options, why);
    bool known = !stat(options->path, &about);
    if (known) {
        head.inode = about.st_ino;
        head.size = (uint64_t)about.st_size;
        head.modified = about.st_mtim;
        head.changed = about.st_ctim;
        index->size = head.size;
    }
    int kept = known ? open_folder(options, head.name) : -1;
    enum status status = kept < 0 ? STATUS_OK : lock_kept(options, kept, why);
    if (!status && (kept < 0 || !load_index(kept, &head, index))) {
        status = count_records(options, index, why);
        if (!status && kept >= 0)
            store_index(kept, &head, index);
    }
    if (kept >= 0)
        close(kept);
    if (status)
        record_index_close(out);
    return status;
}

enum status record_index_check(const struct record_index *index,
                               const char *path, struct failure *why) {
    struct stat about;
    if (!index->size || stat(path, &about)) /* opening it says why */
        return STATUS_OK;
    uint64_t size = (uint64_t)about.st_size;
    if (size == index->size)
        return STATUS_OK;
    return status_fail(
        why, FAILURE_DATA_MISMATCH,
        "%s: found %" PRIu64 " bytes, expected %" PRIu64
        ", as when its records were counted: files of a run with "
        "epochs may not change",
        path, size, index->size);
}
