/* SPDX-License-Identifier: Apache-2.0 */
/* Between the trainers and each ps stands a network that drops, repeats,
 * delays and cuts: what the ps hold at the end is exact. */
#include "proto/store/tensor_file.h"
#include "proto/tensor/philox.h"
#include "tests/cluster/cluster_run.h"
#include "tests/cluster/faulty_proxy.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_PS = 2, NUM_WORKERS = 2, SECONDS = 120 };
enum { INPUTS = 64, OUTPUTS = 1024, SAMPLES = 1600, STEPS = 60 };

struct faulty_run {
    struct cluster_run *run;
    struct faulty_proxy *proxies[NUM_PS];
    struct faulty_proxy_counts counts[NUM_PS];
};

static int setup(void **state) {
    struct faulty_run *faulty = calloc(1, sizeof *faulty);
    void *run;
    if (!faulty || cluster_run_setup(&run))
        return -1;
    faulty->run = run;
    *state = faulty;
    return 0;
}

static int teardown(void **state) {
    struct faulty_run *faulty = *state;
    void *run = faulty->run;
    cluster_run_teardown(&run);
    for (unsigned i = 0; i < NUM_PS; i++)
        faulty_proxy_close(&faulty->proxies[i], NULL);
    free(faulty);
    return 0;
}

/* From here on others are told the proxy's address for ps INDEX. */
static void put_between(struct faulty_run *faulty, unsigned index,
                        uint64_t seed) {
    json_t *list = json_object_get(faulty->run->cluster, "ps");
    const char *real = json_string_value(json_array_get(list, index));
    struct faulty_proxy_settings settings = {
        .port = (uint16_t)strtoul(strrchr(real, ':') + 1, NULL, 10),
        .seed = seed,
        .drop = 70,
        .repeat = 1500,
        .delay = 1500,
        .cut = 20,
        .max_delay_ms = 10,
    };
    char address[32];
    uint16_t port;
    faulty->proxies[index] = faulty_proxy_open(&settings, &port);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    json_array_set_new(list, index, json_string(address));
}

static void expect_faults(struct faulty_run *faulty) {
    unsigned dropped = 0, repeated = 0, delayed = 0, cuts = 0;
    for (unsigned i = 0; i < NUM_PS; i++) {
        struct faulty_proxy_counts *counts = &faulty->counts[i];
        faulty_proxy_close(&faulty->proxies[i], counts);
        dropped += counts->dropped;
        repeated += counts->repeated;
        delayed += counts->delayed;
        cuts += counts->cuts;
    }
    print_message("# dropped %u, repeated %u, delayed %u, cuts %u\n", dropped,
                  repeated, delayed, cuts);
    assert_true(repeated > 10);
    assert_true(delayed > 10);
}

/* The run described by job.json, whole, over faulty proxies. */
static void run_over_proxies(struct faulty_run *faulty, uint64_t seed) {
    static const char *const job[] = {"job.json", NULL};
    struct cluster_process *processes[NUM_PS + NUM_WORKERS + 1];
    unsigned used = 0;
    cluster_run_describe(faulty->run, 1, NUM_PS, NUM_WORKERS);
    for (unsigned i = 0; i < NUM_PS; i++)
        processes[used++] = cluster_run_task(faulty->run, "ps", i, NULL);
    for (unsigned i = 0; i < NUM_PS; i++)
        put_between(faulty, i, seed + i);
    for (unsigned i = 0; i < NUM_WORKERS; i++)
        processes[used++] = cluster_run_task(faulty->run, "worker", i, NULL);
    processes[used++] = cluster_run_task(faulty->run, "chief", 0, job);
    while (used--)
        cluster_run_expect(processes[used], 0, SECONDS);
    expect_faults(faulty);
}

static void read_tensor(const struct cluster_run *run, const char *name,
                        const struct parameter *tensor, float *floats) {
    struct tensor_file *file;
    struct failure why;
    char path[PATH_MAX];
    cluster_run_path(run, name, path);
    if (tensor_file_open(&file, path, &why) ||
        tensor_file_read(file, tensor, floats, &why))
        fail_msg("%s", why.text);
    tensor_file_close(&file);
}

static const struct parameter sums[] = {
    {.name = "layer0.weight",
     .num_dims = 2,
     .dims = {OUTPUTS, INPUTS},
     .elements = INPUTS * OUTPUTS},
    {.name = "layer0.bias",
     .num_dims = 1,
     .dims = {OUTPUTS},
     .elements = OUTPUTS},
};
static const float first[] = {0, 4096};

