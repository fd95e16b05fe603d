/* SPDX-License-Identifier: Apache-2.0 */
/* The models of ranker.h beside the same models in double precision, whose
 * gradients are central differences. */
#include "worker/models/ranker.h"

#include "core/tensor/philox.h"
#include "tests/lib/activation_oracle.h"
#include "tests/lib/test.h"
#include "worker/models/ranker_form.h"

#include <math.h>

enum { SAMPLES = 13, MOST = 4096, PARAMETERS = 16, WIDEST = 128 };

/* A model with the widths of its columns by tag, 0 for none. */
struct ranker_case {
    const char *name;
    enum job_model_type type;
    struct ranker_settings settings;
    uint32_t width[RANKER_COLUMNS];
};

#define BCE JOB_SIGMOID_CROSS_ENTROPY
static const struct ranker_case cases[] = {
    {"linear", JOB_LINEAR, {.bias = true, .loss = BCE}, {5, 1, 0, 0, 1}},
    {"linear without bias", JOB_LINEAR, {.loss = JOB_MSE}, {5, 1, 0, 0, 1}},
    {"linear of ids", JOB_LINEAR, {.bias = true, .loss = BCE}, {0, 1, 0, 0, 1}},
    {"linear of numbers",
     JOB_LINEAR,
     {.bias = true, .loss = JOB_MSE},
     {4, 0, 0, 0, 1}},
    {"fm", JOB_FM, {.dim = 3, .loss = BCE}, {2, 1, 0, 12, 1}},
    {"deepfm",
     JOB_DEEPFM,
     {.dim = 3, .hidden = {2, {8, 5}}, .loss = BCE},
     {2, 1, 2, 12, 1}},
    {"deepfm of ids",
     JOB_DEEPFM,
     {.dim = 4, .hidden = {1, {6}}, .loss = BCE},
     {0, 1, 0, 12, 1}},
    {"wide_deep",
     JOB_WIDE_DEEP,
     {.hidden = {2, {7, 6}}, .loss = BCE},
     {3, 1, 2, 9, 1}},
    {"wide_deep of numbers",
     JOB_WIDE_DEEP,
     {.hidden = {1, {7}}, .loss = JOB_MSE},
     {3, 0, 4, 0, 1}},
    {"wide_deep, dropped out",
     JOB_WIDE_DEEP,
     {.hidden = {2, {7, 6}}, .dropout = 0.3, .loss = BCE},
     {3, 1, 2, 9, 1}},
    {"wide_deep of tanh",
     JOB_WIDE_DEEP,
     {.hidden = {2, {7, 6}}, .activation = JOB_TANH, .loss = BCE},
     {3, 1, 2, 9, 1}},
    {"deepfm of sigmoids, dropped out",
     JOB_DEEPFM,
     {.dim = 3,
      .hidden = {2, {8, 5}},
      .activation = JOB_SIGMOID,
      .dropout = 0.4,
      .loss = BCE},
     {2, 1, 2, 12, 1}},
    {"wide_deep of identities, dropped out",
     JOB_WIDE_DEEP,
     {.hidden = {2, {7, 6}},
      .activation = JOB_IDENTITY,
      .dropout = 0.3,
      .loss = BCE},
     {3, 1, 2, 9, 1}},
    {"dlrm of tanh",
     JOB_DLRM,
     {.bottom = {2, {6, 4}},
      .top = {2, {8, 5}},
      .activation = JOB_TANH,
      .loss = BCE},
     {0, 0, 3, 12, 1}},
    {"dlrm",
     JOB_DLRM,
     {.bottom = {2, {6, 4}}, .top = {2, {8, 5}}, .loss = BCE},
     {0, 0, 3, 12, 1}},
    {"matrix_factorization",
     JOB_MATRIX_FACTORIZATION,
     {.dim = 5, .loss = JOB_MSE},
     {0, 1, 0, 10, 1}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* An open model with a batch, and all of its numbers again in double. */
struct ranker_fixture {
    const struct ranker_case *of;
    struct job_model job;
    struct batch_spec spec;
    struct ranker_parts parts;
    struct device *device;
    struct model_instance *model;
    struct batch batch;
    uint32_t num_parameters;
    struct parameter parameters[PARAMETERS];
    float *weights[PARAMETERS], *gradients[PARAMETERS];
    double exact[PARAMETERS][MOST], columns[RANKER_COLUMNS][MOST];
    bool training;
    uint32_t needed[PARAMETERS], num_needed, done[PARAMETERS], num_done;
};

static float *numbers(size_t count, uint64_t seed) {
    float *memory = malloc(count * sizeof *memory + 1);
    assert_non_null(memory);
    philox_uniform(seed, 0, 0, 1, memory, count);
    return memory;
}

static void widen(double *to, const float *from, size_t count) {
    assert_in_range(count, 1, MOST);
    for (size_t i = 0; i < count; i++)
        to[i] = (double)from[i];
}

static void add_column(struct ranker_fixture *f, uint32_t tag) {
    uint32_t c = f->spec.num_columns, width = f->of->width[tag];
    bool rows = tag == RANKER_SUMS || tag == RANKER_ROWS;
    if (!width)
        return;
    f->spec.columns[f->spec.num_columns++] = (struct batch_column){
        .type = rows ? BATCH_ROWS : BATCH_FLOATS, .width = width, .tag = tag};
    float *values = numbers((size_t)SAMPLES * width, 100 + tag);
    for (uint32_t i = 0; tag == RANKER_LABEL && i < SAMPLES; i++)
        values[i] = f->of->settings.loss == BCE ? i % 3 == 0 : values[i];
    f->batch.columns[c] = values;
    if (rows)
        f->batch.gradients[c] = numbers((size_t)SAMPLES * width, 9);
    widen(f->columns[tag], values, (size_t)SAMPLES * width);
}

static struct ranker_fixture *ranker_open(const struct ranker_case *of) {
    struct ranker_fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->of = of;
    f->job = (struct job_model){of->type, &of->settings, .seed = 5};
    f->batch = (struct batch){.number = 77, .count = SAMPLES};
    for (uint32_t tag = 0; tag < RANKER_COLUMNS; tag++)
        add_column(f, tag);
    ranker_form_parts(&f->parts, &f->job, &f->spec);
    f->num_parameters = ranker_form_parameters(&f->parts, f->parameters);
    assert_int_equal(f->num_parameters,
                     ranker_form_parameters(&f->parts, NULL));
    for (uint32_t p = 0; p < f->num_parameters; p++) {
        f->weights[p] = numbers(f->parameters[p].elements, p);
        f->gradients[p] = numbers(f->parameters[p].elements, 50 + p);
        widen(f->exact[p], f->weights[p], f->parameters[p].elements);
    }
    assert_int_equal(ops_cpu_open(&f->device, 1, NULL), STATUS_OK);
    assert_int_equal(model_ranker.open(&f->model, &f->job, &f->spec, ops_cpu(),
                                       f->device, SAMPLES, NULL),
                     STATUS_OK);
    return f;
}

static void ranker_free(struct ranker_fixture *f) {
    model_ranker.close(&f->model);
    assert_null(f->model);
    ops_cpu_close(&f->device);
    for (uint32_t p = 0; p < f->num_parameters; p++) {
        free(f->weights[p]);
        free(f->gradients[p]);
    }
    for (uint32_t c = 0; c < f->spec.num_columns; c++) {
        free(f->batch.columns[c]);
        free(f->batch.gradients[c]);
    }
    free(f);
}

/* Dropout's factor of value J of SAMPLE behind hidden layer LAYER. */
static double kept(const struct ranker_fixture *f, uint32_t layer,
                   uint32_t width, uint32_t sample, uint32_t j) {
    double rate = f->of->settings.dropout;
    uint64_t element = (uint64_t)sample * width + j;
    uint32_t words[4];
    if (!f->training || rate == 0)
        return 1;
    philox(f->job.seed ^ UINT64_C(0x64726f706f757400),
           f->batch.number * JOB_MAX_WIDTHS + layer, element / 4, words);
    return words[element % 4] < (uint32_t)(rate * 0x1p32) ? 0 : 1 / (1 - rate);
}

/* Layers over X, in place, from parameter P on; the last with an activation if
 * LAST. */
static void exact_layers(const struct ranker_fixture *f,
                         const struct job_widths *widths, uint32_t p, bool last,
                         uint32_t sample, double *x) {
    for (uint32_t l = 0; l + 1 < widths->count; l++, p += 2) {
        uint32_t in = widths->items[l], out = widths->items[l + 1];
        bool active = last || l + 2 < widths->count;
        double y[WIDEST];
        for (uint32_t j = 0; j < out; j++) {
            y[j] = f->exact[p + 1][j];
            for (uint32_t k = 0; k < in; k++)
                y[j] += f->exact[p][j * in + k] * x[k];
            if (active)
                y[j] = activation_oracle(f->of->settings.activation, y[j]) *
                       kept(f, l, out, sample, j);
        }
        memcpy(x, y, out * sizeof *x);
    }
}

static const double *of_sample(const struct ranker_fixture *f, uint32_t tag,
                               uint32_t sample) {
    return f->columns[tag] + (size_t)sample * f->of->width[tag];
}

static double exact_dot(const double *a, const double *b, uint32_t dim) {
    double sum = 0;
    for (uint32_t k = 0; k < dim; k++)
        sum += a[k] * b[k];
    return sum;
}

static double exact_dlrm(const struct ranker_fixture *f, uint32_t sample) {
    const struct ranker_settings *s = &f->of->settings;
    uint32_t dim = s->bottom.items[s->bottom.count - 1];
    uint32_t rows = f->of->width[RANKER_ROWS], at = dim;
    double x[WIDEST], fields[WIDEST];
    memcpy(x, of_sample(f, RANKER_DEEP, sample),
           f->of->width[RANKER_DEEP] * sizeof *x);
    exact_layers(f, &f->parts.bottom, 0, true, sample, x);
    memcpy(fields, x, dim * sizeof *x);
    memcpy(fields + dim, of_sample(f, RANKER_ROWS, sample), rows * sizeof *x);
    for (uint32_t a = 1; a <= rows / dim; a++)
        for (uint32_t b = 0; b < a; b++)
            x[at++] = exact_dot(fields + a * dim, fields + b * dim, dim);
    exact_layers(f, &f->parts.top, 2 * s->bottom.count, false, sample, x);
    return x[0];
}

static double exact_logit(const struct ranker_fixture *f, uint32_t sample) {
    const uint32_t *width = f->of->width;
    uint32_t dim = f->of->settings.dim, first = width[RANKER_WIDE] > 0;
    const double *rows = of_sample(f, RANKER_ROWS, sample);
    double x[WIDEST], z = f->exact[first][0];
    if (f->of->type == JOB_DLRM)
        return exact_dlrm(f, sample);
    z += exact_dot(f->exact[0], of_sample(f, RANKER_WIDE, sample),
                   width[RANKER_WIDE]);
    z += width[RANKER_SUMS] ? *of_sample(f, RANKER_SUMS, sample) : 0;
    for (uint32_t a = 0; dim && a < width[RANKER_ROWS] / dim; a++)
        for (uint32_t b = 0; b < a; b++)
            z += exact_dot(rows + a * dim, rows + b * dim, dim);
    memcpy(x, of_sample(f, RANKER_DEEP, sample),
           width[RANKER_DEEP] * sizeof *x);
    memcpy(x + width[RANKER_DEEP], rows, width[RANKER_ROWS] * sizeof *x);
    if (!f->of->settings.hidden.count)
        return z;
    exact_layers(f, &f->parts.top, first + 1, false, sample, x);
    return z + x[0];
}

static double exact_loss(const struct ranker_fixture *f) {
    double loss = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        double z = exact_logit(f, i), label = f->columns[RANKER_LABEL][i];
        loss += f->of->settings.loss == BCE
                    ? fmax(z, 0) - z * label + log1p(exp(-fabs(z)))
                    : (z - label) * (z - label);
    }
    return loss;
}

/* FOUND [COUNT] against SCALE times the derivatives of the loss by AT, to which
 * BEFORE was added; by the norm. */
static void assert_gradient(const struct ranker_fixture *f, double *at,
                            const float *found, const float *before,
                            size_t count, const char *of) {
    const double step = 1e-5, scale = 0.5;
    double off = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        double here = at[i];
        at[i] = here + step;
        double slope = exact_loss(f);
        at[i] = here - step;
        slope = scale * (slope - exact_loss(f)) / (2 * step);
        at[i] = here;
        slope += before ? (double)before[i] : 0;
        off += (found[i] - slope) * (found[i] - slope);
        size += slope * slope;
    }
    if (!(sqrt(off) <= 2e-6 * sqrt(size) + 1e-7))
        fail_msg("%s: the gradient of %s is off by %g of %g", f->of->name, of,
                 sqrt(off), sqrt(size));
}

