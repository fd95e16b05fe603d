/* SPDX-License-Identifier: Apache-2.0 */
/* What NVTX loads as a profiler (NVTX_INJECTION64_PATH): at the end it writes
 * how often each of the ranges began to standard error, and whether all ended.
 */
#include <nvtx3/nvToolsExt.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"forward", "backward", "sum", "apply"};
enum { NAMES = sizeof names / sizeof *names };
static atomic_uint begun[NAMES], others;
static atomic_int open_ranges;

static int push(const char *name) {
    size_t i = 0;
    while (i < NAMES && strcmp(names[i], name) != 0)
        i++;
    atomic_fetch_add(i < NAMES ? &begun[i] : &others, 1);
    return atomic_fetch_add(&open_ranges, 1);
}

static int pop(void) {
    return atomic_fetch_sub(&open_ranges, 1) - 1;
}

__attribute__((destructor)) static void report(void) {
    char line[256];
    int length = snprintf(line, sizeof line, "ranges:");
    for (size_t i = 0; i < NAMES; i++)
        length += snprintf(line + length, sizeof line - (size_t)length,
                           " %s %u", names[i], atomic_load(&begun[i]));
    fprintf(stderr, "%s others %u open %d\n", line, atomic_load(&others),
            atomic_load(&open_ranges));
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned int size;
    if (!callbacks ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
        return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
