/* SPDX-License-Identifier: Apache-2.0 */
/* Each key of a job file, by one table of what it takes and what it refuses,
 * which has to have every key of the schema; and texts spoilt at random. */
#define STATE struct job_fixture *fixture

#include "proto/job/job.h"

#include "proto/job/job_schema.h"
#include "proto/job/job_value.h"
#include "tests/lib/job_fixture.h"
#include "tests/lib/test.h"
#include "worker/models/mlp.h"
#include "worker/models/model.h"
#include "worker/models/ranker.h"

FIXTURE(job_fixture_setup, job_fixture_teardown);

TEST(the_documented_example_loads_unchanged) {
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_example, NULL, NULL));
    const struct job *job = fixture->job;
    const struct mlp_settings *mlp = job->model.settings;
    assert_int_equal(mlp->layers.count, 4);
    assert_int_equal(mlp->layers.items[3], 10);
    assert_string_equal(
        job->data.train.paths[1],
        "/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz");
    assert_string_equal(
        job->data.test.paths[0],
        "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz");
    assert_true(job->data.shuffle);
    assert_int_equal(job->epochs, 5);
    assert_false(job->has_steps);
    assert_int_equal(job->micro_batch, 64);
    assert_true(job->schedule.lr == 0.05 && job->optimizer.momentum == 0.9);
    assert_int_equal(job->schedule.type, SCHEDULE_WARMUP_DECAY);
    assert_int_equal(job->schedule.total_num_steps, 4000);
    assert_int_equal(job->strategy, JOB_PS);
    assert_int_equal(job->chief, JOB_CHIEF_COORDINATE);
    assert_int_equal(job->checkpoint.every_steps, 500);
    assert_true(job->checkpoint.every_seconds == 0);
    assert_true(job->timeouts.step == 1800);
    assert_string_equal(job->events_dir,
                        textf("%s/run/events/fashion", fixture->folder));
}

TEST(the_minimal_job_has_the_documented_defaults) {
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_least, NULL, NULL));
    const struct job *job = fixture->job;
    const struct mlp_settings *mlp = job->model.settings;
    assert_int_equal(mlp->loss, JOB_SOFTMAX_CROSS_ENTROPY);
    assert_null(job->data.test.paths[0]);
    assert_true(job->data.shuffle && !job->data.drop_last);
    assert_int_equal(job->strategy, JOB_STRATEGY_UNSET);
    assert_int_equal(job->chief, JOB_CHIEF_UNSET);
    assert_int_equal(job->workers, 0);
    assert_int_equal(job->device, JOB_DEVICE_AUTO);
    assert_int_equal(job->threads, 1);
    assert_null(job->checkpoint.dir);
    assert_true(job->checkpoint.every_seconds == 600);
    assert_int_equal(job->checkpoint.resume, JOB_RESUME_AUTO);
    assert_true(!job->tensorboard && !job->events_dir && !job->export_path);
    assert_true(job->timeouts.join == 600 && job->timeouts.peer == 30 &&
                job->timeouts.grace == 30 && job->timeouts.stop == 5);
}

/* The least job with records. */
static const char csv_job[] =
    "{\"model\": {\"layers\": [4, 2]}, \"data\": {\"train\": \"a.csv\","
    " \"format\": \"csv\", \"columns\": [\"a\", \"label\"]},"
    " \"steps\": 10, \"train_micro_batch_size_per_gpu\": 8,"
    " \"optimizer\": {\"type\": \"SGD\"}}";