static void check_gradients(struct ranker_fixture *f, bool add) {
    struct model_result result;
    float *before[PARAMETERS];
    f->training = true;
    for (uint32_t p = 0; p < f->num_parameters; p++) {
        size_t bytes = f->parameters[p].elements * sizeof(float);
        before[p] = malloc(bytes);
        memcpy(before[p], f->gradients[p], bytes);
    }
    model_ranker.gradient(f->model, &f->batch, f->weights, f->gradients, 0.5F,
                          add, NULL, &result);
    double expected = exact_loss(f);
    if (!(fabs(result.loss - expected) <= 1e-6 * SAMPLES + 1e-6 * expected))
        fail_msg("%s: found loss %.9g, expected %.9g", f->of->name, result.loss,
                 expected);
    for (uint32_t p = 0; p < f->num_parameters; p++) {
        bool off = f->of->type == JOB_LINEAR && !f->of->settings.bias &&
                   !strcmp(f->parameters[p].name, "bias");
        if (off)
            assert_true(*f->gradients[p] == (add ? *before[p] : 0));
        else
            assert_gradient(f, f->exact[p], f->gradients[p],
                            add ? before[p] : NULL, f->parameters[p].elements,
                            f->parameters[p].name);
        free(before[p]);
    }
    for (uint32_t c = 0; c < f->spec.num_columns; c++)
        if (f->batch.gradients[c])
            assert_gradient(f, f->columns[f->spec.columns[c].tag],
                            f->batch.gradients[c], NULL,
                            (size_t)SAMPLES * f->spec.columns[c].width,
                            "a column of rows");
}

