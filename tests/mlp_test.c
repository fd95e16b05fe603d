#include "worker/mlp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PARAMETERS = 16, MAX_BATCH = 64, MAX_WIDTH = 784 };

/* A model with its weights, gradients and a batch of random inputs. */
struct fixture {
    struct job_model model;
    const struct ops *ops;
    struct ops_device *device;
    struct mlp *mlp;
    uint32_t num_parameters;
    struct parameter parameters[MAX_PARAMETERS];
    float *weights[MAX_PARAMETERS], *gradients[MAX_PARAMETERS];
    float *inputs;
    uint32_t labels[MAX_BATCH];
};

static void fill(float *values, size_t count, float bound, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = ((float)(seed >> 8) * 0x1p-23f - 1) * bound;
    }
}

static float *allocate(struct fixture *fixture, size_t elements) {
    return fixture->ops->allocate(fixture->device, elements * sizeof(float));
}

static void open_model(struct fixture *fixture, const struct job_model *model) {
    fixture->model = *model;
    fixture->ops = ops_cpu();
    assert_int_equal(ops_cpu_open(&fixture->device, 1, NULL), STATUS_OK);
    assert_int_equal(mlp_open(&fixture->mlp, model, fixture->ops,
                              fixture->device, MAX_BATCH, NULL),
                     STATUS_OK);
    fixture->num_parameters = mlp_parameters(model, fixture->parameters);
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        size_t elements = fixture->parameters[p].elements;
        fixture->weights[p] = allocate(fixture, elements);
        fixture->gradients[p] = allocate(fixture, elements);
        fill(fixture->weights[p], elements, fixture->parameters[p].init_bound,
             p);
    }
    fixture->inputs = allocate(fixture, MAX_BATCH * MAX_WIDTH);
    fill(fixture->inputs, MAX_BATCH * MAX_WIDTH, 1, 99);
    for (uint32_t i = 0; i < MAX_BATCH; i++)
        fixture->labels[i] = i % model->layers[model->num_layers - 1];
}

static void close_model(struct fixture *fixture) {
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        fixture->ops->release(fixture->device, fixture->weights[p]);
        fixture->ops->release(fixture->device, fixture->gradients[p]);
    }
    fixture->ops->release(fixture->device, fixture->inputs);
    mlp_close(&fixture->mlp);
    assert_null(fixture->mlp);
    ops_cpu_close(&fixture->device);
}

/* The fixture's samples FIRST .. FIRST + COUNT - 1. */
static struct loader_batch samples(const struct fixture *fixture,
                                   uint32_t first, uint32_t count) {
    return (struct loader_batch){.count = count,
                                 .inputs = fixture->inputs +
                                           first * fixture->model.layers[0],
                                 .labels = fixture->labels + first};
}

/* The same model in double, from its definition. */

static double activate(enum job_activation activation, double x) {
    switch (activation) {
    case JOB_RELU:
        return fmax(x, 0);
    case JOB_TANH:
        return tanh(x);
    case JOB_SIGMOID:
        return 1 / (1 + exp(-x));
    case JOB_IDENTITY:
        return x;
    }
    return NAN;
}

static double loss_of(enum job_loss kind, const double *z, uint32_t out,
                      uint32_t label) {
    double sum = 0;
    for (uint32_t j = 0; j < out; j++) {
        double target = j == label;
        if (kind == JOB_SOFTMAX_CROSS_ENTROPY)
            sum += exp(z[j]);
        else if (kind == JOB_SIGMOID_CROSS_ENTROPY)
            sum += (log1p(exp(z[j])) - target * z[j]) / out;
        else
            sum += (z[j] - target) * (z[j] - target) / out;
    }
    return kind == JOB_SOFTMAX_CROSS_ENTROPY ? log(sum) - z[label] : sum;
}

