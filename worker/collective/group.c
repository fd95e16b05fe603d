/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/group.h"

#include "core/base/log.h"
#include "core/base/plugin.h"
#include "core/base/time.h"

enum status group_find_backend(const struct collective_ops **out,
                               const char *name, struct failure *why) {
    const void *table;
    enum status status =
        plugin_find(&table, name, COLLECTIVE_SYMBOL, COLLECTIVE_ABI, why);
    *out = table;
    if (!status)
        return STATUS_OK;
    struct failure reason = *why;
    return status_fail(
        why, reason.code,
        "strategy.backend %s: %s; docs/collectives.md lists what "
        "it needs; a job with ps needs no backend",
        name, reason.text);
}

void group_log_rejected(const void *log, const char *own, const char *from,
                        const char *why) {
    log_warning(log, "unknown_peer_rejected",
                "an unknown peer, %s, that called this rank at %s %s", from,
                own, why);
}

void group_open(struct group *ranks, const struct collective_ops *ops,
                uint32_t rank, uint32_t size) {
    *ranks = (struct group){.ops = ops, .rank = rank, .size = size};
    pthread_mutex_init(&ranks->mutex, NULL);
}

/* An abort that came before the group existed is applied now. */
enum status group_connect(struct group *ranks,
                          const struct collective_settings *settings,
                          struct failure *why) {
    struct collective *group = NULL;
    if (ranks->size == 1)
        return STATUS_OK;
    if (settings->proof && !ranks->ops->supports_proof)
        return status_fail(
            why, FAILURE_COLLECTIVE_UNUSABLE,
            "a run with a secret, and %s, whose connections between trainers "
            "nobody authenticates: set strategy.backend to \"gloo\", train by "
            "parameter server, or leave the secret out on a network of your "
            "own",
            ranks->ops->name);
    enum status status = ranks->ops->open(&group, settings, why);
    pthread_mutex_lock(&ranks->mutex);
    ranks->group = group;
    if (group && ranks->aborted)
        ranks->ops->abort(group);
    pthread_mutex_unlock(&ranks->mutex);
    return status;
}

void group_abort(struct group *ranks) {
    pthread_mutex_lock(&ranks->mutex);
    if (ranks->group && !ranks->aborted)
        ranks->ops->abort(ranks->group);
    ranks->aborted = true;
    pthread_mutex_unlock(&ranks->mutex);
}

void group_disconnect(struct group *ranks) {
    pthread_mutex_lock(&ranks->mutex);
    struct collective *group = ranks->group;
    ranks->group = NULL;
    pthread_mutex_unlock(&ranks->mutex);
    if (group && !ranks->ops->close(&group))
        plugin_leave_thread(ranks->ops->name);
}

void group_close(struct group *ranks) {
    group_disconnect(ranks);
    pthread_mutex_destroy(&ranks->mutex);
}

typedef enum status call(struct collective *group, float *data, size_t count,
                         struct failure *why);

/* In PHASES phases all of DATA except a rank's own part leaves each rank. */
static enum status run_collective(struct group *ranks, call *collective,
                                  unsigned phases, float *data, size_t count,
                                  struct failure *why) {
    int64_t start = time_now();
    enum status status = collective(ranks->group, data, count, why);
    uint64_t bytes = count * sizeof *data / ranks->size * (ranks->size - 1);
    atomic_fetch_add(&ranks->ns, time_now() - start);
    atomic_fetch_add(&ranks->bytes, phases * bytes);
    return status;
}

enum status group_all_reduce(struct group *ranks, float *data, size_t count,
                             struct failure *why) {
    if (ranks->size == 1)
        return STATUS_OK;
    return run_collective(ranks, ranks->ops->all_reduce, 2, data, count, why);
}

enum status group_reduce_scatter(struct group *ranks, float *data, size_t count,
                                 struct failure *why) {
    if (ranks->size == 1)
        return STATUS_OK;
    return run_collective(ranks, ranks->ops->reduce_scatter, 1, data, count,
                          why);
}

enum status group_all_gather(struct group *ranks, float *data, size_t count,
                             struct failure *why) {
    if (ranks->size == 1)
        return STATUS_OK;
    return run_collective(ranks, ranks->ops->all_gather, 1, data, count, why);
}

enum status group_broadcast(struct group *ranks, float *data, size_t count,
                            uint32_t root, struct failure *why) {
    if (ranks->size == 1)
        return STATUS_OK;
    return ranks->ops->broadcast(ranks->group, data, count * sizeof *data, root,
                                 why);
}

enum status group_async_error(struct group *ranks, struct failure *why) {
    if (!ranks->group || !ranks->ops->async_error)
        return STATUS_OK;
    return ranks->ops->async_error(ranks->group, why);
}

void group_register(struct group *ranks, struct buffer *buffer) {
    if (ranks->group && ranks->ops->register_buffer)
        ranks->ops->register_buffer(ranks->group, buffer);
}

void group_transport(const struct group *ranks, char *text, size_t size) {
    text[0] = 0;
    if (ranks->group && ranks->ops->transport)
        ranks->ops->transport(ranks->group, text, size);
}
