/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a user names to be read. */
#ifndef CAPSTAN_INPUT_FILE_H
#define CAPSTAN_INPUT_FILE_H

#include "core/base/status.h"

/* *OUT is a descriptor of the regular file PATH, to read. Anything else fails,
 * as a pipe may block the process for ever and cannot be read by several. PATH
 * and WHAT ("the file of images") name it in WHY; CODE is the failure's, unless
 * errno has one (failure_code_of_errno). */
enum status input_file_open(int *out, const char *path, const char *what,
                            enum failure_code code,
                            struct failure *why) MUST_CHECK;

/* Opens and closes it. */
enum status input_file_check(const char *path, const char *what,
                             enum failure_code code,
                             struct failure *why) MUST_CHECK;

#endif
