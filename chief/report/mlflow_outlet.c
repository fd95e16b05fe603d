/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/mlflow_outlet.h"

#include "chief/report/http_client.h"
#include "chief/report/mlflow_run.h"
#include "chief/report/mlflow_settings.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "core/base/time.h"
#include "core/base/version.h"
#include "core/base/waiter.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t REQUEST_TIMEOUT = 10 * TIME_S;
static const size_t MOST_BYTES = 64 << 20; /* of points that wait */

struct mlflow_outlet {
    const struct mlflow_settings *settings;
    const struct log *log;
    struct http_client *http;
    pthread_t thread;
    bool started;

    struct waiter waiter; /* for what follows */
    struct mlflow_run *run;
    bool done; /* the thread tells nothing more */

    struct mlflow_run_facts logged; /* of the thread: what is logged */
};

/* Adds the values of OBJECT to PARAMS, by their paths. An array is one value,
 * in JSON. */
static void add_params(json_t *params, const char *above,
                       const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        char *path, *text = NULL;
        if (asprintf(&path, "%s%s%s", above, *above ? "." : "", key) < 0)
            return;
        if (json_is_object(value))
            add_params(params, path, value);
        else if (json_is_string(value))
            json_object_set(params, path, value);
        else if ((text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT |
                                               JSON_REAL_PRECISION(15))))
            json_object_set_new(params, path, json_string(text));
        free(text);
        free(path);
    }
}

static json_t *params_of(const char *job) {
    json_t *params = json_object(), *object = json_loads(job, 0, NULL);
    add_params(params, "", object);
    json_decref(object);
    return params;
}

static int64_t calendar_ms(void) {
    return (int64_t)(time_calendar() * 1000);
}

static struct mlflow_run *open_core(const struct mlflow_settings *settings,
                                    const struct run *run) {
    static const char *names[METRIC_COUNT];
    char id[32], name[48], lineage[32];
    for (int m = 0; m < METRIC_COUNT; m++)
        names[m] = metric_rows[m].name;
    snprintf(id, sizeof id, "%016llx", (unsigned long long)run->id);
    snprintf(name, sizeof name, "capstan-%s", id);
    snprintf(lineage, sizeof lineage, "%016llx",
             (unsigned long long)run->plan.lineage);
    json_t *tags =
        json_pack("{s:s, s:s, s:s}", "capstan_run", id, "capstan_lineage",
                  lineage, "capstan_version", VERSION_TEXT);
    json_t *params = params_of(run->job->text);
    const struct mlflow_run_settings core = {
        .experiment = settings->experiment ? settings->experiment : "Default",
        .experiment_id = settings->experiment_id,
        .run_id = settings->run_id,
        .run_name = settings->run_name,
        .new_name = name,
        .lineage = lineage,
        .tags = tags,
        .params = params,
        .start_ms = calendar_ms(),
        .names = names,
        .num_names = METRIC_COUNT,
        .bytes = MOST_BYTES,
        .repeats_to = rewind_is_second(run)  ? run->lineage->furthest
                      : run_tests_again(run) ? run->metrics.points.start
                                             : 0,
    };
    struct mlflow_run *core_run =
        tags && params ? mlflow_run_open(&core) : NULL;
    json_decref(tags);
    json_decref(params);
    return core_run;
}

static void ask_server(struct mlflow_outlet *outlet,
                       const struct mlflow_request *request,
                       struct http_answer *answer) {
    char *url;
    if (asprintf(&url, "%s/api/2.0/mlflow/%s", outlet->settings->url,
                 request->path) < 0) {
        *answer = (struct http_answer){.outcome = HTTP_NOT_SENT,
                                       .text = "out of memory"};
        return;
    }
    http_client_ask(outlet->http, request->method, url, request->body,
                    REQUEST_TIMEOUT, answer);
    free(url);
}

static void log_outage(struct mlflow_outlet *outlet,
                       const struct mlflow_run_facts *facts) {
    bool fails = facts->failures, failed = outlet->logged.failures;
    if (fails && !failed)
        log_warning(outlet->log, "mlflow_unreachable",
                    "MLflow at %s: %s; metrics wait here, and are sent again "
                    "later",
                    outlet->settings->url, facts->problem);
    else if (!fails && failed && !facts->over)
        log_info(outlet->log, "mlflow_reachable", "MLflow at %s answers again",
                 outlet->settings->url);
}

