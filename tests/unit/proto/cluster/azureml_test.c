/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/azureml.h"

#include "tests/lib/test.h"

#include <unistd.h>

struct form {
    const char *text, *instances, *num_ps;
    uint32_t size, ps; /* 0, 0: refused */
};

/* Each of FORMS is read, by READ, as the processes that it tells. */
static void check(enum status read(struct azureml_distribution *, const char *,
                                   const char *, const char *,
                                   struct failure *),
                  const struct form *forms, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct azureml_distribution distribution;
        if (read(&distribution, forms[i].text, forms[i].instances,
                 forms[i].num_ps, &failure))
            fail_msg("%s: %s", forms[i].text, failure.text);
        assert_int_equal(azureml_num_processes(&distribution), forms[i].size);
        assert_int_equal(azureml_num_ps(&distribution), forms[i].ps);
    }
}

TEST(blocks_of_every_type_are_counted) {
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
    check(azureml_read, forms, sizeof forms / sizeof *forms);
}

/* As Azure's pages print them, for Python. */
TEST(comments_and_trailing_commas_are_no_part_of_a_block) {
    static const struct form forms[] = {
        {"{\n    \"type\": \"PyTorch\",\n"
         "    # set process count to the number of gpus on the node\n"
         "    \"process_count_per_instance\": 4,\n}",
         "2", NULL, 8, 0},
        {"{\n\t\"type\":\"mpi\",\n"
         "\t\"process_count_per_instance\":1, # NC6 has 1 GPU\n}",
         "2", NULL, 2, 0},
        {"{\"type\": \"tensorflow\", \"worker_count\": 2, # workers\n"
         "\"parameter_server_count\": 1,}",
         NULL, NULL, 3, 1},
        {"{'type': 'mpi', 'process_count_per_node': 2, 'node_count': 2}", NULL,
         "1", 4, 1},
        {"{type: pytorch, process_count: 6, node_count: 2,}", NULL, NULL, 6, 0},
    };
    check(azureml_read, forms, sizeof forms / sizeof *forms);
}

/* The block that each refusal names is read, and starts what the class would.
 */
TEST(a_constructor_of_python_is_refused_with_its_block) {
    static const struct form forms[] = {
        {"MpiConfiguration(process_count_per_node=4, node_count=2)", NULL, NULL,
         8, 0},
        {"MpiConfiguration()", NULL, NULL, 1, 0},
        {"MpiDistribution(\n    process_count_per_instance=2,\n)", NULL, NULL,
         2, 0},
        {"PyTorchConfiguration(communication_backend='Nccl', process_count=6, "
         "node_count=2)",
         NULL, NULL, 6, 0},
        {"PyTorchConfiguration(process_count=None)", NULL, NULL, 1, 0},
        {"TensorflowConfiguration(worker_count=3)", NULL, NULL, 4, 1},
        {"TensorflowConfiguration(worker_count=3, parameter_server_count=0)",
         NULL, NULL, 3, 0},
        {"TensorFlowDistribution(worker_count=3)", NULL, NULL, 3, 0},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct azureml_distribution distribution;
        assert_int_equal(
            azureml_read(&distribution, forms[i].text, NULL, NULL, &failure),
            STATUS_CONFIG);
        char *block = strstr(failure.text, "--distribution '{");
        if (!block)
            fail_msg("%s: %s", forms[i].text, failure.text);
        block += strlen("--distribution '");
        block[strcspn(block, "'")] = '\0';
        if (azureml_read(&distribution, block, NULL, NULL, NULL))
            fail_msg("%s: %s", forms[i].text, block);
        assert_int_equal(azureml_num_processes(&distribution), forms[i].size);
        assert_int_equal(azureml_num_ps(&distribution), forms[i].ps);
    }
}

