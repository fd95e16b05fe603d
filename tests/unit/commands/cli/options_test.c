/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/options.h"

#include "commands/cli/cli_command.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { MAX_WORDS = 600 };

/* The outcome of reading "capstan LINE"; what is printed is not shown but
 * kept: standard output in `printed`. */
struct reading {
    struct options options;
    enum status status;
    char line[8192];
    char printed[16384];
};

static void read_words(struct reading *reading, char **words, int count) {
    fflush(stdout);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    FILE *kept = tmpfile();
    assert_non_null(kept);
    dup2(fileno(kept), STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    failure.text[0] = 0;
    reading->status = options_read(&reading->options, count, words, &failure);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    rewind(kept);
    size_t length =
        fread(reading->printed, 1, sizeof reading->printed - 1, kept);
    reading->printed[length] = 0;
    fclose(kept);
    close(nowhere);
    close(out);
    close(err);
}

static struct reading *read_line(const char *line) {
    static struct reading reading;
    char *words[MAX_WORDS + 1] = {"capstan"}, *rest = NULL;
    int count = 1;
    snprintf(reading.line, sizeof reading.line, "%s", line);
    for (char *word = strtok_r(reading.line, " ", &rest); word;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    read_words(&reading, words, count);
    return &reading;
}

static const struct options *parse_valid(const char *line) {
    struct reading *reading = read_line(line);
    if (reading->status)
        fail_msg("%s: %s", line, failure.text);
    return &reading->options;
}

static void expect_error(const char *line, const char *part) {
    struct reading *reading = read_line(line);
    if (reading->status != STATUS_CONFIG || !strstr(failure.text, part))
        fail_msg("%s: status %d, '%s' is not in: %s", line, reading->status,
                 part, failure.text);
}

static void expect_code(const char *line, enum failure_code code) {
    struct reading *reading = read_line(line);
    print_message("%s\n", line);
    assert_error(reading->status, code);
}

TEST(run_accepts_a_job_and_legacy_flags) {
    const struct options *options =
        parse_valid("run --job_name=worker --task_index 1 --ps_hosts a:1,b:2 "
                    "--worker_hosts c:3 --chief_hosts d:4 job.json");
    assert_int_equal(options->cli_command, CLI_COMMAND_RUN);
    assert_string_equal(options->job, "job.json");
    assert_string_equal(options->flags.job_name, "worker");
    assert_string_equal(options->flags.task_index, "1");
    assert_string_equal(options->flags.ps_hosts, "a:1,b:2");
    assert_string_equal(options->flags.worker_hosts, "c:3");
    assert_string_equal(options->flags.chief_hosts, "d:4");
    assert_null(parse_valid("run")->job);
}

TEST(flags_of_scripts_set_keys_of_the_job) {
    static const char *const cases[][2] = {
        {"--train_steps=100", "steps=100"},
        {"-train_steps 100", "steps=100"},
        {"--epochs 3", "epochs=3"},
        {"--learning_rate .25", "optimizer.params.lr=0.25"},
        {"--data_dir /x/y", "data.dir=/x/y"},
        {"--model_dir=/x/y", "checkpoint.dir=/x/y"},
        {"--num_gpus=2", "devices=2"},
        {"--num_gpus=0", "device=cpu"},
        {"--sync_replicas", "strategy.staleness=0"},
        {"--sync_replicas=False", "strategy.staleness=inf"},
        {"--nosync_replicas", "strategy.staleness=inf"},
    };
    char line[256], here[OPTIONS_SET], set[2 * OPTIONS_SET];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line, "run %s job.json", cases[i][0]);
        const struct options *options = parse_valid(line);
        assert_int_equal(options->num_sets, 1);
        assert_string_equal(options->sets[0], cases[i][1]);
        assert_string_equal(options->job, "job.json");
    }
    assert_non_null(getcwd(here, sizeof here));
    snprintf(set, sizeof set, "data.dir=%s/x", here);
    assert_string_equal(parse_valid("local --data_dir x job.json")->sets[0],
                        set);
    const struct options *both =
        parse_valid("local --epochs 3 --set seed=1 --batch_size 9 job.json");
    assert_string_equal(both->sets[1], "seed=1");
    assert_string_equal(both->sets[2], "train_batch_size=null");
    assert_string_equal(both->sets[3], "train_micro_batch_size_per_gpu=9");
    both = parse_valid("run -batch_size=8 --batch_size=32 job.json");
    assert_int_equal(both->num_sets, 2);
    assert_string_equal(both->sets[0], "train_batch_size=null");
    assert_string_equal(both->sets[1], "train_micro_batch_size_per_gpu=32");
    both = parse_valid("run --train_steps 5 --set steps=7 --train_steps 9 a");
    assert_int_equal(both->num_sets, 2);
    assert_string_equal(both->sets[1], "steps=9");
    expect_error("run --train_steps=x job.json", "takes a count, not 'x'");
    expect_error("run --batch_size=2.5 job.json", "takes a count, not '2.5'");
    expect_error("run --learning_rate=-1 job.json", "at least 0, not '-1'");
    expect_error("run --sync_replicas=maybe job.json", "true or false");
    expect_error("run --data_dir= job.json", "takes a folder's path");
    expect_error("run --replicas_to_aggregate=2 job.json",
                 "set strategy.backup_workers");
}