static void log_params(struct mlflow_outlet *outlet,
                       const struct mlflow_run_facts *facts) {
    if (facts->differing_params && !outlet->logged.differing_params)
        log_warning(outlet->log, "mlflow_refused",
                    "MLflow's run has other values of %llu parameters, which "
                    "stay, the first is %s",
                    (unsigned long long)facts->differing_params, facts->param);
    if (facts->refused_params && !outlet->logged.refused_params)
        log_warning(outlet->log, "mlflow_refused",
                    "MLflow refuses the parameter %s: %s", facts->param,
                    facts->problem);
}

/* What is new in FACTS. */
static void log_news(struct mlflow_outlet *outlet,
                     const struct mlflow_run_facts *facts) {
    if (*facts->run_id && !*outlet->logged.run_id)
        log_info(outlet->log, "mlflow_run",
                 "metrics go to MLflow, experiment %s, run %s, at %s",
                 facts->experiment_id, facts->run_id, outlet->settings->url);
    log_outage(outlet, facts);
    log_params(outlet, facts);
    if (facts->thinned && !outlet->logged.thinned)
        log_warning(outlet->log, "mlflow_thinned",
                    "the points that wait for MLflow take %zu MB: every second "
                    "one of the older half is left out, now and whenever they "
                    "do again",
                    MOST_BYTES >> 20);
    if (facts->given_up)
        log_warning(outlet->log, "mlflow_refused",
                    "no more metrics go to MLflow at %s: %s",
                    outlet->settings->url, facts->problem);
    else if (facts->lost && !outlet->logged.lost)
        log_warning(outlet->log, "mlflow_refused", "MLflow refuses metrics: %s",
                    facts->problem);
    outlet->logged = *facts;
}

/* With the waiter entered, which it leaves meanwhile. */
static void tell(struct mlflow_outlet *outlet,
                 const struct mlflow_request *request) {
    static const enum mlflow_outcome outcomes[] = {
        [HTTP_ANSWERED] = MLFLOW_ANSWERED,
        [HTTP_NOT_SENT] = MLFLOW_NOT_SENT,
        [HTTP_LOST] = MLFLOW_LOST,
    };
    struct http_answer answer;
    waiter_leave(&outlet->waiter);
    ask_server(outlet, request, &answer);
    json_t *body =
        answer.body ? json_loadb(answer.body, answer.size, 0, NULL) : NULL;
    free(answer.body);
    waiter_enter(&outlet->waiter);
    const struct mlflow_answer taken = {.outcome = outcomes[answer.outcome],
                                        .code = answer.code,
                                        .body = body,
                                        .text = answer.text};
    mlflow_run_answer(outlet->run, time_now(), &taken);
    struct mlflow_run_facts facts = *mlflow_run_facts(outlet->run);
    waiter_leave(&outlet->waiter);
    json_decref(body);
    log_news(outlet, &facts);
    waiter_enter(&outlet->waiter);
}

static void *talk(void *context) {
    struct mlflow_outlet *outlet = context;
    waiter_enter(&outlet->waiter);
    while (!outlet->waiter.cancelled && !mlflow_run_facts(outlet->run)->over) {
        struct mlflow_request request;
        int64_t now = time_now(), due = mlflow_run_due(outlet->run, now);
        if (due > now)
            waiter_wait(&outlet->waiter, due, NULL);
        else if (mlflow_run_next(outlet->run, now, &request)) {
            tell(outlet, &request);
            mlflow_request_clear(&request);
        }
    }
    outlet->done = true;
    waiter_leave_changed(&outlet->waiter);
    return NULL;
}

static void mlflow_outlet_begin(void *self, const struct run *run) {
    struct mlflow_outlet *outlet = self;
    int error = ENOMEM;
    outlet->run = open_core(outlet->settings, run);
    if (outlet->run)
        error = pthread_create(&outlet->thread, NULL, talk, outlet);
    outlet->started = !error;
    if (error)
        log_warning(outlet->log, "mlflow_failed",
                    "no metrics go to MLflow: cannot start a thread for it: "
                    "%s",
                    strerror(error));
}