static const struct setting {
    const char *right, *wrong_type, *out_of_range; /* NULL: none such */
} settings[] = {
    {"defaults=tf", "defaults=1", "defaults=keras"},
    {"model.type=mlp", "model.type=1", "model.type=cnn"},
    {"model.layers=[3,2,1]", "model.layers=3", "model.layers=[3]"},
    {"model.activation=tanh", "model.activation=[]", "model.activation=elu"},
    {"model.loss=mse", "model.loss=2", "model.loss=hinge"},
    {"activation_checkpointing.number_checkpoints=24",
     "activation_checkpointing.number_checkpoints=all",
     "activation_checkpointing.number_checkpoints=-1"},
    {"data.format=idx", "data.format={}", "data.format=parquet"},
    {"data.dir=/x", "data.dir=3", "data.dir="},
    {"data.train=[\"a\",\"b\"]", "data.train=a", "data.train=[\"a\"]"},
    {"data.test=[\"a\",\"b\"]", "data.test=[1,2]", "data.test=[\"a\",\"\"]"},
    {"data.shuffle=false", "data.shuffle=0", NULL},
    {"data.drop_last=true", "data.drop_last=yes", NULL},
    {"data.num_workers=0", "data.num_workers=one", "data.num_workers=65"},
    {"data.prefetch_factor=4", "data.prefetch_factor=true",
     "data.prefetch_factor=0"},
    {"data.pin_memory=true", "data.pin_memory=1", NULL},
    {"seed=9223372036854774784", "seed=x", "seed=-1"},
    {"epochs=3", "epochs=1.5", "epochs=0"},
    {"steps=0", "steps=all", "steps=-1"},
    {"steps_per_epoch=7", "steps_per_epoch=[7]", "steps_per_epoch=0"},
    {"train_batch_size=32", "train_batch_size=x", "train_batch_size=0"},
    {"train_micro_batch_size_per_gpu=64.0", "train_micro_batch_size_per_gpu={}",
     "train_micro_batch_size_per_gpu=16777217"},
    {"gradient_accumulation_steps=2", "gradient_accumulation_steps=2.5",
     "gradient_accumulation_steps=0"},
    {"gradient_clipping=1", "gradient_clipping=x", "gradient_clipping=-1"},
    {"fp16.enabled=true", "fp16.enabled=1", NULL},
    {"fp16.loss_scale=128", "fp16.loss_scale=x", "fp16.loss_scale=-1"},
    {"fp16.initial_scale_power=32", "fp16.initial_scale_power=x",
     "fp16.initial_scale_power=128"},
    {"fp16.loss_scale_window=500", "fp16.loss_scale_window=x",
     "fp16.loss_scale_window=0"},
    {"fp16.hysteresis=1", "fp16.hysteresis=x", "fp16.hysteresis=0"},
    {"fp16.consecutive_hysteresis=true", "fp16.consecutive_hysteresis=1", NULL},
    {"fp16.min_loss_scale=0.5", "fp16.min_loss_scale=x",
     "fp16.min_loss_scale=0"},
    {"bf16.enabled=true", "bf16.enabled=1", NULL},
    {"bf16.check_overflow=true", "bf16.check_overflow=1", NULL},
    {"tf32=true", "tf32=1", NULL},
    {"optimizer.type=adamw", "optimizer.type=1", "optimizer.type=Lamb"},
    {"optimizer.params.lr=1e-3", "optimizer.params.lr=fast",
     "optimizer.params.lr=-1"},
    {"optimizer.params.momentum=0.9", "optimizer.params.momentum=[]",
     "optimizer.params.momentum=-0.1"},
    {"optimizer.params.dampening=0.5", "optimizer.params.dampening=x",
     "optimizer.params.dampening=1e31"},
    {"optimizer.params={\"nesterov\":true,\"momentum\":0.9}",
     "optimizer.params.nesterov=1", "optimizer.params.nesterov=true"},
    {"optimizer.params.weight_decay=0", "optimizer.params.weight_decay=x",
     "optimizer.params.weight_decay=-1"},
    {"optimizer.params.maximize=true", "optimizer.params.maximize=x", NULL},
    {"scheduler.type=WarmupLR", "scheduler.type=1", "scheduler.type=OneCycle"},
    {"scale_lr=linear", "scale_lr=true", "scale_lr=sqrt"},
    {"strategy.type=allreduce", "strategy.type=[]", "strategy.type=ring"},
    {"strategy.backup_workers=1", "strategy.backup_workers=x",
     "strategy.backup_workers=-1"},
    {"strategy.recovery=end", "strategy.recovery=x", "strategy.recovery=1"},
    {"strategy.replicas=1", "strategy.replicas=x", "strategy.replicas=2"},
    {"strategy.buddy_steps=0", "strategy.buddy_steps=x",
     "strategy.buddy_steps=5"}, /* without copies */
    {"strategy.staleness=inf", "strategy.staleness=x", "strategy.staleness=-1"},
    {"strategy.ps_threads=3", "strategy.ps_threads=x", "strategy.ps_threads=0"},
    {"strategy.backend=nccl", "strategy.backend=1", "strategy.backend=mpi"},
    {"strategy.algorithm=halving_doubling", "strategy.algorithm=1",
     "strategy.algorithm=tree"},
    {"zero_optimization.stage=2", "zero_optimization.stage=x",
     "zero_optimization.stage=3"},
    {"zero_optimization.reduce_bucket_size=25.6M",
     "zero_optimization.reduce_bucket_size=x",
     "zero_optimization.reduce_bucket_size=0"},
    {"zero_optimization.allgather_bucket_size=2e8",
     "zero_optimization.allgather_bucket_size=[]",
     "zero_optimization.allgather_bucket_size=0"},
    {"zero_optimization.overlap_comm=false", "zero_optimization.overlap_comm=1",
     NULL},
    {"zero_optimization.offload_optimizer.device=cpu",
     "zero_optimization.offload_optimizer.device=1",
     "zero_optimization.offload_optimizer.device=nvme"},
    {"zero_optimization.cpu_offload=true", "zero_optimization.cpu_offload=1",
     NULL},
    {"wire=bf16", "wire=16", "wire=fp8"},
    {"chief=train", "chief=true", "chief=lead"},
    {"device=cuda", "device=1", "device=rocm"},
    {"devices=4", "devices=all", "devices=17"},
    {"threads=4", "threads=x", "threads=0"},
    {"workers=8", "workers=x", "workers=1025"},
    {"checkpoint.dir=x", "checkpoint.dir=[]", NULL},
    {"checkpoint.every_steps=5", "checkpoint.every_steps=x",
     "checkpoint.every_steps=-1"},
    {"checkpoint.every_epochs=1", "checkpoint.every_epochs=0.5",
     "checkpoint.every_epochs=-1"},
    {"checkpoint.every_seconds=0.5", "checkpoint.every_seconds=x",
     "checkpoint.every_seconds=-1"},
    {"checkpoint.delta_every_steps=5", "checkpoint.delta_every_steps=x",
     "checkpoint.delta_every_steps=-1"},
    {"checkpoint.keep=0", "checkpoint.keep=all", "checkpoint.keep=-1"},
    {"checkpoint.copy_mb=64", "checkpoint.copy_mb=x", "checkpoint.copy_mb=-1"},
    {"checkpoint.resume=never", "checkpoint.resume=always",
     "checkpoint.resume=-1"},
    {"tensorboard.enabled=true", "tensorboard.enabled=1", NULL},
    {"tensorboard.output_path=x", "tensorboard.output_path=1", NULL},
    {"tensorboard.job_name=x", "tensorboard.job_name=1", NULL},
    {"tensorboard.histogram_every_steps=0",
     "tensorboard.histogram_every_steps=x",
     "tensorboard.histogram_every_steps=5"}, /* without event files */
    {"metrics.jsonl=x", "metrics.jsonl=1", "metrics.jsonl="},
    {"mlflow.tracking_uri=http://h:5000", "mlflow.tracking_uri=1",
     "mlflow.tracking_uri=file:///mlruns"},
    {"mlflow.experiment=x", "mlflow.experiment=1", "mlflow.experiment="},
    {"mlflow.run_name=x", "mlflow.run_name=1", "mlflow.run_name="},
    {"security.secret_file=s", "security.secret_file=1",
     "security.secret_file="},
    {"export.path=m.npz", "export.path=1", "export.path=m.onnx"},
    {"init=w.safetensors", "init=1", "init=w.npz"},
    {"steps_per_print=1", "steps_per_print=x", "steps_per_print=0"},
    {"on_nan=skip", "on_nan=true", "on_nan=retry"},
    {"timeouts.join=1", "timeouts.join=x", "timeouts.join=0"},
    {"timeouts.peer=1", "timeouts.peer=x", "timeouts.peer=0"},
    {"timeouts.step=1", "timeouts.step=x", "timeouts.step=0"},
    {"timeouts.grace=1", "timeouts.grace=x", "timeouts.grace=0"},
    {"timeouts.recover=1", "timeouts.recover=x", "timeouts.recover=0"},
    {"timeouts.spare=0", "timeouts.spare=x", "timeouts.spare=-1"},
    {"timeouts.chief=0", "timeouts.chief=x", "timeouts.chief=-1"},
    {"timeouts.stop=1", "timeouts.stop=x", "timeouts.stop=0"},
    {"compare.ps=[1,2,4]", "compare.ps=all", "compare.ps=[2,2]"},
    {"compare.workers=2", "compare.workers=[\"2\"]", "compare.workers=[]"},
    {"compare.steps=300", "compare.steps=x", "compare.steps=0"},
    {"compare.repeats=3", "compare.repeats=1.5", "compare.repeats=102"},
    {"compare.limit=60", "compare.limit=x", "compare.limit=0.5"},
    {"compare.csv=a.csv", "compare.csv=1", "compare.csv="},
    {"compare.plot=a.svg", "compare.plot=1", "compare.plot=a.pdf"},
    {"compare.tensorboard=a", "compare.tensorboard=1", "compare.tensorboard="},
    {"compare.report=a.html", "compare.report=1", "compare.report="},
    {"compare.link_gbits=10", "compare.link_gbits=x", "compare.link_gbits=0"},
    {"compare.latency_us=20", "compare.latency_us=x", "compare.latency_us=-1"},
};

