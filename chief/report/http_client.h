/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests, one at a time, by this host's libcurl, which is opened at run
 * time: a program that makes none needs no libcurl. It takes the proxies of the
 * environment (https_proxy, no_proxy), and follows no redirection. */
#ifndef CAPSTAN_HTTP_CLIENT_H
#define CAPSTAN_HTTP_CLIENT_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_client;

/* Texts or NULL. */
struct http_client_settings {
    const char *user, *password; /* of the scheme Basic, */
    const char *token;           /* or Bearer, which counts if both are given */
    const char *ca_file;         /* certificates to trust, a file */
    bool insecure;               /* the server's certificate is not checked */
};

/* Copies SETTINGS. PLUGIN_MISSING: this host has no libcurl. */
enum status http_client_open(struct http_client **out,
                             const struct http_client_settings *settings,
                             struct failure *why) MUST_CHECK;

/* Frees *CLIENT (may be NULL) and clears it. */
void http_client_close(struct http_client **client);

struct http_answer {
    enum http_outcome {
        HTTP_ANSWERED,
        HTTP_NOT_SENT, /* no byte of the request has left */
        HTTP_LOST,     /* the server may have it */
    } outcome;
    long code;      /* 200 */
    char *body;     /* [size], then a 0; NULL: empty */
    size_t size;    /* at most HTTP_BODY */
    char text[256]; /* unless ANSWERED: why */
};

enum { HTTP_BODY = 64 << 20 };

/* Sends BODY (JSON), or NULL with METHOD GET, to URL, and waits for the answer
 * for at most TIMEOUT ns. The caller frees answer->body. */
void http_client_ask(struct http_client *client, const char *method,
                     const char *url, const char *body, int64_t timeout,
                     struct http_answer *answer);

/* From any thread: the request in progress and all later ones end soon,
 * without an answer. */
void http_client_cancel(struct http_client *client);

#endif
