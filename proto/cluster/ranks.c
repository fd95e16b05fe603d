/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers of ranks differ only in the names of their variables, which their
 * own files list. This file maps ranks to roles. */
#include "proto/cluster/ranks.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/chief_address.h"

#include <stdlib.h>
#include <string.h>

#define NUM_PS "CAPSTAN_NUM_PS"

enum { MAX_RANKS = 1 << 20 };

static enum status ranks_bad_index(const char *name, const char *text,
                                   struct failure *why) {
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "bad_index: %s is %s; it is a whole number from 0. "
                       "Correct it, or unset it.",
                       name, diagnostics_quote_text(text).text);
}

static enum status ranks_parse_number(const char *name, const char *text,
                                      int64_t *value, struct failure *why) {
    uint64_t found;
    *value = CLUSTER_UNKNOWN;
    if (!text)
        return STATUS_OK;
    if (!decimal_parse(text, &found) || found > UINT32_MAX)
        return ranks_bad_index(name, text, why);
    *value = (int64_t)found;
    return STATUS_OK;
}

enum status ranks_read_number(const struct cluster_input *input,
                              const char *name, int64_t *value,
                              struct failure *why) {
    return ranks_parse_number(
        name, name ? cluster_input_variable(input, name) : NULL, value, why);
}

static enum status out_of_range(const char *name, int64_t value,
                                const char *of_name, int64_t size,
                                struct failure *why) {
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "index_out_of_range: %s is %jd, and %s is %jd: ranks "
                       "count from 0 to %jd. Correct one of them.",
                       name, (intmax_t)value, of_name, (intmax_t)size,
                       (intmax_t)(size - 1));
}

static enum status read_world(const struct ranks *ranks, int64_t *rank,
                              int64_t *size, struct failure *why) {
    if (!ranks->rank)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "rank_missing: %s is set and %s is not: the rank of this process "
            "is not known. Set both or neither.",
            ranks->size_name, ranks->rank_name);
    if (!ranks->size)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "world_size_missing: %s is set and %s is not: the number of "
            "processes is not known. Set both or neither.",
            ranks->rank_name, ranks->size_name);
    enum status status =
        ranks_parse_number(ranks->rank_name, ranks->rank, rank, why);
    if (status != STATUS_OK)
        return status;
    uint64_t found;
    if (!decimal_parse(ranks->size, &found) || found < 1 || found > MAX_RANKS)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "bad_world_size: %s is %s; it is the number of processes, a whole "
            "number from 1 to %d.",
            ranks->size_name, diagnostics_quote_text(ranks->size).text,
            MAX_RANKS);
    *size = (int64_t)found;
    return *rank < *size ? STATUS_OK
                         : out_of_range(ranks->rank_name, *rank,
                                        ranks->size_name, *size, why);
}

static enum status read_local(struct ranks *ranks, int64_t size,
                              struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) {
    int64_t local_size = CLUSTER_UNKNOWN;
    enum status status = ranks_read_number(input, ranks->local_rank_name,
                                           &cluster->local_rank, why);
    if (status == STATUS_OK)
        status =
            ranks_read_number(input, ranks->local_size_name, &local_size, why);
    if (status != STATUS_OK)
        return status;
    if (local_size > size)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_world_size: %s is %jd, more than %s, which is "
                           "%jd.",
                           ranks->local_size_name, (intmax_t)local_size,
                           ranks->size_name, (intmax_t)size);
    bool known = local_size > 0;
    cluster->local_size = known ? local_size : CLUSTER_UNKNOWN;
    if (cluster->local_rank >= (known ? local_size : size))
        return out_of_range(ranks->local_rank_name, cluster->local_rank,
                            known ? ranks->local_size_name : ranks->size_name,
                            known ? local_size : size, why);
    ranks->one_node |= local_size == size;
    return STATUS_OK;
}