/* Sum of the losses of BATCH with weights in double. */
static double loss_in_double(const struct job_model *model,
                             const struct loader_batch *batch,
                             double *const *weights) {
    double sum = 0, x[64], y[64];
    for (uint32_t i = 0; i < batch->count; i++) {
        for (uint32_t k = 0; k < model->layers[0]; k++)
            x[k] = batch->inputs[i * model->layers[0] + k];
        for (uint32_t l = 0; l + 1 < model->num_layers; l++) {
            uint32_t in = model->layers[l], out = model->layers[l + 1];
            bool last = l + 2 == model->num_layers;
            for (uint32_t j = 0; j < out; j++) {
                y[j] = weights[2 * l + 1][j];
                for (uint32_t k = 0; k < in; k++)
                    y[j] += weights[2 * l][j * in + k] * x[k];
                y[j] = last ? y[j] : activate(model->activation, y[j]);
            }
            memcpy(x, y, sizeof x);
        }
        sum += loss_of(model->loss, x, model->layers[model->num_layers - 1],
                       batch->labels[i]);
    }
    return sum;
}

static void check_differences(struct fixture *fixture,
                              const struct loader_batch *batch, float scale) {
    double *weights[MAX_PARAMETERS];
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        uint64_t elements = fixture->parameters[p].elements;
        weights[p] = malloc(elements * sizeof(double));
        for (uint64_t e = 0; e < elements; e++)
            weights[p][e] = fixture->weights[p][e];
    }
    const double step = 1e-5;
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        for (uint64_t e = 0; e < fixture->parameters[p].elements; e++) {
            double *weight = &weights[p][e], middle = *weight;
            *weight = middle + step;
            double up = loss_in_double(&fixture->model, batch, weights);
            *weight = middle - step;
            double down = loss_in_double(&fixture->model, batch, weights);
            *weight = middle;
            double expected = scale * (up - down) / (2 * step);
            double found = fixture->gradients[p][e];
            if (!(fabs(found - expected) <= 2e-6))
                fail_msg("%s[%u]: found %.9g, expected %.9g",
                         fixture->parameters[p].name, (unsigned)e, found,
                         expected);
        }
    }
    double loss = loss_in_double(&fixture->model, batch, weights);
    struct mlp_result result;
    mlp_evaluate(fixture->mlp, batch, fixture->weights, NULL, &result);
    assert_true(fabs(result.loss - loss) <= 1e-5 * loss);
    for (uint32_t p = 0; p < fixture->num_parameters; p++)
        free(weights[p]);
}

static void gradients_are_those_of_finite_differences(void **state) {
    (void)state;
    for (int activation = JOB_RELU; activation <= JOB_IDENTITY; activation++) {
        for (int loss = JOB_SOFTMAX_CROSS_ENTROPY; loss <= JOB_MSE; loss++) {
            struct job_model model = {.num_layers = 4,
                                      .layers = {5, 7, 6, 3},
                                      .activation = activation,
                                      .loss = loss};
            struct fixture fixture = {0};
            open_model(&fixture, &model);
            struct loader_batch batch = samples(&fixture, 0, 9);
            struct mlp_result result;
            mlp_gradient(fixture.mlp, &batch, fixture.weights,
                         fixture.gradients, 0.5f, false, NULL, &result);
            assert_int_equal(result.count, 9);
            check_differences(&fixture, &batch, 0.5f);
            close_model(&fixture);
        }
    }
}

static void a_single_layer_is_a_model_too(void **state) {
    (void)state;
    struct job_model model = {
        .num_layers = 2, .layers = {4, 3}, .loss = JOB_SOFTMAX_CROSS_ENTROPY};
    struct fixture fixture = {0};
    open_model(&fixture, &model);
    struct loader_batch batch = samples(&fixture, 0, 5);
    struct mlp_result result;
    mlp_gradient(fixture.mlp, &batch, fixture.weights, fixture.gradients, 1,
                 false, NULL, &result);
    check_differences(&fixture, &batch, 1);
    close_model(&fixture);
}

static const struct job_model medium = {.num_layers = 4,
                                        .layers = {33, 65, 31, 10},
                                        .activation = JOB_RELU,
                                        .loss = JOB_SOFTMAX_CROSS_ENTROPY};

