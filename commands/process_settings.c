/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/process_settings.h"

#include "commands/launch/launch.h"
#include "core/base/log.h"
#include "proto/cluster/address.h"
#include "proto/messages/launch_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    enum status status =
        read_interface(&settings->interface, options->interface, why);
    return status ? status
                  : rule_choose(&settings->loops, getenv("CAPSTAN_CPU"), why);
}
