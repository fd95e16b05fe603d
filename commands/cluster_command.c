/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "commands/process_settings.h"
#include "core/base/time.h"
#include "core/net/link/link_check.h"
#include "proto/cluster/cluster.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t CHECK_LIMIT = 5 * TIME_S;

static const char *const source_states[] = {
    [CLUSTER_SOURCE_NOT_SET] = "not_set",
    [CLUSTER_SOURCE_INCOMPLETE] = "incomplete",
    [CLUSTER_SOURCE_TAKEN] = "taken",
    [CLUSTER_SOURCE_LATER] = "not_looked_at",
};

/* One process of the cluster. */
struct peer {
    enum cluster_role role;
    const struct cluster_task *task;
    bool is_chief, is_self;
    char address[280];         /* "": not known */
    const char *reason;        /* why it is not tried; NULL: it is */
    struct link_check *checks; /* [ports], NULL: none */
    uint32_t ports;
    const struct link_check *found; /* the check that tells most */
};

struct report {
    const struct cluster *cluster;
    struct cluster_source sources[CLUSTER_SOURCES_MAX];
    uint32_t num_sources, num_peers;
    struct peer *peers;
    struct link_check *checks;
};

/* Why no connection to PEER is tried, or NULL. */
static const char *reason_not_to_try(const struct peer *peer) {
    if (peer->is_self)
        return "this process";
    if (peer->role == CLUSTER_EVALUATOR)
        return "not tried: no process connects to an evaluator";
    if (!peer->task->host[0])
        return "not tried: its address is known when it joins";
    if (!peer->task->port)
        return "not tried: its port is known when it joins";
    return NULL;
}

static void describe_peer(struct peer *peer, const struct cluster *cluster,
                          enum cluster_role role,
                          const struct cluster_task *task) {
    uint16_t ports = cluster->chief_ports;
    *peer = (struct peer){.role = role,
                          .task = task,
                          .is_chief = task == cluster_chief(cluster),
                          .is_self = task == cluster_own_task(cluster),
                          .ports = 1};
    peer->reason = reason_not_to_try(peer);
    if (!task->host[0])
        return;
    cluster_address(task, peer->address, sizeof peer->address);
    if (!peer->is_chief || ports < 2)
        return;
    size_t used = strlen(peer->address);
    snprintf(peer->address + used, sizeof peer->address - used, "-%u",
             task->port + ports - 1);
    peer->ports = ports;
}

static enum status describe_peers(struct report *report, struct failure *why) {
    const struct cluster *cluster = report->cluster;
    uint32_t count = 0, ports = 0;
    for (enum cluster_role r = 0; r < CLUSTER_ROLES; r++)
        count += cluster->jobs[r].count;
    report->peers = calloc(count + 1, sizeof *report->peers);
    if (!report->peers)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the cluster");
    for (enum cluster_role r = 0; r < CLUSTER_ROLES; r++)
        for (uint32_t i = 0; i < cluster->jobs[r].count; i++) {
            struct peer *peer = &report->peers[report->num_peers++];
            describe_peer(peer, cluster, r, &cluster->jobs[r].tasks[i]);
            ports += peer->ports;
        }
    report->checks = calloc(ports + 1, sizeof *report->checks);
    if (!report->checks)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the cluster");
    return STATUS_OK;
}

/* Tries each peer that has an address. Of the ports of a chief that listens on
 * one of several, the one that answers counts. */
static void check_peers(struct report *report) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < report->num_peers; i++) {
        struct peer *peer = &report->peers[i];
        if (peer->reason)
            continue;
        peer->found = peer->checks = &report->checks[used];
        for (uint32_t p = 0; p < peer->ports; p++)
            report->checks[used++] =
                (struct link_check){.host = peer->task->host,
                                    .port = (uint16_t)(peer->task->port + p)};
    }
    link_check_run(report->checks, used, CHECK_LIMIT);
    for (uint32_t i = 0; i < report->num_peers; i++) {
        struct peer *peer = &report->peers[i];
        for (uint32_t p = 0; peer->checks && p < peer->ports; p++)
            if (peer->checks[p].state == LINK_CHECK_ANSWERS)
                peer->found = &peer->checks[p];
    }
}

static bool is_bad(const struct peer *peer) {
    return peer->found && peer->found->state != LINK_CHECK_ANSWERS;
}

/* The names of SOURCE's variables that are set, separated by commas. */
static void write_variables(const struct cluster_source *source, char *text,
                            size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (uint32_t v = 0; v < source->count && used < size; v++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 v ? ", " : "", source->variables[v]);
}

static void print_sources(const struct report *report, FILE *file) {
    static const char *const sentences[] = {
        [CLUSTER_SOURCE_NOT_SET] = "not set",
        [CLUSTER_SOURCE_INCOMPLETE] =
            "set, but no cluster of several processes: ",
        [CLUSTER_SOURCE_TAKEN] = "taken, because it is the first that is set: ",
        [CLUSTER_SOURCE_LATER] = "set, not looked at: ",
    };
    bool taken = false;
    fprintf(file, "Sources in their order:\n");
    for (uint32_t i = 0; i < report->num_sources; i++) {
        const struct cluster_source *source = &report->sources[i];
        char variables[512], name[64];
        write_variables(source, variables, sizeof variables);
        snprintf(name, sizeof name, "%s (%s)", source->name, source->first);
        fprintf(file, "  %-36s %s%s\n", name, sentences[source->state],
                variables);
        taken |= source->state == CLUSTER_SOURCE_TAKEN;
    }
    fprintf(file, "  %-36s %s\n", "alone",
            taken             ? "not looked at"
            : report->cluster ? "taken, because no source describes a cluster"
                              : "refused, see the error");
}