/* On csv_job. */
static const struct setting record_settings[] = {
    {"data.shuffle_buffer=1", "data.shuffle_buffer=x", "data.shuffle_buffer=0"},
    {"data.bad_lines=skip", "data.bad_lines=1", "data.bad_lines=keep"},
    {"data.header=false", "data.header=1", NULL},
    {"data.columns=[\"x\",\"label\"]", "data.columns=x", "data.columns=[\"\"]"},
    {"data.delimiter=;", "data.delimiter=[]", "data.delimiter=ab"},
    {"data.trim=false", "data.trim=no", NULL},
    {"data.missing=[\"NA\",\"?\"]", "data.missing=NA", "data.missing=[\"\"]"},
    {"data.decimal=,", "data.decimal=;", "data.decimal=1"},
    {"data.label=a", "data.label=1", NULL},
    {"data.weight=a", "data.weight=1", NULL},
    {"data.train=b.csv", "data.train=1", "data.train=[]"},
    {"features={\"a\":{\"type\":\"numeric\"}}", "features=a", "features={}"},
};

#define LINEAR "{\"type\": \"linear\"}"
#define DEEPFM "{\"type\": \"deepfm\", \"dim\": 4, \"hidden\": [8]}"
#define WIDE_DEEP                                                              \
    "{\"type\": \"wide_deep\", \"wide\": [\"a\"], \"deep\": [\"a\"],"          \
    " \"hidden\": [8]}"
