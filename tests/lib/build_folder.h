/* SPDX-License-Identifier: Apache-2.0 */
/* Where the program under test lies, for tests that start what was built beside
 * it: the same program with other plugins, tools, scripts' inputs. */
#ifndef CAPSTAN_BUILD_FOLDER_H
#define CAPSTAN_BUILD_FOLDER_H

#include <limits.h>
#include <stdbool.h>

/* Writes the folder of the program that CAPSTAN names, else of build/capstan,
 * which need not be built yet; empty, and false: there is no folder. */
bool build_folder_find(char folder[PATH_MAX]);

/* From now on CAPSTAN names that of SIBLING, a folder beside it ("fake"), and
 * tests start it. False: it was not built. */
bool build_folder_use(const char *sibling);

/* For GROUP: tests start the program whose GPU is the CPU. */
int build_folder_use_fake(void **state);

#endif
