/* SPDX-License-Identifier: Apache-2.0 */
/* The secret of a job: 32 random bytes, in a file of its user's as 64
 * hexadecimal digits and a newline. Who has it takes part in the job. */
#ifndef CAPSTAN_SECRET_FILE_H
#define CAPSTAN_SECRET_FILE_H

#include "core/base/status.h"

enum { SECRET_FILE_BYTES = 32 };

/* Names the file, as --secret-file does. */
#define SECRET_FILE_VARIABLE "CAPSTAN_SECRET_FILE"

/* The same, of the secret that `capstan local` makes for one run. */
#define SECRET_OWN_VARIABLE "CAPSTAN_LOCAL_SECRET"

/* Writes a new secret to PATH, mode 0600. What is there already is left as it
 * is, and refused. */
enum status secret_file_create(const char *path,
                               struct failure *why) MUST_CHECK;

/* *FILE is a file in memory with a new secret, closed on exec. */
enum status secret_file_open_own(int *file, struct failure *why) MUST_CHECK;

/* *OUT is the secret in PATH, SECRET_FILE_BYTES in memory that is neither
 * swapped nor dumped; secret_file_forget ends it. Refuses a file that is not
 * this user's or root's, that others may use, or that has anything else in it.
 * SOURCE ("--secret-file") is what has named PATH. */
enum status secret_file_read(unsigned char **out, const char *path,
                             const char *source,
                             struct failure *why) MUST_CHECK;

/* Wipes and frees *SECRET (may be NULL) and clears it. */
void secret_file_forget(unsigned char **secret);

#endif
