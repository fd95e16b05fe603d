/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/options.h"

#include "tests/lib/test.h"

/* As options_read leaves it when no flag is given. */
static struct options no_flags(enum cli_command_id cli_command) {
    struct options options;
    options_open(&options, cli_command);
    return options;
}

static void passes(const struct options *options) {
    assert_ok(options_check(options, &failure));
}

static void expect_message(const struct options *options,
                           const char *expected) {
    assert_error(options_check(options, &failure), FAILURE_FLAG_CONFLICT);
    assert_contains(failure.text, expected);
}

TEST(bench_accepts_a_job_only_with_simulate) {
    struct options options = no_flags(CLI_COMMAND_BENCH);
    passes(&options);
    options.job = "job.json";
    expect_message(&options, "go with --simulate; `capstan bench --help`");
    options.simulate = true;
    passes(&options);
    options.bytes = 100;
    expect_message(&options, "either JOB.json or --bytes N");
    options.job = NULL;
    passes(&options);
}

TEST(a_bench_needs_a_ps_and_a_worker) {
    struct options options = no_flags(CLI_COMMAND_BENCH);
    options.num_ps = 0;
    expect_message(&options, "at least 1; `capstan bench --help`");
    options.num_ps = 1;
    options.num_workers = 0;
    expect_message(&options, "at least 1");
}

TEST(a_distribution_sets_the_number_of_processes) {
    struct options options = no_flags(CLI_COMMAND_LOCAL);
    passes(&options);
    options.instances = "2";
    expect_message(&options, "go with --distribution; `capstan local --help`");
    options.azureml_distribution = "{}";
    options.job = "job.json";
    passes(&options);
    options.given.num_ps = true;
    expect_message(&options, "leave --ps and --workers out");
}

TEST(a_distribution_has_a_job_or_a_command) {
    char *command[] = {"python", "train.py", NULL};
    struct options options = no_flags(CLI_COMMAND_LOCAL);
    options.azureml_distribution = " {}";
    expect_message(&options, "give JOB.json, or a command after --");
    options.command = command;
    passes(&options);
    options.num_inputs = 1;
    expect_message(&options, "JOB.json and a command after -- replace");
    options.command = NULL;
    options.azureml_distribution = "job.yml";
    passes(&options);
    options.link_gbits = 10;
    expect_message(&options, "--link-gbits go with JOB.json");
    options.link_gbits = 0;
    options.job = "job.json";
    expect_message(&options, "JOB.json and a command after -- replace");
    options.azureml_distribution = NULL;
    expect_message(&options, "go with --distribution");
}

TEST(a_prediction_has_no_job_to_change) {
    struct options options = no_flags(CLI_COMMAND_COMPARE);
    options.job = "job.json";
    options.num_sets = 1;
    passes(&options);
    options.job = NULL;
    options.predict = options.given.predict = true;
    options.parameters = 1e6;
    options.link_gbits = 10;
    expect_message(&options, "--predict has none; `capstan compare --help`");
    options.num_sets = 0;
    passes(&options);
}

TEST(flags_that_a_command_cannot_have_are_named) {
    static char *const words[] = {"python", "train.py", NULL};
    struct options options = no_flags(CLI_COMMAND_COMPARE);
    expect_message(&options, "JOB.json, -- COMMAND, or --predict");
    options.command = words;
    passes(&options);
    options.deepspeed = "ds.json";
    expect_message(&options, "--deepspeed_config does not go with a command");
    options.deepspeed = NULL;
    options.predict = options.given.predict = true;
    expect_message(&options, "--predict runs nothing: it takes no job and no "
                             "command");
    options = no_flags(CLI_COMMAND_LOCAL);
    options.command = words;
    passes(&options);
    options.json = true;
    passes(&options);
    options.deepspeed = "ds.json"; /* the command reads it */
    passes(&options);
    options.link_gbits = 1;
    expect_message(&options, "--link-gbits do not go with a command");
    options.link_gbits = 0;
    options.num_workers = 0;
    expect_message(&options, "worker 0 leads");
}

TEST(other_verbs_accept_these_flags) {
    for (int v = 0; v < CLI_COMMANDS; v++) {
        if (v == CLI_COMMAND_BENCH || v == CLI_COMMAND_LOCAL ||
            v == CLI_COMMAND_COMPARE)
            continue;
        struct options options = no_flags((enum cli_command_id)v);
        options.num_ps = 0;
        options.flags.num_ps = "1";
        options.num_sets = 1;
        options.given.jitter = true;
        passes(&options);
    }
}

TEST(what_was_measured_takes_no_flags_of_runs) {
    struct options options = no_flags(CLI_COMMAND_COMPARE);
    options.from = "compare.json";
    options.json = true;
    options.report = "page.html";
    options.given.report = options.given.csv = true;
    passes(&options);
    options.given.steps = true;
    expect_message(&options, "--from runs nothing");
    options.given.steps = false;
    options.given.parameters = true;
    expect_message(&options, "--from runs nothing");
    options.given.parameters = false;
    options.num_sets = 1;
    expect_message(&options, "--from runs nothing");
    options.num_sets = 0;
    options.job = "job.json";
    expect_message(&options, "no command and no --predict");
    options.job = NULL;
    options.predict = options.given.predict = true;
    expect_message(&options, "no command and no --predict");
}

TEST(flags_of_a_prediction_and_of_runs_do_not_mix) {
    struct options options = no_flags(CLI_COMMAND_COMPARE);
    expect_message(&options, "JOB.json, -- COMMAND, or --predict");
    options.job = "job.json";
    options.given.parameters = true;
    options.parameters = 1000000;
    expect_message(&options, "go with --predict");
    options.job = NULL;
    options.predict = options.given.predict = true;
    expect_message(&options, "--link-gbits, or");
    options.link_gbits = 10;
    passes(&options);
    options.job = "job.json";
    expect_message(&options, "takes no job");
    options.job = NULL;
    options.workers = (struct job_counts){{1, 2}, 2};
    expect_message(&options, "one number");
    options = no_flags(CLI_COMMAND_COMPARE);
    options.job = "job.json";
    options.link_gbits = 1;
    options.given.link_gbits = options.given.steps = true;
    passes(&options);
    options.job = NULL;
    options.predict = true;
    expect_message(&options, "makes none");
}
