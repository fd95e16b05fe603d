/* SPDX-License-Identifier: Apache-2.0 */
/* Random histories against a server of MLflow's in memory, which keeps whatever
 * it is told as often as it is told, and whose answers get lost. */
#include "chief/report/mlflow_run.h"

#include "core/base/time.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 3 };
static const char *const names[NAMES] = {"train_loss", "learning_rate",
                                         "test_loss"};

struct model_server {
    struct philox_sequence chance;
    uint32_t faults;     /* of 100 requests */
    json_t *experiments; /* names */
    bool hides;          /* them, from who asks by name */
    json_t *runs;        /* objects as MLflow's */
    json_t *metrics;     /* of all runs: log-batch's, in order */
    char refused[32];    /* a parameter that it does not take; "": none */
    uint32_t requests, most_metrics, most_params, made_runs;
    const char *status;
};

static json_t *error_of(const char *word, long *code) {
    *code = strstr(word, "NOT_EXIST") ? 404 : 400;
    return json_pack("{s:s, s:s}", "error_code", word, "message", word);
}

/* The value of NAME in the query of PATH, which has no escapes here. */
static void query(const char *path, const char *name, char *value,
                  size_t size) {
    const char *at = strstr(path, name);
    assert_non_null(at);
    at += strlen(name) + 1;
    snprintf(value, size, "%.*s", (int)strcspn(at, "&"), at);
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

static json_t *find_run(struct model_server *server, const char *id) {
    for (size_t i = 0; i < json_array_size(server->runs); i++) {
        json_t *run = json_array_get(server->runs, i);
        if (!strcmp(text_of(json_object_get(run, "info"), "run_id"), id))
            return run;
    }
    return NULL;
}

static json_t *serve_experiments(struct model_server *server, const char *path,
                                 const json_t *body, long *code) {
    char name[64];
    bool creates = strstr(path, "create");
    if (creates)
        snprintf(name, sizeof name, "%s", text_of(body, "name"));
    else
        query(path, "experiment_name", name, sizeof name);
    bool known = json_object_get(server->experiments, name);
    if (creates && known)
        return error_of("RESOURCE_ALREADY_EXISTS", code);
    if (!creates && (!known || server->hides))
        return error_of("RESOURCE_DOES_NOT_EXIST", code);
    if (creates)
        json_object_set_new(server->experiments, name, json_true());
    return creates ? json_pack("{s:s}", "experiment_id", "7")
                   : json_pack("{s:{s:s, s:s}}", "experiment", "experiment_id",
                               "7", "lifecycle_stage", "active");
}

static json_t *make_run(struct model_server *server, const json_t *body) {
    char id[32];
    snprintf(id, sizeof id, "run%u", ++server->made_runs);
    json_t *run =
        json_pack("{s:{s:s, s:s, s:s}, s:{s:[], s:O}}", "info", "run_id", id,
                  "experiment_id", "7", "run_name", text_of(body, "run_name"),
                  "data", "params", "tags", json_object_get(body, "tags"));
    json_array_append(server->runs, run);
    json_t *answer = json_pack("{s:o}", "run", run);
    return answer;
}

static json_t *search(struct model_server *server, const json_t *body) {
    json_t *found = json_array();
    const char *filter = text_of(body, "filter");
    for (size_t i = json_array_size(server->runs); i-- > 0;) {
        json_t *run = json_array_get(server->runs, i);
        json_t *tags = json_object_get(json_object_get(run, "data"), "tags");
        for (size_t t = 0; t < json_array_size(tags); t++) {
            const json_t *tag = json_array_get(tags, t);
            char wanted[128];
            snprintf(wanted, sizeof wanted, "tags.%s = '%s'",
                     text_of(tag, "key"), text_of(tag, "value"));
            if (!strcmp(filter, wanted))
                json_array_append(found, run);
        }
    }
    return json_pack("{s:o}", "runs", found);
}

static json_t *log_batch(struct model_server *server, const json_t *body,
                         long *code) {
    json_t *run = find_run(server, text_of(body, "run_id"));
    const json_t *metrics = json_object_get(body, "metrics");
    const json_t *params = json_object_get(body, "params");
    if (!run)
        return error_of("RESOURCE_DOES_NOT_EXIST", code);
    if (json_array_size(metrics) > server->most_metrics)
        server->most_metrics = (uint32_t)json_array_size(metrics);
    if (json_array_size(params) > server->most_params)
        server->most_params = (uint32_t)json_array_size(params);
    for (size_t i = 0; i < json_array_size(params); i++)
        if (!strcmp(text_of(json_array_get(params, i), "key"), server->refused))
            return error_of("INVALID_PARAMETER_VALUE", code);
    json_array_extend(json_object_get(json_object_get(run, "data"), "params"),
                      (json_t *)params);
    json_array_extend(server->metrics, (json_t *)metrics);
    return json_object();
}

static json_t *history(struct model_server *server, const char *path) {
    char key[64];
    json_t *found = json_array();
    query(path, "metric_key", key, sizeof key);
    for (size_t i = 0; i < json_array_size(server->metrics); i++) {
        json_t *metric = json_array_get(server->metrics, i);
        if (!strcmp(text_of(metric, "key"), key))
            json_array_append(found, metric);
    }
    return json_pack("{s:o}", "metrics", found);
}

static json_t *serve(struct model_server *server, const char *path,
                     const json_t *body, long *code) {
    char id[64];
    *code = 200;
    if (!strncmp(path, "experiments/", strlen("experiments/")))
        return serve_experiments(server, path, body, code);
    if (!strcmp(path, "runs/search"))
        return search(server, body);
    if (!strcmp(path, "runs/create"))
        return make_run(server, body);
    if (!strcmp(path, "runs/log-batch"))
        return log_batch(server, body, code);
    if (!strncmp(path, "metrics/get-history", strlen("metrics/get-history")))
        return history(server, path);
    if (!strncmp(path, "runs/get", strlen("runs/get"))) {
        query(path, "run_id", id, sizeof id);
        json_t *run = find_run(server, id);
        return run ? json_pack("{s:O}", "run", run)
                   : error_of("RESOURCE_DOES_NOT_EXIST", code);
    }
    assert_string_equal(path, "runs/update");
    static const char *const words[] = {"RUNNING", "FINISHED", "FAILED",
                                        "KILLED"};
    for (size_t i = 0; i < 4; i++)
        if (!strcmp(text_of(body, "status"), words[i]))
            server->status = words[i];
    return json_object();
}

/* Answers one request; the server may be away, or its answer may be lost, or be
 * an error of a proxy after the work was done. */
static void answer_one(struct model_server *server, struct mlflow_run *run,
                       const struct mlflow_request *request, int64_t now) {
    struct mlflow_answer answer = {.outcome = MLFLOW_ANSWERED, .text = "gone"};
    json_t *body = request->body ? json_loads(request->body, 0, NULL) : NULL;
    bool fails = philox_below(&server->chance, 100) < server->faults;
    uint32_t how = fails ? philox_below(&server->chance, 5) : 5;
    json_t *said = NULL;
    assert_true(!request->body || body);
    server->requests++;
    if (how == 0)
        answer.outcome = MLFLOW_NOT_SENT;
    else if (how == 1)
        answer.outcome = MLFLOW_LOST; /* before */
    else if (how == 2)
        answer.code = 429;
    else
        said = serve(server, request->path, body, &answer.code);
    if (how == 3)
        answer.outcome = MLFLOW_LOST; /* after */
    else if (how == 4)
        answer.code = 502;
    else
        answer.body = said;
    mlflow_run_answer(run, now, &answer);
    json_decref(said);
    json_decref(body);
}

/* Lets RUN talk until nothing is due before UNTIL. */
static void talk(struct model_server *server, struct mlflow_run *run,
                 int64_t *now, int64_t until) {
    struct mlflow_request request;
    for (int turns = 0; turns < 1000000; turns++) {
        int64_t due = mlflow_run_due(run, *now);
        if (due > until || mlflow_run_facts(run)->over)
            break;
        *now = due > *now ? due : *now;
        if (mlflow_run_next(run, *now, &request))
            answer_one(server, run, &request, *now);
        mlflow_request_clear(&request);
    }
    *now = until == TIME_NEVER || until < *now ? *now : until;
}

static void server_open(struct model_server *server, uint32_t faults) {
    *server = (struct model_server){.faults = faults,
                                    .experiments = json_object(),
                                    .runs = json_array(),
                                    .metrics = json_array()};
    seed_open(&server->chance);
}

static void server_close(struct model_server *server) {
    json_decref(server->experiments);
    json_decref(server->runs);
    json_decref(server->metrics);
}

static struct mlflow_run *open_run(const struct mlflow_run_settings *changes,
                                   uint32_t num_params) {
    struct mlflow_run_settings settings = *changes;
    json_t *params = json_object(), *tags = json_object();
    for (uint32_t i = 0; i < num_params; i++) {
        char key[16];
        snprintf(key, sizeof key, "p%u", i);
        json_object_set_new(params, key, json_string(key));
    }
    json_object_set_new(tags, "capstan_lineage", json_string("abc"));
    settings.experiment = "mnist";
    settings.lineage = "abc";
    settings.new_name = "capstan-1";
    settings.tags = tags;
    settings.params = params;
    settings.names = names;
    settings.num_names = NAMES;
    settings.bytes = settings.bytes ? settings.bytes : 64 << 20;
    struct mlflow_run *run = mlflow_run_open(&settings);
    assert_non_null(run);
    json_decref(params);
    json_decref(tags);
    return run;
}

static void add_point(struct mlflow_run *run, uint64_t step) {
    const double values[NAMES] = {1.0 / (double)step, 0.5,
                                  step % 10 ? NAN : 2.0};
    mlflow_run_add(run, step, 1000 * (int64_t)step, values);
}

/* Of each name each step of STEPS stands there once, and nothing else. */
static void expect_each_once(const struct model_server *server,
                             uint64_t steps) {
    uint32_t *seen = calloc(NAMES * (steps + 1), sizeof *seen);
    for (size_t i = 0; i < json_array_size(server->metrics); i++) {
        const json_t *metric = json_array_get(server->metrics, i);
        uint32_t name = 0;
        while (strcmp(names[name], text_of(metric, "key")))
            name++;
        json_int_t step = json_integer_value(json_object_get(metric, "step"));
        assert_in_range(step, 1, steps);
        assert_int_equal(
            json_integer_value(json_object_get(metric, "timestamp")),
            1000 * step);
        seen[name * (steps + 1) + (uint64_t)step]++;
    }
    for (uint32_t n = 0; n < NAMES; n++)
        for (uint64_t s = 1; s <= steps; s++)
            assert_int_equal(seen[n * (steps + 1) + s], n < 2 || s % 10 == 0);
    free(seen);
}

static size_t count_params(const struct model_server *server, size_t run) {
    const json_t *data =
        json_object_get(json_array_get(server->runs, run), "data");
    return json_array_size(json_object_get(data, "params"));
}

/* Half of the requests fail, before or after the server has done its work. */
TEST(each_metric_stands_once_whatever_answers_are_lost) {
    const struct mlflow_run_settings none = {0};
    for (int history = 0; history < 20; history++) {
        struct model_server server;
        int64_t now = TIME_S;
        uint64_t steps = 0;
        server_open(&server, 50);
        struct mlflow_run *run = open_run(&none, 250);
        uint32_t bursts = 1 + philox_below(&server.chance, 20);
        for (uint32_t b = 0; b < bursts; b++) {
            uint32_t more = philox_below(&server.chance, 900);
            while (more--)
                add_point(run, ++steps);
            talk(&server, run, &now,
                 now + philox_below(&server.chance, 100) * TIME_S);
        }
        mlflow_run_end(run, now, "FINISHED", 5);
        talk(&server, run, &now, TIME_NEVER);
        const struct mlflow_run_facts *facts = mlflow_run_facts(run);
        assert_true(facts->over && !facts->given_up);
        assert_int_equal(facts->waiting + facts->lost + facts->thinned, 0);
        assert_string_equal(server.status, "FINISHED");
        assert_int_equal(server.made_runs, 1);
        assert_true(count_params(&server, 0) >= 250);
        assert_true(server.most_metrics <= MLFLOW_METRICS);
        assert_true(server.most_params <= MLFLOW_PARAMS);
        expect_each_once(&server, steps);
        mlflow_run_close(&run);
        server_close(&server);
    }
}

static bool has_metrics(const struct mlflow_request *request) {
    return !strcmp(request->path, "runs/log-batch") &&
           strstr(request->body, "\"timestamp\"");
}

/* Answers what RUN asks until it wants to send metrics, or to read their
 * histories; returns that request, which the caller clears. */
static struct mlflow_request until_metrics(struct model_server *server,
                                           struct mlflow_run *run,
                                           int64_t *now) {
    struct mlflow_request request;
    for (int turns = 0; turns < 100; turns++) {
        int64_t due = mlflow_run_due(run, *now);
        assert_true(due < TIME_NEVER);
        *now = due > *now ? due : *now;
        if (mlflow_run_next(run, *now, &request)) {
            if (has_metrics(&request) || strstr(request.path, "get-history"))
                return request;
            answer_one(server, run, &request, *now);
        }
        mlflow_request_clear(&request);
    }
    fail_msg("no metrics are sent");
    return request;
}

/* It stores the first batch, and says nothing for the 10 s of the outlet. */
TEST(a_batch_that_was_stored_in_silence_is_read_back_and_not_repeated) {
    static const char *const silence[] = {"stores it", "loses it"};
    for (int lost = 0; lost < 2; lost++) {
        struct model_server server;
        int64_t now = 0;
        long code;
        server_open(&server, 0);
        struct mlflow_run *run = open_run(&(struct mlflow_run_settings){0}, 1);
        for (uint64_t step = 1; step <= 10; step++)
            add_point(run, step);
        struct mlflow_request request = until_metrics(&server, run, &now);
        assert_true(has_metrics(&request));
        json_t *body = json_loads(request.body, 0, NULL);
        if (!lost)
            json_decref(serve(&server, request.path, body, &code));
        json_decref(body);
        mlflow_request_clear(&request);
        for (uint64_t step = 11; step <= 20; step++)
            add_point(run, step);
        now += 10 * TIME_S;
        const struct mlflow_answer none = {.outcome = MLFLOW_LOST,
                                           .text = silence[lost]};
        mlflow_run_answer(run, now, &none);
        request = until_metrics(&server, run, &now);
        assert_non_null(strstr(request.path, "get-history"));
        answer_one(&server, run, &request, now);
        mlflow_request_clear(&request);
        mlflow_run_end(run, now, "FINISHED", 1);
        talk(&server, run, &now, TIME_NEVER);
        assert_true(mlflow_run_facts(run)->over);
        expect_each_once(&server, 20);
        mlflow_run_close(&run);
        server_close(&server);
    }
}

TEST(a_server_that_answers_gets_as_few_requests_as_the_limits_allow) {
    const struct mlflow_run_settings none = {0};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 0);
    struct mlflow_run *run = open_run(&none, 250);
    for (uint64_t step = 1; step <= 1000; step++)
        add_point(run, step);
    mlflow_run_end(run, now, "FAILED", 5);
    talk(&server, run, &now, TIME_NEVER);
    /* get-by-name, create, search, create, 3 of parameters, 2100 metrics in 3,
     * update */
    assert_int_equal(server.requests, 4 + 3 + 3 + 1);
    assert_int_equal(count_params(&server, 0), 250);
    assert_string_equal(server.status, "FAILED");
    expect_each_once(&server, 1000);
    mlflow_run_close(&run);
    server_close(&server);
}