/* Norm of the difference by norm. */
static double distance(const float *a, const float *b, uint64_t elements) {
    double difference = 0, size = 0;
    for (uint64_t e = 0; e < elements; e++) {
        difference += ((double)a[e] - b[e]) * ((double)a[e] - b[e]);
        size += (double)b[e] * b[e];
    }
    return sqrt(difference / size);
}

static void accumulated_parts_equal_the_whole_batch(void **state) {
    (void)state;
    static const uint32_t cuts[] = {0, 1, 8, 31, 64};
    struct fixture whole = {0}, parts = {0};
    open_model(&whole, &medium);
    open_model(&parts, &medium);
    struct mlp_result result, sum = {0};
    struct loader_batch batch = samples(&whole, 0, 64);
    mlp_gradient(whole.mlp, &batch, whole.weights, whole.gradients, 1.0f / 64,
                 false, NULL, &result);
    for (uint32_t c = 0; c < 4; c++) {
        struct mlp_result part;
        batch = samples(&parts, cuts[c], cuts[c + 1] - cuts[c]);
        mlp_gradient(parts.mlp, &batch, parts.weights, parts.gradients,
                     1.0f / 64, c > 0, NULL, &part);
        sum.loss += part.loss;
        sum.correct += part.correct;
        sum.count += part.count;
    }
    for (uint32_t p = 0; p < whole.num_parameters; p++)
        assert_true(distance(parts.gradients[p], whole.gradients[p],
                             whole.parameters[p].elements) <= 1e-6);
    assert_true(fabs(sum.loss - result.loss) <= 1e-5 * result.loss);
    assert_int_equal(sum.correct, result.correct);
    assert_int_equal(sum.count, 64);
    close_model(&whole);
    close_model(&parts);
}

static void the_same_pass_gives_the_same_bits(void **state) {
    (void)state;
    struct fixture one = {0}, two = {0};
    open_model(&one, &medium);
    open_model(&two, &medium);
    struct mlp_result first, second;
    for (uint32_t count = 1; count <= MAX_BATCH; count += 21) {
        struct loader_batch batch = samples(&one, 0, count);
        mlp_gradient(one.mlp, &batch, one.weights, one.gradients, 1, false,
                     NULL, &first);
        mlp_gradient(two.mlp, &batch, two.weights, two.gradients, 1, false,
                     NULL, &second);
        assert_memory_equal(&first.loss, &second.loss, sizeof first.loss);
        for (uint32_t p = 0; p < one.num_parameters; p++)
            assert_memory_equal(one.gradients[p], two.gradients[p],
                                one.parameters[p].elements * sizeof(float));
    }
    close_model(&one);
    close_model(&two);
}

/* A trainer at its most eager: weights come when needed and are gone when
 * done, and each gradient is taken when it is announced. */
struct eager {
    struct fixture *fixture;
    float *weights[MAX_PARAMETERS], *taken[MAX_PARAMETERS];
    uint32_t needed[2 * MAX_PARAMETERS], done[MAX_PARAMETERS];
    uint32_t num_needed, num_done;
};

static void bring_weights(void *context, uint32_t first, uint32_t count) {
    struct eager *eager = context;
    for (uint32_t p = first; p < first + count; p++) {
        eager->needed[eager->num_needed++] = p;
        memcpy(eager->fixture->weights[p], eager->weights[p],
               eager->fixture->parameters[p].elements * sizeof(float));
    }
}

static void take_gradient(void *context, uint32_t parameter) {
    struct eager *eager = context;
    struct fixture *fixture = eager->fixture;
    uint64_t elements = fixture->parameters[parameter].elements;
    eager->done[eager->num_done++] = parameter;
    memcpy(eager->taken[parameter], fixture->gradients[parameter],
           elements * sizeof(float));
    for (uint64_t e = 0; e < elements; e++)
        fixture->weights[parameter][e] = NAN;
}

static void open_eager(struct eager *eager, struct fixture *fixture) {
    eager->fixture = fixture;
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        size_t elements = fixture->parameters[p].elements;
        eager->weights[p] = malloc(elements * sizeof(float));
        eager->taken[p] = malloc(elements * sizeof(float));
        memcpy(eager->weights[p], fixture->weights[p],
               elements * sizeof(float));
        for (size_t e = 0; e < elements; e++)
            fixture->weights[p][e] = NAN;
    }
}

