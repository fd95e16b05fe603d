/* SPDX-License-Identifier: Apache-2.0 */
/* The program: runs the verb and returns its exit code. */
#include "commands/cli/options.h"
#include "commands/verbs.h"
#include "core/base/log.h"
#include "core/base/output.h"
#include "core/base/plugin.h"
#include "core/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static enum status (*const verbs[CLI_COMMANDS])(const struct options *,
                                                    struct failure *) = {
        [CLI_COMMAND_RUN] = run_command,
        [CLI_COMMAND_LOCAL] = local_command,
        [CLI_COMMAND_LAUNCH] = launch_command,
        [CLI_COMMAND_CLUSTER] = cluster_command,
        [CLI_COMMAND_CKPT] = ckpt_command,
        [CLI_COMMAND_DATA] = data_command,
        [CLI_COMMAND_EVAL] = eval_command,
        [CLI_COMMAND_PREDICT] = eval_command_predict,
        [CLI_COMMAND_SCHEMA] = schema_command,
        [CLI_COMMAND_MANUAL] = manual_command,
        [CLI_COMMAND_HOW] = how_command,
        [CLI_COMMAND_KEYGEN] = keygen_command,
        [CLI_COMMAND_INFO] = info_command,
        [CLI_COMMAND_STATUS] = status_command,
        [CLI_COMMAND_BENCH] = bench_command,
        [CLI_COMMAND_COMPARE] = compare_command,
        [CLI_COMMAND_REPORT] = report_command,
    };
    struct options options;
    struct failure why = {0};
    /* Set before any thread exists. NVLS lets the switch between GPUs add in a
     * different order each time; without it NCCL's sums are reproducible. A
     * value set by the user is kept. */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    enum status status = options_read(&options, argc, argv, &why);
    log_set_format(options.log_format);
    if (!status && !options.printed_help)
        status = verbs[options.cli_command](&options, &why);
    if (!status)
        status = output_finish(stdout, &why);
    if (status && why.text[0])
        log_failure_of_command(&why);
    if (plugin_threads_left(NULL)) {
        fflush(NULL);
        _exit((int)status);
    }
    return status;
}
