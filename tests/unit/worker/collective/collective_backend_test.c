/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/collective_backend.h"

#include "proto/base/plugin.h"
#include "tests/lib/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The plugins lie beside the program, not beside this test. */
static enum status load(const struct collective_ops **ops, const char *name,
                        struct failure *why) {
    char path[PATH_MAX];
    const char *program = getenv("CAPSTAN");
    const void *table;
    snprintf(path, sizeof path, "%s-%s.so", program ? program : "build/capstan",
             name);
    enum status status =
        plugin_load(&table, path, COLLECTIVE_SYMBOL, COLLECTIVE_ABI, why);
    *ops = table;
    return status;
}

static void a_missing_backend_is_named(void **state) {
    struct failure why;
    const struct collective_ops *ops;
    (void)state;
    assert_int_equal(collective_backend_find(&ops, "gloo", &why),
                     STATUS_CONFIG);
    assert_null(ops);
    assert_non_null(strstr(why.text, "strategy.backend gloo"));
    assert_non_null(strstr(why.text, "/tests/capstan-gloo.so"));
    assert_non_null(strstr(why.text, "docs/collectives.md"));
}

static void gloo_loads_and_works(void **state) {
    struct failure why;
    const struct collective_ops *ops;
    (void)state;
    if (load(&ops, "gloo", &why))
        fail_msg("%s", why.text);
    assert_string_equal(ops->name, "gloo");
    assert_int_equal(ops->check(&why), STATUS_OK);
}

/* Where there is no GPU, or it was built without CUDA, it says so. */
static void nccl_loads_and_works(void **state) {
    struct failure why;
    const struct collective_ops *ops;
    (void)state;
    if (load(&ops, "nccl", &why))
        skip_test("%s", why.text);
    assert_string_equal(ops->name, "nccl");
    enum status status = ops->check(&why);
    assert_true(!status || strlen(why.text) > 10);
    if (status)
        skip_test("%s", why.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_backend_is_named),
        cmocka_unit_test(gloo_loads_and_works),
        cmocka_unit_test(nccl_loads_and_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
