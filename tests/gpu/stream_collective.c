/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/stream_collective.h"

#include "tests/gpu/fake_streams.h"
#include "tests/lib/collective_fixture.h"

#include <stdlib.h>

struct collective {
    struct collective *inner;
    const struct fake_stream_hook *door; /* NULL: nothing is joined */
    unsigned waiting;                    /* calls put and not made */
    bool closed;                         /* they are not to be made any more */
    enum status failed;
    struct failure why;
};

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

struct call {
    struct collective *group;
    enum kind kind;
    void *data;
    size_t size; /* floats, of a broadcast bytes */
    uint32_t root;
};

static const struct collective_ops *const inner_ops = &collective_fixture_ops;

static enum status make(const struct call *call, struct failure *why) {
    struct collective *inner = call->group->inner;
    switch (call->kind) {
    case ALL_REDUCE:
        return inner_ops->all_reduce(inner, call->data, call->size, why);
    case REDUCE_SCATTER:
        return inner_ops->reduce_scatter(inner, call->data, call->size, why);
    case ALL_GATHER:
        return inner_ops->all_gather(inner, call->data, call->size, why);
    case BROADCAST:
        return inner_ops->broadcast(inner, call->data, call->size, call->root,
                                    why);
    }
    return STATUS_OK;
}

static void forget(struct collective *group) {
    if (group->closed && group->waiting == 0)
        free(group);
}

static void make_late(void *what) {
    struct call *call = what;
    struct collective *group = call->group;
    if (!group->closed && !group->failed)
        group->failed = make(call, &group->why);
    group->waiting--;
    free(call);
    forget(group);
}

static enum status async_error(struct collective *group, struct failure *why) {
    if (group->failed && why)
        *why = group->why;
    return group->failed;
}

static enum status give(const struct call *given, size_t bytes,
                        struct failure *why) {
    struct collective *group = given->group;
    if (!group->door)
        return make(given, why);
    struct call *call = malloc(sizeof *call);
    if (!call)
        abort();
    *call = *given;
    group->waiting++;
    group->door->put(group->door, make_late, call, call->data, bytes);
    return async_error(group, why);
}

static enum status open_group(struct collective **out,
                              const struct collective_settings *settings,
                              struct failure *why) {
    struct collective *group = calloc(1, sizeof *group);
    struct collective_settings own = *settings;
    *out = NULL;
    if (!group)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY, "no memory");
    own.stream = NULL;
    group->door = settings->stream;
    enum status status = inner_ops->open(&group->inner, &own, why);
    if (status)
        free(group);
    else
        *out = group;
    return status;
}

static void abort_group(struct collective *group) {
    inner_ops->abort(group->inner);
}

static bool close_group(struct collective **where) {
    struct collective *group = *where;
    *where = NULL;
    if (!group)
        return true;
    bool closed = inner_ops->close(&group->inner);
    group->closed = true;
    forget(group);
    return closed;
}

static enum status all_reduce(struct collective *group, float *data,
                              size_t count, struct failure *why) {
    return give(&(struct call){group, ALL_REDUCE, data, count, 0},
                count * sizeof *data, why);
}

static enum status reduce_scatter(struct collective *group, float *data,
                                  size_t count, struct failure *why) {
    return give(&(struct call){group, REDUCE_SCATTER, data, count, 0},
                count * sizeof *data, why);
}

static enum status all_gather(struct collective *group, float *data,
                              size_t count, struct failure *why) {
    return give(&(struct call){group, ALL_GATHER, data, count, 0},
                count * sizeof *data, why);
}

static enum status broadcast(struct collective *group, void *data, size_t bytes,
                             uint32_t root, struct failure *why) {
    return give(&(struct call){group, BROADCAST, data, bytes, root}, bytes,
                why);
}

const struct collective_ops stream_collective_ops = {
    .abi = COLLECTIVE_ABI,
    .name = "joined",
    .version = "of a test",
    .open = open_group,
    .abort = abort_group,
    .close = close_group,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .supports_stream = true,
    .async_error = async_error,
};