TEST(gradients_of_weights_and_rows_agree_with_double) {
    for (int c = 0; c < CASES; c++)
        for (int add = 0; add < 2; add++) {
            struct ranker_fixture *f = ranker_open(&cases[c]);
            check_gradients(f, add);
            ranker_free(f);
        }
}

TEST(an_evaluation_has_the_loss_without_dropout) {
    for (int c = 0; c < CASES; c++) {
        struct ranker_fixture *f = ranker_open(&cases[c]);
        struct model_result result;
        model_ranker.evaluate(f->model, &f->batch, f->weights, NULL, &result);
        double expected = exact_loss(f);
        assert_int_equal(result.count, SAMPLES);
        if (!(fabs(result.loss - expected) <= 2e-6 * (1 + expected)))
            fail_msg("%s: found loss %.9g, expected %.9g", cases[c].name,
                     result.loss, expected);
        ranker_free(f);
    }
}

TEST(the_same_batch_has_the_same_bits_in_another_run) {
    for (int c = 0; c < CASES; c++) {
        struct ranker_fixture *one = ranker_open(&cases[c]);
        struct ranker_fixture *other = ranker_open(&cases[c]);
        struct model_result result;
        model_ranker.gradient(one->model, &one->batch, one->weights,
                              one->gradients, 1, false, NULL, &result);
        other->batch.number++;
        model_ranker.gradient(other->model, &other->batch, other->weights,
                              other->gradients, 1, false, NULL, &result);
        other->batch.number--;
        model_ranker.gradient(other->model, &other->batch, other->weights,
                              other->gradients, 1, false, NULL, &result);
        for (uint32_t p = 0; p < one->num_parameters; p++)
            assert_memory_equal(one->gradients[p], other->gradients[p],
                                one->parameters[p].elements * sizeof(float));
        ranker_free(one);
        ranker_free(other);
    }
}

