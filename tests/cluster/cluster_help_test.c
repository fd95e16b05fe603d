/* SPDX-License-Identifier: Apache-2.0 */
/* Each example that a help and a page of the manual show works as printed, in a
 * folder with what it names. What takes long, or waits for other hosts, gets
 * Ctrl-C once it has run for a while: a wrong command line would have ended it
 * with 2 by then. */
#include "commands/cli/cli_command.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    INTERRUPTED = 130,
    PORT_IN_USE = 138,
    NOBODY_THERE = 138,
    LONG_MS = 4000,
    EXAMPLE = 1024
};

/* 500 steps over columns of which e1 is a table. */
static const char job[] =
    "{\"model\": {\"type\": \"mlp\", \"layers\": [9, 2],"
    "   \"features\": [\"e1\", \"weight\"]},"
    " \"features\": {\"user\": {\"type\": \"hash_bucket\"},"
    "   \"weight\": {\"type\": \"numeric\"},"
    "   \"e1\": {\"type\": \"embedding\", \"of\": \"user\", \"dim\": 8}},"
    " \"data\": {\"format\": \"csv\", \"header\": true, \"label\": \"click\","
    "   \"train\": \"train.csv\", \"test\": \"other.csv\"},"
    " \"train_micro_batch_size_per_gpu\": 8, \"steps\": 500,"
    " \"device\": \"cpu\", \"threads\": 1,"
    " \"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"lr\": 0.1}},"
    " \"checkpoint\": {\"dir\": \"run/checkpoint\", \"every_steps\": 500}}";

/* What `capstan compare --json` printed. */
static const char comparison[] =
    "{\"command\": null, \"date\": \"2026-11-28T21:00:00Z\", \"rounds\": 9,"
    " \"repeats\": 1, \"unit\": \"examples\", \"samples_per_step\": 8,"
    " \"cores\": 2, \"members\": null, \"assumed_link_gbits\": null,"
    " \"equal_seconds\": null, \"first_loss\": null, \"cases\": [],"
    " \"crossover\": []}";

static void write_records(const struct cluster_run *run, const char *name) {
    FILE *file = cluster_run_create(run, name);
    fputs("click,user,weight\n", file);
    for (int i = 0; i < 400; i++)
        fprintf(file, "%d,u%d,%.2f\n", i % 2, i % 40, i / 400.0);
    fclose(file);
}

/* A command NAME in the folder's bin, with SCRIPT for its content. */
static void write_command(const struct cluster_run *run, const char *name,
                          const char *script) {
    const char *inside = textf("bin/%s", name);
    FILE *file = cluster_run_create(run, inside);
    fprintf(file, "#!/bin/sh\n%s\n", script);
    fclose(file);
    assert_int_equal(chmod(cluster_run_path(run, inside), 0755), 0);
}

/* What the examples name: capstan and python on PATH, a job with its data, its
 * checkpoint and that of an equal run, a script. */
static void write_all(struct cluster_run *run) {
    char folder[PATH_MAX];
    FILE *file = cluster_run_create(run, "job.json");
    fputs(job, file);
    fclose(file);
    file = cluster_run_create(run, "compare.json");
    fputs(comparison, file);
    fclose(file);
    write_records(run, "train.csv");
    write_records(run, "other.csv");
    assert_int_equal(mkdir(cluster_run_path(run, "bin"), 0755), 0);
    assert_true(build_folder_find(folder));
    write_command(run, "capstan", "exec \"$CAPSTAN\" \"$@\"");
    write_command(run, "man", "[ \"$*\" = '-l -' ] && cat > man-page");
    write_command(
        run, "python",
        textf("[ \"$*\" = train.py ] && exec '%s/tests/caller' learns",
              folder));
    file = cluster_run_create(run, "azureml-job.yml");
    fputs("command: capstan run job.json\n"
          "distribution: {type: tensorflow, worker_count: 2,"
          " parameter_server_count: 1}\n",
          file);
    fclose(file);
    cluster_fixture_run(run, 1, 1, 0, NULL);
    cluster_fixture_run(run, 1, 1, 0,
                        WORDS("checkpoint.dir=other/checkpoint",
                              "metrics.jsonl=metrics.jsonl"));
}

/* Runs EXAMPLE, ends it after a while, and fails unless all went well. */
static void expect_works(struct cluster_run *run, const char *example) {
    static unsigned number;
    bool alone = !strncmp(example, "capstan ", 8) && !strchr(example, '|');
    const char *name = textf("example-%u", number++);
    const char *command = textf("%s%s", alone ? "exec " : "", example);
    const char *path = textf("PATH=%s/bin:/usr/bin:/bin", run->folder);
    struct cluster_process *process = cluster_run_program(
        run, name, "/bin/bash", WORDS("-o", "pipefail", "-c", command),
        WORDS(path, textf("HOME=%s", run->folder)));
    struct pollfd end = {pidfd_open(cluster_run_pid(process), 0), POLLIN, 0};
    bool ended = poll(&end, 1, LONG_MS) == 1;
    close(end.fd);
    if (!ended)
        cluster_run_signal(process, SIGINT);
    int code = cluster_run_exit(process, CLUSTER_RUN_DEADLINE);
    bool other_has_port =
        code == PORT_IN_USE &&
        cluster_fixture_has_logged(process, "is in use on this machine");
    bool asks_nobody =
        code == NOBODY_THERE && cluster_fixture_has_logged(process, "refused");
    print_message("# %s: %d\n", example, code);
    if (code && (ended || code != INTERRUPTED) && !other_has_port &&
        !asks_nobody)
        fail_msg("%s: exit code %d\n%s", example, code,
                 cluster_run_errors(process));
}