static enum status fill(void *context, uint32_t index, float *floats,
                        struct failure *why) {
    (void)context;
    (void)why;
    for (uint64_t i = 0; i < sums[index].elements; i++)
        floats[i] = first[index];
    return STATUS_OK;
}

static void write_idx(const struct cluster_run *run, const char *name,
                      unsigned dims, const uint32_t *sizes, int byte) {
    char path[PATH_MAX];
    size_t bytes = 1;
    cluster_run_path(run, name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%c%c%c%c", 0, 0, 8, (int)dims);
    for (unsigned i = 0; i < dims; i++) {
        for (int shift = 24; shift >= 0; shift -= 8)
            fputc((int)(sizes[i] >> shift & 0xff), file);
        bytes *= sizes[i];
    }
    while (bytes--)
        fputc(byte, file);
    assert_int_equal(fclose(file), 0);
}

/* A model whose gradient is a constant, whatever the order of updates: inputs
 * are 1, biases so large that every sigmoid is 1 to the last bit, so a weight's
 * gradient is 1 / OUTPUTS for each output but that of the one label, 0, where
 * it is 0. Powers of two all: sums of them are exact. */
static void prepare_sums(const struct cluster_run *run, const char *staleness,
                         const char *wire) {
    static const uint32_t sizes[] = {SAMPLES, 8, 8};
    struct failure why;
    char path[PATH_MAX], changes[512];
    write_idx(run, "train-images", 3, sizes, 255);
    write_idx(run, "train-labels", 1, sizes, 0);
    cluster_run_path(run, "start.safetensors", path);
    const struct tensor_source source = {sums, 2, fill, NULL};
    assert_int_equal(tensor_file_write(path, TENSOR_SAFETENSORS, &source, &why),
                     STATUS_OK);
    snprintf(changes, sizeof changes,
             "{\"model\": {\"layers\": [%d, %d], \"loss\":"
             " \"sigmoid_cross_entropy\"}, \"init\": \"start.safetensors\","
             " \"export\": {\"path\": \"end.safetensors\"}, \"steps\": %d,"
             " \"chief\": \"coordinate\","
             " \"train_micro_batch_size_per_gpu\": 8,"
             " \"optimizer\": {\"params\": {\"lr\": 1}},"
             " \"strategy\": {\"type\": \"ps\", \"staleness\": %s},"
             " \"wire\": \"%s\"}",
             INPUTS, OUTPUTS, STEPS, staleness, wire);
    cluster_run_job(run, changes);
}

/* Every element has had UPDATES updates by the constant gradient. */
static void expect_sums(const struct cluster_run *run, uint64_t updates) {
    float *floats = calloc(sums[0].elements, sizeof *floats);
    assert_non_null(floats);
    for (unsigned p = 0; p < 2; p++) {
        uint64_t row = sums[p].elements / OUTPUTS;
        read_tensor(run, "end.safetensors", &sums[p], floats);
        for (uint64_t i = 0; i < sums[p].elements; i++) {
            float moved = i < row ? 0 : (float)updates / OUTPUTS;
            if (floats[i] != first[p] - moved)
                fail_msg("%s[%llu] is %.9g after %llu updates, not %.9g",
                         sums[p].name, (unsigned long long)i, floats[i],
                         (unsigned long long)updates, first[p] - moved);
        }
    }
    free(floats);
}

/* Updates that all workers together meant to make, as the proxies saw. */
static uint64_t count_pushes(const struct faulty_run *faulty) {
    uint64_t pushes = 0;
    for (unsigned r = 0; r < NUM_WORKERS; r++) {
        uint64_t clock = 0;
        for (unsigned i = 0; i < NUM_PS; i++)
            if (faulty->counts[i].clocks[r] > clock)
                clock = faulty->counts[i].clocks[r];
        pushes += clock;
    }
    return pushes;
}

static unsigned repetitions(void) {
    const char *count = getenv("SOAK_COUNT");
    return count ? (unsigned)strtoul(count, NULL, 10) : 1;
}

typedef void repeated(struct faulty_run *faulty, uint64_t seed);

/* In a folder of its own each time, by random seeds, or SEED first. */
static void repeat(void **state, repeated *test) {
    struct philox_sequence seeds;
    seed_open(&seeds);
    for (unsigned i = 0; i < repetitions(); i++) {
        if (i) {
            teardown(state);
            assert_int_equal(setup(state), 0);
            seeds.key = philox_next(&seeds);
            print_message("# SEED=%llu\n", (unsigned long long)seeds.key);
        }
        test(*state, seeds.key);
    }
}

static void sum_synchronously(struct faulty_run *faulty, uint64_t seed) {
    prepare_sums(faulty->run, "0", "float32");
    run_over_proxies(faulty, seed);
    expect_sums(faulty->run, STEPS);
}

/* 4096 less a few 1024ths is no bf16: it is what the ps hold. */
static void sum_in_bf16(struct faulty_run *faulty, uint64_t seed) {
    prepare_sums(faulty->run, "0", "bf16");
    run_over_proxies(faulty, seed);
    expect_sums(faulty->run, STEPS);
}

static void sum_asynchronously(struct faulty_run *faulty, uint64_t seed,
                               const char *staleness, const char *wire) {
    prepare_sums(faulty->run, staleness, wire);
    run_over_proxies(faulty, seed);
    uint64_t pushes = count_pushes(faulty);
    assert_in_range(pushes, STEPS, STEPS + NUM_WORKERS);
    expect_sums(faulty->run, pushes);
}

static void sum_unbounded(struct faulty_run *faulty, uint64_t seed) {
    sum_asynchronously(faulty, seed, "\"inf\"", "float32");
}

static void sum_bounded(struct faulty_run *faulty, uint64_t seed) {
    sum_asynchronously(faulty, seed, "2", "float32");
}

static void sum_unbounded_in_bf16(struct faulty_run *faulty, uint64_t seed) {
    sum_asynchronously(faulty, seed, "\"inf\"", "bf16");
}

static void prepare_training(const struct cluster_run *run, const char *file) {
    char changes[512];
    snprintf(changes, sizeof changes,
             "{\"model\": {\"layers\": [64, 600, 10]}, \"epochs\": 2,"
             " \"chief\": \"coordinate\", \"checkpoint\": {\"resume\":"
             " \"never\"}, \"export\": {\"path\": \"%s\"}}",
             file);
    cluster_run_job(run, changes);
}

static void expect_same_weights(const struct cluster_run *run, const char *a,
                                const char *b) {
    struct parameter weight = {.name = "layer0.weight",
                               .num_dims = 2,
                               .dims = {600, 64},
                               .elements = 600 * 64};
    size_t bytes = weight.elements * sizeof(float);
    float *of_a = malloc(bytes), *of_b = malloc(bytes);
    assert_non_null(of_a);
    assert_non_null(of_b);
    read_tensor(run, a, &weight, of_a);
    read_tensor(run, b, &weight, of_b);
    assert_memory_equal(of_a, of_b, bytes);
    free(of_a);
    free(of_b);
}

static void train_synchronously(struct faulty_run *faulty, uint64_t seed) {
    static const char *const local[] = {"local", "--ps",     "1", "--workers",
                                        "2",     "job.json", NULL};
    prepare_training(faulty->run, "straight.safetensors");
    cluster_run_expect(cluster_run_start(faulty->run, "local", local, NULL), 0,
                       CLUSTER_RUN_DEADLINE);
    prepare_training(faulty->run, "faulty.safetensors");
    run_over_proxies(faulty, seed);
    expect_same_weights(faulty->run, "straight.safetensors",
                        "faulty.safetensors");
}

static void a_synchronous_sum_is_exact(void **state) {
    repeat(state, sum_synchronously);
}

static void an_asynchronous_sum_is_exact(void **state) {
    repeat(state, sum_unbounded);
}

static void a_sum_of_bounded_staleness_is_exact(void **state) {
    repeat(state, sum_bounded);
}

static void a_synchronous_sum_of_bf16_is_exact(void **state) {
    repeat(state, sum_in_bf16);
}

static void an_asynchronous_sum_of_bf16_is_exact(void **state) {
    repeat(state, sum_unbounded_in_bf16);
}

static void synchronous_weights_equal_those_without_faults(void **state) {
    repeat(state, train_synchronously);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_synchronous_sum_is_exact),
        IN_FOLDER(an_asynchronous_sum_is_exact),
        IN_FOLDER(a_sum_of_bounded_staleness_is_exact),
        IN_FOLDER(a_synchronous_sum_of_bf16_is_exact),
        IN_FOLDER(an_asynchronous_sum_of_bf16_is_exact),
        IN_FOLDER(synchronous_weights_equal_those_without_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
