/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/gloo_fixture.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <unistd.h>

static const size_t sizes[] = {0, 1, 15, 16, 17, 255, 1025, 100003, 700001};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes, LARGEST = 700001 };

/* It lies beside the program, not beside this test. */
const struct collective_ops *gloo_fixture_load(void) {
    const char *program = getenv("CAPSTAN");
    const char *path = textf("%s-gloo.so", program ? program : "build/capstan");
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct collective_ops *ops =
        plugin ? dlsym(plugin, COLLECTIVE_SYMBOL) : NULL;
    if (!ops)
        fail_msg("%s: %s", path, dlerror());
    assert_int_equal(ops->abi, COLLECTIVE_ABI);
    return ops;
}

void gloo_fixture_end(struct rendezvous_fake *rendezvous, uint32_t rank,
                      enum status status, const char *text) {
    rendezvous->ends[rank].status = status;
    snprintf(rendezvous->ends[rank].text, sizeof rendezvous->ends[rank].text,
             "%s", text);
    _exit(status == STATUS_OK ? 0 : 1);
}

static void expect_way(struct rendezvous_fake *rendezvous, uint32_t rank,
                       const struct gloo_fixture *fixture,
                       struct collective *group) {
    char transport[256];
    fixture->ops->transport(group, transport, sizeof transport);
    const char *expected = fixture->size > 1 ? fixture->transports[rank] : "";
    if (expected && strcmp(expected, transport))
        gloo_fixture_end(rendezvous, rank, STATUS_FAILED, transport);
}

struct collective *gloo_fixture_connect_by(const struct collective_store *store,
                                           struct rendezvous_fake *rendezvous,
                                           uint32_t rank,
                                           const struct gloo_fixture *fixture) {
    struct failure why = {0};
    struct collective *group;
    struct collective_settings settings = {.rank = rank,
                                           .size = fixture->size,
                                           .host = fixture->host,
                                           .store = store,
                                           .algorithm = fixture->algorithm,
                                           .timeout = fixture->timeout,
                                           .shm = fixture->shm};
    if (fixture->prepare)
        fixture->prepare(rank, &settings);
    enum status status = fixture->ops->open(&group, &settings, &why);
    if (status)
        gloo_fixture_end(rendezvous, rank, status, why.text);
    expect_way(rendezvous, rank, fixture, group);
    return group;
}

struct collective *gloo_fixture_connect(struct rendezvous_fake *rendezvous,
                                        uint32_t rank,
                                        const struct gloo_fixture *fixture) {
    return gloo_fixture_connect_by(&rendezvous->store, rendezvous, rank,
                                   fixture);
}

float gloo_fixture_value(uint32_t rank, size_t i) {
    uint32_t x = (uint32_t)i * 2654435761u ^ (rank + 1) * 40503u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return (float)(int32_t)x * 0x1p-31f * (x & 64 ? 1.0f : 1000.0f);
}

void gloo_fixture_call_forever(struct rendezvous_fake *rendezvous,
                               uint32_t rank, const void *context) {
    static float data[300000];
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct failure why = {0};
    enum status status = STATUS_OK;
    for (int i = 0; !status; i++) {
        int64_t begun = time_now();
        status = fixture->ops->all_reduce(group, data, 300000, &why);
        rendezvous->ends[rank].waited = time_now() - begun;
        if (i == 3)
            rendezvous_fake_arrive(rendezvous);
    }
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, status, why.text);
}

/* Of the values that NUM_SUMMED ranks bring: what ranks' processes find there
 * when they start. */
static double sums[LARGEST], bounds[LARGEST];
static uint32_t num_summed;

static void sum_values(uint32_t size) {
    if (num_summed == size)
        return;
    num_summed = size;
    for (size_t i = 0; i < LARGEST; i++) {
        double most = 0;
        sums[i] = 0;
        for (uint32_t rank = 0; rank < size; rank++) {
            double value = (double)gloo_fixture_value(rank, i);
            sums[i] += value;
            most += fabs(value);
        }
        bounds[i] = size * FLT_EPSILON * most;
    }
}

static void expect_sums(struct rendezvous_fake *rendezvous, uint32_t rank,
                        const float *data, size_t from, size_t count) {
    for (size_t i = from; i < from + count; i++)
        if (!(fabs((double)data[i] - sums[i]) <= bounds[i]))
            gloo_fixture_end(rendezvous, rank, STATUS_FAILED,
                             textf("element %zu from %zu of %zu: %g not %g", i,
                                   from, count, (double)data[i], sums[i]));
}

void gloo_fixture_record_bits(struct rank_result *end, const float *data,
                              size_t count) {
    uint64_t bits = end->bits;
    for (size_t i = 0; i < count; i++) {
        const union {
            float value;
            uint32_t bits;
        } one = {data[i]};
        bits = (bits ^ one.bits) * 1099511628211u;
    }
    end->bits = bits;
}

