/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/http_client.h"

#include "core/base/time.h"
#include "core/base/version.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Debian's libcurl of OpenSSL, and every other distribution's, has this name;
 * the second is that of GnuTLS. */
static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

static struct {
    CURLcode (*global_init)(long);
    CURL *(*init)(void);
    void (*cleanup)(CURL *);
    void (*reset)(CURL *);
    CURLcode (*setopt)(CURL *, CURLoption, ...);
    CURLcode (*perform)(CURL *);
    CURLcode (*getinfo)(CURL *, CURLINFO, ...);
    struct curl_slist *(*append)(struct curl_slist *, const char *);
    void (*free_list)(struct curl_slist *);
    const char *(*error_text)(CURLcode);
    bool usable;
    char problem[512];
} curl;

struct http_client {
    CURL *easy;
    char *user, *password, *token, *ca_file;
    bool insecure;
    atomic_bool cancelled;
};

static void load_functions(void *object) {
    const struct {
        void **function;
        const char *name;
    } all[] = {
        {(void **)&curl.global_init, "curl_global_init"},
        {(void **)&curl.init, "curl_easy_init"},
        {(void **)&curl.cleanup, "curl_easy_cleanup"},
        {(void **)&curl.reset, "curl_easy_reset"},
        {(void **)&curl.setopt, "curl_easy_setopt"},
        {(void **)&curl.perform, "curl_easy_perform"},
        {(void **)&curl.getinfo, "curl_easy_getinfo"},
        {(void **)&curl.append, "curl_slist_append"},
        {(void **)&curl.free_list, "curl_slist_free_all"},
        {(void **)&curl.error_text, "curl_easy_strerror"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].function = dlsym(object, all[i].name);
        if (*all[i].function)
            continue;
        snprintf(curl.problem, sizeof curl.problem, "libcurl has no %s",
                 all[i].name);
        return;
    }
    CURLcode error = curl.global_init(CURL_GLOBAL_DEFAULT);
    curl.usable = !error;
    if (error)
        snprintf(curl.problem, sizeof curl.problem, "libcurl: %s",
                 curl.error_text(error));
}

/* Once in a process, which keeps it. */
static void load_library(void) {
    void *object = NULL;
    for (size_t i = 0; !object && i < sizeof libraries / sizeof *libraries; i++)
        object = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (object)
        load_functions(object);
    else
        snprintf(curl.problem, sizeof curl.problem,
                 "libcurl cannot be opened (%s): install it (Debian, Ubuntu: "
                 "the package libcurl4; Fedora, RHEL: libcurl)",
                 dlerror());
}

/* False: no memory. */
static bool copy_setting(char **to, const char *from) {
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

enum status http_client_open(struct http_client **out,
                             const struct http_client_settings *settings,
                             struct failure *why) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct http_client *client = calloc(1, sizeof *client);
    *out = NULL;
    pthread_once(&once, load_library);
    if (client && !curl.usable) {
        free(client);
        return status_fail(why, FAILURE_PLUGIN_MISSING, "%s", curl.problem);
    }
    if (client)
        client->easy = curl.init();
    if (!client || !client->easy ||
        !copy_setting(&client->user, settings->user) ||
        !copy_setting(&client->password, settings->password) ||
        !copy_setting(&client->token, settings->token) ||
        !copy_setting(&client->ca_file, settings->ca_file)) {
        http_client_close(&client);
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for HTTP");
    }
    client->insecure = settings->insecure;
    *out = client;
    return STATUS_OK;
}

void http_client_close(struct http_client **where) {
    struct http_client *client = *where;
    *where = NULL;
    if (!client)
        return;
    if (client->easy)
        curl.cleanup(client->easy);
    free(client->user);
    free(client->password);
    free(client->token);
    free(client->ca_file);
    free(client);
}

void http_client_cancel(struct http_client *client) {
    atomic_store(&client->cancelled, true);
}

static size_t keep_body(char *bytes, size_t one, size_t size, void *context) {
    struct http_answer *answer = context;
    (void)one; /* 1 */
    if (size > HTTP_BODY - answer->size)
        return 0;
    char *body = realloc(answer->body, answer->size + size + 1);
    if (!body)
        return 0;
    memcpy(body + answer->size, bytes, size);
    answer->body = body;
    answer->size += size;
    body[answer->size] = 0;
    return size;
}

/* libcurl calls it about once a second, and while bytes move. */
static int stop_if_cancelled(void *context, curl_off_t a, curl_off_t b,
                             curl_off_t c, curl_off_t d) {
    struct http_client *client = context;
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load(&client->cancelled);
}

static void set_identity(const struct http_client *client) {
    if (client->token) {
        curl.setopt(client->easy, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        curl.setopt(client->easy, CURLOPT_XOAUTH2_BEARER, client->token);
    } else if (client->user) {
        curl.setopt(client->easy, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
        curl.setopt(client->easy, CURLOPT_USERNAME, client->user);
        curl.setopt(client->easy, CURLOPT_PASSWORD,
                    client->password ? client->password : "");
    }
    if (client->ca_file)
        curl.setopt(client->easy, CURLOPT_CAINFO, client->ca_file);
    if (client->insecure) {
        curl.setopt(client->easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl.setopt(client->easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

/* Without "Expect: 100-continue", which not every server answers. */
static struct curl_slist *make_headers(void) {
    struct curl_slist *headers =
        curl.append(NULL, "Content-Type: application/json");
    struct curl_slist *more = headers ? curl.append(headers, "Expect:") : NULL;
    if (!more)
        curl.free_list(headers);
    return more;
}

void http_client_ask(struct http_client *client, const char *method,
                     const char *url, const char *body, int64_t timeout,
                     struct http_answer *answer) {
    CURL *easy = client->easy;
    char text[CURL_ERROR_SIZE] = "";
    long sent = 0;
    *answer = (struct http_answer){0};
    curl.reset(easy);
    struct curl_slist *headers = make_headers();
    curl.setopt(easy, CURLOPT_ERRORBUFFER, text);
    curl.setopt(easy, CURLOPT_URL, url);
    curl.setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    if (body)
        curl.setopt(easy, CURLOPT_POSTFIELDS, body);
    curl.setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl.setopt(easy, CURLOPT_USERAGENT, "capstan/" VERSION_TEXT);
    /* On a connection that another request has used, libcurl may send a request
     * twice by itself. */
    curl.setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    curl.setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl.setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* do not wait for a resolver */
    curl.setopt(easy, CURLOPT_TIMEOUT_MS, (long)(timeout / TIME_MS) + 1);
    curl.setopt(easy, CURLOPT_WRITEFUNCTION, keep_body);
    curl.setopt(easy, CURLOPT_WRITEDATA, answer);
    curl.setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl.setopt(easy, CURLOPT_XFERINFOFUNCTION, stop_if_cancelled);
    curl.setopt(easy, CURLOPT_XFERINFODATA, client);
    set_identity(client);
    CURLcode error = headers ? curl.perform(easy) : CURLE_OUT_OF_MEMORY;
    curl.getinfo(easy, CURLINFO_RESPONSE_CODE, &answer->code);
    curl.getinfo(easy, CURLINFO_REQUEST_SIZE, &sent);
    answer->outcome = !error ? HTTP_ANSWERED : sent ? HTTP_LOST : HTTP_NOT_SENT;
    if (error)
        snprintf(answer->text, sizeof answer->text, "%s",
                 *text ? text : curl.error_text(error));
    curl.setopt(easy, CURLOPT_ERRORBUFFER, NULL);
    curl.free_list(headers);
}
