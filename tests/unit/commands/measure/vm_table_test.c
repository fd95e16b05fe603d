/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/predict_command.h"

#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

TEST(a_machine_is_found_in_any_case) {
    const struct vm *vm = vm_table_find("standard_nd96ASR_v4");
    assert_non_null(vm);
    assert_string_equal(vm->name, "Standard_ND96asr_v4");
    assert_int_equal(vm->devices, 8);
    assert_true(vm->link_gbits == 1600);
    assert_null(vm_table_find("Standard_ND96"));
}

static void expect_machine(const char *name, uint32_t devices, double link,
                           double intra_host) {
    const struct vm *vm = vm_table_find(name);
    if (!vm)
        fail_msg("%s is not in the table", name);
    assert_int_equal(vm->devices, devices);
    assert_true(vm->link_gbits == link && vm->inner_gbits == intra_host);
}

TEST(azures_sizes_and_series_need_no_prefix) {
    expect_machine("ND96asr_v4", 8, 1600, 2400);
    expect_machine("nd96amsr_a100_v4", 8, 1600, 2400);
    expect_machine("NDm_A100_v4", 8, 1600, 2400);
    expect_machine("Standard_NDm_A100_v4", 8, 1600, 2400);
    expect_machine("NC24rs_v3", 4, 0, 128);
    expect_machine("STANDARD_NC24s_v3", 4, 0, 128);
    expect_machine("NC24r", 4, 0, 128);
    expect_machine("Standard_NC6", 1, 0, 0);
    expect_machine("HBv3", 1, 200, 0);
    expect_machine("HB120-16rs_v3", 1, 200, 0);
    expect_machine("hc", 1, 100, 0);
}

TEST(every_suggested_name_is_in_the_table) {
    char names[512], *rest = NULL;
    int count = 0;
    snprintf(names, sizeof names, "%s", vm_table_names());
    for (char *name = strtok_r(names, ", ()", &rest); name;
         name = strtok_r(NULL, ", ()", &rest), count++) {
        const struct vm *vm = vm_table_find(name);
        if (!vm)
            fail_msg("%s is not in the table", name);
        assert_true(vm->devices == 1 || vm->inner_gbits > 0);
    }
    assert_int_equal(count, 26);
}

TEST(a_misspelled_name_suggests_the_nearest) {
    assert_string_equal(vm_table_nearest("p4d.24large"), "p4d.24xlarge");
    assert_string_equal(vm_table_nearest("Standard_ND96amsr_v4"),
                        "Standard_ND96asr_v4");
    assert_string_equal(vm_table_nearest("HB3"), "Standard_HB120rs_v3");
}
