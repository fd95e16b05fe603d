/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/legacy_flags.h"

#include "proto/cluster/cluster_jobs.h"
#include "proto/cluster/cluster_self.h"

#include <jansson.h>
#include <string.h>

bool legacy_flags_set(const struct cluster_input *input) {
    const struct cluster_flags *flags = &input->flags;
    return cluster_input_text(flags->job_name) ||
           cluster_input_text(flags->task_index) ||
           cluster_input_text(flags->ps_hosts) ||
           cluster_input_text(flags->worker_hosts) ||
           cluster_input_text(flags->chief_hosts);
}

static void add_job(json_t *map, const char *job, const char *list) {
    if (cluster_input_text(list))
        json_object_set_new(map, job, cluster_jobs_split(list, strlen(list)));
}

enum status legacy_flags_read(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) {
    const struct cluster_flags *flags = &input->flags;
    struct cluster_self self = {.names = ROLE_NAMES_TF,
                                .location = "--job_name and --task_index",
                                .type_location = "--job_name",
                                .index_location = "--task_index"};
    json_t *map = json_object();
    add_job(map, "chief", flags->chief_hosts);
    add_job(map, "worker", flags->worker_hosts);
    add_job(map, "ps", flags->ps_hosts);
    enum status status =
        cluster_jobs_read(cluster, map, self.names, "the --*_hosts flags", why);
    json_decref(map);
    if (status != STATUS_OK)
        return status;
    status = cluster_self_from_text(&self, cluster_input_text(flags->job_name),
                                    cluster_input_text(flags->task_index), why);
    return status ? status : cluster_self_resolve(&self, cluster, why);
}
