/* SPDX-License-Identifier: Apache-2.0 */
/* What real processes learn from a click log in Criteo's format, beside the
 * same logistic regression in double precision: the same samples, batches and
 * updates, and the AUC and the log loss of what came out. */
#include "tests/bench/click_log.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/json_number.h"
#include "tests/lib/rule_oracle.h"
#include "tests/lib/test.h"

#include <math.h>

enum { TRAIN = 200000, TEST = 50000, BATCH = 1024 };
enum { NUMBERS = CLICK_LOG_NUMBERS, FIELDS = CLICK_LOG_FIELDS };
enum { DENSE = 1 + NUMBERS /* the bias, and weights of numbers */ };

/* Of the AUC, and of the log loss as a share: roundings to float give less than
 * a tenth of it. */
static const double tolerance = 1e-5;

static struct click_log *open_log(struct click_log_options *options) {
    struct click_log *log;
    *options = click_log_defaults();
    assert_ok(click_log_open(&log, options, &failure));
    return log;
}

static void write_rows(const struct cluster_run *run, const char *name,
                       uint64_t first, uint64_t count) {
    struct click_log_options options;
    struct click_log *log = open_log(&options);
    char text[CLICK_LOG_ROW_BYTES];
    struct click_row row;
    FILE *file = fopen(cluster_run_path(run, name), "w");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++) {
        click_log_row(log, first + i, &row);
        size_t size = click_log_criteo(log, &row, text);
        assert_int_equal(fwrite(text, 1, size, file), size);
    }
    assert_int_equal(fclose(file), 0);
    click_log_close(&log);
}

static int setup(void **state) {
    int failed = cluster_run_setup(state);
    if (!failed) {
        write_rows(*state, "train.tsv", 0, TRAIN);
        write_rows(*state, "test.tsv", TRAIN, TEST);
    }
    return failed;
}

FIXTURE(setup, cluster_run_teardown);

/* OPTIMIZER: a JSON object. Missing numbers count as the default_value 64. */
static void write_job(const struct cluster_run *run, const char *optimizer) {
    json_error_t error;
    json_t *features = json_object(), *names = json_array();
    for (int i = 1; i <= NUMBERS + FIELDS; i++) {
        bool number = i <= NUMBERS;
        const char *name =
            textf(number ? "I%d" : "C%d", number ? i : i - NUMBERS);
        json_array_append_new(names, json_string(name));
        json_object_set_new(features, name,
                            number ? json_pack("{s:s, s:s, s:i}", "type",
                                               "numeric", "transform", "log1p",
                                               "default_value", 64)
                                   : json_pack("{s:s}", "type", "hash_bucket"));
    }
    json_t *job = json_pack(
        "{s:{s:s, s:o}, s:o, s:{s:s, s:s, s:s, s:b}, s:i, s:n, s:i, s:i, s:o}",
        "model", "type", "linear", "features", names, "features", features,
        "data", "format", "criteo", "train", "train.tsv", "test", "test.tsv",
        "shuffle", 0, "train_batch_size", BATCH,
        "train_micro_batch_size_per_gpu", "threads", 1, "epochs", 1,
        "optimizer", json_loads(optimizer, 0, &error));
    assert_non_null(job);
    char *text = json_dumps(job, 0);
    assert_non_null(text);
    cluster_run_job(run, text);
    free(text);
    json_decref(job);
}

/* A weight and the sum of its gradients in a batch that has it. */
struct weight {
    struct rule_oracle state;
    double gradient;
    bool touched;
};

/* The regression in double: DENSE weights, then those of the categories. */
struct regression {
    const struct optimizer *rule;
    double rate;
    uint64_t step;
    uint32_t first[FIELDS], num_touched;
    struct weight *weights, *touched[DENSE + BATCH * FIELDS];
};

/* A sample's weights and what each is multiplied by. */
struct sample {
    uint32_t count;
    struct weight *weights[DENSE + FIELDS];
    double inputs[DENSE + FIELDS];
    bool clicked;
};

static struct regression *regression_open(const struct optimizer *rule,
                                          double rate,
                                          const uint32_t *cardinality) {
    struct regression *r = calloc(1, sizeof *r);
    uint32_t count = DENSE;
    assert_non_null(r);
    r->rule = rule;
    r->rate = rate;
    for (int f = 0; f < FIELDS; f++) {
        r->first[f] = count;
        count += cardinality[f];
    }
    r->weights = calloc(count, sizeof *r->weights);
    assert_non_null(r->weights);
    for (uint32_t i = 0; i < count; i++)
        r->weights[i].state.sum = rule->initial_accumulator_value;
    return r;
}

static void take_sample(const struct click_log *log, uint64_t number,
                        struct regression *r, struct sample *sample) {
    struct click_row row;
    click_log_row(log, number, &row);
    sample->clicked = row.clicked;
    sample->count = DENSE;
    for (uint32_t i = 0; i < DENSE; i++) {
        uint32_t value = i ? row.numbers[i - 1] : 0;
        sample->weights[i] = &r->weights[i];
        sample->inputs[i] =
            i ? log1p(value == CLICK_LOG_MISSING ? 64 : value) : 1;
    }
    for (int f = 0; f < FIELDS; f++)
        if (row.categories[f] != CLICK_LOG_MISSING) {
            sample->weights[sample->count] =
                &r->weights[r->first[f] + row.categories[f]];
            sample->inputs[sample->count++] = 1;
        }
}

