/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a run tell over HTTP (--metrics-port): a probe learns
 * the state and that a deadline is close, before it ends the run; /status has
 * the step of each role, its peers, and what it waits for. */
#include "commands/launch/port.h"
#include "core/base/time.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <limits.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138, PORTS = 4, TRIES = 600 };
static const double PAUSE = 0.05; /* seconds between two requests */

struct answer {
    int code; /* 0: no connection */
    char text[65536];
    const char *body;
};

static int connect_to(const char *host, unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port)};
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(client >= 0);
    assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
    if (!connect(client, (struct sockaddr *)&address, sizeof address))
        return client;
    close(client);
    return -1;
}

/* Views the answer to TEXT, a whole request, until the next call. */
static const struct answer *exchange(const char *host, unsigned port,
                                     const char *text) {
    static struct answer answer;
    size_t used = 0, length = strlen(text);
    ssize_t got;
    int client = connect_to(host, port);
    answer = (struct answer){.body = answer.text};
    if (client < 0)
        return &answer;
    assert_int_equal(send(client, text, length, MSG_NOSIGNAL), length);
    while ((got = recv(client, answer.text + used,
                       sizeof answer.text - 1 - used, 0)) > 0)
        used += (size_t)got;
    close(client);
    assert_int_equal(sscanf(answer.text, "HTTP/%*s %d", &answer.code), 1);
    answer.body = strstr(answer.text, "\r\n\r\n");
    assert_non_null(answer.body);
    answer.body += 4;
    return &answer;
}

static const struct answer *request(const char *host, unsigned port,
                                    const char *method, const char *path) {
    return exchange(host, port, textf("%s %s HTTP/1.0\r\n\r\n", method, path));
}

static const struct answer *get(unsigned port, const char *path) {
    return request("127.0.0.1", port, "GET", path);
}

/* Asks /healthz as a probe does until it answers CODE. */
static const struct answer *await_health(unsigned port, int code) {
    const struct answer *answer = NULL;
    for (unsigned i = 0; i < TRIES; i++) {
        answer = get(port, "/healthz");
        if (answer->code == code)
            return answer;
        cluster_fixture_sleep(PAUSE);
    }
    fail_msg("no %d within %.0f s: %s", code, TRIES * PAUSE, answer->text);
    return NULL;
}

static void expect_part(const struct answer *answer, const char *part) {
    assert_contains(answer->body, part);
}

/* The object of /status; the caller's. */
static json_t *read_status(unsigned port) {
    const struct answer *answer = get(port, "/status");
    assert_int_equal(answer->code, 200);
    json_t *object = json_loads(answer->body, 0, NULL);
    assert_non_null(object);
    return object;
}

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* The object once it waits for TEXT; the caller's. */
static json_t *await_wait(unsigned port, const char *text) {
    json_t *status = NULL;
    for (unsigned i = 0; i < TRIES; i++) {
        json_decref(status);
        status = read_status(port);
        if (strstr(text_at(status, "waiting_for"), text))
            return status;
        cluster_fixture_sleep(PAUSE);
    }
    fail_msg("no wait for '%s': '%s'", text, text_at(status, "waiting_for"));
    return NULL;
}

/* Waits until ROLE INDEX at PORT tells a step. */
static void expect_steps(unsigned port, const char *role, int index) {
    for (unsigned i = 0; i < TRIES; i++) {
        json_t *status = read_status(port);
        assert_string_equal(text_at(status, "role"), role);
        assert_int_equal(json_integer_value(json_object_get(status, "index")),
                         index);
        bool trains = !strcmp(text_at(status, "state"), "training") &&
                      json_integer_value(json_object_get(status, "step")) > 0;
        if (trains) {
            assert_int_equal(
                json_integer_value(json_object_get(status, "total_steps")),
                1000000);
            assert_int_equal(strlen(text_at(status, "run")), 16);
            assert_true(json_array_size(json_object_get(status, "peers")) > 0);
            assert_true(json_object_get(status, "deadline") != NULL);
        }
        json_decref(status);
        if (trains)
            return;
        cluster_fixture_sleep(PAUSE);
    }
    fail_msg("%s %d tells no step", role, index);
}

/* Holds COUNT ports, one after the other, for processes that bind them with
 * SO_REUSEADDR: the first. */