static void close_eager(struct eager *eager) {
    for (uint32_t p = 0; p < eager->fixture->num_parameters; p++) {
        free(eager->weights[p]);
        free(eager->taken[p]);
    }
}

static void weights_are_free_once_a_gradient_is_announced(void **state) {
    (void)state;
    struct fixture fixture = {0}, plain = {0};
    open_model(&fixture, &medium);
    open_model(&plain, &medium);
    struct loader_batch batch = samples(&fixture, 0, 40);
    struct mlp_result result;
    mlp_gradient(plain.mlp, &batch, plain.weights, plain.gradients, 1, false,
                 NULL, &result);
    struct eager eager = {0};
    open_eager(&eager, &fixture);
    struct mlp_hooks hooks = {
        .context = &eager, .need = bring_weights, .done = take_gradient};
    mlp_gradient(fixture.mlp, &batch, fixture.weights, fixture.gradients, 1,
                 false, &hooks, &result);
    assert_int_equal(eager.num_needed, 6);
    assert_int_equal(eager.num_done, 6);
    for (uint32_t p = 0; p < 6; p++) {
        size_t bytes = fixture.parameters[p].elements * sizeof(float);
        assert_int_equal(eager.needed[p], p);
        assert_int_equal(eager.done[p], 5 - p);
        assert_memory_equal(eager.taken[p], plain.gradients[p], bytes);
        assert_memory_equal(fixture.gradients[p], eager.taken[p], bytes);
    }
    mlp_evaluate(fixture.mlp, &batch, fixture.weights, &hooks, &result);
    assert_int_equal(eager.num_needed, 12);
    assert_int_equal(eager.num_done, 6);
    assert_true(isfinite(result.loss));
    close_eager(&eager);
    close_model(&fixture);
    close_model(&plain);
}

/* What a device is told of spans; what it computes has to lie in one. */
static struct { unsigned begun, ended, layers; } spans;

static void note_begin(struct ops_device *device) {
    (void)device;
    assert_int_equal(spans.begun++, spans.ended);
}

static void note_end(struct ops_device *device) {
    (void)device;
    assert_int_equal(++spans.ended, spans.begun);
}

static void note_linear(struct ops_device *device, const float *x,
                        const float *w, const float *bias, float *y, uint32_t n,
                        uint32_t in, uint32_t out,
                        enum job_activation activation) {
    assert_int_equal(spans.begun, spans.ended + 1);
    spans.layers++;
    ops_cpu()->linear(device, x, w, bias, y, n, in, out, activation);
}

/* The host may wait there, and the layers below are on their way. */
static void need_outside(void *context, uint32_t first, uint32_t count) {
    (void)context;
    assert_int_equal(spans.begun, spans.ended);
    assert_int_equal(spans.layers, first / 2);
    assert_int_equal(count, 2);
}

static void done_inside(void *context, uint32_t parameter) {
    (void)context;
    (void)parameter;
    assert_int_equal(spans.begun, spans.ended + 1);
}

static bool refuse(void *context, double loss) {
    (void)context;
    (void)loss;
    return false;
}

static void a_pass_is_a_span_that_needs_of_weights_cut(void **state) {
    static const struct mlp_hooks all[] = {
        {NULL, need_outside, NULL, done_inside},
        {NULL, NULL, NULL, done_inside},
        {NULL, NULL, refuse, NULL},
    };
    static const unsigned cuts[] = {3, 0, 0};
    struct fixture fixture = {0};
    struct mlp_result result;
    (void)state;
    open_model(&fixture, &medium);
    mlp_close(&fixture.mlp);
    struct ops noting = *ops_cpu();
    noting.begin = note_begin;
    noting.end = note_end;
    noting.linear = note_linear;
    assert_int_equal(mlp_open(&fixture.mlp, &medium, &noting, fixture.device,
                              MAX_BATCH, NULL),
                     STATUS_OK);
    struct loader_batch batch = samples(&fixture, 0, 40);
    for (int i = 0; i < 3; i++) {
        memset(&spans, 0, sizeof spans);
        mlp_gradient(fixture.mlp, &batch, fixture.weights, fixture.gradients, 1,
                     false, &all[i], &result);
        assert_int_equal(spans.ended, 1 + cuts[i]);
        assert_int_equal(spans.begun, spans.ended);
        memset(&spans, 0, sizeof spans);
        mlp_evaluate(fixture.mlp, &batch, fixture.weights, &all[i], &result);
        assert_int_equal(spans.ended, 1 + cuts[i]);
        assert_int_equal(spans.begun, spans.ended);
    }
    close_model(&fixture);
}