static void mlflow_outlet_write(void *self, const struct metric_point *point) {
    struct mlflow_outlet *outlet = self;
    if (!outlet->started)
        return;
    waiter_enter(&outlet->waiter);
    mlflow_run_add(outlet->run, point->step, point->unix_ms, point->values);
    waiter_leave_changed(&outlet->waiter);
}

/* MLflow's word for how a run has ended. */
static const char *status_word(const struct run *run) {
    if (run->is_rewinding)
        return "RUNNING";
    if (!run->code)
        return "FINISHED";
    return failure_code_is_signal(run->code) ? "KILLED" : "FAILED";
}

/* FILE has all points; NULL: none has. */
static void log_left(struct mlflow_outlet *outlet,
                     const struct mlflow_run_facts *facts, const char *file) {
    uint64_t left = facts->waiting + facts->lost + facts->thinned;
    if (!left && facts->over)
        return;
    log_warning(outlet->log, "mlflow_incomplete",
                "MLflow at %s has not got %llu points of this run%s%s%s; %s%s",
                outlet->settings->url, (unsigned long long)left,
                facts->over ? "" : ", nor its end", *facts->problem ? ": " : "",
                facts->problem,
                file ? "all are in " : "metrics.jsonl keeps all in a file",
                file ? file : "");
}

/* The request in progress ends within about a second. */
static void end_thread(struct mlflow_outlet *outlet) {
    if (!outlet->started)
        return;
    waiter_cancel(&outlet->waiter);
    http_client_cancel(outlet->http);
    pthread_join(outlet->thread, NULL);
    outlet->started = false;
}

/* Waits for the server for at most timeouts.stop, or a second if the run goes
 * back. */
static void mlflow_outlet_end(void *self, const struct run *run,
                              json_t *summary) {
    (void)summary;
    struct mlflow_outlet *outlet = self;
    int64_t now = time_now(),
            until = now + (run->is_rewinding
                               ? TIME_S
                               : time_from_seconds(run->job->timeouts.stop));
    if (!outlet->started)
        return;
    waiter_enter(&outlet->waiter);
    mlflow_run_end(outlet->run, now, status_word(run), calendar_ms());
    waiter_leave_changed(&outlet->waiter);
    waiter_enter(&outlet->waiter);
    while (!outlet->done && waiter_wait(&outlet->waiter, until, NULL))
        ;
    waiter_leave(&outlet->waiter);
    end_thread(outlet);
    log_left(outlet, mlflow_run_facts(outlet->run), run->job->metrics_jsonl);
}

static void mlflow_outlet_close(void *self) {
    struct mlflow_outlet *outlet = self;
    end_thread(outlet);
    mlflow_run_close(&outlet->run);
    http_client_close(&outlet->http);
    waiter_close(&outlet->waiter);
    free(outlet);
}

enum status mlflow_outlet_open(struct point_outlet *out, const struct run *run,
                               struct failure *why) {
    const struct mlflow_settings *settings = run->mlflow;
    if (!settings || !settings->on)
        return STATUS_OK;
    const struct http_client_settings http = {
        .user = settings->user,
        .password = settings->password,
        .token = settings->token,
        .ca_file = settings->ca_file,
        .insecure = settings->insecure,
    };
    struct mlflow_outlet *outlet = calloc(1, sizeof *outlet);
    if (!outlet)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for MLflow");
    enum status status = http_client_open(&outlet->http, &http, why);
    if (status) {
        free(outlet);
        status_context(why, "mlflow");
        if (settings->asked)
            return status;
        log_warning(run->log, "mlflow_failed",
                    "no metrics go to MLflow (MLFLOW_TRACKING_URI): %s",
                    why->text);
        return STATUS_OK;
    }
    outlet->settings = settings;
    outlet->log = run->log;
    waiter_open(&outlet->waiter);
    *out = (struct point_outlet){
        .self = outlet,
        .begin = mlflow_outlet_begin,
        .write = mlflow_outlet_write,
        .end = mlflow_outlet_end,
        .close = mlflow_outlet_close,
    };
    return STATUS_OK;
}