TEST(points_that_come_slowly_arrive_within_about_a_second) {
    const struct mlflow_run_settings none = {0};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 0);
    struct mlflow_run *run = open_run(&none, 1);
    for (uint64_t step = 1; step <= 100; step++) {
        add_point(run, step);
        talk(&server, run, &now, now + TIME_S / 10);
    }
    assert_in_range(server.requests, 5 + 9, 5 + 12);
    talk(&server, run, &now, now + 2 * TIME_S);
    expect_each_once(&server, 100);
    mlflow_run_close(&run);
    server_close(&server);
}

TEST(a_run_that_is_resumed_goes_on_in_the_run_of_its_lineage) {
    const struct mlflow_run_settings none = {0}, named = {.run_name = "other"};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 0);
    for (int life = 0; life < 2; life++) {
        struct mlflow_run *run = open_run(&none, 10);
        add_point(run, (uint64_t)life + 1);
        talk(&server, run, &now, now + 10 * TIME_S);
        assert_string_equal(server.status ? server.status : "none",
                            life ? "RUNNING" : "none");
        mlflow_run_end(run, now, "KILLED", 5);
        talk(&server, run, &now, TIME_NEVER);
        assert_string_equal(mlflow_run_facts(run)->run_id, "run1");
        mlflow_run_close(&run);
    }
    assert_int_equal(server.made_runs, 1);
    assert_int_equal(count_params(&server, 0), 10);
    expect_each_once(&server, 2);
    struct mlflow_run *run = open_run(&named, 10);
    talk(&server, run, &now, now + 10 * TIME_S);
    assert_string_equal(mlflow_run_facts(run)->run_id, "run2");
    mlflow_run_close(&run);
    server_close(&server);
}

