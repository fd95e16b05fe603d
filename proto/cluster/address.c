/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/address.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_HOST_LENGTH = 253
}; /* of a name in the DNS: RFC 1035, section 2.3.4 */

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static enum status bad_host(const char *text, const char *location,
                            const char *reason, struct failure *why) {
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "bad_host: %s is %s: %s. Write \"host:port\", or "
                       "\"[address]:port\" for IPv6.",
                       location, diagnostics_quote_text(text).text, reason);
}

/* NULL, or why the LENGTH bytes at HOST are neither a name nor an IPv4
 * address. */
static const char *hostname_error(const char *host, size_t length) {
    if (memchr(host, ':', length))
        return "write an IPv6 address in brackets; only one colon may stand "
               "before the port";
    if (length > MAX_HOST_LENGTH)
        return "a host has at most 253 characters";
    for (size_t i = 0; i < length; i++)
        if (!strchr(LETTERS DIGITS "._-", host[i]))
            return "a host may contain only ASCII letters, digits, '.', '-' "
                   "and '_'";
    return NULL;
}

/* The same for the text in brackets; a zone (%eth0) may follow the address. */
static const char *ipv6_error(const char *host, size_t length) {
    char number[INET6_ADDRSTRLEN];
    unsigned char binary[16];
    const char *zone = memchr(host, '%', length);
    size_t digits = zone ? (size_t)(zone - host) : length;
    if (length > MAX_HOST_LENGTH || digits >= sizeof number)
        return "the text in the brackets is too long for an IPv6 address";
    memcpy(number, host, digits);
    number[digits] = '\0';
    if (inet_pton(AF_INET6, number, binary) != 1)
        return "the text in the brackets is not an IPv6 address";
    return zone ? hostname_error(zone + 1, length - digits - 1) : NULL;
}

static enum status parse_port(struct cluster_task *task, const char *digits,
                              const char *text, const char *location,
                              struct failure *why) {
    uint64_t port;
    if (!decimal_parse(digits, &port) || port > UINT16_MAX)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_port: %s is %s; a port is a number from 1 to "
                           "65535. Write \"host:port\", such as "
                           "\"host:2222\".",
                           location, diagnostics_quote_text(text).text);
    task->port = (uint16_t)port;
    return STATUS_OK;
}

enum status address_parse(struct cluster_task *task, const char *text,
                          const char *location, struct failure *why) {
    const char *host = text;
    const char *end = strrchr(text, ':');
    const char *error = NULL;
    if (strchr(text, '/'))
        return bad_host(text, location, "leave out the scheme and the path",
                        why);
    if (*text == '[') {
        host = text + 1;
        end = strchr(text, ']');
        if (!end)
            return bad_host(text, location, "the bracket is not closed", why);
        error = ipv6_error(host, (size_t)(end - host));
    } else {
        end = end ? end : text + strlen(text);
        error = hostname_error(host, (size_t)(end - host));
    }
    if (error)
        return bad_host(text, location, error, why);
    size_t length = (size_t)(end - host);
    memcpy(task->host, length ? host : "localhost", length ? length : 9);
    task->host[length ? length : 9] = '\0';
    end += *end == ']';
    return parse_port(task, *end == ':' ? end + 1 : "", text, location, why);
}

bool address_parse_listener(struct cluster_task *task, const char *text) {
    struct failure ignored;
    uint64_t port;
    if (strchr(text, ':'))
        return *text != ':' && !address_parse(task, text, "it", &ignored);
    if (!decimal_parse(text, &port) || port > UINT16_MAX)
        return false;
    *task = (struct cluster_task){.port = (uint16_t)port, .host = "127.0.0.1"};
    return true;
}

void cluster_address(const struct cluster_task *task, char *text, size_t size) {
    bool v6 = strchr(task->host, ':') != NULL;
    snprintf(text, size, "%s%s%s:%u", v6 ? "[" : "", task->host, v6 ? "]" : "",
             task->port);
}
