/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/build_folder.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool build_folder_find(char folder[PATH_MAX]) {
    const char *program = getenv("CAPSTAN");
    char *copy = strdup(program ? program : "build/capstan");
    bool found = copy && realpath(dirname(copy), folder);
    free(copy);
    if (!found)
        *folder = 0;
    return found;
}

bool build_folder_use(const char *sibling) {
    char folder[PATH_MAX], program[2 * PATH_MAX];
    if (!build_folder_find(folder))
        return false;
    snprintf(program, sizeof program, "%s/%s/capstan", folder, sibling);
    setenv("CAPSTAN", program, 1);
    return access(program, X_OK) == 0;
}

int build_folder_use_fake(void **state) {
    (void)state;
    (void)build_folder_use("fake");
    return 0;
}
