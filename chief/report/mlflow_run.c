/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/mlflow_run.h"

#include "core/base/time.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between two requests of points, so that a fast run sends many in one. */
static const int64_t POINTS_INTERVAL = TIME_S;
static const int64_t FIRST_PAUSE = TIME_S, LAST_PAUSE = 60 * TIME_S,
                     PAUSE_AT_END = TIME_S / 2;
static const size_t FIRST_ROOM = 64; /* points */

#define MISSING "RESOURCE_DOES_NOT_EXIST"

enum mlflow_step {
    FIND_EXPERIMENT,
    MAKE_EXPERIMENT,
    FIND_RUN,
    MAKE_RUN,
    GET_RUN, /* the given one */
    REOPEN,  /* the found one, which has ended */
    TAG,     /* the given one */
    PARAMS,
    METRICS,
    HISTORY, /* what of the last METRICS is there already */
    END,
    OVER,
};

struct mlflow_point {
    uint64_t step;
    int64_t unix_ms;
    double values[]; /* [num_names]; NAN: none, or it is told */
};

struct mlflow_run {
    struct mlflow_run_settings settings;
    struct mlflow_run_facts facts;
    json_t *tags, *params; /* params: what is not told yet */
    char *copies[5];       /* of the settings' strings */
    enum mlflow_step step;
    bool asked; /* a request is not answered yet */
    int64_t not_before, metrics_at;
    const char *status; /* NULL: points may follow */
    int64_t end_ms;
    uint32_t params_batch, params_asked;

    size_t stride, room, most, count; /* in points, stride in bytes */
    unsigned char *points;
    size_t batch;  /* the first points, which METRICS tells; 0: none chosen */
    uint32_t name; /* HISTORY: whose */
    char *page;    /* HISTORY: of a further page; NULL: the first */
};

static struct mlflow_point *point_at(const struct mlflow_run *run, size_t i) {
    assert(i < run->count);
    return (struct mlflow_point *)(run->points + i * run->stride);
}

static char *keep_text(struct mlflow_run *run, int slot, const char *text) {
    return run->copies[slot] = text ? strdup(text) : NULL;
}

/* The bytes of TEXT up to LIMIT that end with a whole character of UTF-8. */
static size_t whole_length(const char *text, size_t limit) {
    while (limit && ((unsigned char)text[limit] & 0xc0) == 0x80)
        limit--;
    return limit;
}

static json_t *cut_values(const json_t *params) {
    static const char end[] = "...";
    json_t *cut = json_object();
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)params, key, value) {
        const char *text = json_string_value(value);
        size_t length = json_string_length(value);
        char short_text[MLFLOW_VALUE + 1];
        if (length > MLFLOW_VALUE) {
            length = whole_length(text, MLFLOW_VALUE - (sizeof end - 1));
            memcpy(short_text, text, length);
            memcpy(short_text + length, end, sizeof end);
            text = short_text;
        }
        json_object_set_new(cut, key, json_string(text));
    }
    return cut;
}

struct mlflow_run *mlflow_run_open(const struct mlflow_run_settings *settings) {
    struct mlflow_run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    assert(settings->num_names && settings->num_names <= MLFLOW_METRICS);
    run->settings = *settings;
    run->settings.experiment = keep_text(run, 0, settings->experiment);
    run->settings.run_name = keep_text(run, 1, settings->run_name);
    run->settings.lineage = keep_text(run, 2, settings->lineage);
    run->settings.run_id = keep_text(run, 3, settings->run_id);
    run->settings.new_name = keep_text(run, 4, settings->new_name);
    run->tags = json_deep_copy(settings->tags);
    run->params = cut_values(settings->params);
    run->params_batch = MLFLOW_PARAMS;
    run->stride =
        sizeof(struct mlflow_point) + settings->num_names * sizeof(double);
    run->most = settings->bytes / run->stride;
    run->step = settings->run_id          ? GET_RUN
                : settings->experiment_id ? FIND_RUN
                                          : FIND_EXPERIMENT;
    if (settings->experiment_id)
        snprintf(run->facts.experiment_id, sizeof run->facts.experiment_id,
                 "%s", settings->experiment_id);
    run->settings.experiment_id = NULL;
    assert(run->most >= MLFLOW_METRICS);
    if (!run->tags || !run->params)
        mlflow_run_close(&run);
    return run;
}