/* What the models below have of their device, in bytes. */
static size_t had;

static void *counted_allocate(struct ops_device *device, size_t bytes) {
    had += bytes;
    return ops_cpu()->allocate(device, bytes);
}

/* As open_model, with *BYTES: what the model itself takes for MAX_BATCH. */
static void open_counted(struct fixture *fixture, const struct job_model *model,
                         struct ops *counted, size_t *bytes) {
    open_model(fixture, model);
    mlp_close(&fixture->mlp);
    *counted = *ops_cpu();
    counted->allocate = counted_allocate;
    had = 0;
    assert_int_equal(mlp_open(&fixture->mlp, model, counted, fixture->device,
                              MAX_BATCH, NULL),
                     STATUS_OK);
    *bytes = had;
}

/* Two micro batches, the second added to the first, weights taken away as soon
 * as they may be. */
static void pass_twice(struct fixture *fixture, struct mlp_result *result) {
    struct loader_batch first = samples(fixture, 0, 33);
    struct loader_batch second = samples(fixture, 33, 7);
    mlp_gradient(fixture->mlp, &first, fixture->weights, fixture->gradients,
                 0.5f, false, NULL, result);
    struct eager eager = {0};
    open_eager(&eager, fixture);
    struct mlp_hooks hooks = {
        .context = &eager, .need = bring_weights, .done = take_gradient};
    mlp_gradient(fixture->mlp, &second, fixture->weights, fixture->gradients,
                 0.5f, true, &hooks, result);
    assert_int_equal(eager.num_needed, fixture->num_parameters);
    assert_int_equal(eager.num_done, fixture->num_parameters);
    for (uint32_t p = 0; p < fixture->num_parameters; p++) {
        assert_int_equal(eager.needed[p], p);
        assert_int_equal(eager.done[p], fixture->num_parameters - 1 - p);
        memcpy(fixture->weights[p], eager.weights[p],
               fixture->parameters[p].elements * sizeof(float));
    }
    close_eager(&eager);
}

static void expect_same_bits(struct fixture *all, struct fixture *few) {
    struct mlp_result one, two;
    pass_twice(all, &one);
    pass_twice(few, &two);
    assert_memory_equal(&one.loss, &two.loss, sizeof one.loss);
    for (uint32_t p = 0; p < all->num_parameters; p++)
        assert_memory_equal(all->gradients[p], few->gradients[p],
                            all->parameters[p].elements * sizeof(float));
    struct loader_batch batch = samples(all, 3, 64 - 3);
    mlp_evaluate(all->mlp, &batch, all->weights, NULL, &one);
    mlp_evaluate(few->mlp, &batch, few->weights, NULL, &two);
    assert_memory_equal(&one.loss, &two.loss, sizeof one.loss);
    assert_int_equal(one.correct, two.correct);
}

static const struct job_model deep[] = {
    {.num_layers = 9, .layers = {20, 65, 65, 65, 65, 65, 65, 65, 10}},
    {.num_layers = 9, .layers = {7, 1, 64, 255, 3, 130, 17, 2, 5}},
    {.num_layers = 4, .layers = {33, 65, 31, 10}},
    {.num_layers = 3, .layers = {9, 1025, 2}},
    {.num_layers = 2, .layers = {4, 3}},
};