static void tell_all(struct model_server *server,
                     const struct mlflow_run_settings *settings,
                     int64_t unix_ms, double test_loss) {
    const double values[NAMES] = {NAN, NAN, test_loss};
    int64_t now = TIME_S;
    struct mlflow_run *run = open_run(settings, 1);
    mlflow_run_add(run, 20, unix_ms, values);
    mlflow_run_end(run, now, "FINISHED", 5);
    talk(server, run, &now, TIME_NEVER);
    assert_true(mlflow_run_facts(run)->over);
    mlflow_run_close(&run);
}

/* It evaluates its last step again, whose result may differ by rounding; that
 * of other test data is told. */
TEST(a_run_that_was_over_tells_its_last_evaluation_once) {
    const struct mlflow_run_settings none = {0}, again = {.repeats_to = 20};
    for (uint32_t faults = 0; faults <= 50; faults += 50) {
        struct model_server server;
        server_open(&server, faults);
        tell_all(&server, &none, 1000, 0.3);
        assert_int_equal(json_array_size(server.metrics), 1);
        tell_all(&server, &again, 2000, 0.3);
        tell_all(&server, &again, 3000, 0.3 + 1e-9);
        assert_int_equal(json_array_size(server.metrics), 1);
        tell_all(&server, &again, 4000, 0.4);
        assert_int_equal(json_array_size(server.metrics), 2);
        server_close(&server);
    }
}