void mlflow_run_close(struct mlflow_run **where) {
    struct mlflow_run *run = *where;
    *where = NULL;
    if (!run)
        return;
    json_decref(run->tags);
    json_decref(run->params);
    for (size_t i = 0; i < sizeof run->copies / sizeof *run->copies; i++)
        free(run->copies[i]);
    free(run->points);
    free(run->page);
    free(run);
}

const struct mlflow_run_facts *mlflow_run_facts(const struct mlflow_run *run) {
    return &run->facts;
}

void mlflow_request_clear(struct mlflow_request *request) {
    free(request->path);
    free(request->body);
    *request = (struct mlflow_request){0};
}

/* Nothing more is told. */
static void tell_no_more(struct mlflow_run *run, bool given_up) {
    run->step = OVER;
    run->facts.over = true;
    run->facts.given_up = given_up;
    run->facts.lost += run->count;
    run->facts.waiting = run->count = run->batch = 0;
}

/* Goes on where there is no request for the step. */
static void settle(struct mlflow_run *run) {
    if (run->step == PARAMS && !json_object_size(run->params))
        run->step = METRICS;
    if (run->step == METRICS && !run->count && run->status)
        run->step = END;
    if (run->step == END && run->settings.run_id)
        tell_no_more(run, false);
    run->facts.waiting = run->count;
}

static bool has_values(const struct mlflow_run *run,
                       const struct mlflow_point *point) {
    for (uint32_t n = 0; n < run->settings.num_names; n++)
        if (!isnan(point->values[n]))
            return true;
    return false;
}

/* Every second point of the older half goes, of those that are not in a
 * request. */
static void thin(struct mlflow_run *run) {
    size_t first = run->batch, old = (run->count - first) / 2;
    size_t to = first;
    for (size_t from = first; from < run->count; from++) {
        if (from < first + old && (from - first) % 2)
            continue;
        memmove(run->points + to++ * run->stride,
                run->points + from * run->stride, run->stride);
    }
    run->facts.thinned += run->count - to;
    run->count = to;
}

static bool make_place(struct mlflow_run *run) {
    if (run->count == run->most)
        thin(run);
    if (run->count < run->room)
        return true;
    size_t room = run->room ? 2 * run->room : FIRST_ROOM;
    room = room < run->most ? room : run->most;
    unsigned char *points = realloc(run->points, room * run->stride);
    if (!points)
        return false;
    run->points = points;
    run->room = room;
    return true;
}

void mlflow_run_add(struct mlflow_run *run, uint64_t step, int64_t unix_ms,
                    const double *values) {
    assert(!run->status);
    if (run->step == OVER || !make_place(run)) {
        run->facts.lost++;
        return;
    }
    struct mlflow_point *point = point_at(run, run->count++);
    *point = (struct mlflow_point){.step = step, .unix_ms = unix_ms};
    memcpy(point->values, values,
           run->settings.num_names * sizeof *point->values);
    run->count -= !has_values(run, point);
    run->facts.waiting = run->count;
}

void mlflow_run_end(struct mlflow_run *run, int64_t now, const char *status,
                    int64_t unix_ms) {
    run->status = status;
    run->end_ms = unix_ms;
    run->not_before = now;
    settle(run);
}

static uint32_t count_values(const struct mlflow_run *run,
                             const struct mlflow_point *point) {
    uint32_t count = 0;
    for (uint32_t n = 0; n < run->settings.num_names; n++)
        count += !isnan(point->values[n]);
    return count;
}

/* As many of the first points as a request takes. */
static void choose_batch(struct mlflow_run *run) {
    uint32_t metrics = 0;
    while (run->batch < run->count) {
        metrics += count_values(run, point_at(run, run->batch));
        if (metrics > MLFLOW_METRICS)
            break;
        run->batch++;
    }
}

static void end_batch(struct mlflow_run *run) {
    run->count -= run->batch;
    memmove(run->points, run->points + run->batch * run->stride,
            run->count * run->stride);
    run->batch = 0;
    run->step = METRICS;
}

/* JSON has no infinity; protobuf's JSON has this word for it. */
static json_t *json_of_value(double value) {
    return isfinite(value) ? json_real(value)
                           : json_string(value > 0 ? "Infinity" : "-Infinity");
}

