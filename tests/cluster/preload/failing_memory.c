/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library: the first allocation by each stack of calls of
 * a process is numbered, over all processes of a run whose type in TF_CONFIG
 * is CAPSTAN_FAILS_IN ("" where there is none), in the file "count" of the
 * folder CAPSTAN_TRACE. That of the number CAPSTAN_FAILS finds no memory, and
 * no other; its stack is written to standard error. Only calls by Capstan's own
 * code count: libraries may end a process that is short of memory by
 * design. */
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

enum { DEEPEST = 16, OWN = 2 /* frames of this file */, STACKS = 1 << 14 };

static uintptr_t code_begin, code_end; /* of Capstan's program or library */
static unsigned failing;
static _Atomic unsigned *count_of_run; /* NULL: nothing is numbered */
static _Atomic uint64_t stacks[STACKS];

/* The library's, else the program's, which comes first. */
static int find_code(struct dl_phdr_info *object, size_t size, void *context) {
    (void)size, (void)context;
    if (code_end && !strstr(object->dlpi_name, "/libcapstan.so"))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        code_begin = object->dlpi_addr + part->p_vaddr;
        code_end = code_begin + part->p_memsz;
    }
    return 0;
}

/* Is this process of the type that is to lack memory? */
static bool is_chosen(void) {
    const char *type = getenv("CAPSTAN_FAILS_IN"), *own = getenv("TF_CONFIG");
    own = own ? strstr(own, "\"type\"") : NULL;
    own = own ? strchr(own + strlen("\"type\""), '"') : NULL;
    if (!type || !own)
        return type && !*type && !own;
    size_t length = strlen(type);
    return !strncmp(own + 1, type, length) && own[1 + length] == '"';
}

__attribute__((constructor)) static void begin(void) {
    char path[PATH_MAX];
    void *stack[1];
    const char *fails = getenv("CAPSTAN_FAILS"), *at = getenv("CAPSTAN_TRACE");
    if (!fails || !at || !is_chosen())
        return;
    failing = (unsigned)strtoul(fails, NULL, 10);
    dl_iterate_phdr(find_code, NULL);
    backtrace(stack, 1); /* loads what it needs */
    snprintf(path, sizeof path, "%s/count", at);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *count_of_run))
        abort();
    void *shared = mmap(NULL, sizeof *count_of_run, PROT_READ | PROT_WRITE,
                        MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        abort();
    close(fd);
    count_of_run = shared;
}

/* Has no allocation been made by this STACK before? */
static bool is_new(void *const *stack, int depth) {
    uint64_t hash = 14695981039346656037u, none;
    for (int i = 0; i < depth; i++)
        hash = (hash ^ (uintptr_t)stack[i]) * 1099511628211u;
    for (unsigned at = (unsigned)(hash >> 32), tries = 0; tries < STACKS;
         at++, tries++) {
        none = 0;
        if (atomic_compare_exchange_strong(&stacks[at % STACKS], &none, hash))
            return true;
        if (none == hash)
            return false;
    }
    return false;
}

/* Is the allocation of which CALLER is the return address to fail? */
static __attribute__((noinline)) bool fails(const void *caller) {
    void *stack[DEEPEST];
    if (!count_of_run || (uintptr_t)caller < code_begin ||
        (uintptr_t)caller >= code_end)
        return false;
    int depth = backtrace(stack, DEEPEST);
    if (depth <= OWN || !is_new(stack + OWN, depth - OWN) ||
        ++*count_of_run != failing)
        return false;
    static const char text[] = "no memory for this allocation:\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) > 0)
        backtrace_symbols_fd(stack + OWN, depth - OWN, STDERR_FILENO);
    errno = ENOMEM;
    return true;
}

#define FAILS() fails(__builtin_return_address(0))

SHOWN void *malloc(size_t size) {
    return FAILS() ? NULL : __libc_malloc(size);
}

SHOWN void *calloc(size_t count, size_t size) {
    return FAILS() ? NULL : __libc_calloc(count, size);
}

SHOWN void *realloc(void *block, size_t size) {
    return FAILS() ? NULL : __libc_realloc(block, size);
}

SHOWN void *aligned_alloc(size_t alignment, size_t size) {
    return FAILS() ? NULL : __libc_memalign(alignment, size);
}

SHOWN char *strdup(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = FAILS() ? NULL : __libc_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

SHOWN char *strndup(const char *text, size_t most) {
    size_t length = strnlen(text, most);
    char *copy = FAILS() ? NULL : __libc_malloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}