TEST(a_run_given_by_its_id_is_gone_on_with_and_not_ended) {
    const struct mlflow_run_settings given = {.run_id = "mine"};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 30);
    json_array_append_new(
        server.runs,
        json_pack("{s:{s:s, s:s}, s:{s:[{s:s, s:s}, {s:s, s:s}]}}", "info",
                  "run_id", "mine", "experiment_id", "3", "data", "params",
                  "key", "p1", "value", "p1", "key", "p2", "value", "other"));
    struct mlflow_run *run = open_run(&given, 10);
    add_point(run, 1);
    mlflow_run_end(run, now, "FINISHED", 5);
    talk(&server, run, &now, TIME_NEVER);
    const struct mlflow_run_facts *facts = mlflow_run_facts(run);
    assert_true(facts->over && !facts->given_up);
    assert_int_equal(server.made_runs, 0);
    assert_null(server.status);
    assert_int_equal(facts->differing_params, 1);
    assert_string_equal(facts->param, "p2");
    expect_each_once(&server, 1);
    mlflow_run_close(&run);
    server_close(&server);
}

TEST(a_run_that_the_server_does_not_have_is_given_up) {
    const struct mlflow_run_settings given = {.run_id = "none"};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 0);
    struct mlflow_run *run = open_run(&given, 10);
    add_point(run, 1);
    talk(&server, run, &now, TIME_NEVER);
    add_point(run, 2);
    const struct mlflow_run_facts *facts = mlflow_run_facts(run);
    assert_true(facts->over && facts->given_up);
    assert_int_equal(facts->lost, 2);
    assert_non_null(strstr(facts->problem, "RESOURCE_DOES_NOT_EXIST"));
    mlflow_run_close(&run);
    server_close(&server);
}

