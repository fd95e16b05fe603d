/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/process_settings.h"

#include "commands/launch/launch.h"
#include "core/base/log.h"
#include "core/base/secret_file.h"
#include "core/base/trace.h"
#include "proto/cluster/address.h"
#include "proto/messages/launch_record.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *process_settings_getenv(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

enum status process_settings_add_sets(struct options *options,
                                      struct failure *why) {
    const char *sets = getenv(SCRIPT_SETS);
    while (sets && *sets) {
        size_t length = strcspn(sets, "\n");
        if (options->num_sets == OPTIONS_MAX_SETS)
            return status_fail(why, FAILURE_JOB_INVALID,
                               "more than %d overrides", OPTIONS_MAX_SETS);
        char *copy = strndup(sets, length);
        if (!copy)
            return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
        options->sets[options->num_sets++] = copy;
        sets += length + (sets[length] == '\n');
    }
    return STATUS_OK;
}

const char *process_settings_address(const struct process_settings *settings) {
    return settings->interface.address[0] ? settings->interface.address : NULL;
}

/* NCCL has names of interfaces only; "=" asks for the whole name. */
static enum status read_interface(struct interface *chosen, const char *flag,
                                  struct failure *why) {
    char name[IF_NAMESIZE + 1];
    const char *text = flag ? flag : getenv(INTERFACE_VARIABLE);
    if (!text || !*text)
        return STATUS_OK;
    enum status status = interface_find(
        chosen, text, flag ? "--interface" : INTERFACE_VARIABLE,
        flag ? FAILURE_BAD_FLAG_VALUE : FAILURE_BAD_VARIABLE, why);
    snprintf(name, sizeof name, "=%s", chosen->name);
    if (!status)
        setenv("NCCL_SOCKET_IFNAME", name, 0);
    return status;
}

void process_settings_stay_here(const struct options *options) {
    const char *given =
        options->interface ? options->interface : getenv(INTERFACE_VARIABLE);
    setenv(INTERFACE_VARIABLE, given && *given ? given : "lo", 1);
}

/* An empty variable is none. */
static const char *flag_or_variable(const char *flag, const char *variable) {
    const char *value = flag ? flag : getenv(variable);
    return value && *value ? value : NULL;
}

static const char *named_secret(const struct options *options) {
    return options->secret_file ? options->secret_file
                                : getenv(SECRET_FILE_VARIABLE);
}

void process_settings_take_secret(struct process_settings *settings,
                                  const struct options *options) {
    const char *named = named_secret(options);
    settings->secret_file = named ? named : getenv(SECRET_OWN_VARIABLE);
    settings->secret_is_own = !named && settings->secret_file;
}

static enum status read_trace(struct process_settings *settings,
                              const struct options *options,
                              struct failure *why) {
    const char *steps =
        flag_or_variable(options->trace_steps, TRACE_STEPS_VARIABLE);
    settings->trace_file =
        flag_or_variable(options->trace_file, TRACE_FILE_VARIABLE);
    if (steps &&
        !trace_steps_read(steps, &settings->trace_first, &settings->trace_last))
        return status_fail(why, FAILURE_BAD_VARIABLE,
                           TRACE_STEPS_VARIABLE
                           " is '%.64s'; it takes FIRST:LAST, two steps from 1 "
                           "on, such as 100:110",
                           steps);
    if (settings->trace_file && !steps)
        return status_fail(
            why, FAILURE_BAD_VARIABLE,
            "--trace-file or " TRACE_FILE_VARIABLE
            " names a file for steps that are not given: add --trace-steps "
            "FIRST:LAST or " TRACE_STEPS_VARIABLE);
    return STATUS_OK;
}

/* Sets VARIABLE to the path FILE (NULL: leaves it) from the root. */
static enum status hand_path(const char *variable, const char *file,
                             struct failure *why) {
    char folder[PATH_MAX] = "", *path = NULL;
    if (!file)
        return STATUS_OK;
    if (*file != '/' && !getcwd(folder, sizeof folder))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "the current folder");
    if (asprintf(&path, "%s%s%s", folder, *folder ? "/" : "", file) < 0)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    setenv(variable, path, 1);
    free(path);
    return STATUS_OK;
}

enum status process_settings_hand_on(const struct options *options,
                                     const char *secret_file,
                                     struct failure *why) {
    const char *given = named_secret(options);
    if (options->trace_steps)
        setenv(TRACE_STEPS_VARIABLE, options->trace_steps, 1);
    enum status status =
        hand_path(TRACE_FILE_VARIABLE, options->trace_file, why);
    return status ? status
                  : hand_path(SECRET_FILE_VARIABLE, given ? given : secret_file,
                              why);
}

enum status process_settings_read(struct process_settings *settings,
                                  const struct options *options,
                                  struct failure *why) {
    const char *lane = options->lane ? options->lane : getenv("CAPSTAN_LANE");
    const char *json = getenv(LOG_JSON_VARIABLE);
    const char *metrics = options->metrics_port ? options->metrics_port
                                                : getenv(LAUNCH_METRICS_PORT);
    *settings = (struct process_settings){
        .record = launch_record_inherited(),
        .shm = !lane || strcmp(lane, "tcp"),
        .interrupts = -1,
        .summary = getenv(SUMMARY_FILE),
    };
    process_settings_take_secret(settings, options);
    if (lane && strcmp(lane, "auto") && strcmp(lane, "tcp"))
        return status_fail(why, FAILURE_BAD_VARIABLE,
                           "CAPSTAN_LANE is '%.64s'; allowed are auto and tcp",
                           lane);
    if (json && *json && strcmp(json, "0") && strcmp(json, "1"))
        return status_fail(why, FAILURE_BAD_VARIABLE,
                           LOG_JSON_VARIABLE " is '%.64s'; allowed are 0 and 1",
                           json);
    if (metrics && !address_parse_listener(&settings->metrics, metrics))
        return status_fail(why, FAILURE_BAD_VARIABLE,
                           LAUNCH_METRICS_PORT
                           " is '%.64s'; it takes PORT or ADDRESS:PORT, 0: off",
                           metrics);
    enum status status = read_trace(settings, options, why);
    if (!status)
        status = read_interface(&settings->interface, options->interface, why);
    return status ? status
                  : rule_choose(&settings->loops, getenv("CAPSTAN_CPU"), why);
}
