/* SPDX-License-Identifier: Apache-2.0 */
/* Between the trainers and each ps stands a network that drops, repeats,
 * delays and cuts: what the ps hold at the end is exact. */
#include "core/store/tensor_file.h"
#include "core/tensor/philox.h"
#include "proto/messages/data.pb-c.h"
#include "tests/cluster/cluster_clicks.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/cluster/faulty_proxy.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>
#include <signal.h>

enum { NUM_PS = 2, NUM_WORKERS = 2, MOST_WORKERS = 3, SECONDS = 120 };
enum { INPUTS = 64, OUTPUTS = 1024, SAMPLES = 1600, STEPS = 60, BATCH = 8 };
enum { LONG = 6000, STAND = 2000, GO = 200 }; /* steps */
#define BACKUP_WORKER "0, \"backup_workers\": 1"
#define IN_ORDER ", \"data\": {\"shuffle\": false"
#define BF16 ", \"wire\": \"bf16\""
enum { SHARED_ROWS = 48, OWN_ROWS = 8, FIRST_OWN = 1000 };

/* By ps: pushes of rows and receipts at one, those of blocks and weights at the
 * other, so that one wait often does for both. */
static const uint32_t lost_kinds[NUM_PS] = {
    1u << CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS |
        1u << CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS |
        1u << CAPSTAN__DATA_HEADER__KIND__ACK,
    1u << CAPSTAN__DATA_HEADER__KIND__PUSH |
        1u << CAPSTAN__DATA_HEADER__KIND__WEIGHTS,
};

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

FIXTURE(setup, teardown);

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
        .lost_kinds = lost_kinds[index],
    };
    uint16_t port;
    faulty->proxies[index] = faulty_proxy_open(&settings, &port);
    json_array_set_new(list, index, json_string(textf("127.0.0.1:%u", port)));
}

/* Of the kinds FIRST to LAST at all proxies; they are closed. */
static struct faulty_proxy_faults sum_faults(const struct faulty_run *faulty,
                                             unsigned first, unsigned last) {
    struct faulty_proxy_faults sum = {0};
    for (unsigned i = 0; i < NUM_PS; i++)
        for (unsigned kind = first; kind <= last; kind++) {
            const struct faulty_proxy_faults *faults =
                &faulty->counts[i].faults[kind];
            sum.dropped += faults->dropped;
            sum.repeated += faults->repeated;
            sum.delayed += faults->delayed;
        }
    return sum;
}

static void expect_faults(struct faulty_run *faulty) {
    unsigned cuts = 0;
    for (unsigned i = 0; i < NUM_PS; i++) {
        faulty_proxy_close(&faulty->proxies[i], &faulty->counts[i]);
        cuts += faulty->counts[i].cuts;
    }
    struct faulty_proxy_faults sum =
        sum_faults(faulty, 0, FAULTY_PROXY_KINDS - 1);
    print_message("# dropped %u, repeated %u, delayed %u, cuts %u\n",
                  sum.dropped, sum.repeated, sum.delayed, cuts);
    assert_true(sum.dropped > 0);
    assert_true(sum.repeated > 10);
    assert_true(sum.delayed > 10);
}

/* Some pushes of rows and some of their receipts were lost, some repeated. */
static void expect_faults_of_rows(const struct faulty_run *faulty) {
    static const unsigned kinds[] = {CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS,
                                     CAPSTAN__DATA_HEADER__KIND__ACK};
    static const char *const names[] = {"pushes", "receipts"};
    for (int i = 0; i < 2; i++) {
        struct faulty_proxy_faults sum = sum_faults(faulty, kinds[i], kinds[i]);
        print_message("# %s of rows: dropped %u, repeated %u, delayed %u\n",
                      names[i], sum.dropped, sum.repeated, sum.delayed);
        assert_true(sum.dropped > 0);
        assert_true(sum.repeated > 0);
        assert_true(sum.delayed > 0);
    }
}