TEST(a_parameter_that_is_refused_is_named_and_the_others_arrive) {
    const struct mlflow_run_settings none = {0};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 0);
    snprintf(server.refused, sizeof server.refused, "p77");
    struct mlflow_run *run = open_run(&none, 250);
    add_point(run, 1);
    mlflow_run_end(run, now, "FINISHED", 5);
    talk(&server, run, &now, TIME_NEVER);
    const struct mlflow_run_facts *facts = mlflow_run_facts(run);
    assert_true(facts->over && !facts->given_up);
    assert_int_equal(facts->refused_params, 1);
    assert_string_equal(facts->param, "p77");
    assert_int_equal(count_params(&server, 0), 249);
    assert_in_range(server.requests, 4 + 3, 40);
    expect_each_once(&server, 1);
    mlflow_run_close(&run);
    server_close(&server);
}

/* The server is away for 100,000 points; there is room for 2,000. */
TEST(what_waits_too_long_is_thinned_from_its_old_end_in_bounded_memory) {
    enum { ROOM = 2000, MANY = 100000 };
    const struct mlflow_run_settings small = {
        .bytes = ROOM * (16 + NAMES * sizeof(double))};
    struct model_server server;
    int64_t now = TIME_S, previous = 0;
    server_open(&server, 100);
    struct mlflow_run *run = open_run(&small, 1);
    for (uint64_t step = 1; step <= MANY; step++) {
        add_point(run, step);
        assert_true(mlflow_run_facts(run)->waiting <= ROOM);
        if (step % 1000 == 0)
            talk(&server, run, &now, now + TIME_S);
    }
    const struct mlflow_run_facts *facts = mlflow_run_facts(run);
    assert_int_equal(facts->waiting + facts->thinned, MANY);
    assert_true(facts->failures > 0);
    server.faults = 0;
    mlflow_run_end(run, now, "FINISHED", 5);
    talk(&server, run, &now, TIME_NEVER);
    uint32_t recent = 0;
    for (size_t i = 0; i < json_array_size(server.metrics); i++) {
        const json_t *metric = json_array_get(server.metrics, i);
        json_int_t step = json_integer_value(json_object_get(metric, "step"));
        if (strcmp(text_of(metric, "key"), names[0]))
            continue;
        assert_true(step > previous);
        assert_true(i || step == 1);
        previous = step;
        recent += step > MANY - ROOM / 4;
    }
    assert_int_equal(previous, MANY);
    assert_int_equal(recent, ROOM / 4);
    assert_true(facts->over && !facts->lost);
    mlflow_run_close(&run);
    server_close(&server);
}

