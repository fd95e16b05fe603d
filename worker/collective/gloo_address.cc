/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_address.h"

#include <arpa/inet.h>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

std::string gloo_address_host_key() {
    std::string boot;
    char space[64] = "";
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    ssize_t length = readlink("/proc/self/ns/net", space, sizeof space - 1);
    return boot + std::string(space, length > 0 ? (size_t)length : 0);
}

static std::string own_name(const struct collective_settings *settings) {
    char name[HOST_NAME_MAX + 1] = "";
    if (settings->address)
        return settings->address;
    if (settings->host)
        return settings->host;
    gethostname(name, sizeof name - 1);
    return name;
}

static bool gloo_address_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        auto in = reinterpret_cast<const struct sockaddr_in *>(address);
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    auto in6 = reinterpret_cast<const struct sockaddr_in6 *>(address);
    return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

struct found {
    struct sockaddr_storage address;
    socklen_t size;
};

/* The addresses of NAME that other hosts can reach. */
static std::vector<found> look_up(const std::string &name) {
    std::vector<found> all;
    struct addrinfo hints = {}, *result = nullptr;
    hints.ai_socktype = SOCK_DGRAM;
    if (getaddrinfo(name.c_str(), "9", &hints, &result))
        return all;
    for (auto at = result; at; at = at->ai_next) {
        found one = {};
        memcpy(&one.address, at->ai_addr, at->ai_addrlen);
        one.size = at->ai_addrlen;
        if (!gloo_address_is_loopback(at->ai_addr))
            all.push_back(one);
    }
    freeaddrinfo(result);
    return all;
}

static std::string numeric(const found &one) {
    char text[NI_MAXHOST] = "";
    getnameinfo(reinterpret_cast<const struct sockaddr *>(&one.address),
                one.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return text;
}

static bool is_local(found one) {
    int fd = socket(one.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    reinterpret_cast<struct sockaddr_in *>(&one.address)->sin_port = 0;
    bool is_bound =
        fd >= 0 &&
        !bind(fd, reinterpret_cast<struct sockaddr *>(&one.address), one.size);
    if (fd >= 0)
        close(fd);
    return is_bound;
}

/* The local address from which this host would send to NAME; "" if there is no
 * route. Sends nothing. */
static std::string source_address_to(const std::string &name) {
    for (const found &peer : look_up(name)) {
        found own = {};
        own.size = sizeof own.address;
        auto to = reinterpret_cast<const struct sockaddr *>(&peer.address);
        auto from = reinterpret_cast<struct sockaddr *>(&own.address);
        int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bool known = fd >= 0 && !connect(fd, to, peer.size) &&
                     !getsockname(fd, from, &own.size) &&
                     !gloo_address_is_loopback(from);
        if (fd >= 0)
            close(fd);
        if (known)
            return numeric(own);
    }
    return "";
}

/* Each rank publishes "HOSTKEY\nNAME"; all ranks receive all. */
static enum status all_gather_names(const struct collective_settings *settings,
                                    int64_t until, const std::string &own,
                                    std::vector<std::string> *all,
                                    struct failure *why) {
    const struct collective_store *store = settings->store;
    std::string key = "gloo.host." + std::to_string(settings->rank);
    enum status status =
        store->set(store->context, key.c_str(), own.data(), own.size(), why);
    for (uint32_t i = 0; !status && i < settings->size; i++) {
        void *value = nullptr;
        size_t size = 0;
        key = "gloo.host." + std::to_string(i);
        status =
            store->get(store->context, key.c_str(), until, &value, &size, why);
        if (status) {
            status_context(why, "rank %u did not come", i);
            return status;
        }
        all->emplace_back(static_cast<const char *>(value), size);
        free(value);
    }
    return status;
}

enum status gloo_address_choose(const struct collective_settings *settings,
                                int64_t until, std::string *address,
                                struct failure *why) {
    std::string host_key = gloo_address_host_key() + "\n",
                name = own_name(settings);
    std::vector<std::string> all, elsewhere;
    enum status status =
        all_gather_names(settings, until, host_key + name, &all, why);
    if (status)
        return status;
    if (settings->address) {
        *address = settings->address;
        return STATUS_OK;
    }
    for (const std::string &one : all)
        if (one.compare(0, host_key.size(), host_key))
            elsewhere.push_back(one.substr(one.find('\n') + 1));
    if (elsewhere.empty()) {
        *address = "127.0.0.1";
        return STATUS_OK;
    }
    for (const found &one : look_up(name))
        if (address->empty() && is_local(one))
            *address = numeric(one);
    for (size_t i = 0; address->empty() && i < elsewhere.size(); i++)
        *address = source_address_to(elsewhere[i]);
    if (address->empty())
        return status_fail(
            why, FAILURE_ADDRESS_UNRESOLVED,
            "rank %u: \"%s\" is no address of this host that "
            "other hosts reach, and no route to \"%s\" is known; "
            "name this host by such an address",
            settings->rank, name.c_str(), elsewhere[0].c_str());
    return STATUS_OK;
}