/* The run described by job.json, whole, over faulty proxies. */
static void run_workers_over_proxies(struct faulty_run *faulty, uint64_t seed,
                                     unsigned num_workers) {
    static const char *const job[] = {"job.json", NULL};
    struct cluster_process *processes[NUM_PS + MOST_WORKERS + 1];
    unsigned used = 0;
    cluster_run_describe(faulty->run, 1, NUM_PS, num_workers);
    for (unsigned i = 0; i < NUM_PS; i++)
        processes[used++] = cluster_run_task(faulty->run, "ps", i, NULL);
    for (unsigned i = 0; i < NUM_PS; i++)
        put_between(faulty, i, seed + i);
    for (unsigned i = 0; i < num_workers; i++)
        processes[used++] = cluster_run_task(faulty->run, "worker", i, NULL);
    processes[used++] = cluster_run_task(faulty->run, "chief", 0, job);
    while (used--)
        cluster_run_expect(processes[used], 0, SECONDS);
    expect_faults(faulty);
}

static void run_over_proxies(struct faulty_run *faulty, uint64_t seed) {
    run_workers_over_proxies(faulty, seed, NUM_WORKERS);
}

static void read_tensor(const struct cluster_run *run, const char *name,
                        const struct parameter *tensor, float *floats) {
    struct tensor_file *file;
    const char *path = cluster_run_path(run, name);
    if (tensor_file_open(&file, path, &failure) ||
        tensor_file_read(file, tensor, floats, &failure))
        fail_msg("%s", failure.text);
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
static const struct parameter row_bias = {
    .name = "bias", .num_dims = 1, .dims = {1}, .elements = 1};

/* Of each element of a weight and of a bias. */
static float first(const struct parameter *tensor) {
    return tensor->num_dims == 1 ? 4096 : 0;
}

static enum status fill(void *context, uint32_t index, float *floats,
                        struct failure *why) {
    const struct parameter *tensor = (const struct parameter *)context + index;
    (void)why;
    for (uint64_t i = 0; i < tensor->elements; i++)
        floats[i] = first(tensor);
    return STATUS_OK;
}

static void write_start(const struct cluster_run *run,
                        const struct parameter *tensors, uint32_t count) {
    const struct tensor_source source = {tensors, count, fill, (void *)tensors};
    assert_ok(tensor_file_write(cluster_run_path(run, "start.safetensors"),
                                TENSOR_SAFETENSORS, &source, &failure));
}

/* Of bytes from FIRST on, by turns of KINDS. */
static void write_idx(const struct cluster_run *run, const char *name,
                      unsigned dims, const uint32_t *sizes, int first_byte,
                      unsigned kinds) {
    size_t bytes = 1;
    FILE *file = cluster_run_create(run, name);
    fprintf(file, "%c%c%c%c", 0, 0, 8, (int)dims);
    for (unsigned i = 0; i < dims; i++) {
        for (int shift = 24; shift >= 0; shift -= 8)
            fputc((int)(sizes[i] >> shift & 0xff), file);
        bytes *= sizes[i];
    }
    for (size_t i = 0; i < bytes; i++)
        fputc(first_byte + (int)(i % kinds), file);
    assert_int_equal(fclose(file), 0);
}

/* A model whose gradient is a constant, whatever the order of updates: inputs
 * are 1, biases so large that every sigmoid is 1 to the last bit, so a weight's
 * gradient is 1 / OUTPUTS for each output but that of the one label, 0, where
 * it is 0. Powers of two all: sums of them are exact. With LABELS of several
 * kinds worker R has those of R alone. */
static void prepare_sums_of(const struct cluster_run *run,
                            const char *staleness, const char *more,
                            unsigned labels) {
    const uint32_t sizes[] = {SAMPLES / labels * labels, 8, 8};
    write_idx(run, "train-images", 3, sizes, 255, 1);
    write_idx(run, "train-labels", 1, sizes, 0, labels);
    write_start(run, sums, 2);
    cluster_run_job(
        run,
        textf("{\"model\": {\"layers\": [%d, %d], \"loss\":"
              " \"sigmoid_cross_entropy\"}, \"init\": \"start.safetensors\","
              " \"export\": {\"path\": \"end.safetensors\"}, \"steps\": %d,"
              " \"chief\": \"coordinate\","
              " \"train_micro_batch_size_per_gpu\": %d,"
              " \"optimizer\": {\"params\": {\"lr\": 1}},"
              " \"strategy\": {\"type\": \"ps\", \"staleness\": %s}"
              " %s}",
              INPUTS, OUTPUTS, STEPS, BATCH, staleness, more));
}

static void prepare_sums(const struct cluster_run *run, const char *staleness,
                         const char *more) {
    prepare_sums_of(run, staleness, more, 1);
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
            float expected = first(&sums[p]) - moved;
            if (floats[i] != expected)
                fail_msg("%s[%llu] is %.9g after %llu updates, not %.9g",
                         sums[p].name, (unsigned long long)i, floats[i],
                         (unsigned long long)updates, expected);
        }
    }
    free(floats);
}

