/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/shm/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { SIZED = F_SEAL_SHRINK | F_SEAL_GROW };

struct shm_segment {
    atomic_uint references;
    int descriptor; /* -1: mapped from another process */
    size_t bytes;
    void *base;
};

static struct shm_segment *open_descriptor(int descriptor, size_t bytes,
                                           bool writable) {
    struct shm_segment *segment = malloc(sizeof *segment);
    if (!segment)
        return NULL;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, bytes, protection, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) {
        free(segment);
        return NULL;
    }
    atomic_init(&segment->references, 1);
    segment->descriptor = descriptor;
    segment->bytes = bytes;
    segment->base = base;
    return segment;
}

/* Preserves errno. */
static void close_quietly(int descriptor) {
    int error = errno;
    close(descriptor);
    errno = error;
}

/* The owner maps before it seals: F_SEAL_FUTURE_WRITE keeps existing mappings
 * and forbids new writable ones. F_SEAL_SEAL forbids further seals. */
struct shm_segment *shm_segment_open(size_t bytes,
                                     enum shm_segment_access access) {
    int seals = SIZED | F_SEAL_SEAL;
    int descriptor = memfd_create("capstan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0)
        return NULL;
    if (access == SHM_SEGMENT_OWNER_WRITES)
        seals |= F_SEAL_FUTURE_WRITE;
    struct shm_segment *segment =
        ftruncate(descriptor, (off_t)bytes)
            ? NULL
            : open_descriptor(descriptor, bytes, true);
    if (!segment)
        close_quietly(descriptor);
    else if (fcntl(descriptor, F_ADD_SEALS, seals))
        shm_segment_release(&segment);
    return segment;
}

/* The size must be sealed. Huge pages are refused: they are allocated on first
 * access, and a shortage then raises SIGBUS. */
static bool is_safe(int descriptor, size_t bytes) {
    struct stat is;
    struct statfs lies;
    int seals = fcntl(descriptor, F_GET_SEALS);
    return seals >= 0 && (seals & SIZED) == SIZED && !fstat(descriptor, &is) &&
           bytes && is.st_size >= 0 && (size_t)is.st_size == bytes &&
           !fstatfs(descriptor, &lies) && lies.f_type == TMPFS_MAGIC;
}

/* The mapping outlives the descriptor; only the segment's owner sends it on. */
struct shm_segment *shm_segment_map(int descriptor, size_t bytes,
                                    enum shm_segment_access access) {
    struct shm_segment *segment = NULL;
    if (!is_safe(descriptor, bytes))
        errno = EPERM;
    else
        segment = open_descriptor(descriptor, bytes,
                                  access == SHM_SEGMENT_BOTH_WRITE);
    close_quietly(descriptor);
    if (segment)
        segment->descriptor = -1;
    return segment;
}

struct shm_segment *shm_segment_hold(struct shm_segment *segment) {
    atomic_fetch_add_explicit(&segment->references, 1, memory_order_relaxed);
    return segment;
}

void shm_segment_release(struct shm_segment **where) {
    struct shm_segment *segment = *where;
    *where = NULL;
    if (!segment || atomic_fetch_sub_explicit(&segment->references, 1,
                                              memory_order_acq_rel) > 1)
        return;
    munmap(segment->base, segment->bytes);
    if (segment->descriptor >= 0)
        close(segment->descriptor);
    free(segment);
}

void *shm_segment_base(struct shm_segment *segment) {
    return segment->base;
}

size_t shm_segment_bytes(const struct shm_segment *segment) {
    return segment->bytes;
}

int shm_segment_descriptor(const struct shm_segment *segment) {
    return segment->descriptor;
}