static enum status read_num_ps(const struct ranks *ranks, int64_t size,
                               const struct cluster_input *input,
                               uint32_t *num_ps, struct failure *why) {
    const char *flag = cluster_input_text(input->flags.num_ps);
    const char *text = flag ? flag : cluster_input_variable(input, NUM_PS);
    uint64_t found = 0;
    if (text && (!decimal_parse(text, &found) || found >= (uint64_t)size))
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "bad_num_ps: %s is %s, and %s is %jd: rank 0 leads and trains, so "
            "0 to %jd ranks can be ps.",
            flag ? "--num-ps" : NUM_PS, diagnostics_quote_text(text).text,
            ranks->size_name, (intmax_t)size, (intmax_t)(size - 1));
    *num_ps = (uint32_t)found;
    return STATUS_OK;
}

enum status ranks_fill_tasks(struct cluster_job *job, uint32_t count,
                             struct failure *why) {
    *job = (struct cluster_job){.count = count, .present = true};
    job->tasks = calloc(count ? count : 1, sizeof *job->tasks);
    if (!job->tasks)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u ranks",
                           count);
    for (uint32_t i = 0; i < count; i++)
        job->tasks[i].index = i;
    return STATUS_OK;
}

enum status ranks_resolve(struct ranks *ranks, struct cluster *cluster,
                          const struct cluster_input *input,
                          struct failure *why) {
    int64_t rank = 0, size = 1;
    uint32_t num_ps = 0;
    enum status status = read_world(ranks, &rank, &size, why);
    if (status == STATUS_OK)
        status = read_local(ranks, size, cluster, input, why);
    if (status == STATUS_OK)
        status = read_num_ps(ranks, size, input, &num_ps, why);
    if (status != STATUS_OK)
        return status;
    cluster->from_ranks = cluster->takes_num_ps = true;
    cluster->role = CLUSTER_WORKER;
    cluster->local = size == 1;
    if (cluster->local)
        return STATUS_OK;
    uint32_t workers = (uint32_t)size - num_ps;
    status = ranks_fill_tasks(&cluster->jobs[CLUSTER_WORKER], workers, why);
    if (status == STATUS_OK)
        status = ranks_fill_tasks(&cluster->jobs[CLUSTER_PS], num_ps, why);
    if (status != STATUS_OK)
        return status;
    cluster->index = (uint32_t)rank;
    if (rank >= workers) {
        cluster->role = CLUSTER_PS;
        cluster->index -= workers;
    }
    struct chief_location location = {.one_node = ranks->one_node,
                                      .first_host = ranks->first_host};
    return chief_address_read(&cluster->jobs[CLUSTER_WORKER].tasks[0],
                              &cluster->chief_ports, &location, input, why);
}

enum status ranks_check_flags(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) {
    const char *num_ps = cluster_input_text(input->flags.num_ps);
    const char *flag = cluster_input_text(input->flags.local_rank);
    int64_t from_env, from_flag;
    if (num_ps && !cluster->takes_num_ps)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "num_ps_given: --num-ps applies to sources that give ranks (torch, "
            "MPI, Slurm, Horovod, ...), but the source here is %s, which has "
            "none. Leave it out.",
            cluster->source);
    enum status status = ranks_read_number(input, "LOCAL_RANK", &from_env, why);
    if (status == STATUS_OK)
        status = ranks_parse_number("--local_rank", flag, &from_flag, why);
    if (status != STATUS_OK)
        return status;
    if (from_env >= 0 && from_flag >= 0 && from_env != from_flag)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "local_rank_conflict: --local_rank is %jd and LOCAL_RANK is %jd. "
            "They mean the same; leave one out.",
            (intmax_t)from_flag, (intmax_t)from_env);
    if (from_env < 0 && from_flag < 0)
        return STATUS_OK;
    cluster->local_rank = from_env >= 0 ? from_env : from_flag;
    if (cluster->local_size > 0 && cluster->local_rank >= cluster->local_size)
        return out_of_range(
            from_env >= 0 ? "LOCAL_RANK" : "--local_rank", cluster->local_rank,
            "the number of ranks on this host", cluster->local_size, why);
    return STATUS_OK;
}