#define DLRM "{\"type\": \"dlrm\", \"bottom\": [8, 4], \"top\": [8]}"
#define FACTORIZATION                                                          \
    "{\"type\": \"matrix_factorization\", \"user\": \"a\", \"item\": \"b\","   \
    " \"dim\": 4}"

/* On csv_job with another model. */
static const struct model_setting {
    const char *model;
    struct setting row;
} model_settings[] = {
    {LINEAR,
     {"model.features=[\"a\"]", "model.features=a", "model.features=[]"}},
    {LINEAR, {"model.bias=false", "model.bias=1", NULL}},
    {LINEAR,
     {"model.loss=mse", "model.loss=1", "model.loss=softmax_cross_entropy"}},
    {DEEPFM, {"model.dim=4096", "model.dim=x", "model.dim=0"}},
    {DEEPFM, {"model.hidden=[8]", "model.hidden=8", "model.hidden=[]"}},
    {DEEPFM, {"model.dropout=0.5", "model.dropout=x", "model.dropout=1"}},
    {WIDE_DEEP, {"model.wide=[\"a\"]", "model.wide=a", "model.wide=[]"}},
    {WIDE_DEEP, {"model.deep=[\"a\"]", "model.deep=a", "model.deep=[]"}},
    {DLRM, {"model.dense=[\"a\"]", "model.dense=a", "model.dense=[1]"}},
    {DLRM,
     {"model.embeddings=[\"e\"]", "model.embeddings=e", "model.embeddings=[]"}},
    {DLRM, {"model.bottom=[4]", "model.bottom=4", "model.bottom=[0]"}},
    {DLRM, {"model.top=[4]", "model.top=4", "model.top=[]"}},
    {DLRM, {"model.init=kaiming_normal", "model.init=1", "model.init=normal"}},
    {DEEPFM,
     {"model.init={\"type\":\"uniform\",\"a\":-1,\"b\":1}",
      "model.init={\"type\":\"uniform\",\"a\":1}",
      "model.init={\"type\":\"normal\",\"std\":-1}"}},
    {DEEPFM,
     {"model.factors_init={\"type\":\"normal\",\"std\":0.1}",
      "model.factors_init={}", "model.factors_init=he_normal"}},
    {LINEAR,
     {"optimizers.wide.type=Ftrl", "optimizers.wide.type=1",
      "optimizers.wide.type=None"}},
    {DLRM,
     {"optimizers.deep.type=Adagrad", "optimizers.deep.type=1",
      "optimizers.deep.type=Lamb"}},
    {FACTORIZATION, {"model.user=u", "model.user=1", NULL}},
    {FACTORIZATION, {"model.item=i", "model.item=1", NULL}},
};
enum { MODEL_SETTINGS = sizeof model_settings / sizeof *model_settings };