/* Output R has not moved by the contributions of worker R, and by no other's
 * has one moved twice: each of ROUNDS is the mean of two whole ones. MOST:
 * how many of worker R's may be in none; NULL: any. */
static void expect_shares(const struct cluster_run *run, unsigned rounds,
                          const json_int_t *most) {
    float *floats = calloc(sums[0].elements, sizeof *floats);
    assert_non_null(floats);
    for (unsigned p = 0; p < 2; p++) {
        uint64_t row = sums[p].elements / OUTPUTS;
        double counted[MOST_WORKERS], all = 0;
        read_tensor(run, "end.safetensors", &sums[p], floats);
        for (uint64_t i = 0; i < sums[p].elements; i++) {
            double moved = OUTPUTS * ((double)first(&sums[p]) - floats[i]);
            double here = 2 * (rounds - moved);
            bool starts = i % row == 0 && i / row < MOST_WORKERS;
            if (starts)
                all += counted[i / row] = here;
            double expected = i / row < MOST_WORKERS ? counted[i / row] : 0;
            if (here != expected || here != floor(here) || here > rounds)
                fail_msg("%s[%llu] has moved by %.9g in %u rounds",
                         sums[p].name, (unsigned long long)i, moved, rounds);
            if (starts && most && here < (double)(rounds - most[i / row]))
                fail_msg("%s has %g contributions of worker %llu", sums[p].name,
                         here, (unsigned long long)(i / row));
        }
        assert_true(all == 2 * (double)rounds);
    }
    free(floats);
}

/* Updates that worker R meant to make, as the proxies saw. */
static uint64_t count_pushes_of(const struct faulty_run *faulty, unsigned r) {
    uint64_t clock = 0;
    for (unsigned i = 0; i < NUM_PS; i++)
        if (faulty->counts[i].clocks[r] > clock)
            clock = faulty->counts[i].clocks[r];
    return clock;
}

static uint64_t count_pushes(const struct faulty_run *faulty) {
    uint64_t pushes = 0;
    for (unsigned r = 0; r < NUM_WORKERS; r++)
        pushes += count_pushes_of(faulty, r);
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
    prepare_sums(faulty->run, "0", "");
    run_over_proxies(faulty, seed);
    expect_sums(faulty->run, STEPS);
}

/* A mean of two of the three gradients of a round, whichever they are: one more
 * of them, or one less, would move what all add up to. */
static void sum_with_backup(struct faulty_run *faulty, uint64_t seed) {
    prepare_sums_of(faulty->run, BACKUP_WORKER, IN_ORDER "}", MOST_WORKERS);
    run_workers_over_proxies(faulty, seed, MOST_WORKERS);
    expect_shares(faulty->run, STEPS, NULL);
}

/* 4096 less a few 1024ths is no bf16: it is what the ps hold. */
static void sum_in_bf16(struct faulty_run *faulty, uint64_t seed) {
    prepare_sums(faulty->run, "0", BF16);
    run_over_proxies(faulty, seed);
    expect_sums(faulty->run, STEPS);
}

static void sum_asynchronously(struct faulty_run *faulty, uint64_t seed,
                               const char *staleness, const char *more) {
    prepare_sums(faulty->run, staleness, more);
    run_over_proxies(faulty, seed);
    uint64_t pushes = count_pushes(faulty);
    assert_in_range(pushes, STEPS, STEPS + NUM_WORKERS);
    expect_sums(faulty->run, pushes);
}

static void sum_unbounded(struct faulty_run *faulty, uint64_t seed) {
    sum_asynchronously(faulty, seed, "\"inf\"", "");
}

static void sum_bounded(struct faulty_run *faulty, uint64_t seed) {
    sum_asynchronously(faulty, seed, "2", "");
}

static void sum_unbounded_in_bf16(struct faulty_run *faulty, uint64_t seed) {
    sum_asynchronously(faulty, seed, "\"inf\"", BF16);
}

/* The first of OWN_ROWS rows that only batch B of worker R has. Sample I is
 * that of worker I mod NUM_WORKERS. */
static unsigned own_row(unsigned b, unsigned r) {
    return FIRST_OWN + (b * NUM_WORKERS + r) * OWN_ROWS;
}