TEST(an_invalid_distribution_is_refused) {
    static const struct form forms[] = {
        {"{'type': 'mpi'", NULL, NULL, 0, 0},
        {"{\"type\": \"mpi\", \"node_count\":}", NULL, NULL, 0, 0},
        {"{\"type\": \"mpi\"} {\"type\": \"mpi\"}", NULL, NULL, 0, 0},
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

/* Reads a file with TEXT. */
static enum status read_file_with(struct azureml_distribution *distribution,
                                  const char *text, const char *instances,
                                  const char *num_ps, struct failure *why) {
    char path[] = "/tmp/capstan-azureml-XXXXXX.yml";
    int file = mkstemps(path, 4);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    close(file);
    enum status status =
        azureml_read(distribution, path, instances, num_ps, why);
    unlink(path);
    return status;
}

#define JOB                                                                    \
    "$schema: https://azuremlschemas.azureedge.net/latest/"                    \
    "commandJob.schema.json\n"                                                 \
    "command: capstan run job.json\n"                                          \
    "environment: azureml:capstan@latest\n"

TEST(files_of_jobs_have_blocks_and_instances) {
    static const struct form forms[] = {
        {JOB "distribution:\n  type: tensorflow\n  worker_count: 8\n"
             "resources:\n  instance_count: 8\n",
         NULL, NULL, 8, 0},
        {JOB "distribution: {type: tensorflow, worker_count: 4, "
             "parameter_server_count: 1}\n",
         NULL, NULL, 5, 1},
        {JOB "distribution:\n  type: tensorflow\n"
             "resources: {instance_count: 3}\n",
         NULL, NULL, 3, 0},
        {JOB "distribution:\n  type: pytorch\n"
             "  process_count_per_instance: 2 # GPUs\n"
             "resources:\n  instance_count: 2\n",
         NULL, "1", 4, 1},
        {JOB "distribution:\n  type: mpi\nresources:\n  instance_count: 2\n",
         "3", NULL, 3, 0},
        {"type: 'pytorch'\nprocess_count_per_instance: 2\n", "2", NULL, 4, 0},
        {"# flow\n{\"type\": \"mpi\"}\n", "2", NULL, 2, 0},
        {"a: &d {type: mpi}\ndistribution: *d\n", "2", NULL, 2, 0},
        /* SDK v1: MpiConfiguration, PyTorchConfiguration,
         * TensorflowConfiguration */
        {"communicator: OpenMpi\nnodeCount: 2\n"
         "mpi:\n  processCountPerNode: 4\n",
         NULL, NULL, 8, 0},
        {"communicator: IntelMpi\nnodeCount: 2\n", NULL, NULL, 2, 0},
        {"communicator: Nccl\nnodeCount: 2\n"
         "pytorch:\n  communicationBackend: nccl\n  processCount: 6\n",
         NULL, "2", 6, 2},
        {"communicator: Nccl\nnodeCount: 2\n"
         "pytorch:\n  communicationBackend: nccl\n  processCount: null\n",
         NULL, NULL, 2, 0},
        {"framework: TensorFlow\ncommunicator: ParameterServer\n"
         "nodeCount: 4\ntensorflow:\n  workerCount: 3\n"
         "  parameterServerCount: 2\n",
         NULL, NULL, 5, 2},
        {"communicator: ParameterServer\n", NULL, NULL, 2, 1},
    };
    check(read_file_with, forms, sizeof forms / sizeof *forms);
}

TEST(what_a_file_lacks_is_said_with_its_place) {
    static const char *const files[][2] = {
        {"distribution: [\n", ":2:1: "},
        {"- type: mpi\n", ":1:1: not a mapping"},
        {"", "not a mapping"},
        {"distribution: {type: mpi, type: pytorch}\n",
         ":1:27: a key that occurs twice"},
        {"a: &a [*a]\n", "more values or levels"},
        {"a: [&b [1,1,1,1,1,1,1,1,1], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b],\n"
         "&d [*c,*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d,*d],\n"
         "&f [*e,*e,*e,*e,*e,*e,*e,*e,*e], &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]]\n",
         "more values or levels"},
        {JOB, "has no distribution, and none for a communicator"},
        {JOB "distribution: {type: ray}\n", "\"ray\""},
        {JOB "distribution: {type: mpi, worker_count: 2}\n", "worker_count"},
        {JOB "distribution: {type: tensorflow, worker_count: '2'}\n",
         "whole number"},
        {JOB "distribution: {type: mpi}\nresources: {instance_count: 0}\n",
         "whole number"},
        {"communicator: None\n", "has no distribution"},
        {"communicator: Gloo\nnodeCount: 2\npytorch: {processCount: 5}\n",
         "multiple of the nodes"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct azureml_distribution distribution;
        enum status status =
            read_file_with(&distribution, files[i][0], NULL, NULL, &failure);
        if (status != STATUS_CONFIG || !strstr(failure.text, files[i][1]) ||
            failure.code != FAILURE_CLUSTER_INVALID)
            fail_msg("%s: status %d: %s", files[i][0], status, failure.text);
    }
    struct azureml_distribution distribution;
    assert_int_equal(
        azureml_read(&distribution, "/none.yml", NULL, NULL, &failure),
        STATUS_CONFIG);
    assert_contains(failure.text,
                    "/none.yml: cannot open the file: No such file");
}

/* Each with the path of its key, what was found and what is allowed. */
TEST(mistakes_of_a_job_are_listed_with_their_keys) {
    static const char *const files[][2] = {
        {JOB "distribution: {type: tensorflow, worker_count: -4}\n",
         "distribution.worker_count: found -4 (an integer); allowed: a whole "
         "number from 1 to 1024"},
        {JOB "distribution: {type: tensorflow, parameter_server_count: 1.5}\n",
         "distribution.parameter_server_count: found 1.5 (a real); allowed: a "
         "whole number from 0"},
        {JOB "distribution: {type: tensorflow, "
             "process_count_per_instance: 2}\n",
         "distribution.process_count_per_instance: unknown key; allowed with "
         "type tensorflow: type, worker_count, parameter_server_count"},
        {JOB "distribution: {type: ray}\n",
         "distribution.type: found \"ray\" (a string); allowed: "
         "\"tensorflow\", \"pytorch\" or \"mpi\""},
        {JOB "distribution: {worker_count: 2}\n",
         "distribution.type: missing; allowed: \"tensorflow\""},
        {JOB "distribution: {type: mpi}\nresources: {instance_count: two}\n",
         "resources.instance_count: found \"two\" (a string); allowed: a whole "
         "number from 1"},
        {JOB "distribution: {type: mpi}\nresources: {shm_size: 2}\n",
         "resources.shm_size: found 2 (an integer); allowed: a text"},
        {JOB "distribution: {type: mpi}\nlimits: {timeout: -1}\n",
         "limits.timeout: found -1 (an integer); allowed: a whole number"},
        {JOB "distribution: {type: mpi}\ncode: [src]\n",
         "code: found [\"src\"] (an array); allowed: a text"},
        {JOB "distribution: {type: mpi}\ninput: {}\n",
         "input: unknown key of a command job; nearest: inputs"},
        {JOB "distribution: {type: mpi}\ninstance_count: 2\n",
         "instance_count: unknown key of a command job; nearest: "
         "resources.instance_count"},
        {JOB "distribution: {type: mpi, instance_count: 2}\n",
         "distribution.instance_count: unknown key; allowed with type mpi: "
         "type, process_count_per_instance, process_count_per_node, "
         "node_count; nearest: resources.instance_count, or the flag "
         "--instances"},
        {JOB "distribution: mpi\n",
         "distribution: found \"mpi\" (a string); allowed: keys with values"},
        {JOB "type: pipeline\ndistribution: {type: mpi}\n",
         "type: found \"pipeline\" (a string); allowed: \"command\""},
        {JOB "distribution: {type: mpi, worker_count: 1}\nxyzzy: 1\n",
         ": 2 errors\n  xyzzy: unknown key of a command job\n  "
         "distribution.worker_count: unknown key"},
        {"communicator: ParameterServer\ntensorflow: {workerCount: -1}\n",
         "tensorflow.worker_count: found -1 (an integer)"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct azureml_distribution distribution;
        enum status status =
            read_file_with(&distribution, files[i][0], NULL, NULL, &failure);
        if (status != STATUS_CONFIG || !strstr(failure.text, files[i][1]) ||
            strncmp(failure.text, "/tmp/capstan-azureml-", 21))
            fail_msg("%s: status %d: %s", files[i][0], status, failure.text);
    }
}

/* azureml.core.runconfig: TensorflowConfiguration(worker_count=1,
 * parameter_server_count=1), MpiConfiguration(process_count_per_node=1,
 * node_count=1), PyTorchConfiguration(process_count=None, node_count=1). */
/* A million levels took hours, and a block is at most four deep. */
TEST(a_file_of_many_levels_is_refused_at_once) {
    static const size_t levels[] = {65, 1000000};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        struct azureml_distribution distribution;
        char *text = malloc(2 * levels[i] + 16);
        assert_non_null(text);
        sprintf(text, "type: ");
        memset(text + 6, '[', levels[i]);
        memset(text + 6 + levels[i], ']', levels[i]);
        text[6 + 2 * levels[i]] = '\0';
        alarm(20);
        assert_int_equal(
            read_file_with(&distribution, text, NULL, NULL, &failure),
            STATUS_CONFIG);
        alarm(0);
        assert_contains(failure.text, ":1:70: more values or levels");
        free(text);
    }
}

TEST(what_sdk_v1_leaves_out_has_its_defaults) {
    static const struct form forms[] = {
        {"communicator: ParameterServer\nnodeCount: 3\n", NULL, NULL, 2, 1},
        {"communicator: ParameterServer\ntensorflow: {workerCount: 3}\n", NULL,
         NULL, 4, 1},
        {"communicator: IntelMpi\n", NULL, NULL, 1, 0},
        {"communicator: nccl\nnodeCount: 3\n", NULL, NULL, 3, 0},
        {JOB "distribution: {type: tensorflow}\n"
             "resources: {instance_count: 3}\n",
         NULL, NULL, 3, 0},
        {JOB "distribution: {type: pytorch}\nresources: {instance_count: 3}\n",
         NULL, NULL, 3, 0},
    };
    check(read_file_with, forms, sizeof forms / sizeof *forms);
}