/* csv_job with MODEL. */
static const char *with_model(const char *model) {
    static char text[1024];
    snprintf(text, sizeof text, "{\"model\": %s%s", model,
             strstr(csv_job, ", \"data\""));
    return text;
}

static enum status set(struct job_fixture *fixture, const char *job,
                       const char *setting) {
    const char *const overrides[] = {setting, NULL};
    return job_fixture_load(fixture, job, NULL, overrides);
}

/* The refusal names the key, what was found and what is allowed. */
static void expect_refusal(struct job_fixture *fixture, const char *job,
                           const char *setting) {
    if (!setting)
        return;
    job_fixture_expect_refused(
        fixture, set(fixture, job, setting),
        textf(" %.*s: found ", (int)strcspn(setting, "=["), setting));
    assert_contains(fixture->why.text, "allowed: ");
}

static void check_settings(struct job_fixture *fixture, const char *job,
                           const struct setting *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        job_fixture_expect_loaded(fixture, set(fixture, job, rows[i].right));
        expect_refusal(fixture, job, rows[i].wrong_type);
        expect_refusal(fixture, job, rows[i].out_of_range);
    }
}

TEST(each_key_accepts_valid_and_refuses_invalid_values) {
    check_settings(fixture, job_fixture_least, settings,
                   sizeof settings / sizeof *settings);
    check_settings(fixture, csv_job, record_settings,
                   sizeof record_settings / sizeof *record_settings);
    for (int i = 0; i < MODEL_SETTINGS; i++)
        check_settings(fixture, with_model(model_settings[i].model),
                       &model_settings[i].row, 1);
}

/* As errors, man page and completion show them. */
TEST_WITH(NULL, NULL, no_list_of_allowed_values_is_cut) {
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(&model_schemas, i)); i++) {
        char shown[512], whole[4096];
        job_value_allowed(key, shown, sizeof shown);
        job_value_allowed(key, whole, sizeof whole);
        if (strcmp(shown, whole) != 0)
            fail_msg("%s: %s", key->path, whole);
    }
}

TEST_WITH(NULL, NULL, a_schema_has_any_number_of_words) {
    enum { WORDS = 400 };
    static const char *words[WORDS + 1];
    static char texts[WORDS][16];
    for (int i = 0; i < WORDS; i++)
        snprintf(texts[i], sizeof *texts, "choice%03d", i), words[i] = texts[i];
    const struct job_key choice = {.kind = JOB_KIND_CHOICE, .words = words},
                         path = {.kind = JOB_KIND_PATH, .words = words};
    json_t *of_words = job_value_schema(&choice),
           *of_ends = job_value_schema(&path);
    const json_t *any = json_object_get(of_words, "anyOf");
    const char *pattern =
        json_string_value(json_object_get(json_array_get(any, 1), "pattern"));
    const char *ends = json_string_value(json_object_get(of_ends, "pattern"));
    assert_int_equal(
        json_array_size(json_object_get(json_array_get(any, 0), "enum")),
        WORDS);
    assert_int_equal(strlen(pattern), WORDS * (6 * 4 + 3 + 1) - 1 + 4);
    assert_string_equal(pattern + strlen(pattern) - 9, "[eE]399)$");
    assert_int_equal(strlen(ends), WORDS * (9 + 2 + 1) - 1);
    json_decref(of_words);
    json_decref(of_ends);
}

TEST(a_model_has_its_own_keys_and_defaults) {
    const struct ranker_settings *ranker;
    job_fixture_expect_loaded(fixture,
                              set(fixture, with_model(LINEAR), "seed=7"));
    ranker = fixture->job->model.settings;
    assert_true(ranker->bias && !ranker->features);
    assert_int_equal(ranker->loss, JOB_SIGMOID_CROSS_ENTROPY);
    assert_int_equal(fixture->job->model.seed, 7);
    job_fixture_expect_loaded(
        fixture, set(fixture, with_model(FACTORIZATION), "seed=7"));
    ranker = fixture->job->model.settings;
    assert_int_equal(ranker->loss, JOB_MSE);
    assert_string_equal(ranker->item, "b");
    job_fixture_expect_refused(fixture,
                               set(fixture, with_model(DLRM), "model.dim=4"),
                               "model.dim: not a key of dlrm");
    job_fixture_expect_refused(
        fixture, set(fixture, with_model(DEEPFM), "model.dim=null"),
        "model.dim: missing");
}

#define PAIRS(format) "data={\"format\":\"" format "\",\"train\":\"a.svm\"}"