static json_t *json_of_metrics(const struct mlflow_run *run) {
    json_t *metrics = json_array();
    for (size_t i = 0; i < run->batch; i++) {
        const struct mlflow_point *point = point_at(run, i);
        for (uint32_t n = 0; n < run->settings.num_names; n++)
            if (!isnan(point->values[n]))
                json_array_append_new(
                    metrics, json_pack("{s:s, s:o, s:I, s:I}", "key",
                                       run->settings.names[n], "value",
                                       json_of_value(point->values[n]),
                                       "timestamp", (json_int_t)point->unix_ms,
                                       "step", (json_int_t)point->step));
    }
    return metrics;
}

/* The first MOST of OBJECT (0: all) as MLflow has pairs. */
static json_t *json_of_pairs(json_t *object, uint32_t most) {
    json_t *pairs = json_array(), *value;
    const char *key;
    json_object_foreach(object, key, value) {
        if (most && json_array_size(pairs) == most)
            break;
        json_array_append_new(
            pairs, json_pack("{s:s, s:O}", "key", key, "value", value));
    }
    return pairs;
}

static json_t *find_run_body(const struct mlflow_run *run) {
    char filter[128];
    snprintf(filter, sizeof filter, "tags.capstan_lineage = '%s'",
             run->settings.lineage);
    return json_pack("{s:[s], s:s, s:[s], s:i}", "experiment_ids",
                     run->facts.experiment_id, "filter", filter, "order_by",
                     "attributes.start_time DESC", "max_results", 100);
}

static json_t *make_run_body(const struct mlflow_run *run) {
    const char *name = run->settings.run_name;
    return json_pack("{s:s, s:s, s:I, s:o}", "experiment_id",
                     run->facts.experiment_id, "run_name",
                     name ? name : run->settings.new_name, "start_time",
                     (json_int_t)run->settings.start_ms, "tags",
                     json_of_pairs(run->tags, 0));
}

static json_t *batch_body(const struct mlflow_run *run, const char *what,
                          json_t *of) {
    return json_pack("{s:s, s:o}", "run_id", run->facts.run_id, what, of);
}

static json_t *body_of(const struct mlflow_run *run) {
    switch (run->step) {
    case MAKE_EXPERIMENT:
        return json_pack("{s:s}", "name", run->settings.experiment);
    case FIND_RUN:
        return find_run_body(run);
    case MAKE_RUN:
        return make_run_body(run);
    case REOPEN:
        return batch_body(run, "status", json_string("RUNNING"));
    case TAG:
        return batch_body(run, "tags", json_of_pairs(run->tags, 0));
    case PARAMS:
        return batch_body(run, "params",
                          json_of_pairs(run->params, run->params_asked));
    case METRICS:
        return batch_body(run, "metrics", json_of_metrics(run));
    case END:
        return json_pack("{s:s, s:s, s:I}", "run_id", run->facts.run_id,
                         "status", run->status, "end_time",
                         (json_int_t)run->end_ms);
    default:
        return NULL;
    }
}

/* Adds TEXT to PATH [SIZE] as the value of a query. */
static void add_query(char *path, size_t size, const char *name,
                      const char *text) {
    size_t length = strlen(path);
    length += (size_t)snprintf(path + length, size - length,
                               "%c%s=", strchr(path, '?') ? '&' : '?', name);
    for (; *text && length + 4 < size; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                     (c >= 'A' && c <= 'Z') || strchr("-._~", c);
        length += (size_t)snprintf(path + length, size - length,
                                   plain ? "%c" : "%%%02X", c);
    }
}

