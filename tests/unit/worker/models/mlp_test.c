/* SPDX-License-Identifier: Apache-2.0 */
/* A model's gradients beside finite differences of its loss in double
 * precision, and two hundred steps that have to learn. */
#include "core/tensor/philox.h"
#include "tests/lib/test.h"
#include "worker/data/idx_dataset.h"
#include "worker/data/loader.h"
#include "worker/models/mlp.h"

#include "tests/lib/activation_oracle.h"
#include "tests/lib/mlp_fixture.h"
#include "tests/lib/skip.h"

#include <math.h>
#include <unistd.h>

/* The same model in double, from its definition. */

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
static double loss_in_double(const struct mlp_settings *model,
                             const struct batch *batch,
                             double *const *weights) {
    const struct job_widths *widths = &model->layers;
    const float *inputs = batch->columns[MLP_INPUTS];
    const uint32_t *labels = batch->columns[MLP_LABELS];
    double sum = 0, x[64], y[64];
    for (uint32_t i = 0; i < batch->count; i++) {
        for (uint32_t k = 0; k < widths->items[0]; k++)
            x[k] = inputs[i * widths->items[0] + k];
        for (uint32_t l = 0; l + 1 < widths->count; l++) {
            uint32_t in = widths->items[l], out = widths->items[l + 1];
            bool last = l + 2 == widths->count;
            for (uint32_t j = 0; j < out; j++) {
                y[j] = weights[2 * l + 1][j];
                for (uint32_t k = 0; k < in; k++)
                    y[j] += weights[2 * l][j * in + k] * x[k];
                y[j] = last ? y[j] : activation_oracle(model->activation, y[j]);
            }
            memcpy(x, y, sizeof x);
        }
        sum += loss_of(model->loss, x, widths->items[widths->count - 1],
                       labels[i]);
    }
    return sum;
}

static void check_differences(struct mlp_fixture *fixture,
                              const struct batch *batch, float scale) {
    double *weights[MLP_PARAMETERS];
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
            double up = loss_in_double(&fixture->settings, batch, weights);
            *weight = middle - step;
            double down = loss_in_double(&fixture->settings, batch, weights);
            *weight = middle;
            double expected = scale * (up - down) / (2 * step);
            double found = fixture->gradients[p][e];
            if (!(fabs(found - expected) <= 2e-6))
                fail_msg("%s[%u]: found %.9g, expected %.9g",
                         fixture->parameters[p].name, (unsigned)e, found,
                         expected);
        }
    }
    double loss = loss_in_double(&fixture->settings, batch, weights);
    struct model_result result;
    model_mlp.evaluate(fixture->mlp, batch, fixture->weights, NULL, &result);
    assert_true(fabs(result.loss - loss) <= 1e-5 * loss);
    for (uint32_t p = 0; p < fixture->num_parameters; p++)
        free(weights[p]);
}

TEST(gradients_are_those_of_finite_differences) {
    for (int activation = JOB_RELU; activation <= JOB_IDENTITY; activation++) {
        for (int loss = JOB_SOFTMAX_CROSS_ENTROPY; loss <= JOB_MSE; loss++) {
            struct mlp_settings settings = {.layers = {4, {5, 7, 6, 3}},
                                            .activation = activation,
                                            .loss = loss};
            struct job_model model = {.settings = &settings};
            struct mlp_fixture fixture = {0};
            mlp_fixture_open(&fixture, &model);
            struct batch batch = mlp_fixture_samples(&fixture, 0, 9);
            struct model_result result;
            model_mlp.gradient(fixture.mlp, &batch, fixture.weights,
                               fixture.gradients, 0.5f, false, NULL, &result);
            assert_int_equal(result.count, 9);
            check_differences(&fixture, &batch, 0.5f);
            mlp_fixture_close(&fixture);
        }
    }
}

TEST(a_single_layer_is_a_valid_model) {
    const struct mlp_settings settings = {.layers = {2, {4, 3}},
                                          .loss = JOB_SOFTMAX_CROSS_ENTROPY};
    struct job_model model = {.settings = &settings};
    struct mlp_fixture fixture = {0};
    mlp_fixture_open(&fixture, &model);
    struct batch batch = mlp_fixture_samples(&fixture, 0, 5);
    struct model_result result;
    model_mlp.gradient(fixture.mlp, &batch, fixture.weights, fixture.gradients,
                       1, false, NULL, &result);
    check_differences(&fixture, &batch, 1);
    mlp_fixture_close(&fixture);
}

