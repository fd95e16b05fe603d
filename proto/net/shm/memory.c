/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/shm/memory.h"

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

struct memory {
    atomic_uint holders;
    int descriptor; /* -1: taken from another process */
    size_t bytes;
    void *base;
};

static struct memory *open_descriptor(int descriptor, size_t bytes,
                                      bool writable) {
    struct memory *memory = malloc(sizeof *memory);
    if (!memory)
        return NULL;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, bytes, protection, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) {
        free(memory);
        return NULL;
    }
    atomic_init(&memory->holders, 1);
    memory->descriptor = descriptor;
    memory->bytes = bytes;
    memory->base = base;
    return memory;
}

/* errno outlives the closing. */
static void close_quietly(int descriptor) {
    int error = errno;
    close(descriptor);
    errno = error;
}

/* The maker maps before it seals: F_SEAL_FUTURE_WRITE leaves mappings that
 * there are as they are, and lets nobody else make one to write. F_SEAL_SEAL:
 * nobody adds a seal later. */
struct memory *memory_open(size_t bytes, enum memory_pen pen) {
    int seals = SIZED | F_SEAL_SEAL;
    int descriptor = memfd_create("capstan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0)
        return NULL;
    if (pen == MEMORY_MAKER_WRITES)
        seals |= F_SEAL_FUTURE_WRITE;
    struct memory *memory = ftruncate(descriptor, (off_t)bytes)
                                ? NULL
                                : open_descriptor(descriptor, bytes, true);
    if (!memory)
        close_quietly(descriptor);
    else if (fcntl(descriptor, F_ADD_SEALS, seals))
        memory_release(&memory);
    return memory;
}

/* Sealed against changes of size, and of pages that come when they are touched:
 * huge ones may not be there, which is SIGBUS. */
static bool is_safe(int descriptor, size_t bytes) {
    struct stat is;
    struct statfs lies;
    int seals = fcntl(descriptor, F_GET_SEALS);
    return seals >= 0 && (seals & SIZED) == SIZED && !fstat(descriptor, &is) &&
           bytes && is.st_size >= 0 && (size_t)is.st_size == bytes &&
           !fstatfs(descriptor, &lies) && lies.f_type == TMPFS_MAGIC;
}

/* The mapping stays when the descriptor is closed; only who opened the memory
 * ever sends it on. */
struct memory *memory_take(int descriptor, size_t bytes, enum memory_pen pen) {
    struct memory *memory = NULL;
    if (!is_safe(descriptor, bytes))
        errno = EPERM;
    else
        memory = open_descriptor(descriptor, bytes, pen == MEMORY_BOTH_WRITE);
    close_quietly(descriptor);
    if (memory)
        memory->descriptor = -1;
    return memory;
}

struct memory *memory_hold(struct memory *memory) {
    atomic_fetch_add_explicit(&memory->holders, 1, memory_order_relaxed);
    return memory;
}

void memory_release(struct memory **where) {
    struct memory *memory = *where;
    *where = NULL;
    if (!memory || atomic_fetch_sub_explicit(&memory->holders, 1,
                                             memory_order_acq_rel) > 1)
        return;
    munmap(memory->base, memory->bytes);
    if (memory->descriptor >= 0)
        close(memory->descriptor);
    free(memory);
}

void *memory_base(struct memory *memory) {
    return memory->base;
}

size_t memory_bytes(const struct memory *memory) {
    return memory->bytes;
}

int memory_descriptor(const struct memory *memory) {
    return memory->descriptor;
}
