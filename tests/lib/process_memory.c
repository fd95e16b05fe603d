/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/process_memory.h"

#include "tests/lib/test.h"

long process_memory_kb(pid_t pid) {
    char line[256];
    long kb = -1;
    FILE *file = fopen(textf("/proc/%d/status", (int)pid), "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "RssAnon: %ld kB", &kb);
    if (file)
        fclose(file);
    if (kb < 0)
        fail_msg("process %d has ended", (int)pid);
    return kb;
}