/* What is said of PEER behind its address. */
static void describe_state(const struct peer *peer, bool check, char *text,
                           size_t size) {
    const char *found = peer->found               ? peer->found->text
                        : check && !peer->is_self ? peer->reason
                                                  : NULL;
    snprintf(text, size, "%s%s%s%s%s", peer->is_chief ? "chief" : "",
             peer->is_chief && peer->is_self ? ", " : "",
             peer->is_self ? "this process" : "",
             found && peer->is_chief ? ": " : "", found ? found : "");
}

static void print_line(const char *role, uint32_t index, const char *address,
                       const char *text) {
    printf("  %-9s %5u  %-*s%s%s\n", role, index, text[0] ? 28 : 0, address,
           text[0] ? " " : "", text);
}

static void print_peers(const struct report *report, bool check) {
    const struct cluster *cluster = report->cluster;
    printf("Processes:\n");
    for (uint32_t i = 0; i < report->num_peers; i++) {
        const struct peer *peer = &report->peers[i];
        char text[400];
        describe_state(peer, check, text, sizeof text);
        print_line(cluster_role_name(peer->role), peer->task->index,
                   peer->address[0] ? peer->address : "known when it joins",
                   text);
    }
    if (cluster->local)
        print_line("worker", 0, "none", "alone, this process");
    else if (!cluster_own_task(cluster))
        print_line(cluster_role_name(cluster->role), cluster->index,
                   "not listed", "this process");
}

static json_t *sources_json(const struct report *report) {
    json_t *list = json_array();
    bool taken = false;
    for (uint32_t i = 0; i < report->num_sources; i++) {
        const struct cluster_source *source = &report->sources[i];
        json_t *variables = json_array();
        taken |= source->state == CLUSTER_SOURCE_TAKEN;
        for (uint32_t v = 0; v < source->count; v++)
            json_array_append_new(variables, json_string(source->variables[v]));
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "source",
                                              source->name, "state",
                                              source_states[source->state],
                                              "variables", variables));
    }
    return list;
}

static json_t *peers_json(const struct report *report, bool check) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->num_peers; i++) {
        const struct peer *peer = &report->peers[i];
        const char *address = peer->address[0] ? peer->address : NULL;
        json_t *one = json_pack(
            "{s:s, s:I, s:s?, s:b, s:b}", "role", cluster_role_name(peer->role),
            "index", (json_int_t)peer->task->index, "address", address,
            "is_chief", peer->is_chief, "is_self", peer->is_self);
        enum link_check_state state =
            peer->found ? peer->found->state : LINK_CHECK_NOT_TRIED;
        if (check) {
            json_object_set_new(one, "link",
                                json_string(link_check_state_name(state)));
            json_object_set_new(
                one, "text",
                json_string(peer->found ? peer->found->text : peer->reason));
        }
        json_array_append_new(list, one);
    }
    return list;
}

static void print_json(const struct report *report,
                       const struct options *options) {
    char *text = cluster_json(report->cluster);
    json_t *root = json_loads(text ? text : "{}", 0, NULL);
    free(text);
    if (options->explain)
        json_object_set_new(root, "sources", sources_json(report));
    if (options->explain || options->check)
        json_object_set_new(root, "processes",
                            peers_json(report, options->check));
    text = json_dumps(root, JSON_COMPACT);
    puts(text ? text : "");
    free(text);
    json_decref(root);
}

/* Fails if an address was bad, and names the first. TEXT: says for people how
 * many were good. */
static enum status summarize(const struct report *report, bool text,
                             struct failure *why) {
    const struct peer *first = NULL;
    uint32_t tried = 0, bad = 0, refused = 0;
    for (uint32_t i = 0; i < report->num_peers; i++) {
        const struct peer *peer = &report->peers[i];
        tried += peer->found != NULL;
        bad += is_bad(peer);
        refused += is_bad(peer) && peer->found->state == LINK_CHECK_REFUSED;
        if (is_bad(peer) && !first)
            first = peer;
    }
    if (text && tried)
        printf("%u of %u addresses answer.\n", tried - bad, tried);
    if (!first)
        return STATUS_OK;
    return status_fail(
        why, FAILURE_LINK_UNUSABLE,
        "%u of %u addresses do not answer, first that of %s %u, %s: %s. %u of "
        "them are refused: their hosts are reachable, and nothing listens "
        "there until their processes run.",
        bad, tried, cluster_role_name(first->role), first->task->index,
        first->address, first->found->text, refused);
}

static enum status make_report(struct report *report,
                               const struct options *options,
                               struct failure *why) {
    bool text = !options->json;
    enum status status = describe_peers(report, why);
    if (status)
        return status;
    if (options->check)
        check_peers(report);
    if (!text)
        print_json(report, options);
    if (text && options->explain)
        print_sources(report, stdout);
    if (text)
        print_peers(report, options->check);
    return options->check ? summarize(report, text, why) : STATUS_OK;
}

enum status cluster_command(const struct options *options,
                            struct failure *why) {
    struct cluster *cluster = NULL;
    struct report report = {0};
    enum status status = cluster_resolve(&cluster, &options->flags,
                                         process_settings_getenv, NULL, why);
    report.num_sources = cluster_sources(report.sources, &options->flags,
                                         process_settings_getenv, NULL);
    report.cluster = cluster;
    if (status && options->explain && !options->json)
        print_sources(&report, stderr);
    else if (!status && (options->explain || options->check))
        status = make_report(&report, options, why);
    else if (!status)
        print_json(&report, options);
    free(report.peers);
    free(report.checks);
    cluster_free(&cluster);
    return status;
}
