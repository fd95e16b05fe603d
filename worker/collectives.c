#include "worker/collectives.h"

#include "proto/base/time.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void collectives_path(char path[PATH_MAX], const char *name) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = 0;
    int written = snprintf(path, PATH_MAX, "%s/capstan-%s.so", program, name);
    if (written >= PATH_MAX)
        *path = 0; /* too long for a file to be there */
}

enum status collectives_load(const struct collective_ops **out,
                             const char *path, struct failure *why) {
    *out = NULL;
    if (access(path, R_OK))
        return status_fail(why, STATUS_FAILED,
                           "not in this build: there is no %s", path);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin)
        return status_fail(why, STATUS_FAILED, "%s does not load: %s", path,
                           dlerror());
    const struct collective_ops *ops = dlsym(plugin, COLLECTIVE_SYMBOL);
    if (!ops || ops->abi != COLLECTIVE_ABI) {
        enum status status = status_fail(
            why, STATUS_FAILED,
            "%s has %s %u; this capstan takes %d: install both of one build",
            path, ops ? "ABI" : "no " COLLECTIVE_SYMBOL ", ABI",
            ops ? ops->abi : 0, COLLECTIVE_ABI);
        dlclose(plugin);
        return status;
    }
    *out = ops;
    return STATUS_OK;
}

enum status collectives_find(const struct collective_ops **out,
                             const char *name, struct failure *why) {
    char path[PATH_MAX];
    collectives_path(path, name);
    enum status status = collectives_load(out, path, why);
    if (!status)
        status = (*out)->check(why);
    if (!status)
        return STATUS_OK;
    *out = NULL;
    return status_context(why, "%s", name);
}

static const char *lacking(const struct collectives_rank *ranks,
                           uint32_t num_ranks, bool nccl, uint32_t *who) {
    for (uint32_t i = 0; i < num_ranks; i++) {
        bool there = nccl ? ranks[i].nccl : ranks[i].gloo;
        *who = i;
        if (!there)
            return ranks[i].missing;
    }
    return NULL;
}

/* The first rank that has no device of its own, or NUM_RANKS. */
static uint32_t without_device(const struct collectives_rank *ranks,
                               uint32_t num_ranks) {
    uint32_t i = 0;
    while (i < num_ranks && ranks[i].nccl && ranks[i].device < ranks[i].devices)
        i++;
    return i;
}

static const char *pick_nccl(const struct collectives_rank *ranks,
                             uint32_t num_ranks, char *reason, size_t size) {
    uint32_t who;
    const char *missing = lacking(ranks, num_ranks, true, &who);
    if (missing) {
        snprintf(reason, size,
                 "strategy.backend is nccl, but rank %u: %s; take gloo or auto",
                 who, missing);
        return NULL;
    }
    who = without_device(ranks, num_ranks);
    if (who < num_ranks) {
        snprintf(reason, size,
                 "strategy.backend is nccl, but rank %u is number %u of its "
                 "host, which has %u device%s; start fewer there, or take gloo",
                 who, ranks[who].device, ranks[who].devices,
                 ranks[who].devices == 1 ? "" : "s");
        return NULL;
    }
    snprintf(reason, size, "nccl, as the job says");
    return "nccl";
}

static const char *pick_gloo(const struct collectives_rank *ranks,
                             uint32_t num_ranks, const char *because,
                             char *reason, size_t size) {
    uint32_t who;
    const char *missing = lacking(ranks, num_ranks, false, &who);
    if (missing)
        snprintf(reason, size, "all-reduce needs gloo, but rank %u: %s", who,
                 missing);
    else
        snprintf(reason, size, "gloo, %s", because);
    return missing ? NULL : "gloo";
}

const char *collectives_pick(enum job_backend wants,
                             const struct collectives_rank *ranks,
                             uint32_t num_ranks, char *reason, size_t size) {
    char because[512];
    if (wants == JOB_NCCL)
        return pick_nccl(ranks, num_ranks, reason, size);
    if (wants == JOB_GLOO)
        return pick_gloo(ranks, num_ranks, "as the job says", reason, size);
    uint32_t who = without_device(ranks, num_ranks);
    if (who == num_ranks) {
        snprintf(reason, size, "nccl: each rank has a device of its own");
        return "nccl";
    }
    if (ranks[who].nccl)
        snprintf(because, sizeof because,
                 "as rank %u has no device of its own: it is number %u of its "
                 "host, which has %u",
                 who, ranks[who].device, ranks[who].devices);
    else
        snprintf(because, sizeof because, "as rank %u has no nccl (%s)", who,
                 ranks[who].missing);
    return pick_gloo(ranks, num_ranks, because, reason, size);
}

static void look_here(struct collectives_rank *own, uint32_t device) {
    const struct collective_ops *ops;
    struct failure why = {0};
    *own = (struct collectives_rank){.device = device};
    own->nccl = collectives_find(&ops, "nccl", &why) == STATUS_OK;
    if (own->nccl)
        own->devices = ops->devices ? ops->devices() : 0;
    own->gloo =
        collectives_find(&ops, "gloo", own->nccl ? &why : NULL) == STATUS_OK;
    snprintf(own->missing, sizeof own->missing, "%.250s", why.text);
}

static enum status hear(struct collectives_rank *rank, uint32_t i,
                        const struct collective_store *store, int64_t until,
                        struct failure *why) {
    char key[64];
    void *value = NULL;
    size_t size = 0;
    snprintf(key, sizeof key, "collectives.%u", i);
    if (store->get(store->context, key, until, &value, &size, why))
        return status_context(why, "rank %u did not come", i);
    bool whole = size == sizeof *rank;
    if (whole)
        memcpy(rank, value, sizeof *rank);
    free(value);
    rank->missing[sizeof rank->missing - 1] = 0;
    return whole ? STATUS_OK
                 : status_fail(why, STATUS_FAILED,
                               "rank %u tells its collectives in another form; "
                               "run one build of capstan everywhere",
                               i);
}

static enum status tell_and_hear(struct collectives_rank *ranks,
                                 const struct collective_settings *settings,
                                 struct failure *why) {
    const struct collective_store *store = settings->store;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    char key[64];
    struct collectives_rank *own = &ranks[settings->rank];
    look_here(own, settings->device);
    snprintf(key, sizeof key, "collectives.%u", settings->rank);
    enum status status = store->set(store->context, key, own, sizeof *own, why);
    for (uint32_t i = 0; !status && i < settings->size; i++)
        status = hear(&ranks[i], i, store, until, why);
    return status;
}

enum status collectives_choose(const struct collective_ops **out,
                               enum job_backend wants,
                               const struct collective_settings *settings,
                               const struct log *log, struct failure *why) {
    char reason[512];
    *out = NULL;
    struct collectives_rank *ranks = calloc(settings->size, sizeof *ranks);
    if (!ranks)
        return status_fail(why, STATUS_FAILED, "collectives: out of memory");
    enum status status = tell_and_hear(ranks, settings, why);
    const char *name = NULL;
    if (!status)
        name = collectives_pick(wants, ranks, settings->size, reason,
                                sizeof reason);
    free(ranks);
    if (status)
        return status;
    if (!name)
        return status_fail(why, STATUS_CONFIG, "%s", reason);
    log_info(log, "collectives: %s", reason);
    return collectives_find(out, name, why);
}
