/* SPDX-License-Identifier: Apache-2.0 */
/* What real processes compute, against the same model in double precision,
 * written here once more: gradients, and whole runs of SGD. All weights are
 * read from what `capstan ckpt export` wrote. */
#define STATE struct cluster_run *run

#include "core/store/tensor_file.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <math.h>

enum { LAYERS = 3, PARAMETERS = 2 * LAYERS, WIDEST = 64 };
enum { SAMPLES = 600, PIXELS = 64, BATCH = 120, ROUNDS = 20 };
static const uint32_t widths[LAYERS + 1] = {PIXELS, 32, 24, 10};

static const double tolerance = 1e-5, rate = 0.1;

/* tanh, for float and double may fall on different sides of relu's kink. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 32, 24, 10], \"activation\": \"tanh\"},"
    " \"data\": {\"shuffle\": false}}";

/* A step of such length ends at -long_rate * gradient, but for the rounding of
 * that: the first weights do not hide the gradient's low bits. */
static const double long_rate = 1024;

/* Parameters in model order: weights [out, in] and biases [out] in turn. */
struct model {
    double values[PARAMETERS][WIDEST * WIDEST];
};

struct samples {
    unsigned char pixels[SAMPLES][PIXELS], labels[SAMPLES];
};

static uint32_t inputs(unsigned layer) {
    return widths[layer];
}

static uint32_t outputs(unsigned layer) {
    return widths[layer + 1];
}

static struct parameter describe(unsigned p) {
    unsigned layer = p / 2;
    bool bias = p % 2;
    struct parameter parameter = {
        .num_dims = bias ? 1 : 2,
        .dims = {outputs(layer), inputs(layer)},
        .elements = outputs(layer) * (bias ? 1 : inputs(layer)),
    };
    snprintf(parameter.name, sizeof parameter.name, "layer%u.%s", layer,
             bias ? "bias" : "weight");
    return parameter;
}

/* ACTIVATIONS: those before each layer, and the outputs. */
static void forward(const struct model *model, const unsigned char *pixels,
                    double activations[LAYERS + 1][WIDEST]) {
    for (unsigned i = 0; i < PIXELS; i++)
        activations[0][i] = pixels[i] / 255.0;
    for (unsigned l = 0; l < LAYERS; l++)
        for (unsigned o = 0; o < outputs(l); o++) {
            const double *row = model->values[2 * l] + o * inputs(l);
            double sum = model->values[2 * l + 1][o];
            for (unsigned i = 0; i < inputs(l); i++)
                sum += row[i] * activations[l][i];
            activations[l + 1][o] = l + 1 < LAYERS ? tanh(sum) : sum;
        }
}

/* DELTA: of the loss by the outputs, softmax minus the target. */
static void differentiate_loss(const double *logits, unsigned label,
                               double *delta) {
    double sum = 0;
    for (unsigned o = 0; o < outputs(LAYERS - 1); o++)
        sum += exp(logits[o]);
    for (unsigned o = 0; o < outputs(LAYERS - 1); o++)
        delta[o] = exp(logits[o]) / sum - (o == label);
}

/* From DELTA behind layer L to that before it; adds L's gradients. */
static void backward(const struct model *model, unsigned l,
                     const double *activations, double *delta, double scale,
                     struct model *gradient) {
    double before[WIDEST] = {0};
    for (unsigned o = 0; o < outputs(l); o++) {
        gradient->values[2 * l + 1][o] += scale * delta[o];
        for (unsigned i = 0; i < inputs(l); i++) {
            size_t at = o * inputs(l) + i;
            gradient->values[2 * l][at] += scale * delta[o] * activations[i];
            before[i] += delta[o] * model->values[2 * l][at];
        }
    }
    for (unsigned i = 0; i < inputs(l); i++)
        delta[i] = before[i] * (1 - activations[i] * activations[i]);
}