static void ranker_need(void *context, uint32_t first, uint32_t count) {
    struct ranker_fixture *f = context;
    assert_int_equal(f->num_done, 0);
    for (uint32_t p = first; p < first + count; p++)
        f->needed[f->num_needed++] = p;
}

static bool ranker_refuse(void *context, double loss) {
    (void)context, (void)loss;
    return false;
}

/* Whose weights are gone then. */
static void ranker_done(void *context, uint32_t parameter) {
    struct ranker_fixture *f = context;
    f->done[f->num_done++] = parameter;
    for (uint64_t e = 0; e < f->parameters[parameter].elements; e++)
        f->weights[parameter][e] = NAN;
}

TEST(weights_are_needed_in_order_and_done_in_reverse) {
    for (int c = 0; c < CASES; c++) {
        struct ranker_fixture *f = ranker_open(&cases[c]);
        struct ranker_fixture *plain = ranker_open(&cases[c]);
        struct model_hooks hooks = {f, ranker_need, NULL, ranker_done};
        struct model_result result;
        model_ranker.gradient(f->model, &f->batch, f->weights, f->gradients, 1,
                              false, &hooks, &result);
        model_ranker.gradient(plain->model, &plain->batch, plain->weights,
                              plain->gradients, 1, false, NULL, &result);
        assert_int_equal(f->num_needed, f->num_parameters);
        assert_int_equal(f->num_done, f->num_parameters);
        for (uint32_t p = 0; p < f->num_parameters; p++) {
            assert_int_equal(f->needed[p], p);
            assert_int_equal(f->done[p], f->num_parameters - 1 - p);
            assert_memory_equal(f->gradients[p], plain->gradients[p],
                                f->parameters[p].elements * sizeof(float));
        }
        ranker_free(f);
        ranker_free(plain);
    }
}

