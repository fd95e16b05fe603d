/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/machine.h"

#include "core/base/limits.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* "model name : Intel(R) ..." of the first processor; x86 has this line. */
static void processor_name(char *name, size_t size) {
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(name, size, "%s", value + 2);
        break;
    }
    if (file)
        fclose(file);
}

void machine_describe(struct machine *machine) {
    struct utsname kernel;
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    *machine = (struct machine){.cores = cores_count()};
    processor_name(machine->processor, sizeof machine->processor);
    if (pages > 0 && bytes > 0)
        machine->memory = (uint64_t)pages * (uint64_t)bytes;
    if (!uname(&kernel))
        snprintf(machine->kernel, sizeof machine->kernel, "%s %s %s",
                 kernel.sysname, kernel.release, kernel.machine);
}