/* The mean gradient of BATCH samples from FIRST on. */
static void whole_gradient(const struct model *model,
                           const struct samples *samples, unsigned first,
                           struct model *gradient) {
    *gradient = (struct model){0};
    for (unsigned s = 0; s < BATCH; s++) {
        unsigned at = (first + s) % SAMPLES;
        double activations[LAYERS + 1][WIDEST], delta[WIDEST];
        forward(model, samples->pixels[at], activations);
        differentiate_loss(activations[LAYERS], samples->labels[at], delta);
        for (unsigned l = LAYERS; l-- > 0;)
            backward(model, l, activations[l], delta, 1.0 / BATCH, gradient);
    }
}

static void train(struct model *model, const struct samples *samples) {
    struct model gradient;
    for (unsigned round = 0; round < ROUNDS; round++) {
        whole_gradient(model, samples, round * BATCH, &gradient);
        for (unsigned p = 0; p < PARAMETERS; p++)
            for (uint64_t i = 0; i < describe(p).elements; i++)
                model->values[p][i] -= rate * gradient.values[p][i];
    }
}

static void read_part(const struct cluster_run *run, const char *name,
                      long start, void *bytes, size_t count) {
    FILE *file = fopen(cluster_run_path(run, name), "r");
    assert_non_null(file);
    assert_int_equal(fseek(file, start, SEEK_SET), 0);
    assert_int_equal(fread(bytes, 1, count, file), count);
    fclose(file);
}

static void read_samples(const struct cluster_run *run,
                         struct samples *samples) {
    read_part(run, "train-images", 16, samples->pixels, sizeof samples->pixels);
    read_part(run, "train-labels", 8, samples->labels, sizeof samples->labels);
}

/* The last checkpoint in DIR, through DIR.safetensors. */
static void read_model(struct cluster_run *run, const char *dir,
                       struct model *model) {
    float floats[WIDEST * WIDEST];
    struct tensor_file *file;
    const char *name = textf("%s.safetensors", dir);
    const char *const export[] = {"ckpt", "export", dir, name, NULL};
    cluster_run_expect_soon(cluster_run_start(run, "export", export, NULL), 0);
    assert_ok(tensor_file_open(&file, cluster_run_path(run, name), &failure));
    for (unsigned p = 0; p < PARAMETERS; p++) {
        struct parameter parameter = describe(p);
        assert_ok(tensor_file_read(file, &parameter, floats, &failure));
        for (uint64_t i = 0; i < parameter.elements; i++)
            model->values[p][i] = floats[i];
    }
    tensor_file_close(&file);
}

struct training {
    const char *dir;              /* of its checkpoint */
    unsigned num_ps, num_workers; /* no ps: one process */
    unsigned steps;               /* of BATCH samples */
    double rate;
    const char *from; /* starts with FROM.safetensors; NULL: fresh weights */
};

/* Trains, and reads what came out. */
static void train_processes(struct cluster_run *run,
                            const struct training *training,
                            struct model *model) {
    char ps[16], workers[16], sets[5][128];
    const char *arguments[20] = {training->num_ps ? "local" : "run",
                                 "job.json"};
    size_t used = 2, num_sets = 4;
    snprintf(ps, sizeof ps, "--ps=%u", training->num_ps);
    snprintf(workers, sizeof workers, "--workers=%u", training->num_workers);
    snprintf(sets[0], sizeof *sets, "checkpoint.dir=%s", training->dir);
    snprintf(sets[1], sizeof *sets, "steps=%u", training->steps);
    snprintf(sets[2], sizeof *sets, "optimizer.params.lr=%g", training->rate);
    snprintf(sets[3], sizeof *sets, "train_micro_batch_size_per_gpu=%u",
             BATCH / training->num_workers);
    if (training->from)
        snprintf(sets[num_sets++], sizeof *sets, "init=%s.safetensors",
                 training->from);
    if (training->num_ps) {
        arguments[used++] = ps;
        arguments[used++] = workers;
    }
    for (size_t i = 0; i < num_sets; i++) {
        arguments[used++] = "--set";
        arguments[used++] = sets[i];
    }
    cluster_run_expect_soon(
        cluster_run_start(run, training->dir, arguments, NULL), 0);
    read_model(run, training->dir, model);
}

