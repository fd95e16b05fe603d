/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/azureml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

struct form {
    const char *text, *instances, *num_ps;
    uint32_t size, ps; /* 0, 0: refused */
};

static void blocks_of_every_type_are_counted(void **state) {
    (void)state;
    static const struct form forms[] = {
        {"{\"type\": \"tensorflow\", \"worker_count\": 4, "
         "\"parameter_server_count\": 1}",
         "4", NULL, 5, 1},
        {"{\"type\": \"TensorFlow\"}", "3", NULL, 3, 0},
        {"{\"type\": \"PyTorch\", \"process_count_per_instance\": 2}", "2", "1",
         4, 1},
        {"{\"Type\": \"MPI\", \"ProcessCountPerInstance\": 3}", NULL, NULL, 3,
         0},
        {"{\"type\": \"pytorch\", \"PROCESS_COUNT_PER_INSTANCE\": null}", "2",
         NULL, 2, 0},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct azureml_distribution distribution;
        struct failure why = {0};
        if (azureml_read(&distribution, forms[i].text, forms[i].instances,
                         forms[i].num_ps, &why))
            fail_msg("%s: %s", forms[i].text, why.text);
        assert_int_equal(azureml_num_processes(&distribution), forms[i].size);
        assert_int_equal(azureml_num_ps(&distribution), forms[i].ps);
    }
}

static void an_invalid_distribution_is_refused(void **state) {
    (void)state;
    static const struct form forms[] = {
        {"{'type': 'mpi'}", NULL, NULL, 0, 0},
        {"[]", NULL, NULL, 0, 0},
        {"{}", NULL, NULL, 0, 0},
        {"{\"type\": \"horovod\"}", NULL, NULL, 0, 0},
        {"{\"type\": 1}", NULL, NULL, 0, 0},
        {"{\"type\": \"mpi\", \"worker_count\": 2}", NULL, NULL, 0, 0},
        {"{\"type\": \"tensorflow\", \"process_count_per_instance\": 2}", NULL,
         NULL, 0, 0},
        {"{\"type\": \"tensorflow\", \"worker_count\": 0}", NULL, NULL, 0, 0},
        {"{\"type\": \"tensorflow\", \"worker_count\": \"2\"}", NULL, NULL, 0,
         0},
        {"{\"type\": \"tensorflow\", \"worker_count\": 2.5}", NULL, NULL, 0, 0},
        {"{\"type\": \"tensorflow\"}", "2", "1", 0, 0},
        {"{\"type\": \"mpi\"}", "0", NULL, 0, 0},
        {"{\"type\": \"mpi\"}", "two", NULL, 0, 0},
        {"{\"type\": \"mpi\"}", "2", "2", 0, 0},
        {"{\"type\": \"mpi\", \"process_count_per_instance\": 1024}", "2", NULL,
         0, 0},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct azureml_distribution distribution;
        if (azureml_read(&distribution, forms[i].text, forms[i].instances,
                         forms[i].num_ps, NULL) != STATUS_CONFIG)
            fail_msg("%s is taken", forms[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_every_type_are_counted),
        cmocka_unit_test(an_invalid_distribution_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