/* Norm of the difference by norm. */
static double distance(const float *a, const float *b, uint64_t elements) {
    double difference = 0, size = 0;
    for (uint64_t e = 0; e < elements; e++) {
        difference += ((double)a[e] - b[e]) * ((double)a[e] - b[e]);
        size += (double)b[e] * b[e];
    }
    return sqrt(difference / size);
}

TEST(accumulated_parts_equal_the_whole_batch) {
    static const uint32_t cuts[] = {0, 1, 8, 31, 64};
    struct mlp_fixture whole = {0}, parts = {0};
    mlp_fixture_open(&whole, &mlp_medium);
    mlp_fixture_open(&parts, &mlp_medium);
    struct model_result result, sum = {0};
    struct batch batch = mlp_fixture_samples(&whole, 0, 64);
    model_mlp.gradient(whole.mlp, &batch, whole.weights, whole.gradients,
                       1.0f / 64, false, NULL, &result);
    for (uint32_t c = 0; c < 4; c++) {
        struct model_result part;
        batch = mlp_fixture_samples(&parts, cuts[c], cuts[c + 1] - cuts[c]);
        model_mlp.gradient(parts.mlp, &batch, parts.weights, parts.gradients,
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
    mlp_fixture_close(&whole);
    mlp_fixture_close(&parts);
}

TEST(the_same_pass_gives_the_same_bits) {
    struct mlp_fixture one = {0}, two = {0};
    mlp_fixture_open(&one, &mlp_medium);
    mlp_fixture_open(&two, &mlp_medium);
    struct model_result first, second;
    for (uint32_t count = 1; count <= MLP_BATCH; count += 21) {
        struct batch batch = mlp_fixture_samples(&one, 0, count);
        model_mlp.gradient(one.mlp, &batch, one.weights, one.gradients, 1,
                           false, NULL, &first);
        model_mlp.gradient(two.mlp, &batch, two.weights, two.gradients, 1,
                           false, NULL, &second);
        assert_memory_equal(&first.loss, &second.loss, sizeof first.loss);
        for (uint32_t p = 0; p < one.num_parameters; p++)
            assert_memory_equal(one.gradients[p], two.gradients[p],
                                one.parameters[p].elements * sizeof(float));
    }
    mlp_fixture_close(&one);
    mlp_fixture_close(&two);
}

/* On the CPU, where it is told at once too. */
TEST(the_settled_result_is_that_of_the_last_pass) {
    struct mlp_fixture fixture = {0};
    struct model_result result, settled = {0};
    mlp_fixture_open(&fixture, &mlp_medium);
    for (uint32_t count = 1; count <= MLP_BATCH; count += 13) {
        struct batch batch = mlp_fixture_samples(&fixture, 0, count);
        model_mlp.evaluate(fixture.mlp, &batch, fixture.weights, NULL, &result);
        assert_int_equal(model_mlp.settle(fixture.mlp, &settled, NULL),
                         STATUS_OK);
        assert_int_equal(settled.count, count);
        assert_int_equal(settled.correct, result.correct);
        assert_true(settled.loss == result.loss);
    }
    mlp_fixture_close(&fixture);
}

TEST(parameters_are_those_of_torch_linear) {
    const struct mlp_settings settings = {.layers = {3, {784, 100, 10}}};
    struct job_model model = {.settings = &settings};
    struct parameter parameters[4];
    assert_int_equal(model_mlp.parameters(&model, NULL, parameters), 4);
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

TEST(data_that_do_not_match_the_model_are_named) {
    const struct mlp_settings settings = {.layers = {3, {784, 100, 10}}};
    struct job_model model = {.settings = &settings};
    struct dataset data = {.count = 1, .features = 784, .num_classes = 10};
    const struct job_files files = {{"images", "labels"}};
    assert_ok(model_mlp.check_data(&model, &data, &files, &failure));
    data.num_classes = 11;
    assert_error(model_mlp.check_data(&model, &data, &files, &failure),
                 FAILURE_DATA_MISMATCH);
    assert_string_equal(failure.text,
                        "model.layers[2]: found 10 outputs, expected 11 or "
                        "more: the largest label in labels is 10");
    data = (struct dataset){.count = 1, .features = 783, .num_classes = 10};
    assert_error(model_mlp.check_data(&model, &data, &files, &failure),
                 FAILURE_DATA_MISMATCH);
    assert_contains(failure.text,
                    "expected 783, the values of an image in images");
}

#define FASHION "/usr/share/datasets/fashion-mnist/"

static void descend(struct mlp_fixture *fixture, float rate) {
    for (uint32_t p = 0; p < fixture->num_parameters; p++)
        for (uint64_t e = 0; e < fixture->parameters[p].elements; e++)
            fixture->weights[p][e] -= rate * fixture->gradients[p][e];
}

static double test_accuracy(struct mlp_fixture *fixture) {
    struct dataset *test = NULL;
    struct loader *loader = NULL;
    assert_int_equal(
        idx_dataset_load(&test, FASHION "t10k-images-idx3-ubyte.gz",
                         FASHION "t10k-labels-idx1-ubyte.gz", NULL, NULL),
        STATUS_OK);
    struct batch_spec spec;
    struct job_model model = {.settings = &fixture->settings};
    model_mlp.inputs(&model, NULL, &spec);
    struct sampler_options options = {.num_ranks = 1, .micro_batch = MLP_BATCH};
    assert_int_equal(loader_open(&loader, test, &spec, &options, 0,
                                 (struct loader_prefetch){1, 2}, NULL),
                     STATUS_OK);
    const struct batch *batch;
    uint32_t correct = 0, count = 0;
    while (count < test->count) {
        struct model_result result;
        assert_int_equal(loader_next(loader, &batch, NULL), STATUS_OK);
        model_mlp.evaluate(fixture->mlp, batch, fixture->weights, NULL,
                           &result);
        correct += result.correct;
        count += result.count;
    }
    assert_int_equal(count, 10000);
    loader_close(&loader);
    dataset_free(&test);
    return (double)correct / count;
}

TEST(two_hundred_steps_learn_fashion_mnist) {
    if (access(FASHION, R_OK))
        skip_test("%s is not here (dataset-fashion-mnist)", FASHION);
    const struct mlp_settings settings = {.layers = {4, {784, 128, 64, 10}},
                                          .activation = JOB_RELU,
                                          .loss = JOB_SOFTMAX_CROSS_ENTROPY};
    struct job_model model = {.settings = &settings};
    struct mlp_fixture fixture = {0};
    mlp_fixture_open(&fixture, &model);
    struct dataset *train = NULL;
    struct loader *loader = NULL;
    const struct job_files files = {{"images", "labels"}};
    assert_ok(idx_dataset_load(&train, FASHION "train-images-idx3-ubyte.gz",
                               FASHION "train-labels-idx1-ubyte.gz", NULL,
                               &failure));
    assert_ok(model_mlp.check_data(&model, train, &files, &failure));
    struct batch_spec spec;
    model_mlp.inputs(&model, NULL, &spec);
    struct sampler_options options = {
        .num_ranks = 1, .micro_batch = MLP_BATCH, .seed = 1, .shuffle = true};
    assert_ok(loader_open(&loader, train, &spec, &options, 0,
                          (struct loader_prefetch){1, 4}, &failure));
    double first = 0, last = 0;
    const struct batch *batch;
    for (int step = 0; step < 200; step++) {
        struct model_result result;
        assert_ok(loader_next(loader, &batch, &failure));
        model_mlp.gradient(fixture.mlp, batch, fixture.weights,
                           fixture.gradients, 1.0f / MLP_BATCH, false, NULL,
                           &result);
        first = step == 0 ? result.loss / MLP_BATCH : first;
        last += step >= 190 ? result.loss / MLP_BATCH / 10 : 0;
        descend(&fixture, 0.1f);
    }
    assert_true(fabs(first - log(10)) < 0.1);
    assert_true(last < 0.85);
    assert_true(test_accuracy(&fixture) > 0.7);
    loader_close(&loader);
    dataset_free(&train);
    mlp_fixture_close(&fixture);
}

enum { NUMBERS = 2, ROWS = 3, JOINED = NUMBERS + ROWS, OUTPUTS = 3 };

static float *draw(size_t count, uint64_t stream) {
    float *values = calloc(count + 1, sizeof *values);
    assert_non_null(values);
    philox_uniform(11, stream, 0, 1, values, count);
    return values;
}

/* An instance over NUMBERS and ROWS of a sample in columns of their own, or
 * over all in one. */
static struct model_instance *open_over(const struct job_model *model,
                                        struct device *device, uint32_t numbers,
                                        uint32_t rows) {
    struct batch_spec spec = {0};
    struct model_instance *mlp;
    if (numbers)
        spec.columns[spec.num_columns++] =
            (struct batch_column){.type = BATCH_FLOATS, .width = numbers};
    spec.columns[spec.num_columns++] = (struct batch_column){
        .type = BATCH_CLASSES, .width = 1, .num_classes = OUTPUTS};
    if (rows)
        spec.columns[spec.num_columns++] =
            (struct batch_column){.type = BATCH_ROWS, .width = rows};
    assert_ok(
        model_mlp.open(&mlp, model, &spec, ops_cpu(), device, 1, &failure));
    return mlp;
}

/* A layer's bias has the gradient of its sums, of one sample. */
static void expect_row_gradient(const float *of_bias, const float *weight,
                                const float *found, uint32_t first,
                                uint32_t count) {
    for (uint32_t j = 0; j < count; j++) {
        double expected = 0;
        for (uint32_t o = 0; o < 4; o++)
            expected +=
                (double)of_bias[o] * (double)weight[o * JOINED + first + j];
        if (!(fabs((double)found[j] - expected) <= 1e-6))
            fail_msg("row value %u: found %g, expected %g", j, (double)found[j],
                     expected);
    }
}

/* Numbers and rows side by side are the inputs of an MLP over one column, and
 * rows alone are. */
TEST(rows_are_inputs_and_get_their_gradient) {
    static const struct mlp_settings settings = {
        .layers = {3, {JOINED, 4, OUTPUTS}}, .activation = JOB_TANH};
    const struct job_model model = {.type = JOB_MLP, .settings = &settings};
    static const size_t sizes[] = {4 * JOINED, 4, OUTPUTS * 4, OUTPUTS};
    struct device *device;
    float *inputs = draw(JOINED, 1), *weights[4], *gradients[3][4];
    float of_rows[2][JOINED];
    uint32_t label = 2;
    struct model_result results[3];
    assert_int_equal(ops_cpu_open(&device, 1, NULL), STATUS_OK);
    for (int p = 0; p < 4; p++) {
        weights[p] = draw(sizes[p], 10 + p);
        for (int i = 0; i < 3; i++)
            gradients[i][p] = draw(sizes[p], 99);
    }
    struct model_instance *of[] = {open_over(&model, device, JOINED, 0),
                                   open_over(&model, device, NUMBERS, ROWS),
                                   open_over(&model, device, 0, JOINED)};
    struct batch batches[] = {{.count = 1, .columns = {inputs, &label}},
                              {.count = 1,
                               .columns = {inputs, &label, inputs + NUMBERS},
                               .gradients = {NULL, NULL, of_rows[0]}},
                              {.count = 1,
                               .columns = {&label, inputs},
                               .gradients = {NULL, of_rows[1]}}};
    for (int i = 0; i < 3; i++) {
        model_mlp.gradient(of[i], &batches[i], weights, gradients[i], 1, false,
                           NULL, &results[i]);
        assert_true(results[i].loss == results[0].loss);
        for (int p = 0; p < 4; p++)
            assert_memory_equal(gradients[i][p], gradients[0][p],
                                sizes[p] * sizeof(float));
        model_mlp.close(&of[i]);
    }
    expect_row_gradient(gradients[0][1], weights[0], of_rows[0], NUMBERS, ROWS);
    expect_row_gradient(gradients[0][1], weights[0], of_rows[1], 0, JOINED);
    for (int p = 0; p < 4; p++) {
        free(weights[p]);
        for (int i = 0; i < 3; i++)
            free(gradients[i][p]);
    }
    free(inputs);
    ops_cpu_close(&device);
}