TEST(one_dash_before_a_flags_name_does_too) {
    const struct options *options =
        parse_valid("run -job_name=ps -task_index 1 -alone job.json");
    assert_string_equal(options->flags.job_name, "ps");
    assert_string_equal(options->flags.task_index, "1");
    assert_true(options->flags.alone);
    expect_error("run -job_nam=ps job.json", "nearest: --job_name");
    expect_error("run -job job.json", "unknown flag -j");
    expect_error("run -c job.json", "unknown flag -c");
}

TEST(two_local_ranks_have_to_agree) {
    parse_valid("run --local_rank 1 --local-rank 1 a.json");
    expect_error("run --local_rank 0 --local-rank 1 a.json", "given twice");
}

TEST(compare_accepts_a_job_or_a_prediction) {
    const struct options *options = parse_valid(
        "compare --ps 1,2 --workers=1,2,4 --steps 300 --set seed=2 a.json");
    assert_string_equal(options->job, "a.json");
    assert_int_equal(options->num_sets, 1);
    assert_int_equal(options->ps.count, 2);
    assert_int_equal(options->workers.values[2], 4);
    assert_int_equal(options->steps, 300);
    options = parse_valid("compare --predict --params 25.6M --vm p4d.24xlarge "
                          "--workers 8 --wire bf16 --json");
    assert_true(options->predict && options->bf16);
    assert_true(options->json);
    assert_string_equal(options->vm, "p4d.24xlarge");
    expect_error("compare",
                 "JOB.json, -- COMMAND, or --predict; `capstan compare");
    expect_error("compare --predict --params 1M", "needs --link-gbits");
    expect_error("compare --compute-ms 5 a.json", "go with --predict");
    expect_error("compare --ps 0 a.json", "from 1 to 1024");
    expect_error("compare --predict --params 1M --link-gbits 1 --set a=1",
                 "--predict has none");
    expect_error("compare --predict --params 1M --link-gbits 1 --lane tcp",
                 "--lane goes with runs");
    expect_error("compare --predict --params 1M --link-gbits 1 "
                 "--deepspeed_config a.json",
                 "--predict has none");
    expect_error("compare --vm list a.json", "takes no job");
    parse_valid("compare --vm list");
}

TEST(bench_parses_its_flags_and_keeps_the_arguments) {
    const struct options *options =
        parse_valid("bench --sizes 64,1M --lane tcp --ps 2 --repeats=3 --json");
    assert_int_equal(options->cli_command, CLI_COMMAND_BENCH);
    assert_int_equal(options->sizes.count, 2);
    assert_int_equal(options->sizes.values[1], 1 << 20);
    assert_int_equal(options->repeats, 3);
    assert_int_equal(options->num_ps, 2);
    assert_true(options->json);
    assert_string_equal(options->words[0], "--sizes");
    assert_int_equal(parse_valid("bench")->sizes.count, 6);
    expect_error("bench --sizes 5", "multiples of 4");
    expect_error("bench --lane=udp",
                 "tcp, shm or auto, not 'udp'; `capstan bench");
    expect_error("bench job.json", "go with --simulate");
    expect_error("bench a b",
                 "'b' is one word too many; a command of your own, for local "
                 "and compare, comes after --");
    expect_error("bench --ps 0", "--ps");
}

