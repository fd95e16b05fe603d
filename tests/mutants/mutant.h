/* SPDX-License-Identifier: Apache-2.0 */
/* At the head of each source of the copy that mutants.py makes: which mutant
 * the process is to be, from MUTANT, and where it notes those whose function it
 * has called, for all processes of a test, in the file that MUTANTS_REACHED
 * names. */
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MUTANTS_MAX = 4096 };

/* Weak: one for a program, one for a plugin, whichever sources they have. */
__attribute__((weak)) int mutant_chosen;
__attribute__((weak)) unsigned char *mutants_reached;

__attribute__((constructor)) static void mutant_begin(void) {
    const char *number = getenv("MUTANT"), *path = getenv("MUTANTS_REACHED");
    if (number)
        mutant_chosen = atoi(number);
    int file = path && !mutants_reached ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map =
        mmap(NULL, MUTANTS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        mutants_reached = (unsigned char *)map;
}

__attribute__((weak)) int mutant_is(int number);
__attribute__((weak)) int mutant_is(int number) {
    if (mutants_reached)
        mutants_reached[number] = 1;
    return number == mutant_chosen;
}
