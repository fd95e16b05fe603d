/* SPDX-License-Identifier: Apache-2.0 */
/* Every address in the network of a loopback interface (127.0.0.0/8) is local,
 * though only one of them is listed. */
#include "core/net/link/interface.h"

#include "core/base/decimal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

/* The first LENGTH bits of an address. */
struct cidr {
    int family;
    unsigned char bytes[16];
    unsigned length;
};

static const void *address_bytes(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return &((const struct sockaddr_in *)address)->sin_addr;
    return &((const struct sockaddr_in6 *)address)->sin6_addr;
}

static bool cidr_parse(struct cidr *cidr, const char *text) {
    char address[64];
    const char *slash = strchrnul(text, '/');
    uint64_t length;
    if ((size_t)(slash - text) >= sizeof address)
        return false;
    snprintf(address, sizeof address, "%.*s", (int)(slash - text), text);
    cidr->family = strchr(address, ':') ? AF_INET6 : AF_INET;
    unsigned most = cidr->family == AF_INET6 ? 128 : 32;
    if (inet_pton(cidr->family, address, cidr->bytes) != 1)
        return false;
    cidr->length = most;
    if (!*slash)
        return true;
    bool ok = decimal_parse(slash + 1, &length) && length <= most;
    cidr->length = ok ? (unsigned)length : most;
    return ok;
}

static bool has_prefix(const void *address, const void *prefix,
                       unsigned length) {
    unsigned whole = length / 8, rest = length % 8;
    const unsigned char *a = address, *b = prefix;
    return !memcmp(a, b, whole) &&
           (!rest || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

static unsigned mask_length(const struct ifaddrs *each) {
    const unsigned char *mask = address_bytes(each->ifa_netmask);
    unsigned bytes = each->ifa_addr->sa_family == AF_INET ? 4 : 16, length = 0;
    for (unsigned i = 0; i < bytes; i++)
        length += (unsigned)__builtin_popcount(mask[i]);
    return length;
}

/* Has EACH an address of IP, on an interface that is up? */
static bool interface_is_usable(const struct ifaddrs *each) {
    return each->ifa_addr && each->ifa_netmask && each->ifa_flags & IFF_UP &&
           (each->ifa_addr->sa_family == AF_INET ||
            each->ifa_addr->sa_family == AF_INET6);
}

static void numeric_address(const struct ifaddrs *each, char *text,
                            size_t size) {
    socklen_t length = each->ifa_addr->sa_family == AF_INET
                           ? sizeof(struct sockaddr_in)
                           : sizeof(struct sockaddr_in6);
    if (getnameinfo(each->ifa_addr, length, text, (socklen_t)size, NULL, 0,
                    NI_NUMERICHOST))
        text[0] = 0;
}

/* Of an interface: IPv4, then IPv6, then IPv6 of this link alone. */
static unsigned address_rank(const struct ifaddrs *each) {
    const struct sockaddr_in6 *in6 = (const void *)each->ifa_addr;
    if (each->ifa_addr->sa_family == AF_INET)
        return 3;
    return IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ? 1 : 2;
}

static const struct ifaddrs *find_named(const struct ifaddrs *all,
                                        const char *name) {
    const struct ifaddrs *best = NULL;
    for (; all; all = all->ifa_next)
        if (interface_is_usable(all) && !strcmp(all->ifa_name, name) &&
            (!best || address_rank(all) > address_rank(best)))
            best = all;
    return best;
}

static const struct ifaddrs *find_in_cidr(const struct ifaddrs *all,
                                          const struct cidr *cidr) {
    for (; all; all = all->ifa_next)
        if (interface_is_usable(all) &&
            all->ifa_addr->sa_family == cidr->family &&
            has_prefix(address_bytes(all->ifa_addr), cidr->bytes, cidr->length))
            break;
    return all;
}

/* The loopback interface whose network has all of CIDR. */
static const struct ifaddrs *find_loopback(const struct ifaddrs *all,
                                           const struct cidr *cidr) {
    for (; all; all = all->ifa_next)
        if (interface_is_usable(all) && all->ifa_flags & IFF_LOOPBACK &&
            all->ifa_addr->sa_family == cidr->family &&
            mask_length(all) <= cidr->length &&
            has_prefix(cidr->bytes, address_bytes(all->ifa_addr),
                       mask_length(all)))
            break;
    return all;
}

static bool interface_search(struct interface *found, const char *text,
                             const struct ifaddrs *all) {
    struct cidr cidr;
    const struct ifaddrs *each = find_named(all, text);
    bool is_cidr = !each && cidr_parse(&cidr, text);
    if (is_cidr)
        each = find_in_cidr(all, &cidr);
    if (each) {
        numeric_address(each, found->address, sizeof found->address);
    } else if (is_cidr && (each = find_loopback(all, &cidr))) {
        inet_ntop(cidr.family, cidr.bytes, found->address,
                  sizeof found->address);
    }
    if (each)
        snprintf(found->name, sizeof found->name, "%s", each->ifa_name);
    return each && found->address[0];
}

/* "lo 127.0.0.1/8, eth0 10.0.0.2/24" into TEXT. */
static void list_addresses(const struct ifaddrs *all, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (; all; all = all->ifa_next) {
        char address[64];
        if (!interface_is_usable(all))
            continue;
        numeric_address(all, address, sizeof address);
        int length =
            snprintf(text + used, size - used, "%s%s %s/%u", used ? ", " : "",
                     all->ifa_name, address, mask_length(all));
        if (length < 0 || (size_t)length >= size - used)
            return;
        used += (size_t)length;
    }
}

enum status interface_find(struct interface *found, const char *text,
                           const char *source, enum failure_code code,
                           struct failure *why) {
    struct ifaddrs *all = NULL;
    char list[1024];
    *found = (struct interface){0};
    if (getifaddrs(&all))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "cannot list the network interfaces");
    bool is_found = interface_search(found, text, all);
    list_addresses(all, list, sizeof list);
    freeifaddrs(all);
    if (is_found)
        return STATUS_OK;
    return status_fail(why, code,
                       "%s: '%.64s' is no interface that is up, and no CIDR "
                       "(such as 10.1.0.0/16) with an address of this machine; "
                       "there are: %s",
                       source, text, list);
}