static unsigned hold_ports(unsigned count, int *sockets) {
    for (unsigned i = 0; i < TRIES; i++) {
        uint16_t first;
        unsigned held = 1;
        assert_ok(port_reserve(&first, &sockets[0], &failure));
        for (; held < count; held++) {
            struct sockaddr_in next = {.sin_family = AF_INET,
                                       .sin_port =
                                           htons((uint16_t)(first + held))};
            int yes = 1;
            sockets[held] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (bind(sockets[held], (struct sockaddr *)&next, sizeof next)) {
                close(sockets[held]);
                break;
            }
            setsockopt(sockets[held], SOL_SOCKET, SO_REUSEADDR, &yes,
                       sizeof yes);
        }
        if (held == count)
            return first;
        while (held)
            close(sockets[--held]);
    }
    fail_msg("there are no %u free ports one after the other", count);
    return 0;
}

static void release_ports(unsigned count, const int *sockets) {
    for (unsigned i = 0; i < count; i++)
        close(sockets[i]);
}

static const char long_job[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"steps_per_print\": 500, \"chief\": \"coordinate\","
    " \"timeouts\": {\"peer\": 12, \"join\": 60, \"stop\": 1}}";

/* The chief of the described cluster, which serves at PORT. */
static struct cluster_process *start_chief(struct cluster_run *run,
                                           unsigned port) {
    struct cluster_process *chief = cluster_run_task(
        run, "chief", 0,
        WORDS("--metrics-port", textf("%u", port), "job.json"));
    cluster_run_await_soon(chief, "serving http://127.0.0.1:");
    return chief;
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

TEST(a_chief_alone_is_late_before_its_members_are) {
    int held;
    unsigned port = hold_ports(1, &held);
    cluster_run_job(*state, "{\"chief\": \"coordinate\","
                            " \"timeouts\": {\"join\": 8, \"stop\": 1}}");
    cluster_run_describe(*state, 1, 1, 1);
    struct cluster_process *chief = start_chief(*state, port);
    expect_part(await_health(port, 200), "joining");
    json_t *status = await_wait(port, "worker 0 at 127.0.0.1:");
    assert_int_equal(json_array_size(json_object_get(status, "peers")), 2);
    json_decref(status);
    const struct answer *late = await_health(port, 503);
    expect_part(late, "timeouts.join");
    expect_part(late, ", ps 0 at 127.0.0.1:");
    cluster_run_expect_soon(chief, RETRY);
    release_ports(1, &held);
}

static void start_local(struct cluster_run *run, unsigned port, const char *ps,
                        struct cluster_process **local) {
    const char *text = textf("%u", port);
    cluster_run_job(run, long_job);
    *local = cluster_run_start(run, "local",
                               WORDS("local", "--ps", ps, "--workers", "2",
                                     "--max-restarts", "0", "--metrics-port",
                                     text, "job.json"),
                               NULL);
    cluster_run_await_soon(*local, "%)");
}

static void end_local(struct cluster_process *local) {
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
}

TEST(every_role_of_local_has_the_next_port) {
    struct cluster_process *local;
    int held[PORTS];
    unsigned port = hold_ports(PORTS, held);
    start_local(*state, port, "1", &local);
    expect_steps(port, "chief", 0);
    expect_steps(port + 1, "ps", 0);
    expect_steps(port + 2, "worker", 0);
    expect_steps(port + 3, "worker", 1);
    for (unsigned i = 0; i < PORTS; i++)
        expect_part(await_health(port + i, 200), "training");
    end_local(local);
    release_ports(PORTS, held);
}

static int code_for(unsigned port, const char *path, const char *headers) {
    return exchange("127.0.0.1", port,
                    textf("GET %s HTTP/1.1\r\n%s\r\n", path, headers))
        ->code;
}

/* The value of the sample that begins with NAME and "{LABELS" on the page of
 * PORT; NAN: there is none. */
static double sample_of(unsigned port, const char *name, const char *labels) {
    const struct answer *answer = get(port, "/metrics");
    assert_int_equal(answer->code, 200);
    assert_contains(answer->text, "Content-Type: text/plain; version=0.0.4;");
    const char *start = textf("\n%s{%s", name, labels);
    const char *found = strstr(answer->body, start);
    return found ? strtod(strchr(found, '}') + 1, NULL) : NAN;
}

/* Waits until the sample is at least LEAST, and returns it. */
static double await_sample(unsigned port, const char *name, const char *labels,
                           double least) {
    double value = NAN;
    for (unsigned i = 0; i < TRIES; i++) {
        value = sample_of(port, name, labels);
        if (value >= least)
            return value;
        cluster_fixture_sleep(PAUSE);
    }
    fail_msg("%s{%s}: %g, not %g", name, labels, value, least);
    return NAN;
}

/* Of two ranks each sends half of its gradients in each of a ring's two phases:
 * in a step as many bytes as the weights have, and some floats behind them. */
static void expect_sums(unsigned port) {
    const double bytes = 4 * ((64 + 1) * 16 + (16 + 1) * 10);
    double steps = await_sample(port, "capstan_steps_total", "role=", 500);
    double sent = await_sample(port, "capstan_collective_sent_bytes_total",
                               "role=", (steps - 1) * bytes);
    steps = sample_of(port, "capstan_steps_total", "role=");
    assert_true(sent <= 2 * (steps + 10) * bytes);
}

TEST(all_reduce_tells_the_same) {
    struct cluster_process *local;
    int held[PORTS];
    unsigned port = hold_ports(PORTS, held);
    start_local(*state, port, "0", &local);
    expect_steps(port, "chief", 0);
    expect_steps(port + 1, "worker", 0);
    expect_steps(port + 2, "worker", 1);
    expect_sums(port + 1);
    expect_sums(port + 2);
    end_local(local);
    release_ports(PORTS, held);
}

static pid_t pid_of(unsigned port) {
    json_t *status = read_status(port);
    json_int_t pid = json_integer_value(json_object_get(status, "pid"));
    json_decref(status);
    return (pid_t)pid;
}

static void expect_rates(unsigned port, bool known) {
    static const char *const keys[] = {"train_loss", "steps_per_second",
                                       "examples_per_second"};
    json_t *status = read_status(port);
    for (int i = 0; i < 3; i++) {
        json_t *value = json_object_get(status, keys[i]);
        assert_true(known ? json_number_value(value) > 0 : json_is_null(value));
    }
    json_decref(status);
}

/* Without rounds a worker is behind by what the other one has pushed. */
TEST(a_ps_tells_how_far_a_stopped_worker_is_behind) {
    struct cluster_process *local;
    int held[PORTS];
    unsigned port = hold_ports(PORTS, held);
    cluster_run_job(*state, long_job);
    local = cluster_run_start(
        *state, "local",
        WORDS("local", "--ps", "1", "--workers", "2", "--metrics-port",
              textf("%u", port), "--set", "strategy.staleness=inf", "job.json"),
        NULL);
    cluster_run_await_soon(local, "%)");
    pid_t stopped = pid_of(port + 3);
    assert_int_equal(kill(stopped, SIGSTOP), 0);
    double first = await_sample(port + 1, "capstan_staleness", "role=", 50);
    await_sample(port + 1, "capstan_staleness", "role=", first + 50);
    assert_int_equal(kill(stopped, SIGCONT), 0);
    end_local(local);
    release_ports(PORTS, held);
}

/* Each round brings the weights of the ps to each worker, and its gradients
 * back; messages have headers beside them. */
TEST(each_role_tells_its_metrics) {
    struct cluster_process *local;
    int held[PORTS];
    unsigned port = hold_ports(PORTS, held);
    start_local(*state, port, "1", &local);
    double before =
        await_sample(port, "capstan_steps_total", "role=\"chief\"", 500);
    await_sample(port, "capstan_train_loss", "role=\"chief\"", 0);
    await_sample(port, "capstan_examples_per_second", "role=\"chief\"", 1);
    await_sample(port, "capstan_steps_per_second", "role=\"chief\"", 1);
    expect_rates(port, true);
    expect_rates(port + 1, false);
    assert_true(sample_of(port, "capstan_total_steps", "role=") == 1000000);
    assert_true(sample_of(port, "capstan_trainers", "role=") == 2);
    assert_true(
        sample_of(port, "capstan_rounds_without_trainer_total", "role=") == 0);
    await_sample(port + 1, "capstan_updates_total", "role=\"ps\",index=\"0\"",
                 before);
    assert_true(
        sample_of(port + 1, "capstan_update_time_seconds_total", "role=") > 0);
    assert_true(sample_of(port + 1, "capstan_staleness", "role=") <= 1);
    for (unsigned w = 0; w < 2; w++) {
        unsigned at = port + 2 + w;
        const char *labels = textf("role=\"worker\",index=\"%u\"", w);
        double sent = sample_of(at, "capstan_sent_bytes_total", labels);
        double steps = await_sample(at, "capstan_steps_total", labels, before);
        assert_true(
            sample_of(at, "capstan_compute_time_seconds_total", labels) > 0);
        assert_true(sample_of(at, "capstan_memory_bytes", labels) > 1e6);
        assert_true(sent > 0 && steps >= before);
        assert_true(isnan(
            sample_of(at, "capstan_collective_sent_bytes_total", labels)));
    }
    assert_true(isnan(sample_of(port, "capstan_gpu_utilization", "role=")));
    assert_int_equal(code_for(port, "/metrics", "Host: a.example\r\n"), 200);
    assert_int_equal(kill(pid_of(port + 3), SIGKILL), 0);
    await_sample(port, "capstan_rounds_without_trainer_total", "role=", 1);
    await_sample(port, "capstan_untrained_samples", "role=", 1);
    assert_true(sample_of(port, "capstan_trainers", "role=") == 1);
    assert_true(isnan(sample_of(port, "capstan_trainer_silence_seconds",
                                "role=\"chief\",index=\"0\",rank=\"1\"")));
    end_local(local);
    release_ports(PORTS, held);
}

/* The last number of KEY in the file of points; NAN: none has it. */
static double point_of(struct cluster_run *run, const char *key) {
    char line[65536];
    double value = NAN;
    FILE *file = fopen(cluster_run_path(run, "m.jsonl"), "re");
    while (file && fgets(line, sizeof line, file)) {
        json_t *point = json_loads(line, 0, NULL);
        const json_t *number = json_object_get(point, key);
        if (json_is_number(number))
            value = json_number_value(number);
        json_decref(point);
    }
    if (file)
        fclose(file);
    return value;
}

/* Each worker has a GPU of its own: the numbers are nvml_on_cpu.c's. */
TEST(gpus_tell_their_use_by_nvml) {
    int held[PORTS];
    char built[PATH_MAX];
    unsigned port = hold_ports(PORTS, held);
    (void)build_folder_find(built);
    cluster_run_job(*state, long_job);
    struct cluster_process *local = cluster_run_program(
        *state, "local", textf("%s/fake/capstan", built),
        WORDS("local", "--ps", "1", "--workers", "2", "--metrics-port",
              textf("%u", port), "--set", "device=cuda", "--set",
              "metrics.jsonl=m.jsonl", "job.json"),
        WORDS("CAPSTAN_FAKE_DEVICE=devices=2",
              textf("LD_LIBRARY_PATH=%s/fake", built)));
    cluster_run_await_soon(local, "%)");
    for (unsigned w = 0; w < 2; w++) {
        double use = await_sample(port + 2 + w, "capstan_gpu_utilization",
                                  "role=\"worker\"", 37);
        assert_true(use == 37 + 10 * w);
        assert_true(sample_of(port + 2 + w, "capstan_gpu_memory_bytes",
                              "role=") == (w + 1) * (double)(1 << 30));
    }
    await_sample(port, "capstan_gpu_utilization", "role=\"chief\"", 42);
    assert_true(sample_of(port, "capstan_gpu_utilization_least", "role=") ==
                37);
    for (unsigned i = 0;
         i < TRIES && !(point_of(*state, "gpu_utilization") == 42); i++)
        cluster_fixture_sleep(PAUSE);
    assert_true(point_of(*state, "gpu_utilization") == 42);
    assert_true(point_of(*state, "gpu_utilization_least") == 37);
    end_local(local);
    release_ports(PORTS, held);
}

TEST(a_stopped_worker_is_named_before_it_is_declared_dead) {
    struct cluster_fixture fixture;
    int held;
    unsigned port = hold_ports(1, &held);
    cluster_run_job(*state, long_job);
    cluster_fixture_describe(&fixture, *state, 1, 1, 2);
    struct cluster_process *chief = fixture.tasks[0].process =
        start_chief(*state, port);
    for (unsigned i = 1; i < fixture.count; i++)
        cluster_fixture_start(&fixture, i);
    cluster_run_await_soon(chief, "%)");
    struct cluster_process *stopped =
        fixture.tasks[cluster_fixture_find(&fixture, "worker", 1)].process;
    cluster_run_signal(stopped, SIGSTOP);
    const struct answer *late = await_health(port, 503);
    expect_part(late, "waiting for worker 1 for");
    expect_part(late, "timeouts.peer");
    json_decref(await_wait(port, "worker 1"));
    cluster_run_signal(stopped, SIGCONT);
    expect_part(await_health(port, 200), "training");
    cluster_run_signal(chief, SIGTERM);
    cluster_run_expect_soon(chief, 128 + SIGTERM);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
    assert_false(cluster_fixture_has_logged(chief, "is gone"));
    release_ports(1, &held);
}

/* One process that has all roles; ADDRESS is the variable's value. */
static struct cluster_process *start_alone(struct cluster_run *run,
                                           const char *address) {
    const char *variable = textf("CAPSTAN_METRICS_PORT=%s", address);
    cluster_run_job(run, "{\"steps\": 1000000, \"steps_per_epoch\": 1000000}");
    return cluster_run_start(run, "alone", WORDS("run", "job.json"),
                             WORDS(variable));
}

TEST(only_loopback_is_served_by_default) {
    int held;
    char address[32];
    unsigned port = hold_ports(1, &held);
    snprintf(address, sizeof address, "%u", port);
    struct cluster_process *alone = start_alone(*state, address);
    cluster_run_await_soon(alone, "serving http://");
    expect_part(await_health(port, 200), "\n");
    assert_int_equal(request("127.0.0.2", port, "GET", "/healthz")->code, 0);
    assert_int_equal(get(port, "/index.html")->code, 404);
    assert_int_equal(get(port, "/status/")->code, 404);
    assert_int_equal(request("127.0.0.1", port, "POST", "/status")->code, 405);
    assert_int_equal(request("127.0.0.1", port, "PUT", "/healthz")->code, 405);
    json_t *status = read_status(port);
    assert_int_equal(json_array_size(json_object_get(status, "roles")), 2);
    json_decref(status);
    end_local(alone);
    snprintf(address, sizeof address, "0.0.0.0:%u", port);
    alone = start_alone(*state, address);
    cluster_run_await_soon(alone, "serving http://");
    assert_int_equal(request("127.0.0.2", port, "GET", "/healthz")->code, 200);
    end_local(alone);
    release_ports(1, &held);
}

/* The page of another site can make a browser ask by that site's name. */
TEST(what_a_run_tells_is_for_who_asks_by_a_name_of_its_own) {
    int held;
    unsigned port = hold_ports(1, &held);
    struct cluster_process *alone =
        start_alone(*state, textf("localhost:%u", port));
    cluster_run_await_soon(alone, "serving http://localhost:");
    assert_int_equal(code_for(port, "/status", "Host: 127.0.0.1\r\n"), 200);
    assert_int_equal(code_for(port, "/status", "Host: LOCALHOST.:9\r\n"), 200);
    assert_int_equal(code_for(port, "/status", "hOST: [::1]:80\r\n"), 200);
    assert_int_equal(code_for(port, "/status", "Host: evil.example\r\n"), 421);
    assert_int_equal(code_for(port, "/status", "Host: localhost.a\r\n"), 421);
    assert_int_equal(code_for(port, "/status", "Host: \r\n"), 421);
    assert_int_equal(code_for(port, "/healthz", "Host: a.example\r\n"), 200);
    static const char *const two[] = {
        "Host: localhost\r\nHost: evil.example\r\n",
        "Host: evil.example\r\nHost: localhost\r\n",
        "Host: localhost\r\nHost: localhost\r\n"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(code_for(port, "/status", two[i]), 400);
    /* A browser always sends the header, so what has none is a script. */
    assert_int_equal(code_for(port, "/status", ""), 200);
    assert_int_equal(get(port, "/status")->code, 200);
    const struct answer *refused =
        exchange("127.0.0.1", port,
                 "GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    expect_part(refused, "--metrics-port NAME:PORT");
    assert_null(strstr(refused->text, "evil"));
    assert_contains(refused->text, "X-Content-Type-Options: nosniff\r\n");
    assert_contains(refused->text, "Referrer-Policy: no-referrer\r\n");
    end_local(alone);
    release_ports(1, &held);
}

/* The object of /points; the caller's. */
static json_t *read_points(unsigned port) {
    const struct answer *answer = get(port, "/points");
    assert_int_equal(answer->code, 200);
    assert_contains(answer->text, "Content-Type: application/json\r\n");
    json_t *object = json_loads(answer->body, 0, NULL);
    assert_non_null(object);
    return object;
}

/* How long COLUMN of GROUP is, as each column of it is. */
static size_t column_length(const json_t *data, const char *group,
                            const char *column) {
    const json_t *columns = json_object_get(data, group);
    const char *name;
    json_t *values;
    size_t length = json_array_size(json_object_get(columns, column));
    json_object_foreach((json_t *)columns, name,
                        values) if (json_array_size(values) != length)
        fail_msg("%s.%s has %zu elements, %s %zu", group, name,
                 json_array_size(values), column, length);
    return length;
}

TEST(a_page_is_served_with_what_it_draws) {
    struct cluster_process *local;
    int held[PORTS];
    unsigned port = hold_ports(PORTS, held);
    start_local(*state, port, "1", &local);
    for (unsigned i = 0; i < PORTS; i++) {
        const struct answer *page = get(port + i, "/");
        assert_int_equal(page->code, 200);
        assert_contains(page->text,
                        "Content-Type: text/html; charset=utf-8\r\n");
        assert_contains(page->text, "\r\nContent-Security-Policy: default-src "
                                    "'none'; script-src 'sha256-");
        assert_contains(page->text, "; frame-ancestors 'none'\r\n");
        assert_contains(page->text, "\r\nX-Content-Type-Options: nosniff\r\n");
        assert_contains(page->text, "\r\nCache-Control: no-store\r\n");
        assert_contains(page->text, "\r\nReferrer-Policy: no-referrer\r\n");
        assert_contains(page->body, "<!doctype html>");
        assert_int_equal(code_for(port + i, "/", "Host: evil.example\r\n"),
                         421);
        assert_int_equal(code_for(port + i, "/points", "Host: a.example\r\n"),
                         421);
    }
    json_t *points = NULL;
    for (unsigned i = 0; i < TRIES; i++) {
        json_decref(points);
        points = read_points(port);
        if (column_length(points, "points", "train_loss") > 1)
            break;
        cluster_fixture_sleep(PAUSE);
    }
    assert_true(column_length(points, "points", "train_loss") > 1);
    const json_t *job = json_object_get(points, "job");
    assert_int_equal(json_integer_value(json_object_get(job, "steps")),
                     1000000);
    assert_non_null(json_object_get(points, "now"));
    json_decref(points);
    points = read_points(port + 1);
    assert_null(json_object_get(points, "points"));
    json_decref(points);
    end_local(local);
    release_ports(PORTS, held);
}

/* What each member does, as the chief knows it. */
TEST(a_chief_tells_what_its_members_do) {
    struct cluster_process *local;
    int held[PORTS];
    unsigned port = hold_ports(PORTS, held);
    start_local(*state, port, "1", &local);
    for (unsigned tries = 0, known = 0; known < 3; tries++) {
        json_t *status = read_status(port);
        size_t i;
        json_t *peer;
        known = 0;
        json_array_foreach(json_object_get(status, "peers"), i, peer) {
            bool trains = !strcmp(text_at(peer, "role"), "worker");
            const json_t *seconds = json_object_get(peer, "seconds");
            assert_true(trains || json_is_null(seconds));
            known += !strcmp(text_at(peer, "state"),
                             trains ? "training" : "joined") &&
                     json_integer_value(json_object_get(peer, "step")) > 0 &&
                     (!trains || json_real_value(
                                     json_object_get(seconds, "training")) > 0);
        }
        json_decref(status);
        if (tries == TRIES)
            fail_msg("of 3 members %u are known", known);
        cluster_fixture_sleep(PAUSE);
    }
    end_local(local);
    release_ports(PORTS, held);
}

/* Of one address, then of a second one beside it. */
TEST(slow_clients_keep_no_probe_out) {
    enum { SLOW = 100 };
    int held, slow[2 * SLOW];
    unsigned port = hold_ports(1, &held);
    struct cluster_process *alone =
        start_alone(*state, textf("0.0.0.0:%u", port));
    cluster_run_await_soon(alone, "serving http://");
    for (int i = 0; i < 2 * SLOW; i++) {
        slow[i] = connect_to(i < SLOW ? "127.0.0.1" : "127.0.0.2", port);
        assert_int_equal(send(slow[i], "GET /heal", 9, MSG_NOSIGNAL), 9);
        if (i % SLOW == SLOW - 1) {
            int64_t begun = time_now();
            assert_int_equal(get(port, "/healthz")->code, 200);
            assert_int_equal(request("127.0.0.3", port, "GET", "/status")->code,
                             200);
            assert_true(time_now() - begun < 2 * TIME_S);
        }
    }
    for (int i = 0; i < 2 * SLOW; i++)
        close(slow[i]);
    end_local(alone);
    release_ports(1, &held);
}

/* A byte twice a second is no reason to wait longer. */
TEST(a_request_has_a_deadline) {
    int held;
    char byte, address[32];
    unsigned port = hold_ports(1, &held);
    snprintf(address, sizeof address, "%u", port);
    struct cluster_process *alone = start_alone(*state, address);
    cluster_run_await_soon(alone, "serving http://");
    struct pollfd slow = {.fd = connect_to("127.0.0.1", port),
                          .events = POLLIN};
    int64_t begun = time_now();
    assert_int_equal(send(slow.fd, "GET /", 5, MSG_NOSIGNAL), 5);
    while (!poll(&slow, 1, 500) && time_now() - begun < 30 * TIME_S)
        (void)send(slow.fd, "x", 1, MSG_NOSIGNAL);
    assert_true(recv(slow.fd, &byte, 1, MSG_DONTWAIT) <= 0);
    assert_true(time_now() - begun < 25 * TIME_S);
    close(slow.fd);
    end_local(alone);
    release_ports(1, &held);
}

TEST(a_busy_port_ends_a_process_with_2) {
    int held[PORTS];
    char address[32];
    unsigned port = hold_ports(PORTS, held);
    assert_int_equal(listen(held[0], 1), 0);
    assert_int_equal(listen(held[2], 1), 0);
    snprintf(address, sizeof address, "%u", port);
    struct cluster_process *process = start_alone(*state, address);
    cluster_run_expect_soon(process, CONFIG);
    cluster_fixture_expect_logged(process, "--metrics-port: cannot listen on");
    snprintf(address, sizeof address, "%u", port + 1); /* its ps has it */
    process = cluster_run_start(
        *state, "local", WORDS("local", "--metrics-port", address, "job.json"),
        NULL);
    cluster_run_expect_soon(process, CONFIG);
    cluster_fixture_expect_logged(process, "--metrics-port: cannot listen on");
    process = start_alone(*state, ":80");
    cluster_run_expect_soon(process, CONFIG);
    cluster_fixture_expect_logged(process, "CAPSTAN_METRICS_PORT is ':80'");
    release_ports(PORTS, held);
}

TEST(an_evaluator_tells_how_long_it_waits) {
    int held;
    unsigned port = hold_ports(1, &held);
    struct cluster_process *evaluator = cluster_run_start(
        *state, "evaluator",
        WORDS("run", "--job_name=evaluator", "--chief_hosts=a:1",
              "--worker_hosts=b:1", "--task_index=0", "--checkpoint-dir",
              "missing", "--join-timeout", "6", "--metrics-port",
              textf("%u", port)),
        NULL);
    cluster_run_await_soon(evaluator, "following");
    expect_part(await_health(port, 200), "following");
    json_t *status = read_status(port);
    assert_string_equal(text_at(status, "role"), "evaluator");
    json_decref(status);
    const struct answer *late = await_health(port, 503);
    expect_part(late, "a new checkpoint in missing");
    expect_part(late, "--join-timeout");
    cluster_run_expect_soon(evaluator, RETRY);
    release_ports(1, &held);
}