static void computing_activations_anew_gives_the_same_bits(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof deep / sizeof *deep; m++)
        for (int activation = JOB_RELU; activation <= JOB_IDENTITY;
             activation++)
            for (uint32_t kept = 1; kept < deep[m].num_layers; kept++) {
                struct job_model model = deep[m];
                model.activation = (enum job_activation)activation;
                struct fixture all = {0}, few = {0};
                open_model(&all, &model);
                model.kept = kept;
                open_model(&few, &model);
                expect_same_bits(&all, &few);
                close_model(&all);
                close_model(&few);
            }
}

/* Seven hidden layers of 65, of which KEPT stay and the longest stretch of
 * those between them. */
static void fewer_kept_activations_take_less_memory(void **state) {
    (void)state;
    static const uint32_t rooms[] = {7, 1 + 3, 2 + 2, 3 + 1, 4 + 1, 5 + 1, 7};
    size_t all = 0;
    for (uint32_t kept = 0; kept < 7; kept++) {
        struct job_model model = deep[0];
        struct fixture fixture = {0};
        struct ops counted;
        size_t bytes;
        model.kept = kept;
        open_counted(&fixture, &model, &counted, &bytes);
        all = kept ? all : bytes;
        assert_int_equal(all - bytes,
                         MAX_BATCH * sizeof(float) * 65 * (7 - rooms[kept]));
        close_model(&fixture);
    }
}

/* On the CPU, where it is told at once too. */
static void what_settles_is_the_result_of_the_last_pass(void **state) {
    (void)state;
    struct fixture fixture = {0};
    struct mlp_result told, settled = {0};
    open_model(&fixture, &medium);
    for (uint32_t count = 1; count <= MAX_BATCH; count += 13) {
        struct loader_batch batch = samples(&fixture, 0, count);
        mlp_evaluate(fixture.mlp, &batch, fixture.weights, NULL, &told);
        assert_int_equal(mlp_settle(fixture.mlp, &settled, NULL), STATUS_OK);
        assert_int_equal(settled.count, count);
        assert_int_equal(settled.correct, told.correct);
        assert_true(settled.loss == told.loss);
    }
    close_model(&fixture);
}

static void parameters_are_those_of_torch_linear(void **state) {
    (void)state;
    struct job_model model = {.num_layers = 3, .layers = {784, 100, 10}};
    struct parameter parameters[4];
    assert_int_equal(mlp_parameters(&model, parameters), 4);
    assert_string_equal(parameters[0].name, "layer0.weight");
    assert_string_equal(parameters[1].name, "layer0.bias");
    assert_string_equal(parameters[2].name, "layer1.weight");
    assert_string_equal(parameters[3].name, "layer1.bias");
    assert_int_equal(parameters[0].num_dims, 2);
    assert_int_equal(parameters[0].dims[0], 100);
    assert_int_equal(parameters[0].dims[1], 784);
    assert_int_equal(parameters[1].num_dims, 1);
    assert_int_equal(parameters[1].dims[0], 100);
    assert_true(parameters[0].init_bound == 1.0f / 28);
    assert_true(parameters[1].init_bound == 1.0f / 28);
    assert_true(parameters[3].init_bound == 0.1f);
}

static void data_that_do_not_fit_the_model_are_named(void **state) {
    (void)state;
    struct job_model model = {.num_layers = 3, .layers = {784, 100, 10}};
    struct dataset data = {.count = 1, .features = 784, .num_classes = 10};
    struct failure why;
    assert_int_equal(mlp_check_data(&model, &data, "images", "labels", &why),
                     STATUS_OK);
    data.num_classes = 11;
    assert_int_equal(mlp_check_data(&model, &data, "images", "labels", &why),
                     STATUS_CONFIG);
    assert_string_equal(why.text,
                        "model.layers[2]: found 10 outputs, expected 11 or "
                        "more: the largest label in labels is 10");
    data = (struct dataset){.count = 1, .features = 783, .num_classes = 10};
    assert_int_equal(mlp_check_data(&model, &data, "images", "labels", &why),
                     STATUS_CONFIG);
    assert_non_null(
        strstr(why.text, "expected 783, the bytes of an image in images"));
}

#define FASHION "/usr/share/datasets/fashion-mnist/"