static double logit_of(const struct sample *sample) {
    double sum = 0;
    for (uint32_t i = 0; i < sample->count; i++)
        sum += sample->weights[i]->state.weight * sample->inputs[i];
    return sum;
}

/* One update with the mean over COUNT samples from FIRST on. Adam counts the
 * updates of a partition of rows: each batch here touches all partitions. */
static void train_batch(const struct click_log *log, struct regression *r,
                        uint64_t first, uint64_t count) {
    struct sample sample;
    r->num_touched = 0;
    r->step++;
    for (uint64_t s = 0; s < count; s++) {
        take_sample(log, first + s, r, &sample);
        double delta = (1 / (1 + exp(-logit_of(&sample))) - sample.clicked) /
                       (double)count;
        for (uint32_t i = 0; i < sample.count; i++) {
            struct weight *weight = sample.weights[i];
            if (!weight->touched)
                r->touched[r->num_touched++] = weight;
            weight->touched = true;
            weight->gradient += delta * sample.inputs[i];
        }
    }
    for (uint32_t i = 0; i < r->num_touched; i++) {
        struct weight *weight = r->touched[i];
        rule_oracle_step(r->rule, r->rate, r->step, weight->gradient,
                         &weight->state);
        weight->gradient = 0;
        weight->touched = false;
    }
}

struct score {
    double logit;
    bool clicked;
};

static int by_logit(const void *a, const void *b) {
    double left = ((const struct score *)a)->logit,
           right = ((const struct score *)b)->logit;
    return (left > right) - (left < right);
}

/* By the sum of the ranks of the clicked (Mann, Whitney 1947); equal logits do
 * not occur in double but by chance. */
static double auc_of(struct score *scores) {
    double ranks = 0, clicks = 0;
    qsort(scores, TEST, sizeof *scores, by_logit);
    for (uint32_t i = 0; i < TEST; i++)
        if (scores[i].clicked) {
            ranks += i + 1;
            clicks++;
        }
    return (ranks - clicks * (clicks + 1) / 2) / (clicks * (TEST - clicks));
}

/* Trains as the job does; the loss and the AUC of the test set. */
static void exact_figures(const struct optimizer *rule, double rate,
                          double *loss, double *auc) {
    struct click_log_options options;
    struct click_log *log = open_log(&options);
    struct regression *r = regression_open(rule, rate, options.cardinality);
    struct score *scores = calloc(TEST, sizeof *scores);
    struct sample sample;
    assert_non_null(scores);
    for (uint64_t at = 0; at < TRAIN; at += BATCH)
        train_batch(log, r, at, TRAIN - at < BATCH ? TRAIN - at : BATCH);
    *loss = 0;
    for (uint64_t i = 0; i < TEST; i++) {
        take_sample(log, TRAIN + i, r, &sample);
        double logit = logit_of(&sample);
        scores[i] = (struct score){logit, sample.clicked};
        *loss += log1p(exp(sample.clicked ? -logit : logit)) / TEST;
    }
    *auc = auc_of(scores);
    free(scores);
    free(r->weights);
    free(r);
    click_log_close(&log);
}

static void expect_exact(struct cluster_run *run, unsigned num_ps,
                         unsigned num_workers, const char *optimizer,
                         const struct optimizer *rule, double rate) {
    double loss, auc;
    write_job(run, optimizer);
    struct cluster_process *process = cluster_fixture_local(
        run, num_ps, num_workers, WORDS("checkpoint.dir=null"));
    cluster_run_expect(process, 0, 4 * CLUSTER_RUN_DEADLINE);
    const json_t *summary = cluster_run_json(process);
    exact_figures(rule, rate, &loss, &auc);
    double its_loss = number_at(summary, "test_logloss"),
           its_auc = number_at(summary, "test_auc");
    print_message("# AUC %.8f, in double %.8f; logloss %.8f, in double %.8f\n",
                  its_auc, auc, its_loss, loss);
    assert_true(auc > 0.65);
    assert_true(fabs(its_auc - auc) < tolerance);
    assert_true(fabs(its_loss / loss - 1) < tolerance);
}

TEST(ftrl_learns_what_it_does_in_double) {
    static const struct optimizer rule = {.type = OPTIMIZER_FTRL,
                                          .initial_accumulator_value = 1e-3,
                                          .learning_rate_power = -0.5,
                                          .l1 = 1e-5,
                                          .l2 = 1e-5};
    expect_exact(*state, 1, 1,
                 "{\"type\": \"Ftrl\", \"params\": {\"lr\": 0.1,"
                 " \"initial_accumulator_value\": 1e-3,"
                 " \"l1_regularization_strength\": 1e-5,"
                 " \"l2_regularization_strength\": 1e-5}}",
                 &rule, 0.1);
}

/* A batch is in two halves, every second sample in each. */
TEST(adagrad_learns_it_on_two_workers) {
    static const struct optimizer rule = {.type = OPTIMIZER_ADAGRAD,
                                          .initial_accumulator_value = 1e-5,
                                          .eps = 1e-10};
    expect_exact(*state, 2, 2,
                 "{\"type\": \"Adagrad\", \"params\": {\"lr\": 0.02,"
                 " \"initial_accumulator_value\": 1e-5}}",
                 &rule, 0.02);
}

TEST(adam_learns_it) {
    static const struct optimizer rule = {
        .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    expect_exact(*state, 1, 1,
                 "{\"type\": \"Adam\", \"params\": {\"lr\": 0.004}}", &rule,
                 0.004);
}