TEST(a_refused_loss_skips_the_backward_pass) {
    struct ranker_fixture *f = ranker_open(&cases[0]);
    struct model_hooks hooks = {f, NULL, ranker_refuse, ranker_done};
    struct model_result result;
    model_ranker.gradient(f->model, &f->batch, f->weights, f->gradients, 1,
                          false, &hooks, &result);
    assert_int_equal(f->num_done, 0);
    ranker_free(f);
}

/* The loss of the outputs VALUES, in double. */
static double loss_of_outputs(const struct ranker_fixture *f,
                              const float *values, enum job_loss loss) {
    const float *labels = f->batch.columns[f->parts.place[RANKER_LABEL]];
    double sum = 0;
    for (uint32_t s = 0; s < SAMPLES; s++) {
        double z = (double)values[s], target = (double)labels[s];
        sum += loss == JOB_MSE ? (z - target) * (z - target)
                               : log1p(exp(-fabs(z))) + fmax(z, 0) - z * target;
    }
    return sum;
}

TEST(the_outputs_are_those_that_the_loss_is_of) {
    for (size_t c = 0; c < CASES; c++) {
        struct ranker_fixture *f = ranker_open(&cases[c]);
        struct model_result result;
        model_ranker.evaluate(f->model, &f->batch, f->weights, NULL, &result);
        struct model_outputs outputs = model_ranker.outputs(f->model);
        assert_int_equal(outputs.width, 1);
        double loss = loss_of_outputs(f, outputs.values, outputs.loss);
        assert_true(fabs(loss - result.loss) <= 1e-5 * (1 + fabs(loss)));
        ranker_free(f);
    }
}