static void descend(struct fixture *fixture, float rate) {
    for (uint32_t p = 0; p < fixture->num_parameters; p++)
        for (uint64_t e = 0; e < fixture->parameters[p].elements; e++)
            fixture->weights[p][e] -= rate * fixture->gradients[p][e];
}

static double test_accuracy(struct fixture *fixture) {
    struct dataset *test = NULL;
    struct loader *loader = NULL;
    assert_int_equal(dataset_load(&test, FASHION "t10k-images-idx3-ubyte.gz",
                                  FASHION "t10k-labels-idx1-ubyte.gz", NULL),
                     STATUS_OK);
    struct sampler_options options = {
        .num_samples = test->count, .num_ranks = 1, .micro_batch = MAX_BATCH};
    assert_int_equal(loader_open(&loader, test, &options, 0,
                                 (struct loader_ahead){1, 2}, NULL),
                     STATUS_OK);
    uint32_t correct = 0, count = 0;
    while (count < test->count) {
        struct mlp_result result;
        mlp_evaluate(fixture->mlp, loader_next(loader), fixture->weights, NULL,
                     &result);
        correct += result.correct;
        count += result.count;
    }
    assert_int_equal(count, 10000);
    loader_close(&loader);
    dataset_free(&test);
    return (double)correct / count;
}

static void two_hundred_steps_learn_fashion_mnist(void **state) {
    (void)state;
    if (access(FASHION, R_OK)) {
        print_message("skipped: %s is not here (dataset-fashion-mnist)\n",
                      FASHION);
        skip();
    }
    struct job_model model = {.num_layers = 4,
                              .layers = {784, 128, 64, 10},
                              .activation = JOB_RELU,
                              .loss = JOB_SOFTMAX_CROSS_ENTROPY};
    struct fixture fixture = {0};
    open_model(&fixture, &model);
    struct dataset *train = NULL;
    struct loader *loader = NULL;
    struct failure why;
    assert_int_equal(dataset_load(&train, FASHION "train-images-idx3-ubyte.gz",
                                  FASHION "train-labels-idx1-ubyte.gz", &why),
                     STATUS_OK);
    assert_int_equal(mlp_check_data(&model, train, "images", "labels", &why),
                     STATUS_OK);
    struct sampler_options options = {.num_samples = train->count,
                                      .num_ranks = 1,
                                      .micro_batch = MAX_BATCH,
                                      .seed = 1,
                                      .shuffle = true};
    assert_int_equal(loader_open(&loader, train, &options, 0,
                                 (struct loader_ahead){1, 4}, &why),
                     STATUS_OK);
    double first = 0, last = 0;
    for (int step = 0; step < 200; step++) {
        struct mlp_result result;
        mlp_gradient(fixture.mlp, loader_next(loader), fixture.weights,
                     fixture.gradients, 1.0f / MAX_BATCH, false, NULL, &result);
        first = step == 0 ? result.loss / MAX_BATCH : first;
        last += step >= 190 ? result.loss / MAX_BATCH / 10 : 0;
        descend(&fixture, 0.1f);
    }
    assert_true(fabs(first - log(10)) < 0.1);
    assert_true(last < 0.85);
    assert_true(test_accuracy(&fixture) > 0.7);
    loader_close(&loader);
    dataset_free(&train);
    close_model(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_finite_differences),
        cmocka_unit_test(a_single_layer_is_a_model_too),
        cmocka_unit_test(accumulated_parts_equal_the_whole_batch),
        cmocka_unit_test(the_same_pass_gives_the_same_bits),
        cmocka_unit_test(weights_are_free_once_a_gradient_is_announced),
        cmocka_unit_test(a_pass_is_a_span_that_needs_of_weights_cut),
        cmocka_unit_test(computing_activations_anew_gives_the_same_bits),
        cmocka_unit_test(fewer_kept_activations_take_less_memory),
        cmocka_unit_test(what_settles_is_the_result_of_the_last_pass),
        cmocka_unit_test(parameters_are_those_of_torch_linear),
        cmocka_unit_test(data_that_do_not_fit_the_model_are_named),
        cmocka_unit_test(two_hundred_steps_learn_fashion_mnist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
