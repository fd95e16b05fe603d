/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct folder *folder

#include "commands/launch/azureml_command.h"

#include "tests/lib/test.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char path[PATH_MAX]; /* has src/, src/.azureml/ and data */
};

static int folder_open(void **state) {
    struct folder *folder = calloc(1, sizeof *folder);
    char name[2 * PATH_MAX], template[] = "/tmp/capstan-azureml-XXXXXX";
    assert_non_null(mkdtemp(template));
    assert_non_null(realpath(template, folder->path));
    snprintf(name, sizeof name, "%s/src", folder->path);
    assert_int_equal(mkdir(name, 0777), 0);
    snprintf(name, sizeof name, "%s/src/.azureml", folder->path);
    assert_int_equal(mkdir(name, 0777), 0);
    snprintf(name, sizeof name, "%s/data", folder->path);
    assert_int_equal(mkdir(name, 0777), 0);
    *state = folder;
    return 0;
}

static int folder_close(void **state) {
    const char *command = textf("rm -r '%s'", ((struct folder *)*state)->path);
    free(*state);
    return system(command);
}

FIXTURE(folder_open, folder_close);

/* Reads FOLDER/NAME with TEXT, and INPUT if it is not NULL. */
static enum status read_with(struct azureml_command *command,
                             const struct folder *folder, const char *name,
                             const char *text, const char *input,
                             struct failure *why) {
    const char *path = textf("%s/%s", folder->path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return azureml_command_read(command, path, &input, input != NULL, why);
}

/* Fails unless COMMAND's text is EXPECTED, in which each @ is the folder. */
static void expect_text(const struct folder *folder, const char *text,
                        const char *expected) {
    char whole[4 * PATH_MAX] = "";
    for (; *expected; expected++) {
        size_t used = strlen(whole);
        snprintf(whole + used, sizeof whole - used, "%.*s",
                 *expected == '@' ? PATH_MAX : 1,
                 *expected == '@' ? folder->path : expected);
    }
    assert_string_equal(text, whole);
}

TEST(inputs_and_outputs_are_replaced) {
    struct azureml_command command;
    struct failure why = {0};
    static const char text[] =
        "command: >-\n"
        "  capstan run j.json --data_dir ${{inputs.data}}\n"
        "  --set a=${{ inputs.rate }} --set b=${{inputs.flag}}\n"
        "  --set c=${{inputs.name}} --set d=${{inputs.count}}\n"
        "  --model_dir ${{outputs.run}} ${{outputs.here}} $HOME\n"
        "code: src\n"
        "environment: azureml:capstan@latest\n"
        "environment_variables: {A: 1, B: x y, C: '${{inputs.count}}', D: "
        "null}\n"
        "compute: azureml:low\n"
        "resources: {instance_count: 2, shm_size: 2g}\n"
        "inputs:\n"
        "  data: {type: uri_folder, path: data}\n"
        "  rate: 0.1\n"
        "  flag: true\n"
        "  name: adam\n"
        "  count: {type: integer, value: 7}\n"
        "outputs:\n"
        "  run: {type: uri_folder, path: azureml://datastores/a/paths/b}\n"
        "  here: {path: kept}\n";
    assert_int_equal(read_with(&command, folder, "a.yml", text, NULL, &why),
                     STATUS_OK);
    expect_text(folder, command.folder, "@/src");
    expect_text(folder, command.text,
                "capstan run j.json --data_dir @/data --set a=0.1 --set b=True "
                "--set c=adam --set d=7 --model_dir @/src/outputs/a/run "
                "@/kept $HOME");
    char *environment =
        json_dumps(command.environment, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(environment,
                        "{\"A\":\"1\",\"B\":\"x y\",\"C\":\"7\",\"D\":\"\"}");
    free(environment);
    assert_int_equal(json_array_size(command.outputs), 2);
    assert_string_equal(command.unused,
                        "compute, environment, resources.shm_size");
    azureml_command_free(&command);
}

TEST(an_input_of_the_command_line_replaces_the_files) {
    struct azureml_command command;
    struct failure why = {0};
    char here[PATH_MAX];
    assert_int_equal(
        read_with(&command, folder, "a.yml",
                  "command: cat ${{inputs.data}} ${{inputs.rate}}\n"
                  "inputs: {data: {path: 'azureml:mnist@latest'}, rate: 1}\n",
                  "data=tests", &why),
        STATUS_OK);
    assert_non_null(realpath("tests", here));
    assert_memory_equal(command.text + 4, here, strlen(here));
    expect_text(folder, command.folder, "@");
    azureml_command_free(&command);
    assert_int_equal(read_with(&command, folder, "a.yml",
                               "command: cat ${{inputs.rate}}\n"
                               "inputs: {rate: 1}\n",
                               "rate=2 ", &why),
                     STATUS_OK);
    assert_string_equal(command.text, "cat 2 ");
    azureml_command_free(&command);
}

TEST(run_configurations_of_v1_have_commands_and_scripts) {
    struct azureml_command command;
    static const char *const files[][2] = {
        {"command: capstan run j.json\n", "capstan run j.json"},
        {"command: [capstan, run, --epochs, 2]\n", "capstan run --epochs 2"},
        {"script: train.py\narguments: [--rank, $RANK, 3]\ncommand: ''\n"
         "environment: {python: {interpreterPath: python3}}\n",
         "python3 train.py --rank $RANK 3"},
        {"script: train.py\narguments: []\n", "python train.py"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct failure why = {0};
        const char *text =
            textf("communicator: OpenMpi\nenvironmentVariables: {A: b}\n%s",
                  files[i][0]);
        if (read_with(&command, folder, "src/.azureml/a.runconfig", text, NULL,
                      &why))
            fail_msg("%s: %s", text, why.text);
        assert_string_equal(command.text, files[i][1]);
        expect_text(folder, command.folder, "@/src");
        assert_string_equal(
            json_string_value(json_object_get(command.environment, "A")), "b");
        azureml_command_free(&command);
    }
}

TEST(what_cannot_be_had_here_is_refused_with_its_key) {
    static const char *const files[][3] = {
        {"command: ${{inputs.a}}\ninputs: {a: {path: azureml:x@latest}}\n",
         NULL,
         "inputs.a.path: found \"azureml:x@latest\" (a string); allowed: a "
         "path that exists on this machine"},
        {"command: ${{inputs.a}}\ninputs: {a: {path: none}}\n", NULL,
         "inputs.a.path: found \"none\""},
        {"command: ${{inputs.a}}\ninputs: {a: {type: uri_file}}\n", NULL,
         "inputs.a.path: found null (null)"},
        {"command: ${{inputs.a}}\ninputs: {b: 1}\n", NULL,
         "inputs.a: missing; ${{inputs.a}} names it"},
        {"command: ${{inputs.a}}\ninputs: {a: [1]}\n", NULL,
         "inputs.a: found [1] (an array)"},
        {"command: ${{outputs.a}}\n", NULL, "outputs.a: missing"},
        {"command: ${{outputs.a}}\noutputs: {a: {path: b c}}\n", NULL,
         "/b c; allowed: a path without blanks"},
        {"command: ${{parent.a}}\n", NULL,
         "command: found ${{parent.a}}; allowed: ${{inputs.NAME}}"},
        {"command: echo ${{inputs.a\n", NULL, "command: ${{ without }}"},
        {"command: a\ncode: none\n", NULL, "code: found \"none\""},
        {"command: a\ncode: azureml:c:1\n", NULL, "code: found \"azureml"},
        {"command: a\nenvironment_variables: {A: {}}\n", NULL,
         "environment_variables.A: found {} (an object)"},
        {"code: .\n", NULL, "command: missing; without it give JOB.json"},
        {"communicator: OpenMpi\ncommand: ''\n", NULL, "command: missing"},
        {"command: a\ninputs: {b: 1}\n", "c=1",
         "--input c: the job has no input of that name"},
        {"command: ${{inputs.a}}\ninputs: {a: {path: data}}\n", "a=/none",
         "--input a: found \"/none\""},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct azureml_command command;
        struct failure why = {0};
        enum status status = read_with(&command, folder, "a.yml", files[i][0],
                                       files[i][1], &why);
        if (status != STATUS_CONFIG || !strstr(why.text, files[i][2]) ||
            !strstr(why.text, "/a.yml: "))
            fail_msg("%s: status %d: %s", files[i][0], status, why.text);
    }
}