static void write_rows(const struct cluster_run *run) {
    FILE *file = cluster_run_create(run, "train.libsvm");
    for (unsigned i = 0; i < SAMPLES; i++) {
        unsigned own = own_row(i / NUM_WORKERS / BATCH, i % NUM_WORKERS);
        fputs("0", file);
        for (unsigned id = 0; id < SHARED_ROWS; id++)
            fprintf(file, " %u:1", id);
        for (unsigned id = own; id < own + OWN_ROWS; id++)
            fprintf(file, " %u:1", id);
        fputs("\n", file);
    }
    assert_int_equal(fclose(file), 0);
}

/* A model of rows whose gradient is a constant: by each push the rows that all
 * samples have, and those that no other push has, move by 1. The bias stays so
 * large that every sigmoid is 1. */
static void prepare_row_sums(const struct cluster_run *run,
                             const char *staleness) {
    write_rows(run);
    write_start(run, &row_bias, 1);
    cluster_run_job(
        run, textf("{\"data\": {\"format\": \"libsvm\", \"train\":"
                   " \"train.libsvm\", \"test\": null, \"shuffle\": false},"
                   " \"model\": {\"type\": \"linear\", \"bias\": true},"
                   " \"init\": \"start.safetensors\", \"export\": {\"path\":"
                   " \"end.safetensors\"}, \"steps\": %d, \"chief\":"
                   " \"coordinate\", \"train_micro_batch_size_per_gpu\": %d,"
                   " \"optimizer\": {\"params\": {\"lr\": 1}},"
                   " \"strategy\": {\"type\": \"ps\", \"staleness\": %s}}",
                   STEPS, BATCH, staleness));
}

/* The rows as `ckpt export` writes them: those that all samples have after
 * UPDATES, and each other that was pushed at OWN; the caller's. */