TEST(a_linear_model_of_libsvms_pairs_has_no_bias_by_default) {
    static const struct {
        const char *sets[3];
        bool bias;
    } cases[] = {
        {{PAIRS("libsvm")}, false},
        {{PAIRS("LIBSVM")}, false},
        {{PAIRS("libsvm"), "model.bias=true"}, true},
        {{PAIRS("libsvm"),
          "features={\"a\":{\"type\":\"identity\",\"of\":\"x\"}}"},
         true},
        {{"seed=1"}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job_fixture_expect_loaded(
            fixture,
            job_fixture_load(fixture, with_model(LINEAR), NULL, cases[i].sets));
        const struct ranker_settings *ranker = fixture->job->model.settings;
        if (ranker->bias != cases[i].bias)
            fail_msg("case %zu: bias %d", i, ranker->bias);
        struct job *again;
        assert_int_equal(job_parse(&again, fixture->job->text, &model_schemas,
                                   &fixture->why),
                         STATUS_OK);
        assert_string_equal(again->text, fixture->job->text);
        job_free(&again);
    }
}

TEST(a_job_with_records_says_how_they_are_read) {
    job_fixture_expect_loaded(
        fixture, set(fixture, csv_job, "data.train=[\"/x/b*.csv\",\"c.csv\"]"));
    assert_string_equal(fixture->job->data.train.paths[0], "/x/b*.csv");
    assert_contains(fixture->job->data.train.paths[1], "/c.csv");
    assert_null(fixture->job->data.train.paths[2]);
    job_fixture_expect_refused(fixture,
                               set(fixture, csv_job, "data.columns=null"),
                               "data.columns: missing");
    job_fixture_expect_refused(
        fixture, set(fixture, csv_job, "data.delimiter=\\t"),
        "found \"\\t\"; allowed: one character of ASCII "
        "that is no quote and no end of a line; a tab is");
    job_fixture_expect_refused(
        fixture, set(fixture, csv_job, "data.delimiter=::"),
        "found \"::\"; allowed: one character of ASCII "
        "that is no quote and no end of a line. Replace");
    job_fixture_expect_refused(fixture,
                               set(fixture, csv_job, "data.header=true"),
                               "data.columns: found beside");
    job_fixture_expect_refused(
        fixture,
        set(fixture, csv_job,
            "features={\"a\":{\"type\":\"number\"},\"b\":{\"type\":"
            "\"bucketized\",\"boundaries\":[2,1],\"buckets\":3}}"),
        "features.a.type: found \"number\"");
    assert_contains(fixture->why.text, "features.b.boundaries: found");
    assert_contains(fixture->why.text, "features.b.buckets: unknown");
    job_fixture_expect_refused(fixture,
                               job_fixture_set(fixture, "data.label=a"),
                               "data.label: not a key of idx");
}

TEST(a_format_whose_columns_are_not_known_needs_features) {
    for (int format = 0; format < JOB_DATA_FORMATS; format++) {
        const char *setting =
            textf("data.format=%s", job_data_format_name(format));
        if (format != JOB_IDX && format != JOB_CSV && format != JOB_LIBSVM)
            job_fixture_expect_refused(fixture,
                                       job_fixture_set(fixture, setting),
                                       "features: missing");
    }
}

TEST(null_is_the_same_as_leaving_a_key_out) {
    job_fixture_expect_loaded(fixture,
                              set(fixture, with_model(DLRM), "model.dim=null"));
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "data.label=null"));
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "optimizers.wide=null"));
    job_fixture_expect_loaded(
        fixture, job_fixture_set(fixture, "optimizer.params.adam_w_mode=null"));
    job_fixture_expect_loaded(fixture,
                              set(fixture, csv_job,
                                  "features={\"a\":{\"type\":\"numeric\"},"
                                  "\"b\":null}"));
    job_fixture_expect_loaded(fixture,
                              set(fixture, csv_job,
                                  "features.c={\"type\":\"hash_bucket\",\"of\":"
                                  "\"a\",\"size\":null}"));
    assert_null(strstr(fixture->job->features, "size"));
}

static bool is_covered(const char *path) {
    if (strstr(path, ".params."))
        return true; /* by the tables of optimisers and schedules */
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strncmp(settings[i].right, path, strlen(path)))
            return true;
    for (int i = 0; i < MODEL_SETTINGS; i++)
        if (!strncmp(model_settings[i].row.right, path, strlen(path)))
            return true;
    for (size_t i = 0; i < sizeof record_settings / sizeof *record_settings;
         i++)
        if (!strncmp(record_settings[i].right, path, strlen(path)))
            return true;
    return false;
}

