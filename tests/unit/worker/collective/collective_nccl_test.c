/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/skip.h"
#include "tests/lib/test.h"
#include "worker/collective/collective.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

/* A plugin that was built elsewhere finds none of its libraries here. */
static bool is_of_nvidia(const char *missing) {
    return strncmp(missing, "libnccl.so", 10) == 0 ||
           strncmp(missing, "libcudart.so", 12) == 0;
}

/* Built only where NCCL and CUDA are; it works only where a GPU is. */
TEST(nccl_works_or_reports_what_is_missing) {
    const char *program = getenv("CAPSTAN");
    struct failure why = {0};
    const char *path = textf("%s-nccl.so", program ? program : "build/capstan");
    if (access(path, R_OK))
        skip_test("there is no %s: built where CUDA's and NCCL's headers are",
                  path);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *missing = plugin ? NULL : dlerror();
    if (missing && is_of_nvidia(missing))
        skip_test("%s", missing);
    if (missing)
        fail_msg("%s", missing);
    const struct collective_ops *ops = dlsym(plugin, COLLECTIVE_SYMBOL);
    assert_non_null(ops);
    assert_int_equal(ops->abi, COLLECTIVE_ABI);
    assert_string_equal(ops->name, "nccl");
    if (!ops->check(&why))
        return;
    assert_contains(why.text, "no GPU");
    struct collective *group;
    struct collective_settings settings = {.size = 1, .timeout = 1};
    assert_fails(ops->open(&group, &settings, &why), &why,
                 FAILURE_COLLECTIVE_UNUSABLE);
    assert_true(ops->close(&group));
    assert_contains(why.text, "rank 0 is number 0 of its host, which "
                              "has 0 GPUs");
}