static char *expected_rows(const struct faulty_run *faulty, uint64_t updates,
                           const char *own) {
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    fputs("id,w0\n", file);
    for (unsigned id = 0; id < SHARED_ROWS; id++)
        fprintf(file, "%u,-%llu\n", id, (unsigned long long)updates);
    for (unsigned b = 0; b < SAMPLES / BATCH / NUM_WORKERS; b++)
        for (unsigned r = 0; r < NUM_WORKERS; r++)
            for (unsigned i = 0; i < OWN_ROWS; i++)
                if (b < count_pushes_of(faulty, r))
                    fprintf(file, "%u,%s\n", own_row(b, r) + i, own);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* Names the first line that differs. */
static void expect_same_lines(const char *found, const char *expected) {
    size_t line = 0;
    for (size_t i = 0; found[i] == expected[i]; i++) {
        if (!found[i])
            return;
        if (found[i] == '\n')
            line = i + 1;
    }
    fail_msg("row %.*s, expected %.*s", (int)strcspn(found + line, "\n"),
             found + line, (int)strcspn(expected + line, "\n"),
             expected + line);
}

static void expect_row_sums(const struct faulty_run *faulty, uint64_t updates,
                            const char *own) {
    char *expected = expected_rows(faulty, updates, own);
    char *rows = cluster_clicks_exported(faulty->run, "checkpoint", "x");
    float bias;
    expect_same_lines(rows, expected);
    read_tensor(faulty->run, "end.safetensors", &row_bias, &bias);
    assert_true(bias == first(&row_bias) - (float)updates);
    free(expected);
    free(rows);
}

static void sum_rows_synchronously(struct faulty_run *faulty, uint64_t seed) {
    prepare_row_sums(faulty->run, "0");
    run_over_proxies(faulty, seed);
    expect_faults_of_rows(faulty);
    assert_int_equal(count_pushes(faulty), NUM_WORKERS * STEPS);
    expect_row_sums(faulty, STEPS, "-0.5");
}

static void sum_rows_asynchronously(struct faulty_run *faulty, uint64_t seed,
                                    const char *staleness) {
    prepare_row_sums(faulty->run, staleness);
    run_over_proxies(faulty, seed);
    expect_faults_of_rows(faulty);
    uint64_t pushes = count_pushes(faulty);
    assert_in_range(pushes, STEPS, STEPS + NUM_WORKERS);
    expect_row_sums(faulty, pushes, "-1");
}

static void sum_rows_unbounded(struct faulty_run *faulty, uint64_t seed) {
    sum_rows_asynchronously(faulty, seed, "\"inf\"");
}

static void sum_rows_bounded(struct faulty_run *faulty, uint64_t seed) {
    sum_rows_asynchronously(faulty, seed, "2");
}

/* Workers that check the rows they write; the first leads too. */
static void write_rows_over_proxies(struct faulty_run *faulty, uint64_t seed,
                                    const char *staleness) {
    static const char *const arguments[] = {"writes", NULL};
    struct cluster_process *processes[NUM_PS + NUM_WORKERS];
    char caller[PATH_MAX];
    unsigned used = 0;
    cluster_fixture_caller(caller);
    cluster_run_describe(faulty->run, 0, NUM_PS, NUM_WORKERS);
    for (unsigned i = 0; i < NUM_PS; i++)
        processes[used++] = cluster_run_task(faulty->run, "ps", i, NULL);
    for (unsigned i = 0; i < NUM_PS; i++)
        put_between(faulty, i, seed + i);
    setenv("CAPSTAN_SET",
           textf("strategy.staleness=%s\noptimizer.params.lr=1", staleness), 1);
    for (unsigned i = 0; i < NUM_WORKERS; i++)
        processes[used++] = cluster_run_task_program(faulty->run, "worker", i,
                                                     caller, arguments);
    unsetenv("CAPSTAN_SET");
    while (used--)
        cluster_run_expect(processes[used], 0, SECONDS);
    expect_faults(faulty);
}

static void write_rows_synchronously(struct faulty_run *faulty, uint64_t seed) {
    write_rows_over_proxies(faulty, seed, "0");
}

static void write_rows_unbounded(struct faulty_run *faulty, uint64_t seed) {
    write_rows_over_proxies(faulty, seed, "\"inf\"");
}

static void prepare_training(const struct cluster_run *run, const char *file) {
    cluster_run_job(
        run, textf("{\"model\": {\"layers\": [64, 600, 10]}, \"epochs\": 2,"
                   " \"chief\": \"coordinate\", \"checkpoint\": {\"resume\":"
                   " \"never\"}, \"export\": {\"path\": \"%s\"}}",
                   file));
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
    cluster_run_expect_soon(
        cluster_run_start(faulty->run, "local", local, NULL), 0);
    prepare_training(faulty->run, "faulty.safetensors");
    run_over_proxies(faulty, seed);
    expect_same_weights(faulty->run, "straight.safetensors",
                        "faulty.safetensors");
}

static void prepare_clicks(const struct cluster_run *run, const char *dir) {
    cluster_run_job(
        run, textf("{" CLUSTER_CLICKS_DEEPFM ", \"steps\": 30, \"chief\":"
                   " \"coordinate\", \"checkpoint\": {\"dir\": \"%s\"}}",
                   dir));
}

static void train_rows_synchronously(struct faulty_run *faulty, uint64_t seed) {
    static const char *const tables[] = {"user", "item", "user/factors",
                                         "item/factors"};
    cluster_clicks_write(faulty->run);
    prepare_clicks(faulty->run, "straight");
    cluster_fixture_run(faulty->run, NUM_PS, NUM_WORKERS, 0, NULL);
    prepare_clicks(faulty->run, "faulty");
    run_over_proxies(faulty, seed);
    expect_faults_of_rows(faulty);
    for (int i = 0; i < 4; i++)
        cluster_clicks_expect_same_rows(faulty->run, "straight", "faulty",
                                        tables[i]);
    cluster_fixture_expect_same_checkpoints(faulty->run, "straight", "faulty");
}

/* A run of LONG steps with three workers, one of them to spare. Parts of an
 * evaluation would wait for the one that stands still. */
static void start_with_backup(struct cluster_fixture *cluster,
                              struct cluster_run *run) {
    prepare_sums_of(run, BACKUP_WORKER,
                    textf(IN_ORDER ", \"test\": null}, \"steps\": %d,"
                                   " \"steps_per_print\": 20",
                          LONG),
                    MOST_WORKERS);
    cluster_fixture_describe(cluster, run, 1, NUM_PS, MOST_WORKERS);
    cluster_fixture_start_all(cluster);
    cluster_run_await_soon(cluster->tasks[0].process, "%)");
}

/* How many of each worker's contributions came late, and how many it left out,
 * by the summary; LACKED: both together. */
static void late_of(const struct cluster_fixture *cluster, json_int_t *late,
                    json_int_t *lacked) {
    const json_t *summary = cluster_run_json(cluster->tasks[0].process);
    for (unsigned r = 0; r < MOST_WORKERS; r++) {
        const json_t *one = json_array_get(json_object_get(summary, "late"), r);
        assert_int_equal(json_integer_value(json_object_get(one, "rank")), r);
        late[r] = json_integer_value(json_object_get(one, "late"));
        lacked[r] =
            late[r] + json_integer_value(json_object_get(one, "missed"));
    }
}

TEST(a_synchronous_sum_is_exact) {
    repeat(state, sum_synchronously);
}

TEST(a_sum_with_a_backup_worker_is_exact) {
    repeat(state, sum_with_backup);
}

TEST(an_asynchronous_sum_is_exact) {
    repeat(state, sum_unbounded);
}

TEST(a_sum_of_bounded_staleness_is_exact) {
    repeat(state, sum_bounded);
}

TEST(a_synchronous_sum_of_bf16_is_exact) {
    repeat(state, sum_in_bf16);
}

TEST(an_asynchronous_sum_of_bf16_is_exact) {
    repeat(state, sum_unbounded_in_bf16);
}

TEST(synchronous_weights_equal_those_without_faults) {
    repeat(state, train_synchronously);
}

TEST(a_synchronous_sum_of_rows_is_exact) {
    repeat(state, sum_rows_synchronously);
}

TEST(an_asynchronous_sum_of_rows_is_exact) {
    repeat(state, sum_rows_unbounded);
}

TEST(a_sum_of_rows_of_bounded_staleness_is_exact) {
    repeat(state, sum_rows_bounded);
}

TEST(rows_that_are_written_are_exact) {
    repeat(state, write_rows_synchronously);
}

TEST(rows_that_are_written_asynchronously_are_exact) {
    repeat(state, write_rows_unbounded);
}

TEST(synchronous_rows_equal_those_without_faults) {
    repeat(state, train_rows_synchronously);
}

/* Each time STAND rounds close while it stands still, the last time all that
 * there are. */
TEST(a_worker_that_stands_still_holds_up_no_round) {
    struct faulty_run *faulty = *state;
    struct cluster_fixture cluster;
    json_int_t late[MOST_WORKERS], lacked[MOST_WORKERS];
    start_with_backup(&cluster, faulty->run);
    struct cluster_process *chief = cluster.tasks[0].process;
    struct cluster_process *stopped =
        cluster.tasks[cluster_fixture_find(&cluster, "worker", 2)].process;
    for (int step = STAND; step <= LONG; step += STAND) {
        cluster_run_signal(stopped, SIGSTOP);
        cluster_run_await_soon(chief, textf("step %d/", step));
        cluster_run_signal(stopped, SIGCONT);
        if (step < LONG)
            cluster_run_await_soon(chief, textf("step %d/", step + GO));
    }
    cluster_fixture_expect_soon(&cluster, CLUSTER_FIXTURE_TASKS, 0);
    late_of(&cluster, late, lacked);
    assert_true(late[2] > 0 && lacked[2] > late[2]);
    expect_shares(faulty->run, LONG, lacked);
    cluster_fixture_expect_logged(chief, "worker 2: ");
}

/* Of the workers all but task I, so that the run does not end meanwhile. */
static void signal_others(const struct cluster_fixture *cluster, unsigned i,
                          int number) {
    for (unsigned t = 0; t < cluster->count; t++)
        if (t != i && !strcmp(cluster->tasks[t].type, "worker"))
            cluster_run_signal(cluster->tasks[t].process, number);
}

TEST(a_worker_that_joins_goes_on_with_the_round_that_it_finds) {
    struct faulty_run *faulty = *state;
    struct cluster_fixture cluster;
    start_with_backup(&cluster, faulty->run);
    struct cluster_process *chief = cluster.tasks[0].process;
    unsigned killed = cluster_fixture_find(&cluster, "worker", 1);
    signal_others(&cluster, killed, SIGSTOP);
    cluster_run_signal(cluster.tasks[killed].process, SIGKILL);
    cluster_run_await_soon(chief, "worker 1 on host");
    cluster_fixture_start(&cluster, killed);
    cluster_run_await_soon(chief, "worker 1 joined");
    signal_others(&cluster, killed, SIGCONT);
    cluster_fixture_expect_soon(&cluster, CLUSTER_FIXTURE_TASKS, 0);
    expect_shares(faulty->run, LONG, NULL);
}