/* Every parameter: the norm of the difference by the norm. */
static void expect_close(const struct model *a, const struct model *b,
                         const char *what) {
    for (unsigned p = 0; p < PARAMETERS; p++) {
        double difference = 0, norm = 0;
        struct parameter parameter = describe(p);
        for (uint64_t i = 0; i < parameter.elements; i++) {
            double d = a->values[p][i] - b->values[p][i];
            difference += d * d;
            norm += b->values[p][i] * b->values[p][i];
        }
        double found = sqrt(difference) / sqrt(norm);
        if (!(found <= tolerance))
            fail_msg("%s: %s differs by %g of its norm (%g)", what,
                     parameter.name, found, tolerance);
    }
}

/* What N workers average from FROM's weights on, told by one long step. */
static void averaged_gradient(struct cluster_run *run, const char *from,
                              const struct model *before, unsigned n,
                              struct model *gradient) {
    const char *dir = textf("%s-%u", from, n);
    train_processes(run, &(struct training){dir, 2, n, 1, long_rate, from},
                    gradient);
    for (unsigned p = 0; p < PARAMETERS; p++)
        for (uint64_t i = 0; i < describe(p).elements; i++)
            gradient->values[p][i] =
                (before->values[p][i] - gradient->values[p][i]) / long_rate;
}

static void expect_gradients(struct cluster_run *run, const char *from,
                             const struct model *before) {
    static struct samples samples;
    static struct model expected, alone, shared;
    read_samples(run, &samples);
    whole_gradient(before, &samples, 0, &expected);
    averaged_gradient(run, from, before, 1, &alone);
    expect_close(&alone, &expected, "one worker and the whole batch");
    for (unsigned n = 2; n <= 4; n *= 2) {
        averaged_gradient(run, from, before, n, &shared);
        expect_close(&shared, &expected, "workers and the whole batch");
        expect_close(&shared, &alone, "workers and one worker");
    }
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(fresh_workers_average_to_the_whole_batch) {
    static struct model before;
    cluster_run_job(run, job);
    train_processes(run, &(struct training){"fresh", 1, 1, 0, rate, NULL},
                    &before);
    expect_gradients(run, "fresh", &before);
}

TEST(trained_workers_average_to_the_whole_batch) {
    static struct model before;
    cluster_run_job(run, job);
    train_processes(run, &(struct training){"trained", 2, 2, 200, rate, NULL},
                    &before);
    expect_gradients(run, "trained", &before);
}

/* Python with NumPy trains from a to b's weights; the last thing in a test,
 * which is skipped when there is none. */
static void expect_numpy_agrees(const struct cluster_run *run, const char *from,
                                const char *to) {
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    char command[512 + PATH_MAX];
    for (size_t i = 0; i < sizeof pythons / sizeof *pythons; i++) {
        snprintf(command, sizeof command, "%s -c 'import numpy' 2>/dev/null",
                 pythons[i]);
        if (system(command))
            continue;
        snprintf(command, sizeof command,
                 "%s tests/cluster/cluster_numeric.py '%s' %s %s %d %d %g %g",
                 pythons[i], run->folder, from, to, ROUNDS, BATCH, rate,
                 tolerance);
        assert_int_equal(system(command), 0);
        return;
    }
    skip_test("no python3 with numpy: all else held, it was not compared");
}

TEST(sgd_of_20_rounds_agrees_with_one_process_and_double) {
    static struct samples samples;
    static struct model expected, alone, shared;
    cluster_run_job(run, job);
    read_samples(run, &samples);
    train_processes(run, &(struct training){"fresh", 1, 1, 0, rate, NULL},
                    &expected);
    train(&expected, &samples);
    train_processes(run, &(struct training){"alone", 0, 1, ROUNDS, rate, NULL},
                    &alone);
    train_processes(run, &(struct training){"shared", 2, 2, ROUNDS, rate, NULL},
                    &shared);
    expect_close(&alone, &expected, "one process and double");
    expect_close(&shared, &expected, "2 ps and double");
    expect_close(&shared, &alone, "2 ps and one process");
    expect_numpy_agrees(run, "fresh", "shared");
}
