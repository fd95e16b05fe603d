/* SPDX-License-Identifier: Apache-2.0 */
/* A process's identity in its run, for its launcher: if the process dies, the
 * launcher reports that to the chief in its name. Kept in an inherited memfd,
 * which no other process can read or write. */
#ifndef CAPSTAN_LAUNCH_RECORD_H
#define CAPSTAN_LAUNCH_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct launch_record {
    char chief[300]; /* numeric host:port; "": it has no chief to report to */
    uint64_t run, incarnation; /* run 0: in none, or left it */
    uint64_t key;              /* a secret that only the chief knows besides */
};

/* LAUNCHER, a random number that is not 0, is the same in all that it starts.
 * Creates an empty record, closed on exec; -1: not available. */
int launch_record_open(uint64_t launcher);

/* The launcher of the process with the record FILE; 0: none. */
uint64_t launch_record_launcher(int file);

/* In the launcher's child, before exec: keeps FILE (-1: none) open across exec
 * and passes it in the environment. */
void launch_record_pass(int file);

/* The inherited record, from now on closed on exec; 0: none. */
int launch_record_inherited(void);

/* Writes RECORD to FILE (0: none). */
void launch_record_write(int file, const struct launch_record *record);

/* Has a run been written to FILE? */
bool launch_record_has_joined(int file);

/* Reads FILE; false: the process is in no run, or leads it. */
bool launch_record_read(int file, struct launch_record *record);

/* Is the process in a run, which it may lead? */
bool launch_record_in_run(int file);

enum launch_record_death {
    LAUNCH_RECORD_PS = 1, /* the run that it leads survives that of a ps now, */
    LAUNCH_RECORD_WORKER = 2, /* or that of a worker */
    LAUNCH_RECORD_OWN = 4,    /* its own ends the run */
    LAUNCH_RECORD_CHIEF = 8,  /* the run survives its own, as it leads */
    LAUNCH_RECORD_SPARE = 16, /* or may do without a ps that is not back; of a
                                 ps: without this one */
    LAUNCH_RECORD_DONE = 32,  /* the run that it led is complete */
};

/* Writes DEATHS, a set of these. */
void launch_record_write_deaths(int file, unsigned deaths);

/* As FILE says. */
unsigned launch_record_deaths(int file);

/* The process that leads, at the run's end: the COUNT incarnations that held
 * the trainers' slots last. */
void launch_record_write_last(int file, const uint64_t *incarnations,
                              size_t count);

/* Was the slot of INCARNATION given to another process, as FILE of the process
 * that leads says? */
bool launch_record_was_replaced(int file, uint64_t incarnation);

#endif
