/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with a script in the place of capstan, two named pipes ("first" and
 * "second") for its processes to wait on each other, and what they write. */
#ifndef CAPSTAN_LAUNCH_FIXTURE_H
#define CAPSTAN_LAUNCH_FIXTURE_H

#include "commands/launch/launch.h"

#include <glob.h>

struct launch_fixture {
    char dir[64], program[128];
    char log[4096]; /* standard error of the last launch */
    char out[256];  /* and standard output */
    int exit_code;
    struct failure why;
};

int launch_fixture_setup(void **state);
int launch_fixture_teardown(void **state);

/* SCRIPT of a shell is the program from now on. It runs in the folder, with $me
 * the type of its task. */
void launch_fixture_set_program(struct launch_fixture *set, const char *script);

/* Launches it by OPTIONS, which get the program and its words. */
enum status launch_fixture_run_with(struct launch_fixture *set,
                                    struct launch_settings *options);

/* Launches it with SECONDS of grace and as many to stop. */
enum status launch_fixture_run(struct launch_fixture *set, unsigned num_ps,
                               unsigned num_workers, double seconds);

/* The last launch has said TEXT. */
void launch_fixture_expect_log(const struct launch_fixture *set,
                               const char *text);

/* The files of the folder whose names match PATTERN; the caller frees them by
 * globfree. */
glob_t launch_fixture_files(const struct launch_fixture *set,
                            const char *pattern);

/* How many these are. */
size_t launch_fixture_count(const struct launch_fixture *set,
                            const char *pattern);

#endif