TEST(a_simulation_needs_a_job_or_a_vector) {
    const struct options *options = parse_valid(
        "bench --simulate --ps 4 --workers 16 --link-gbits 10 job.json");
    assert_true(options->simulate);
    assert_int_equal(options->num_workers, 16);
    assert_true(options->simulated_gbits == 10);
    assert_string_equal(options->job, "job.json");
    assert_int_equal(parse_valid("bench --simulate --bytes 64M")->bytes,
                     64 << 20);
    assert_int_equal(parse_valid("bench --simulate --bytes 102.4M")->bytes,
                     107374184);
    expect_error("bench --simulate --bytes 17G", "from 4 up to 16G");
    expect_error("bench --simulate --bytes 1G --group 6X", "not '6X'");
    expect_error("bench --simulate", "either JOB.json or --bytes");
    expect_code("bench --simulate --bytes 64M job.json", FAILURE_FLAG_CONFLICT);
    expect_code("bench --sweep", FAILURE_FLAG_CONFLICT);
    expect_code("bench --workers 2", FAILURE_FLAG_CONFLICT);
    expect_error("bench --simulate --workers 0 --bytes 4", "at least 1");
    expect_error("bench --simulate --place there job.json", "not 'there'");
}

TEST(settings_keep_their_order) {
    const struct options *options =
        parse_valid("run --set a.b=1 --json --set seed=2 j --join-timeout 2.5");
    assert_int_equal(options->num_sets, 2);
    assert_string_equal(options->sets[0], "a.b=1");
    assert_string_equal(options->sets[1], "seed=2");
    assert_true(options->json);
    assert_true(fabs(options->join_timeout - 2.5) < 1e-9);
    expect_error("run --set seed", "--set takes KEY.PATH=VALUE, not 'seed'");
}