/* From one second on, and never over a minute. */
TEST(a_server_that_is_away_is_asked_ever_more_rarely) {
    const struct mlflow_run_settings none = {0};
    struct model_server server;
    int64_t now = 0;
    server_open(&server, 100);
    struct mlflow_run *run = open_run(&none, 1);
    talk(&server, run, &now, 60 * TIME_S);
    assert_in_range(server.requests, 6, 7);
    talk(&server, run, &now, 660 * TIME_S);
    assert_in_range(server.requests, 15, 18);
    mlflow_run_close(&run);
    server_close(&server);
}

TEST(an_experiment_that_is_hidden_is_asked_for_with_pauses) {
    const struct mlflow_run_settings none = {0};
    struct model_server server;
    int64_t now = TIME_S;
    server_open(&server, 0);
    server.hides = true;
    json_object_set_new(server.experiments, "mnist", json_true());
    struct mlflow_run *run = open_run(&none, 1);
    talk(&server, run, &now, now + 60 * TIME_S);
    assert_in_range(server.requests, 4, 130);
    server.hides = false;
    talk(&server, run, &now, now + 2 * TIME_S);
    assert_string_equal(mlflow_run_facts(run)->experiment_id, "7");
    mlflow_run_close(&run);
    server_close(&server);
}

TEST(a_server_that_lets_nobody_in_is_given_up) {
    const struct mlflow_run_settings none = {0};
    const struct mlflow_answer denied = {.outcome = MLFLOW_ANSWERED,
                                         .code = 401};
    struct mlflow_request request;
    struct mlflow_run *run = open_run(&none, 1);
    assert_true(mlflow_run_next(run, 0, &request));
    assert_string_equal(request.method, "GET");
    assert_string_equal(request.path,
                        "experiments/get-by-name?experiment_name=mnist");
    mlflow_request_clear(&request);
    mlflow_run_answer(run, 0, &denied);
    const struct mlflow_run_facts *facts = mlflow_run_facts(run);
    assert_true(facts->over && facts->given_up);
    assert_non_null(strstr(facts->problem, "401"));
    mlflow_run_close(&run);
}