static char *path_of(const struct mlflow_run *run) {
    static const char *const paths[] = {
        [FIND_EXPERIMENT] = "experiments/get-by-name",
        [MAKE_EXPERIMENT] = "experiments/create",
        [FIND_RUN] = "runs/search",
        [MAKE_RUN] = "runs/create",
        [GET_RUN] = "runs/get",
        [REOPEN] = "runs/update",
        [TAG] = "runs/log-batch",
        [PARAMS] = "runs/log-batch",
        [METRICS] = "runs/log-batch",
        [HISTORY] = "metrics/get-history",
        [END] = "runs/update",
    };
    size_t size = 4096;
    char *path = malloc(size);
    if (!path)
        return NULL;
    snprintf(path, size, "%s", paths[run->step]);
    if (run->step == FIND_EXPERIMENT)
        add_query(path, size, "experiment_name", run->settings.experiment);
    if (run->step == GET_RUN)
        add_query(path, size, "run_id", run->settings.run_id);
    if (run->step == HISTORY) {
        add_query(path, size, "run_id", run->facts.run_id);
        add_query(path, size, "metric_key", run->settings.names[run->name]);
        if (run->page)
            add_query(path, size, "page_token", run->page);
    }
    return path;
}

int64_t mlflow_run_due(const struct mlflow_run *run, int64_t now) {
    int64_t due = run->not_before;
    if (run->asked || run->step == OVER)
        return TIME_NEVER;
    if (run->step == METRICS && !run->batch) {
        if (!run->count)
            return TIME_NEVER;
        if (!run->status && run->metrics_at > due)
            due = run->metrics_at;
    }
    return due > now ? due : now;
}

static void begin_history(struct mlflow_run *run);

bool mlflow_run_next(struct mlflow_run *run, int64_t now,
                     struct mlflow_request *request) {
    *request = (struct mlflow_request){0};
    if (mlflow_run_due(run, now) > now)
        return false;
    if (run->step == METRICS && !run->batch) {
        choose_batch(run);
        if (point_at(run, 0)->step <= run->settings.repeats_to)
            begin_history(run);
    }
    run->params_asked = run->params_batch;
    json_t *body = body_of(run);
    request->method = body ? "POST" : "GET";
    request->path = path_of(run);
    request->body = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (!request->path || (body && !request->body)) {
        run->not_before = now + FIRST_PAUSE; /* no memory */
        mlflow_request_clear(request);
    }
    json_decref(body);
    run->asked = request->path;
    return run->asked;
}

/* Copies the text of KEY in OBJECT; false: it has none that fits. */
static bool take_id(const json_t *object, const char *key, char *text,
                    size_t size) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value || !*value || strlen(value) >= size)
        return false;
    snprintf(text, size, "%s", value);
    return true;
}

static void give_up_for(struct mlflow_run *run, const char *format, ...)
    PRINTF_LIKE(2, 3);

static void give_up_for(struct mlflow_run *run, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->facts.problem, sizeof run->facts.problem, format, arguments);
    va_end(arguments);
    tell_no_more(run, true);
}

static bool take_experiment(struct mlflow_run *run, const json_t *body) {
    const json_t *experiment = json_object_get(body, "experiment");
    const char *stage =
        json_string_value(json_object_get(experiment, "lifecycle_stage"));
    if (!take_id(experiment, "experiment_id", run->facts.experiment_id,
                 sizeof run->facts.experiment_id))
        return false;
    if (stage && !strcmp(stage, "deleted"))
        give_up_for(run,
                    "the experiment \"%s\" is deleted: restore it, or name "
                    "another one",
                    run->settings.experiment);
    else
        run->step = FIND_RUN;
    return true;
}

/* A parameter keeps its first value: those that FOUND, MLflow's run, has are
 * not told again. */
static void drop_known_params(struct mlflow_run *run, const json_t *found) {
    const json_t *pairs =
        json_object_get(json_object_get(found, "data"), "params");
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *pair = json_array_get(pairs, i);
        const char *key = json_string_value(json_object_get(pair, "key"));
        const json_t *own = key ? json_object_get(run->params, key) : NULL;
        if (!own)
            continue;
        if (!json_equal(own, json_object_get(pair, "value")) &&
            !run->facts.differing_params++)
            snprintf(run->facts.param, sizeof run->facts.param, "%s", key);
        json_object_del(run->params, key);
    }
}

/* The newest run of the lineage, and of the name if one is given. */
static bool take_found_run(struct mlflow_run *run, const json_t *body) {
    const json_t *runs = json_object_get(body, "runs");
    const char *name = run->settings.run_name;
    run->step = MAKE_RUN;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *found = json_array_get(runs, i);
        const json_t *info = json_object_get(found, "info");
        const char *other =
            json_string_value(json_object_get(info, "run_name"));
        if (name && (!other || strcmp(name, other)))
            continue;
        if (!take_id(info, "run_id", run->facts.run_id,
                     sizeof run->facts.run_id))
            continue;
        drop_known_params(run, found);
        run->step = REOPEN;
        break;
    }
    return true;
}