TEST(no_key_of_the_schema_is_untested) {
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(&model_schemas, i)); i++)
        if (!is_covered(key->path))
            fail_msg("%s is not in this test's table", key->path);
}

/* The line of the documentation that begins with the key's path, or NULL. Those
 * of groups' optimizers have the parameters of the job's. */
static const char *documented(const char *page, const struct job_key *key) {
    const char *params = key->group ? strstr(key->path, ".params.") : NULL;
    return strstr(page, textf("\n| `%s%s` |", params ? "optimizer" : "",
                              params ? params : key->path));
}

TEST(the_documentation_has_each_key_with_its_default) {
    static char page[1 << 16];
    FILE *file = fopen("docs/job.md", "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(&model_schemas, i)); i++) {
        const char *line = documented(page, key);
        if (!line)
            fail_msg("docs/job.md does not have %s", key->path);
        const char *row = textf("%.*s", (int)strcspn(line + 1, "\n"), line + 1);
        const char *default_value =
            textf("`%s`", key->default_value ? key->default_value : "");
        if (key->default_value && !strstr(row, default_value))
            fail_msg("default %s is not in: %s", default_value, row);
        if (key->required && !strstr(row, "required"))
            fail_msg("required, but not so in: %s", row);
        if (!job_schema_find(&model_schemas, key->path)->meaning)
            fail_msg("%s has no meaning", key->path);
    }
}

TEST(a_syntax_error_has_line_and_column) {
    job_fixture_expect_refused(
        fixture,
        job_fixture_load(fixture, "{\n  \"seed\": 1,\n  seed\n}", NULL, NULL),
        "job.json: not JSON at line 3, column ");
    job_fixture_expect_refused(
        fixture, job_fixture_load(fixture, "[1]", NULL, NULL), "no object");
    job_fixture_expect_refused(
        fixture,
        job_fixture_load(fixture, "{\"seed\":1,\"seed\":2}", NULL, NULL),
        "duplicate");
    struct job_source none = {.models = &model_schemas,
                              .path = "/nowhere/job.json"};
    assert_fails(job_load(&fixture->job, &none, NULL, &fixture->why),
                 &fixture->why, FAILURE_JOB_UNREADABLE);
    assert_string_equal(fixture->why.text,
                        "/nowhere/job.json: cannot open the job: "
                        "No such file or directory");
}

/* Of both files, with the bits of the same job in JSON. */
TEST(comments_and_trailing_commas_change_nothing) {
    static const char least[] =
        "{\"model\": {\"type\": \"mlp\", \"layers\": [784, 10]}, \"data\": "
        "{\"format\": \"idx\", \"train\": [\"a#b\", \"c\"]}, \"steps\": 1,"
        "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1e-3}}}";
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture, least, "{\"train_batch_size\": 8}", NULL));
    char *plain = strdup(fixture->job->text);
    static const char commented[] =
        "# the job\n{\n\t\"model\":{\"type\":\"mlp\", \"layers\": [784, 10,],},\n"
        "\t\"data\": {\"format\": \"idx\", # MNIST\n\t\t\"train\": [\n"
        "\t\t\"a#b\",\n\t\t\"c\", # its labels\n\t]},\n\t\"steps\": 1,\n"
        "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1e-3,},},\n}\n";
    job_fixture_expect_loaded(
        fixture,
        job_fixture_load(fixture, commented,
                         "{\"train_batch_size\": 8, # of all\n}", NULL));
    assert_string_equal(fixture->job->text, plain);
    free(plain);
}

/* What YAML alone would take for something else. */
TEST(a_mistake_in_json_is_no_yaml) {
    static const char *const texts[] = {
        "{\"seed\": 1, \"steps\"}",
        "{\"seed\": 1, \"steps\":}",
        "{\"seed\": 1} {\"seed\": 2}",
        "{\"seed\": 1}\n---\n{\"seed\": 2}",
        "{\"seed\": 18446744073709551616}",
        "{\"seed\": 1e999}",
        "{\"seed\": 1 \"steps\": 2}",
        "{\"seed\": 1, // the seed\n \"steps\": 2}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        job_fixture_expect_refused(
            fixture, job_fixture_load(fixture, texts[i], NULL, NULL),
            "job.json: not JSON at line ");
}

