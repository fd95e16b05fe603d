/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the machine that plays a GPU: tests/gpu/cuda_backend.h. */
#include "tests/gpu/cuda_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

enum { FILLING = 0xff };

/* A page that says how long it is, then the pages of MEMORY, which ends with
 * the last of them, then a page that may not be touched. */
struct header {
    size_t whole, bytes; /* bytes: of the memory, with what aligns its end */
};

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static struct header *header_of(char *memory) {
    uintptr_t at = (uintptr_t)memory;
    return (struct header *)(at - at % page_size() - page_size());
}

void *cuda_backend_allocate(size_t bytes) {
    size_t page = page_size(), aligned = (bytes + 7) / 8 * 8;
    size_t pages = (aligned + page - 1) / page * page;
    size_t whole = page + pages + page;
    void *room = mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *start = (char *)room;
    if (room == MAP_FAILED || mprotect(start + page + pages, page, PROT_NONE)) {
        perror("memory of the machine");
        exit(EXIT_FAILURE);
    }
    memset(start + page, FILLING, pages);
    *(struct header *)room = (struct header){whole, aligned};
    return start + page + pages - aligned;
}

void cuda_backend_release(void *memory) {
    if (!memory)
        return;
    struct header *header = header_of((char *)memory);
    char *first = (char *)header + page_size();
    for (char *at = first; at < (char *)memory; at++)
        if (*at != (char)FILLING) {
            fprintf(stderr, "written %zu bytes before memory of %zu\n",
                    (size_t)((char *)memory - at), header->bytes);
            exit(EXIT_FAILURE);
        }
    munmap(header, header->whole);
}