TEST(the_last_flag_chooses_the_format_of_the_log) {
    static const struct {
        const char *line;
        enum log_format format;
    } lines[] = {
        {"run j", LOG_FORMAT_UNSET},
        {"run --json-log j", LOG_FORMAT_JSON},
        {"local --log-format json j", LOG_FORMAT_JSON},
        {"bench -log-format=text", LOG_FORMAT_TEXT},
        {"compare --json-log --log-format text j", LOG_FORMAT_TEXT},
        {"run --log-format text --json-log j", LOG_FORMAT_JSON},
        {"launch --log-format json x", LOG_FORMAT_JSON},
        {"launch --json-log x", LOG_FORMAT_JSON},
        {"launch x --json-log --log-format json", LOG_FORMAT_UNSET},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (parse_valid(lines[i].line)->log_format != lines[i].format)
            fail_msg("%s", lines[i].line);
    expect_error("run --log-format yaml j", "takes text or json, not 'yaml'");
    expect_code("run --log-format yaml j", FAILURE_BAD_FLAG_VALUE);
    expect_error("info --log-format json", "unknown flag --log-format");
}

TEST(a_wrong_command_line_is_reported_in_the_log_s_format) {
    static const char *const json[] = {
        "run --bogus --json-log", "run --bogus --log-format json",
        "run --bogus --log-format=json", "run --log-format json --bogus",
        "run --bogus -log-format=text -json-log"};
    static const char *const other[] = {
        "run --bogus", "run --bogus --log-format",
        "run --bogus --log-formatt=json",
        "run --bogus --json-log --log-format text"};
    expect_error(json[0], "unknown flag --bogus");
    for (size_t i = 0; i < sizeof json / sizeof *json; i++)
        if (read_line(json[i])->options.log_format != LOG_FORMAT_JSON)
            fail_msg("%s", json[i]);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (read_line(other[i])->options.log_format == LOG_FORMAT_JSON)
            fail_msg("%s", other[i]);
}

TEST(too_many_settings_are_refused) {
    char line[8192] = "run";
    for (int i = 0; i < OPTIONS_MAX_SETS; i++)
        strcat(line, " --set a=1");
    assert_int_equal(parse_valid(line)->num_sets, OPTIONS_MAX_SETS);
    strcat(line, " --set a=1");
    expect_error(line, "--set");
}

TEST(local_counts_ps_and_workers) {
    const struct options *options =
        parse_valid("local --ps 2 --workers=3 job.json");
    assert_int_equal(options->num_ps, 2);
    assert_int_equal(options->num_workers, 3);
    assert_int_equal(parse_valid("local job.json")->num_ps, 1);
    assert_int_equal(parse_valid("local job.json")->num_workers, 1);
    assert_null(parse_valid("local job.json")->lane);
    assert_string_equal(parse_valid("local --lane tcp job.json")->lane, "tcp");
    assert_string_equal(parse_valid("run --lane=auto job.json")->lane, "auto");
    expect_error("run --lane shm j", "auto or tcp, not 'shm'");
    parse_valid("run --metrics-port 0 job.json");
    parse_valid("run --metrics-port [::]:9100 job.json");
    assert_string_equal(
        parse_valid("local --metrics-port=9100 job.json")->metrics_port,
        "9100");
    expect_error("run --metrics-port 65536 j", "PORT or ADDRESS:PORT, not");
    expect_error("local --metrics-port a j", "PORT or ADDRESS:PORT, not 'a'");
    expect_error("compare --metrics-port 9100 j", "--metrics-port");
    assert_string_equal(parse_valid("run --trace-steps 3:7 j")->trace_steps,
                        "3:7");
    assert_string_equal(
        parse_valid("local --trace-steps=1:1 --trace-file=f j")->trace_file,
        "f");
    expect_error("run --trace-steps 7:3 j", "FIRST:LAST, two steps from 1");
    expect_error("compare --trace-steps 3:7 j", "--trace-steps");
    expect_error("local", "local takes [JOB.json] [-- COMMAND...]");
    expect_error("local --ps two j",
                 "--ps takes a count from 0 to 1024, not 'two'");
    expect_code("local --ps -1 j", FAILURE_BAD_FLAG_VALUE);
    expect_code("local --ps 1025 j", FAILURE_BAD_FLAG_VALUE);
    expect_code("local --workers 99999999999999999999 j",
                FAILURE_BAD_FLAG_VALUE);
    expect_code("local --ps 2x j", FAILURE_BAD_FLAG_VALUE);
}

TEST(local_accepts_a_distribution_in_place_of_counts) {
    const struct options *options = parse_valid(
        "local --distribution {} --instances 2 --num-ps 1 job.json");
    assert_string_equal(options->azureml_distribution, "{}");
    assert_string_equal(options->instances, "2");
    assert_string_equal(options->flags.num_ps, "1");
    expect_error("local --distribution {} --ps 1 job.json",
                 "--distribution gives");
    expect_code("local --distribution {} --workers 1 job.json",
                FAILURE_FLAG_CONFLICT);
    expect_error("local --instances 2 job.json", "go with --distribution");
    options =
        parse_valid("local --distribution job.yml --input a=b --input c=");
    assert_null(options->job);
    assert_int_equal(options->num_inputs, 2);
    assert_string_equal(options->inputs[0], "a=b");
    assert_string_equal(options->inputs[1], "c=");
    expect_error("local --distribution job.yml --input a",
                 "--input takes NAME=VALUE, not 'a'");
    expect_code("local --num-ps 2 job.json", FAILURE_FLAG_CONFLICT);
}

TEST(launch_leaves_the_commands_arguments_unchanged) {
    const struct options *options = parse_valid(
        "launch --nproc-per-node 2 --use_env -m train --nnodes 3 --json -- x");
    assert_string_equal(options->nproc_per_node, "2");
    assert_true(options->use_env && options->module);
    assert_null(options->nnodes);
    assert_string_equal(options->command[0], "train");
    assert_string_equal(options->command[1], "--nnodes");
    assert_string_equal(options->command[5], "x");
    assert_null(options->command[6]);
    options = parse_valid("launch --master_addr=m --master-port 7 -- sh -c x");
    assert_string_equal(options->master_addr, "m");
    assert_string_equal(options->master_port, "7");
    assert_string_equal(options->command[0], "sh");
    expect_error("launch", "COMMAND");
    expect_error("launch --nproc_per_node", "nproc_per_node");
}

TEST(words_behind_two_dashes_are_a_command) {
    static const char *const lines[] = {
        "local --workers 2 --json job.json -- python train.py --workers 3",
        "compare --workers 2 --json job.json -- python train.py --workers 3"};
    for (int i = 0; i < 2; i++) {
        const struct options *options = parse_valid(lines[i]);
        assert_string_equal(options->job, "job.json");
        assert_true(options->json);
        assert_string_equal(options->command[0], "python");
        assert_string_equal(options->command[3], "3");
        assert_null(options->command[4]);
    }
    assert_null(parse_valid("compare -- train")->job);
    assert_int_equal(
        parse_valid("compare -- train --workers 3")->workers.values[0], 2);
    expect_error("compare --", "takes JOB.json, -- COMMAND, or");
}

TEST(ckpt_needs_an_action_and_a_folder) {
    const struct options *options =
        parse_valid("ckpt export dir --step 1500 --format npz out.npz --state");
    assert_string_equal(options->action, "export");
    assert_string_equal(options->dir, "dir");
    assert_string_equal(options->out, "out.npz");
    assert_string_equal(options->format, "npz");
    assert_true(options->given.step);
    assert_int_equal(options->step, 1500);
    assert_true(options->state);
    assert_false(parse_valid("ckpt ls dir")->given.step);
    assert_string_equal(parse_valid("ckpt --json ls dir")->action, "ls");
    expect_error("ckpt ls",
                 "capstan ckpt ls takes DIR; `capstan ckpt ls --help`");
    expect_error("ckpt export dir", "capstan ckpt export takes DIR OUT;");
    expect_error("ckpt dir",
                 "capstan ckpt takes ls|verify|export|diff DIR [OUT|DIR];");
    expect_error("ckpt ls dir --state",
                 "unknown flag --state; `capstan ckpt ls");
    expect_code("ckpt verify dir out", FAILURE_USAGE);
    expect_code("ckpt export a b c", FAILURE_USAGE);
    options = parse_valid("ckpt diff --step 5 a b");
    assert_string_equal(options->dir, "a");
    assert_string_equal(options->out, "b");
    expect_error("ckpt diff a", "capstan ckpt diff takes A B;");
    expect_error("ckpt ls dir --step -5", "not '-5'");
    expect_code("ckpt ls dir --step 18446744073709551616",
                FAILURE_BAD_FLAG_VALUE);
}

TEST(the_network_rate_must_be_positive) {
    assert_true(parse_valid("run j --link-gbits 2.5")->link_gbits == 2.5);
    assert_true(parse_valid("local j --link-gbits=100")->link_gbits == 100);
    assert_true(parse_valid("run j")->link_gbits == 0);
    expect_error("run j --link-gbits 0", "not '0'");
    expect_code("run j --link-gbits -1", FAILURE_BAD_FLAG_VALUE);
    expect_code("run j --link-gbits nan", FAILURE_BAD_FLAG_VALUE);
    expect_code("run j --link-gbits 1e6", FAILURE_BAD_FLAG_VALUE);
    expect_code("local j --link-gbits 1g", FAILURE_BAD_FLAG_VALUE);
}

TEST(an_unknown_argument_is_reported_with_help) {
    expect_error("", "no verb");
    expect_error("train", "no verb 'train'");
    expect_error("run --fast", "unknown flag --fast; `capstan run --help`");
    expect_error("local --workers=2 --pss 2 j",
                 "unknown flag --pss; nearest: --ps;");
    expect_error("local j --num_ps 2", "unknown flag --num_ps; nearest: --ps;");
    expect_error("compare j --num-ps 2", "nearest: --ps;");
    expect_error("run j --lr 0.1",
                 "unknown flag --lr; nearest: --learning_rate;");
    expect_error("local j --lr=0.1", "nearest: --learning_rate;");
    expect_error("run j --num_epochs 2", "nearest: --epochs;");
    expect_error("run j --num-epochs=2", "nearest: --epochs;");
    expect_error("run j --max_steps 2", "nearest: --train_steps;");
    expect_error("local j --num-workers 2", "nearest: --workers;");
    expect_error("run j -x", "unknown flag -x; ");
    expect_error("run --json -xy j", "unknown flag -x; ");
    expect_code("run a b", FAILURE_USAGE);
    expect_code("cluster x", FAILURE_USAGE);
    expect_error("run --join-timeout 0", "not '0'");
    expect_code("run --join-timeout nan", FAILURE_BAD_FLAG_VALUE);
    expect_error("run --join-timeout",
                 "--join-timeout takes a value: "
                 "--join-timeout=SECONDS; `capstan run --help`");
    expect_error("run j --json=3", "--json takes no value; ");
    expect_error("info --ps 2", "capstan info --help");
}

/* A DeepSpeed script has --deepspeed beside --deepspeed_config. */
TEST(an_abbreviated_flag_is_unknown_and_takes_no_value) {
    expect_error("run --deepspeed --deepspeed_config ds.json j",
                 "unknown flag --deepspeed; nearest: --deepspeed_config; ");
    expect_error("run --deepspeed j", "unknown flag --deepspeed; nearest: ");
    expect_code("run j --deepspeed=ds.json", FAILURE_UNKNOWN_FLAG);
    expect_error("local --worker 2 j",
                 "unknown flag --worker; nearest: --workers;");
    expect_error("local --worker=2 j",
                 "unknown flag --worker; nearest: --workers;");
    expect_error("run j --js", "unknown flag --js; nearest: --json; ");
    expect_code("info --he", FAILURE_UNKNOWN_FLAG);
    expect_error("ckpt ls --ste 5 dir",
                 "unknown flag --ste; nearest: --step; ");
    expect_code("launch --nproc 2 sh", FAILURE_UNKNOWN_FLAG);
    assert_string_equal(parse_valid("run --set a=--js j")->sets[0], "a=--js");
    assert_string_equal(
        parse_valid("run j --checkpoint-dir --js")->checkpoint_dir, "--js");
    assert_string_equal(parse_valid("launch sh --js")->command[1], "--js");
}

TEST(help_excludes_other_actions) {
    static const char *const lines[] = {
        "--help",   "-h",          "help",        "run --help",
        "local -h", "ckpt --help", "info --help", "cluster --help"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_true(parse_valid(lines[i])->printed_help);
    assert_false(parse_valid("info")->printed_help);
}

TEST(the_help_of_a_verb_lists_its_flags_and_examples) {
    static const char *const verbs[][2] = {{"run", "--join-timeout=SECONDS"},
                                           {"local", "--distribution="},
                                           {"launch", "--nproc_per_node="},
                                           {"cluster", "--json"},
                                           {"ckpt", "--format="},
                                           {"ckpt ls", "oldest first"},
                                           {"ckpt verify", "the hash"},
                                           {"ckpt export", "--state"},
                                           {"info", "--json"},
                                           {"bench", "--simulate"},
                                           {"compare", "--predict"}};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        const char *line = textf("%s --help", verbs[i][0]);
        const char *usage = textf("Usage: capstan %s", verbs[i][0]);
        const char *printed = read_line(line)->printed;
        if (!strstr(printed, usage) || !strstr(printed, verbs[i][1]) ||
            !strstr(printed, "\nExamples:\n  capstan "))
            fail_msg("`capstan %s` prints: %s", line, printed);
    }
}

/* What ls and verify do not take is not in their help. */
TEST(each_subcommand_has_its_own_help) {
    static const char *const reading[] = {"ckpt ls --help",
                                          "ckpt verify --help"};
    for (int i = 0; i < 2; i++) {
        const char *printed = read_line(reading[i])->printed;
        if (!strstr(printed, "--step=N") || strstr(printed, "--format") ||
            strstr(printed, "OUT"))
            fail_msg("`capstan %s` prints: %s", reading[i], printed);
    }
}

TEST(version_excludes_other_actions) {
    static const char *const lines[] = {"--version", "-V", "run --version",
                                        "info -V"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_true(parse_valid(lines[i])->printed_help);
}

TEST(percent_signs_are_plain_text) {
    expect_error("run --set %s%n%s", "'%s%n%s'");
    expect_error("local --ps %d j", "'%d'");
    expect_error("%s", "no verb '%s'");
}

/* Completion offers them. Where the flag's value is checked as it is read,
 * another word is refused. */
TEST(each_word_of_a_flag_is_accepted_and_no_other) {
    unsigned refused = 0;
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *verb =
            cli_command_get((enum cli_command_id)v);
        struct argp_option options[CLI_FLAG_MAX], *option = options;
        cli_flag_options(verb->number, options);
        for (; !cli_flag_is_end(option); option++) {
            const struct cli_flag *flag = cli_flag_of(option->key);
            const char *words = flag ? flag->words : NULL;
            char line[128], word[32];
            int length = 0;
            if (!words || !option->name)
                continue;
            for (; sscanf(words, "%31s%n", word, &length) == 1;
                 words += length) {
                snprintf(line, sizeof line, "%s --%s=%s", verb->name,
                         option->name, word);
                struct reading *reading = read_line(line);
                if (reading->status)
                    assert_int_not_equal(failure.code, FAILURE_BAD_FLAG_VALUE);
            }
            snprintf(line, sizeof line, "%s --%s=x", verb->name, option->name);
            refused +=
                (read_line(line), failure.code) == FAILURE_BAD_FLAG_VALUE;
        }
    }
    assert_in_range(refused, 6, 100);
}
