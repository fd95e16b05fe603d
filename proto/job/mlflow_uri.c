/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/mlflow_uri.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ALLOWED "allowed: http://, https:// or azureml://"

static bool begins(const char *text, const char *with) {
    return !strncasecmp(text, with, strlen(with));
}

static bool is_database(const char *text) {
    static const char *const schemes[] = {"sqlite", "mysql", "postgresql",
                                          "postgres", "mssql"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t length = strlen(schemes[i]);
        if (begins(text, schemes[i]) &&
            (text[length] == ':' || text[length] == '+'))
            return true;
    }
    return false;
}

/* "mysql://..." of a URI that may have a password. */
static int scheme_length(const char *text) {
    return (int)strcspn(text, ":");
}

static void explain_uri(const char *text, char *problem, size_t size) {
    if (begins(text, "databricks"))
        snprintf(problem, size,
                 "found \"%.64s\"; " ALLOWED ": give the workspace's "
                 "https:// address, and its token in MLFLOW_TRACKING_TOKEN",
                 text);
    else if (is_database(text))
        snprintf(problem, size,
                 "found a database (%.*s:); " ALLOWED ": start mlflow server "
                 "--backend-store-uri with it, and give the server's address",
                 scheme_length(text), text);
    else if (begins(text, "file:") || !strstr(text, "://"))
        snprintf(problem, size,
                 "found \"%.128s\", a folder; " ALLOWED ": start mlflow server "
                 "--backend-store-uri with it, and give the server's address",
                 text);
    else
        snprintf(problem, size, "found the scheme \"%.*s\"; " ALLOWED,
                 scheme_length(text), text);
}

bool mlflow_uri_read(const char *text, char *url, size_t size, char *problem,
                     size_t problem_size) {
    const char *scheme = begins(text, "http://") ? "http" : "https";
    const char *rest = strstr(text, "://");
    if (!rest || (!begins(text, "http://") && !begins(text, "https://") &&
                  !begins(text, "azureml://"))) {
        explain_uri(text, problem, problem_size);
        return false;
    }
    rest += strlen("://");
    size_t host = strcspn(rest, "/?#"), length = strlen(rest);
    if (!host)
        snprintf(problem, problem_size,
                 "found \"%.128s\", without a host; allowed: %s://HOST:PORT",
                 text, scheme);
    else if (memchr(rest, '@', host))
        snprintf(problem, problem_size,
                 "found a name or password before the host; allowed: none: "
                 "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
    else if (strcspn(rest, "?# \t\r\n") < length)
        snprintf(problem, problem_size,
                 "found \"%.128s\", with a space, ? or #; allowed: "
                 "%s://HOST:PORT/PATH",
                 text, scheme);
    else if (length + 16 > size)
        snprintf(problem, problem_size, "found %zu bytes; allowed: up to %zu",
                 length, size - 16);
    else {
        while (length > host && rest[length - 1] == '/')
            length--;
        snprintf(url, size, "%s://%.*s", scheme, (int)length, rest);
        return true;
    }
    return false;
}
