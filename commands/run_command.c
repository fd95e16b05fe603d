/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "commands/process.h"
#include "commands/service_notify.h"
#include "proto/cluster/cluster.h"

#include <stdlib.h>

static enum status run_as_given(const struct options *options,
                                struct failure *why) {
    struct process_settings settings;
    struct service_notify *notify = NULL;
    struct cluster *cluster = NULL;
    enum status status = cluster_resolve(&cluster, &options->flags,
                                         process_settings_getenv, NULL, why);
    if (status)
        return status;
    status = process_settings_read(&settings, options, why);
    if (!status)
        status = service_notify_open(&notify, why);
    settings.notify = notify;
    if (status && cluster_expects_joins(cluster))
        process_refuse(options, cluster, why);
    if (!status && cluster_is_chief(cluster) &&
        compare_command_is_requested(options))
        status = compare_command_cluster(options, &settings, cluster, why);
    else if (!status)
        status = process_run(options, &settings, cluster, why);
    service_notify_close(&notify, !status);
    cluster_free(&cluster);
    return status;
}

enum status run_command(const struct options *options, struct failure *why) {
    struct options whole = *options;
    enum status status = process_settings_add_sets(&whole, why);
    if (!status)
        status = run_as_given(&whole, why);
    while (whole.num_sets > options->num_sets)
        free((char *)whole.sets[--whole.num_sets]);
    return status;
}