/* TEXT, of a help, without what a help adds to a line of an example. */
static const char *after_heading(const char *text, const char *verb) {
    const char *found = strstr(text, "\nExamples:\n  ");
    if (!found)
        fail_msg("no example in the help of %s", verb);
    return found + strlen("\nExamples:\n");
}

/* Runs the examples at the end of the help of VERB, "ckpt" or "ckpt ls". A line
 * that ends with a backslash goes on in the next. */
static void expect_examples(struct cluster_run *run, const char *verb) {
    char first[32], example[EXAMPLE] = "";
    const char *rest = strchr(verb, ' ');
    snprintf(first, sizeof first, "%.*s", (int)strcspn(verb, " "), verb);
    const char *line = after_heading(
        cluster_run_output(cluster_fixture_tool(
            run, 0,
            WORDS(first, rest ? rest + 1 : "--help", rest ? "--help" : NULL))),
        verb);
    for (; *line; line += strcspn(line, "\n") + 1) {
        size_t length = strcspn(line, "\n"), used = strlen(example);
        bool goes_on = length && line[length - 1] == '\\';
        assert_true(used + length < sizeof example);
        snprintf(example + used, sizeof example - used, "%.*s",
                 (int)(length - goes_on - 2), line + 2);
        if (goes_on)
            continue;
        if (!strstr(example, "capstan ") || !strstr(example, verb))
            fail_msg("the help of %s has another example: %s", verb, example);
        expect_works(run, example);
        example[0] = 0;
    }
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(every_example_of_a_help_works_as_printed) {
    write_all(*state);
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *command =
            cli_command_get((enum cli_command_id)v);
        expect_examples(*state, command->name);
        for (const struct cli_command *sub = command->subcommands;
             sub && sub->name; sub++)
            expect_examples(*state, sub->name);
    }
}

/* What is lost on a full disk is no success: 1, or 2 of ckpt diff, whose 1 says
 * that the checkpoints differ. Texts are shorter and longer than a buffer. */
TEST(output_that_cannot_be_written_is_a_failure) {
    static const char *const commands[] = {
        "--help",
        "--version",
        "run --help",
        "run --json --set checkpoint=null job.json",
        "local --json --set checkpoint=null job.json",
        "cluster",
        "cluster --explain",
        "cluster --check --json",
        "ckpt ls run/checkpoint",
        "ckpt ls --json run/checkpoint",
        "ckpt verify run/checkpoint",
        "ckpt verify --json run/checkpoint",
        "ckpt export run/checkpoint a.npz",
        "ckpt export --json --table e1 run/checkpoint a.csv",
        "ckpt diff run/checkpoint other/checkpoint",
        "ckpt diff --json run/checkpoint other/checkpoint",
        "data peek job.json",
        "data peek --json job.json",
        "data bench job.json",
        "eval --json run/checkpoint",
        "predict --json run/checkpoint other.csv a.npz",
        "schema",
        "manual",
        "manual capstan-job",
        "how",
        "how ddp",
        "info",
        "info --json",
        "bench --simulate --workers 8 --ps 2 --link-gbits 10 job.json",
        "compare --from compare.json",
        "compare --json --from compare.json",
        "compare --predict --params 25.6M --workers 8 --link-gbits 10"};
    write_all(*state);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct cluster_process *process = cluster_run_program(
            *state, textf("full-%zu", i), "/bin/bash",
            WORDS("-c", textf("exec \"$CAPSTAN\" %s > /dev/full", commands[i])),
            NULL);
        int wanted = strncmp(commands[i], "ckpt diff", 9) ? 1 : 2;
        int code = cluster_run_exit(process, CLUSTER_RUN_DEADLINE);
        if (code != wanted ||
            !strstr(cluster_run_errors(process), "standard output"))
            fail_msg("%s: exit code %d, not %d\n%s", commands[i], code, wanted,
                     cluster_run_errors(process));
    }
}

/* Also of subcommands; in a page "-" is "\-". */
TEST(every_page_of_the_manual_has_an_example) {
    struct cluster_process *manual =
        cluster_fixture_tool(*state, 0, WORDS("manual"));
    char *names = strdup(cluster_run_output(manual)), *rest = NULL;
    unsigned pages = 0;
    for (char *name = strtok_r(names, " \n", &rest); name;
         name = strtok_r(NULL, " \n", &rest)) {
        if (strcmp(name, "capstan") && strncmp(name, "capstan-", 8))
            continue;
        const char *page = cluster_run_output(
            cluster_fixture_tool(*state, 0, WORDS("manual", name)));
        if (strcmp(name, "capstan-job") &&
            !strstr(page, "\n.SH EXAMPLES\n.nf\n"))
            fail_msg("no example on the page %s", name);
        pages++;
    }
    free(names);
    assert_true(pages > CLI_COMMANDS);
}
