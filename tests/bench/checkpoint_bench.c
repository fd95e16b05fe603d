/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a shard of 1 GB (or argv[2] MB) in the folder argv[1] (default ".")
 * and, as dd conv=fsync would, a plain file of the same bytes; then reads the
 * shard back with every check. Prints MB/s of each, medians of argv[3] (3)
 * rounds, and how much anonymous memory writing took. */
#include "commands/measure/bench_iteration.h"
#include "core/base/time.h"
#include "core/store/atomic_file.h"
#include "core/store/shard_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, MAX_ROUNDS = 15 };

static void must(enum status status, const struct failure *why) {
    if (!status)
        return;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

/* Peak of anonymous memory is not kept by the kernel: this is the present. */
static double anonymous_megabytes(void) {
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %lf", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes / 1024;
}

static double write_shard(const char *path, const char *value, uint32_t count,
                          struct shard_info *info, double *memory) {
    struct shard_writer *writer;
    struct failure why;
    double before = anonymous_megabytes(), now;
    int64_t start = time_now();
    must(shard_writer_open(&writer, path, (uint64_t)count * BLOCK, count, &why),
         &why);
    for (uint32_t i = 0; i < count; i++) {
        struct shard_key key = {.offset = (uint64_t)i * BLOCK / sizeof(float)};
        must(shard_writer_put(writer, key, value, BLOCK, &why), &why);
        now = anonymous_megabytes() - before;
        *memory = now > *memory ? now : *memory;
    }
    must(shard_writer_finish(&writer, info, &why), &why);
    return time_to_seconds(time_now() - start);
}

static double write_plain(const char *path, const char *value, uint32_t count) {
    struct atomic_file file;
    struct failure why;
    int64_t start = time_now();
    must(atomic_file_create(&file, path, (uint64_t)count * BLOCK, &why), &why);
    for (uint32_t i = 0; i < count; i++)
        must(atomic_file_write(&file, value, BLOCK, &why), &why);
    must(atomic_file_commit(&file, &why), &why);
    return time_to_seconds(time_now() - start);
}

static double read_shard(const char *folder, const struct shard_info *info,
                         uint32_t count, char *value) {
    struct shard_reader *reader;
    struct failure why;
    const void *found;
    size_t bytes;
    int64_t start = time_now();
    must(shard_reader_open(&reader, folder, info, &why), &why);
    for (uint32_t i = 0; i < count; i++) {
        struct shard_key key = {.offset = (uint64_t)i * BLOCK / sizeof(float)};
        must(shard_reader_get(reader, key, &found, &bytes, &why), &why);
        memcpy(value, found, bytes);
    }
    shard_reader_close(&reader);
    return time_to_seconds(time_now() - start);
}

static void print_median(const char *what, double *seconds, int rounds,
                         uint32_t count) {
    printf("%-28s %8.0f MB/s\n", what,
           count * (BLOCK / 1e6) /
               bench_iteration_median(seconds, (size_t)rounds));
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : ".";
    uint32_t count =
        (uint32_t)((argc > 2 ? atof(argv[2]) : 1000) * 1e6 / BLOCK);
    int rounds = argc > 3 ? atoi(argv[3]) : 3;
    if (rounds < 1 || rounds > MAX_ROUNDS)
        rounds = MAX_ROUNDS;
    double shard[MAX_ROUNDS], plain[MAX_ROUNDS], read[MAX_ROUNDS];
    double memory = 0;
    char shard_path[PATH_MAX], plain_path[PATH_MAX];
    struct shard_info info;
    snprintf(shard_path, sizeof shard_path, "%s/bench.mdb", folder);
    snprintf(plain_path, sizeof plain_path, "%s/bench.plain", folder);
    char *value = malloc(BLOCK);
    for (size_t i = 0; i < BLOCK; i++)
        value[i] = (char)(i * 31 + i / 256);
    for (int r = 0; r < rounds; r++) {
        plain[r] = write_plain(plain_path, value, count);
        unlink(plain_path);
        shard[r] = write_shard(shard_path, value, count, &info, &memory);
        read[r] = read_shard(folder, &info, count, value);
        unlink(shard_path);
    }
    printf("%u blocks of 1 MiB in %s, medians of %d\n", count, folder, rounds);
    print_median("plain write, fsync", plain, rounds, count);
    print_median("shard, hashed, one sync", shard, rounds, count);
    print_median("shard read, all checked", read, rounds, count);
    printf("%-28s %8.0f MB\n", "memory while writing", memory);
    free(value);
    return 0;
}
