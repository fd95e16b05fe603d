/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/shard_file.h"

#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VALUES = 64, FLOATS = 300 };

static struct shard_info info; /* of a whole file */
static uint8_t *whole;

/* LMDB trusts what it reads, so nothing but a whole file may reach it. */
static void write_whole(void) {
    struct shard_writer *writer;
    struct failure why;
    float value[FLOATS];
    int fd;
    enum status status = shard_writer_open_memory(
        &writer, "fuzzed", VALUES * sizeof value, VALUES, &why);
    for (uint32_t i = 0; i < VALUES && !status; i++) {
        for (int f = 0; f < FLOATS; f++)
            value[f] = (float)i + 0.5F * (float)f;
        struct shard_key key = {i / 4, (uint16_t)(i % 4), 0};
        status = shard_writer_put(writer, key, value, sizeof value, &why);
    }
    if (!status)
        status = shard_writer_finish_memory(&writer, &fd, &info, &why);
    fuzz_require(!status, "a shard file is written");
    whole = malloc(info.size);
    fuzz_require(whole && pread(fd, whole, info.size, 0) == (ssize_t)info.size,
                 "it is there");
    close(fd);
}

static void read_all(struct shard_reader *reader) {
    struct failure why;
    const void *value;
    size_t bytes;
    for (uint32_t i = 0; i < VALUES; i++) {
        struct shard_key key = {i / 4, (uint16_t)(i % 4), 0};
        fuzz_require(!shard_reader_get(reader, key, &value, &bytes, &why) &&
                         bytes == FLOATS * sizeof(float),
                     "a whole file has each value");
        fuzz_touch(value, bytes);
    }
}

/* A file with the bytes of an input at one place, or cut there. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    uint32_t place = 0;
    if (!whole)
        write_whole();
    if (size < sizeof place + 1)
        return 0;
    memcpy(&place, bytes, sizeof place);
    bool cuts = bytes[sizeof place] & 1;
    bytes += sizeof place + 1;
    size -= sizeof place + 1;
    place %= (uint32_t)info.size;
    size_t kept = cuts ? place : info.size;
    uint8_t *file = malloc(info.size + size);
    fuzz_require(file, "there is memory");
    memcpy(file, whole, kept);
    memcpy(file + place, bytes, size);
    size_t length = place + size > kept ? place + size : kept;
    bool same = length == info.size && !memcmp(file, whole, length);
    struct shard_info named = info;
    const char *path = fuzz_file(file, length), *slash = strrchr(path, '/');
    char folder[64];
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    snprintf(named.name, sizeof named.name, "%s", slash + 1);
    struct shard_reader *reader;
    struct failure why;
    bool is_read = fuzz_is_read(
        shard_reader_open_in(&reader, NULL, folder, &named, &why), &why);
    fuzz_require(is_read == same, "a file is read if it is whole");
    if (is_read) {
        read_all(reader);
        shard_reader_close(&reader);
    }
    free(file);
    return 0;
}