static bool take_run(struct mlflow_run *run, const json_t *body) {
    const json_t *taken = json_object_get(body, "run");
    const json_t *info = json_object_get(taken, "info");
    if (!take_id(info, "run_id", run->facts.run_id, sizeof run->facts.run_id))
        return false;
    take_id(info, "experiment_id", run->facts.experiment_id,
            sizeof run->facts.experiment_id);
    drop_known_params(run, taken);
    run->step = run->step == GET_RUN ? TAG : PARAMS;
    return true;
}

static void forget_params(struct mlflow_run *run, uint32_t count) {
    for (; count && json_object_size(run->params); count--)
        json_object_del(run->params,
                        json_object_iter_key(json_object_iter(run->params)));
}

/* What of the batch stands in the history of a name is told. */
static void take_metric(struct mlflow_run *run, const json_t *metric) {
    json_int_t at = json_integer_value(json_object_get(metric, "timestamp"));
    json_int_t step = json_integer_value(json_object_get(metric, "step"));
    double there = json_number_value(json_object_get(metric, "value"));
    for (size_t i = 0; i < run->batch; i++) {
        struct mlflow_point *point = point_at(run, i);
        double *value = &point->values[run->name];
        bool repeated = point->step <= run->settings.repeats_to &&
                        fabs(*value - there) <= 1e-6 * fabs(there);
        if (point->step == (uint64_t)step && (point->unix_ms == at || repeated))
            *value = NAN;
    }
}

static bool name_is_in_batch(const struct mlflow_run *run) {
    for (size_t i = 0; i < run->batch; i++)
        if (!isnan(point_at(run, i)->values[run->name]))
            return true;
    return false;
}

/* Moves on to the first name from the present one on whose history is to be
 * read; after the last one what is left of the batch is sent again. */
static void next_history(struct mlflow_run *run) {
    free(run->page);
    run->page = NULL;
    while (run->name < run->settings.num_names && !name_is_in_batch(run))
        run->name++;
    if (run->name < run->settings.num_names)
        return;
    run->step = METRICS;
    for (size_t i = 0; i < run->batch; i++)
        if (has_values(run, point_at(run, i)))
            return;
    end_batch(run);
}

static void begin_history(struct mlflow_run *run) {
    run->step = HISTORY;
    run->name = 0;
    next_history(run);
}

static bool take_history(struct mlflow_run *run, const json_t *body) {
    const json_t *metrics = json_object_get(body, "metrics");
    const char *page =
        json_string_value(json_object_get(body, "next_page_token"));
    for (size_t i = 0; i < json_array_size(metrics); i++)
        take_metric(run, json_array_get(metrics, i));
    if (page && *page) {
        char *next = strdup(page);
        free(run->page);
        run->page = next;
        return next;
    }
    run->name++;
    next_history(run);
    return true;
}

/* False: the answer is none to the request. */
static bool take(struct mlflow_run *run, int64_t now, const json_t *body) {
    switch (run->step) {
    case FIND_EXPERIMENT:
        return take_experiment(run, body);
    case MAKE_EXPERIMENT:
        run->step = FIND_RUN;
        return take_id(body, "experiment_id", run->facts.experiment_id,
                       sizeof run->facts.experiment_id);
    case FIND_RUN:
        return take_found_run(run, body);
    case MAKE_RUN:
    case GET_RUN:
        return take_run(run, body);
    case REOPEN:
    case TAG:
        run->step = PARAMS;
        return true;
    case PARAMS:
        forget_params(run, run->params_asked);
        run->params_batch = run->params_batch < MLFLOW_PARAMS / 2
                                ? 2 * run->params_batch
                                : MLFLOW_PARAMS;
        return true;
    case METRICS:
        run->metrics_at = now + POINTS_INTERVAL;
        end_batch(run);
        return true;
    case HISTORY:
        return take_history(run, body);
    case END:
        tell_no_more(run, false);
        return true;
    default:
        return false;
    }
}

/* The server names a parameter that it does not take in its own words only:
 * it is found by halves, and left out. */
