/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/options_check.h"

#include "proto/config/cluster/azureml.h"

static const char *check_bench(const struct options *options) {
    const struct simulate_options *simulate = &options->simulate;
    if (!options->num_ps || !options->num_workers)
        return "--ps and --workers take at least 1";
    if (!simulate->on && (simulate->given || options->job ||
                          options->num_sets || options->num_workers > 1))
        return "a job and the flags of a simulation go with --simulate";
    if (simulate->on && !options->job == !simulate->bytes)
        return "--simulate takes either JOB.json or --bytes N";
    return NULL;
}

/* Without JOB.json the processes run the command of the job of Azure ML. */
static const char *check_distribution(const struct options *options) {
    const char *text = options->azureml_distribution;
    bool own = options->launch.command;
    bool runs_command = text && !options->job && !own;
    if (options->ps_given || options->workers_given)
        return "--distribution gives the number of processes: leave --ps and "
               "--workers out";
    if (runs_command && azureml_is_block(text))
        return "a distribution block has no command: give JOB.json, or a "
               "command after --";
    if (runs_command && (options->deepspeed || options->link_gbits > 0))
        return "--deepspeed_config and --link-gbits go with JOB.json";
    if (options->num_inputs && !runs_command)
        return "--input goes with the command of --distribution FILE, which "
               "JOB.json and a command after -- replace";
    return NULL;
}

static const char *options_check_check_local(const struct options *options) {
    bool distributed = options->azureml_distribution;
    if (options->launch.command &&
        (options->deepspeed || options->link_gbits > 0))
        return "--deepspeed_config and --link-gbits do not go with a command";
    if (options->launch.command && !distributed && !options->num_workers)
        return "--workers 0 with a command: worker 0 leads";
    if (!distributed &&
        (options->instances || options->flags.num_ps || options->num_inputs))
        return "--instances, --num-ps and --input go with --distribution";
    return distributed ? check_distribution(options) : NULL;
}

static const char *check_compare(const struct options *options) {
    bool command = options->launch.command;
    const char *error =
        compare_options_error(&options->compare, options->job || command);
    bool predicts = !error && options->compare.predict;
    if (predicts && (options->num_sets || options->deepspeed))
        return "--set and --deepspeed_config change a job; --predict has none";
    if (predicts && options->lane)
        return "--lane goes with runs; --predict makes none";
    if (!error && command && options->deepspeed)
        return "--deepspeed_config does not go with a command";
    return error;
}

enum status options_check(const struct options *options, struct failure *why) {
    const char *cli_command = NULL, *error = NULL;
    if (options->cli_command == CLI_COMMAND_BENCH) {
        cli_command = "bench";
        error = check_bench(options);
    } else if (options->cli_command == CLI_COMMAND_LOCAL) {
        cli_command = "local";
        error = options_check_check_local(options);
    } else if (options->cli_command == CLI_COMMAND_COMPARE) {
        cli_command = "compare";
        error = check_compare(options);
    }
    if (!error)
        return STATUS_OK;
    return status_fail(why, FAILURE_FLAG_CONFLICT,
                       "%s; `capstan %s --help` lists its flags", error,
                       cli_command);
}
