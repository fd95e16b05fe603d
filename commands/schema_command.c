/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/schema_command.h"

#include "proto/base/log.h"
#include "proto/config/job/job_json_schema.h"
#include "worker/models/model.h"

#include <stdio.h>

static enum status schema_command_check(const char *path, struct failure *why) {
    struct log log;
    struct job *job;
    struct job_source source = {.models = &model_schemas, .path = path};
    log_open(&log, "schema", -1);
    enum status status = job_load(&job, &source, &log, why);
    job_free(&job);
    return status;
}

enum status schema_command(const struct options *options, struct failure *why) {
    if (options->job)
        return schema_command_check(options->job, why);
    json_t *schema = job_json_schema(&model_schemas);
    bool done = schema && !json_dumpf(schema, stdout, JSON_INDENT(1)) &&
                putchar('\n') != EOF && !fflush(stdout);
    json_decref(schema);
    return done ? STATUS_OK
                : status_fail(why, FAILURE_FILE_UNWRITABLE,
                              "cannot write the schema");
}