static void refuse_params(struct mlflow_run *run) {
    uint32_t asked = run->params_asked;
    if (asked > json_object_size(run->params))
        asked = (uint32_t)json_object_size(run->params);
    run->params_batch = asked / 2;
    if (asked > 1)
        return;
    if (!run->facts.refused_params++)
        snprintf(run->facts.param, sizeof run->facts.param, "%s",
                 json_object_iter_key(json_object_iter(run->params)));
    forget_params(run, 1);
    run->params_batch = 1;
}

/* The server has read the request and says ERROR, a word of MLflow's. */
static void take_refusal(struct mlflow_run *run, int64_t now, long code,
                         const char *error) {
    bool missing = !strcmp(error, MISSING);
    bool denied = code == 401 || code == 403;
    if (run->step == FIND_EXPERIMENT && missing)
        run->step = MAKE_EXPERIMENT;
    else if (run->step == MAKE_EXPERIMENT &&
             !strcmp(error, "RESOURCE_ALREADY_EXISTS")) {
        run->step = FIND_EXPERIMENT; /* where it may be hidden from us */
        run->not_before = now + FIRST_PAUSE;
    } else if (run->step == HISTORY && missing) { /* of a metric never told */
        run->name++;
        next_history(run);
    } else if (run->step == PARAMS && !denied && !missing)
        refuse_params(run);
    else if ((run->step == REOPEN || run->step == TAG) && !denied && !missing)
        run->step = PARAMS;
    else if (run->step == METRICS && !denied && !missing) {
        run->facts.lost += run->batch;
        end_batch(run);
    } else
        tell_no_more(run, true);
}

/* Did MLflow itself take_refusal, and not a proxy that cannot reach it? Who is
 * not let in is told so by either. Returns the word for it. */
static const char *word_of_refusal(const struct mlflow_answer *answer) {
    const char *error =
        json_string_value(json_object_get(answer->body, "error_code"));
    long code = answer->code;
    if (answer->outcome != MLFLOW_ANSWERED || code < 400 || code >= 500 ||
        code == 408 || code == 429)
        return NULL;
    if (error)
        return error;
    return code == 401 || code == 403 ? "UNAUTHORIZED" : NULL;
}

static void note_problem(struct mlflow_run *run,
                         const struct mlflow_answer *answer) {
    const char *message =
        json_string_value(json_object_get(answer->body, "message"));
    if (answer->outcome != MLFLOW_ANSWERED)
        snprintf(run->facts.problem, sizeof run->facts.problem, "%s",
                 answer->text);
    else
        snprintf(run->facts.problem, sizeof run->facts.problem,
                 "it answered %ld%s%.400s", answer->code, message ? ": " : "",
                 message ? message : "");
}

static void try_again(struct mlflow_run *run, int64_t now,
                      const struct mlflow_answer *answer) {
    uint32_t doublings = run->facts.failures < 6 ? run->facts.failures : 6;
    int64_t pause = FIRST_PAUSE << doublings;
    if (pause > LAST_PAUSE)
        pause = LAST_PAUSE;
    run->facts.failures++;
    run->not_before = now + (run->status ? PAUSE_AT_END : pause);
    if (answer->outcome == MLFLOW_NOT_SENT ||
        (answer->outcome == MLFLOW_ANSWERED && answer->code == 429))
        return;
    if (run->step == MAKE_EXPERIMENT)
        run->step = FIND_EXPERIMENT;
    else if (run->step == MAKE_RUN)
        run->step = FIND_RUN;
    else if (run->step == METRICS)
        begin_history(run);
}

void mlflow_run_answer(struct mlflow_run *run, int64_t now,
                       const struct mlflow_answer *answer) {
    enum mlflow_step step = run->step;
    const char *error = word_of_refusal(answer);
    assert(run->asked);
    run->asked = false;
    bool taken = answer->outcome == MLFLOW_ANSWERED && answer->code == 200 &&
                 json_is_object(answer->body) && take(run, now, answer->body);
    if (taken)
        run->facts.failures = 0;
    else
        note_problem(run, answer);
    if (!taken && error) {
        run->facts.failures = 0;
        take_refusal(run, now, answer->code, error);
    } else if (!taken) {
        run->step = step;
        try_again(run, now, answer);
    }
    settle(run);
}