void gloo_fixture_expect_call(struct rendezvous_fake *rendezvous, uint32_t rank,
                              enum status status, const struct failure *why) {
    if (status)
        gloo_fixture_end(rendezvous, rank, status, why->text);
}

static void try_reductions(struct rendezvous_fake *rendezvous, uint32_t rank,
                           const struct gloo_fixture *fixture,
                           struct collective *group, float *data,
                           size_t count) {
    struct failure why = {0};
    size_t first, length = collective_piece(count, rank, fixture->size, &first);
    for (size_t i = 0; i < count; i++)
        data[i] = gloo_fixture_value(rank, i);
    gloo_fixture_expect_call(rendezvous, rank,
                             fixture->ops->all_reduce(group, data, count, &why),
                             &why);
    expect_sums(rendezvous, rank, data, 0, count);
    gloo_fixture_record_bits(&rendezvous->ends[rank], data, count);
    for (size_t i = 0; i < count; i++)
        data[i] = gloo_fixture_value(rank, i);
    gloo_fixture_expect_call(
        rendezvous, rank,
        fixture->ops->reduce_scatter(group, data, count, &why), &why);
    expect_sums(rendezvous, rank, data, first, length);
    for (size_t i = 0; i < count; i++)
        data[i] = i - first < length ? data[i] : NAN;
    gloo_fixture_expect_call(rendezvous, rank,
                             fixture->ops->all_gather(group, data, count, &why),
                             &why);
    expect_sums(rendezvous, rank, data, 0, count);
    gloo_fixture_record_bits(&rendezvous->ends[rank], data, count);
}

static void try_broadcast(struct rendezvous_fake *rendezvous, uint32_t rank,
                          const struct gloo_fixture *fixture,
                          struct collective *group, float *data, size_t count) {
    struct failure why = {0};
    size_t bytes = count * sizeof *data;
    bytes -= bytes > 0; /* not whole floats */
    for (uint32_t root = 0; root < fixture->size; root++) {
        for (size_t i = 0; i < count; i++)
            data[i] = rank == root ? gloo_fixture_value(root + 10, i) : NAN;
        gloo_fixture_expect_call(
            rendezvous, rank,
            fixture->ops->broadcast(group, data, bytes, root, &why), &why);
        for (size_t i = 0; i + 1 < count; i++)
            if (data[i] != gloo_fixture_value(root + 10, i))
                gloo_fixture_end(rendezvous, rank, STATUS_FAILED,
                                 "not what root has");
    }
}

static void play_all(struct rendezvous_fake *rendezvous, uint32_t rank,
                     const void *context) {
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    float *data = malloc(LARGEST * sizeof *data);
    for (size_t i = 0; i < NUM_SIZES; i++) {
        try_reductions(rendezvous, rank, fixture, group, data, sizes[i]);
        try_broadcast(rendezvous, rank, fixture, group, data, sizes[i]);
    }
    free(data);
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, group ? "not cleared" : "");
}

void gloo_fixture_expect_success(struct rendezvous_fake *rendezvous,
                                 uint32_t size) {
    bool failed = false;
    for (uint32_t i = 0; i < size; i++) {
        int code = rendezvous_fake_await_exit(rendezvous, i);
        failed |= code || rendezvous->ends[i].text[0];
        if (code || rendezvous->ends[i].text[0])
            print_error("%u ranks, rank %u ended with %d: %s\n", size, i, code,
                        rendezvous->ends[i].text);
    }
    assert_false(failed);
}

uint64_t gloo_fixture_run(const struct gloo_fixture *fixture,
                          gloo_fixture_body *part) {
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t i = 0; i < fixture->size; i++)
        rendezvous_fake_start(rendezvous, i, part, fixture);
    gloo_fixture_expect_success(rendezvous, fixture->size);
    for (uint32_t i = 1; i < fixture->size; i++)
        if (rendezvous->ends[i].bits != rendezvous->ends[0].bits)
            fail_msg("%u ranks: rank %u has other bits than rank 0",
                     fixture->size, i);
    uint64_t bits = rendezvous->ends[0].bits;
    rendezvous_fake_close(&rendezvous);
    return bits;
}

uint64_t gloo_fixture_run_all(struct gloo_fixture fixture) {
    sum_values(fixture.size);
    return gloo_fixture_run(&fixture, play_all);
}

void gloo_fixture_expect_failed_rank(struct rendezvous_fake *rendezvous,
                                     uint32_t size, uint32_t rank,
                                     const char *how) {
    const char *name = textf("rank %u %s", rank, how);
    for (uint32_t i = 0; i < size; i++) {
        if (i == rank)
            continue;
        rendezvous_fake_await_exit(rendezvous, i);
        if (rendezvous->ends[i].status != STATUS_RETRY ||
            strncmp(rendezvous->ends[i].text, name, strlen(name)))
            fail_msg("%u ranks, rank %u: status %d, %s", size, i,
                     rendezvous->ends[i].status, rendezvous->ends[i].text);
    }
}