TEST(the_text_of_a_job_reads_back_to_the_same_job) {
    size_t count = sizeof settings / sizeof *settings;
    for (size_t i = 0; i <= count; i++) {
        enum status loaded =
            i < count
                ? job_fixture_set(fixture, settings[i].right)
                : job_fixture_load(fixture, job_fixture_example, NULL, NULL);
        job_fixture_expect_loaded(fixture, loaded);
        struct job *again;
        assert_ok(
            job_parse(&again, fixture->job->text, &model_schemas, &failure));
        assert_string_equal(again->text, fixture->job->text);
        if (again->events_dir || fixture->job->events_dir)
            assert_string_equal(again->events_dir, fixture->job->events_dir);
        assert_memory_equal(&again->optimizer, &fixture->job->optimizer,
                            sizeof again->optimizer);
        assert_memory_equal(&again->timeouts, &fixture->job->timeouts,
                            sizeof again->timeouts);
        assert_int_equal(again->steps, fixture->job->steps);
        assert_int_equal(again->staleness, fixture->job->staleness);
        job_free(&again);
        assert_ok(job_parse(&again, fixture->job->text, NULL, &failure));
        assert_string_equal(again->text, fixture->job->text);
        assert_null(again->model.settings);
        job_free(&again);
    }
}

TEST(an_empty_compare_block_enables_comparison) {
    struct job *again;
    job_fixture_expect_loaded(fixture, job_fixture_set(fixture, "seed=1"));
    assert_false(fixture->job->compare.on);
    job_fixture_expect_loaded(fixture, job_fixture_set(fixture, "compare={}"));
    assert_true(fixture->job->compare.on);
    assert_ok(job_parse(&again, fixture->job->text, &model_schemas, &failure));
    assert_true(again->compare.on);
    job_free(&again);
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "compare.ps=[1,2]"));
    assert_true(fixture->job->compare.on);
    assert_int_equal(fixture->job->compare.ps.values[1], 2);
    job_fixture_expect_loaded(fixture,
                              job_fixture_set(fixture, "compare=null"));
    assert_false(fixture->job->compare.on);
}

TEST(a_text_with_relative_paths_is_refused) {
    job_fixture_expect_refused(fixture,
                               job_parse(&fixture->job, job_fixture_least,
                                         &model_schemas, &fixture->why),
                               "job: data.train: found [\"i\",\"l\"]");
}

/* xorshift64* (Vigna 2016). */
static uint64_t draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* Changes, copies, drops or inserts a few bytes or whole words. */
static void mutate(char *text, size_t size, uint64_t *random) {
    static const char *const words[] = {
        "null", "-1", "1e400", "0.5", "\"auto\"",  "{}",   "[]",      "true",
        "\"\"", ",",  "}",     "]",   "{\"a\":1}", "1e18", "\\u00e9", "\"x\":",
    };
    for (uint64_t n = 1 + draw(random) % 3; n; n--) {
        size_t length = strlen(text), at = draw(random) % (length + 1);
        const char *word = words[draw(random) % 16];
        size_t cut = draw(random) % 8, room = strlen(word);
        if (draw(random) % 2 && at < length) {
            text[at] = (char)(1 + draw(random) % 255);
            continue;
        }
        if (cut > length - at)
            cut = length - at;
        if (length + room >= size)
            return;
        memmove(text + at + room, text + at + cut, length - at - cut + 1);
        memcpy(text + at, word, room);
    }
}

TEST(no_mutation_of_a_job_crashes_or_fails_silently) {
    uint64_t random = 20240611, right = 0;
    print_message("seed %llu\n", (unsigned long long)random);
    job_fixture_expect_loaded(
        fixture, job_fixture_load(fixture, job_fixture_example, NULL, NULL));
    for (int i = 0; i < 20000; i++) {
        char text[4096];
        snprintf(text, sizeof text, "%s", fixture->job->text);
        mutate(text, sizeof text, &random);
        struct job *job;
        struct failure why = {0};
        enum status status = job_parse(&job, text, &model_schemas, &why);
        assert_true(status == STATUS_OK || status == STATUS_CONFIG);
        assert_true(status == STATUS_OK ? job != NULL : job == NULL);
        assert_true(status == STATUS_OK || *why.text);
        right += status == STATUS_OK;
        job_free(&job);
    }
    assert_in_range(right, 1, 19999);
}

TEST(no_override_crashes_or_fails_silently) {
    uint64_t random = 7;
    for (int i = 0; i < 1000; i++) {
        char text[256];
        size_t pick = draw(&random) % (sizeof settings / sizeof *settings);
        snprintf(text, sizeof text, "%s", settings[pick].right);
        mutate(text, sizeof text, &random);
        enum status status = job_fixture_set(fixture, text);
        assert_true(status == STATUS_OK ||
                    (status == STATUS_CONFIG && *fixture->why.text));
    }
}
