/* SPDX-License-Identifier: Apache-2.0 */
/* Where a process stands in a run, for the launcher that started it: should it
 * die, the launcher tells the chief so in its name. A file in memory that the
 * process inherits, so that nobody else can write or read it. */
#ifndef CAPSTAN_LAUNCH_RECORD_H
#define CAPSTAN_LAUNCH_RECORD_H

#include <stdbool.h>
#include <stdint.h>

struct launch_record {
    char chief[300]; /* numeric host:port; "": it is in no run, or left it */
    uint64_t run, incarnation;
    uint64_t key; /* which it has told the chief alone */
};

/* The launcher's: an empty one, closed when a program is started; -1: none. */
int launch_record_open(void);

/* In a child of the launcher, before its program is started: FILE (-1: none) is
 * open there too, and the environment tells of it. */
void launch_record_pass(int file);

/* The file that this process was given, from now on closed when it starts a
 * program itself; 0: none. */
int launch_record_inherited(void);

/* Writes RECORD to FILE (0: none). */
void launch_record_write(int file, const struct launch_record *record);

/* Has anything been written to FILE? */
bool launch_record_has_joined(int file);

/* Reads what stands there; false: the process is in no run. */
bool launch_record_read(int file, struct launch_record *record);

#endif
