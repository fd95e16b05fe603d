/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/legacy_flags.h"

#include "proto/config/cluster/cluster_jobs.h"
#include "proto/config/cluster/cluster_self.h"

#include <jansson.h>
#include <string.h>

#define BLANKS " \t\r\n"

bool legacy_flags_set(const struct cluster_input *input) {
    const struct cluster_flags *flags = &input->flags;
    return cluster_input_text(flags->job_name) ||
           cluster_input_text(flags->task_index) ||
           cluster_input_text(flags->ps_hosts) ||
           cluster_input_text(flags->worker_hosts) ||
           cluster_input_text(flags->chief_hosts);
}

/* The entries of a comma-separated LIST, without blanks around them. Bytes that
 * are not UTF-8 pass; the address is checked later. */
static json_t *legacy_flags_split(const char *list) {
    json_t *entries = json_array();
    for (const char *entry = list; entry;) {
        const char *comma = strchr(entry, ',');
        const char *end = comma ? comma : entry + strlen(entry);
        entry += strspn(entry, BLANKS);
        while (end > entry && strchr(BLANKS, end[-1]))
            end--;
        size_t length = end > entry ? (size_t)(end - entry) : 0;
        json_array_append_new(entries, json_stringn_nocheck(entry, length));
        entry = comma ? comma + 1 : NULL;
    }
    return entries;
}

static void add_job(json_t *map, const char *job, const char *list) {
    if (cluster_input_text(list))
        json_object_set_new(map, job, legacy_flags_split(list));
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
