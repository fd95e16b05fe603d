/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/host_header.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HOST_SIZE = 256 }; /* a name in the DNS is shorter */

/* Copies what is before the port, without brackets and the zone of an address;
 * false: it is not of that form. */
static bool split_host(char *name, const char *host) {
    bool brackets = *host == '[';
    size_t length = strcspn(host + brackets, brackets ? "]" : ":");
    const char *end = host + brackets + length;
    if (length >= HOST_SIZE || (brackets && *end++ != ']'))
        return false;
    if (*end == ':')
        end += 1 + strspn(end + 1, "0123456789");
    if (*end)
        return false;
    snprintf(name, HOST_SIZE, "%.*s", (int)length, host + brackets);
    if (brackets)
        name[strcspn(name, "%")] = 0;
    return true;
}

static bool is_same_name(const char *name, const char *other) {
    size_t length = strlen(other);
    if (length && other[length - 1] == '.')
        length--;
    return length && !strncasecmp(name, other, length) && !name[length];
}

bool host_header_is_own(const char *host, const char *own) {
    char name[HOST_SIZE];
    unsigned char binary[sizeof(struct in6_addr)];
    if (!split_host(name, host))
        return false;
    if (*host == '[')
        return inet_pton(AF_INET6, name, binary) == 1;
    size_t length = strlen(name);
    if (length && name[length - 1] == '.')
        name[length - 1] = 0;
    return inet_pton(AF_INET, name, binary) == 1 ||
           is_same_name(name, "localhost") || is_same_name(name, own);
}
