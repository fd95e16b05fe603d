/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_connect.h"

extern "C" {
#include "core/base/time.h"
}

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <set>
#include <sodium.h>
#include <stdexcept>
#include <sys/ioctl.h>
#include <system_error>
#include <unistd.h>

/* Connections that have not proved themselves yet: when there are so many, one
 * gives way to a new one. An honest rank answers within a round trip, and calls
 * again. */
enum : size_t { HALF_OPEN = 256, ACCEPTED_AT_ONCE = 16 };
/* Connections that the kernel holds until they are accepted, besides those of
 * ranks. When there are more, the kernel of an honest rank calls again only
 * after a second. */
enum { BACKLOG = 4 * HALF_OPEN };
static const int64_t HALF_OPEN_TIME = 2 * TIME_S;
/* Polling interval for a cancelled rendezvous. */
static const int64_t CANCEL_INTERVAL = TIME_S / 20;
static const int64_t CALL_AGAIN = TIME_S / 33; /* after a call that failed */
/* Before accepting again when the process has no descriptor for it. */
static const int64_t ACCEPT_AGAIN = TIME_S / 100;

static const char MAGIC[8] = {'c', 'a', 'p', 'g', 'l', 'o', 'o', '1'};

struct gloo_hello {
    char magic[sizeof MAGIC];
    uint32_t from, kind;
    unsigned char challenge[PROOF_BYTES];
};
static_assert(sizeof(struct gloo_hello) == 16 + PROOF_BYTES, "no padding");

/* There is no connection, or it has ended before it was proved: the other side
 * may have had too many, or the network was briefly down. It is called again.
 */
struct connection_ended : std::runtime_error {
    using std::runtime_error::runtime_error;
};

static const char NO_PROOF[] =
    "does not prove that it has the run's secret: is the secret file the same?";

static const char NO_RANK[] = "is no rank of this group";

static const char LEFT[] = "has left before it proved itself";

[[noreturn]] static void throw_errno(const char *what) {
    throw std::system_error(errno, std::generic_category(), what);
}

static struct sockaddr *generic(struct sockaddr_storage *address) {
    return reinterpret_cast<struct sockaddr *>(address);
}

static socklen_t address_size(const struct sockaddr_storage *address) {
    return address->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                         : sizeof(struct sockaddr_in6);
}

std::string gloo_connect_text(const struct sockaddr_storage *address) {
    char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
    getnameinfo(reinterpret_cast<const struct sockaddr *>(address),
                address_size(address), host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    return std::string(host) + ":" + port;
}

static std::string hexadecimal(const void *bytes, size_t size) {
    std::string text(2 * size + 1, 0);
    sodium_bin2hex(&text[0], text.size(),
                   static_cast<const unsigned char *>(bytes), size);
    text.pop_back();
    return text;
}

/* "4 0a000007", without the scope of an IPv6 address, which each host names by
 * itself. */
static std::string host_of(const struct sockaddr_storage *address) {
    auto in = reinterpret_cast<const struct sockaddr_in *>(address);
    auto in6 = reinterpret_cast<const struct sockaddr_in6 *>(address);
    return address->ss_family == AF_INET
               ? "4 " + hexadecimal(&in->sin_addr, sizeof in->sin_addr)
               : "6 " + hexadecimal(&in6->sin6_addr, sizeof in6->sin6_addr);
}

static std::string port_of(const struct sockaddr_storage *address) {
    auto in = reinterpret_cast<const struct sockaddr_in *>(address);
    static_assert(offsetof(struct sockaddr_in, sin_port) ==
                      offsetof(struct sockaddr_in6, sin6_port),
                  "the port of both families");
    return hexadecimal(&in->sin_port, sizeof in->sin_port);
}

/* The name under which FROM proves a connection of KIND to TO. */
static std::string proof_name(const struct gloo_connect *connect, uint32_t kind,
                              uint32_t from, uint32_t to) {
    std::string name = kind == GLOO_DATA ? "gloo data" : "gloo verdicts";
    for (uint32_t rank : {from, to}) {
        const struct gloo_place *place = &connect->places[rank];
        name += " " + std::to_string(rank) + " at " + host_of(&place->address) +
                " " + port_of(&place->address) + " " +
                hexadecimal(place->number, PROOF_BYTES);
    }
    return name;
}

static const unsigned char *proof_key(const struct gloo_connect *connect) {
    static const unsigned char none[PROOF_KEY_BYTES] = {};
    return connect->settings.proof ? connect->settings.proof : none;
}

static bool is_cancelled(const struct gloo_connect *connect) {
    const struct collective_store *store = connect->settings.store;
    return store->is_cancelled && store->is_cancelled(store->context);
}

/* Waits until some of FDS are ready, or a little while. */
static void wait_some(const struct gloo_connect *connect, struct pollfd *fds,
                      size_t count, int64_t until) {
    int64_t rest = std::min(until - time_now(), CANCEL_INTERVAL);
    if (is_cancelled(connect))
        throw std::runtime_error("the rendezvous was cancelled");
    if (poll(fds, count, rest > 0 ? (int)(rest / 1000000) + 1 : 0) == -1 &&
        errno != EINTR)
        throw_errno("poll");
}

static void await_socket(const struct gloo_connect *connect, int socket,
                         short events, int64_t until) {
    struct pollfd fd = {socket, events, 0};
    while (!fd.revents) {
        if (time_now() >= until)
            throw std::runtime_error("it does not answer");
        wait_some(connect, &fd, 1, until);
    }
}

/* Moves all SIZE bytes by MOVE(socket, at, rest). */
template <typename move>
static void transfer(const struct gloo_connect *connect, int socket,
                     short events, size_t size, int64_t until, move some) {
    size_t done = 0;
    while (done < size) {
        await_socket(connect, socket, events, until);
        ssize_t count = some(done, size - done);
        if (count > 0)
            done += (size_t)count;
        else if (!count)
            throw connection_ended("it has closed the connection");
        else if (errno != EAGAIN && errno != EINTR)
            throw connection_ended(strerror(errno));
    }
}

static void write_until(const struct gloo_connect *connect, int socket,
                        const void *bytes, size_t size, int64_t until) {
    transfer(connect, socket, POLLOUT, size, until,
             [=](size_t at, size_t rest) {
                 return send(socket, static_cast<const char *>(bytes) + at,
                             rest, MSG_NOSIGNAL);
             });
}

static void read_until(const struct gloo_connect *connect, int socket,
                       void *bytes, size_t size, int64_t until) {
    transfer(connect, socket, POLLIN, size, until, [=](size_t at, size_t rest) {
        return recv(socket, static_cast<char *>(bytes) + at, rest, 0);
    });
}

void gloo_connect_write(const struct gloo_connect *connect, int socket,
                        const void *bytes, size_t size) {
    write_until(connect, socket, bytes, size, time_now() + connect->time);
}

void gloo_connect_read(const struct gloo_connect *connect, int socket,
                       void *bytes, size_t size) {
    read_until(connect, socket, bytes, size, time_now() + connect->time);
}

static void set_no_delay(int socket) noexcept {
    int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void gloo_connect_listen(struct gloo_connect *connect, const char *host) {
    const struct collective_settings *settings = &connect->settings;
    struct addrinfo hints = {}, *found = nullptr;
    struct gloo_place own = {};
    int backlog = BACKLOG + 4 * (int)std::min(settings->size, 1024u);
    socklen_t size = sizeof own.address;
    hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    connect->places.resize(settings->size);
    for (std::vector<int> &sockets : connect->sockets)
        sockets.assign(settings->size, -1);
    if (sodium_init() == -1)
        throw std::runtime_error("no source of random numbers");
    if (getaddrinfo(host, "0", &hints, &found))
        throw std::runtime_error(std::string(host) + " is no address");
    int listener =
        socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    connect->listener = listener;
    bool listens = listener != -1 &&
                   !bind(listener, found->ai_addr, found->ai_addrlen) &&
                   !listen(listener, backlog) &&
                   !getsockname(listener, generic(&own.address), &size);
    int error = errno;
    freeaddrinfo(found);
    if (!listens)
        throw std::system_error(error, std::generic_category(), host);
    proof_challenge(own.number);
    connect->places[settings->rank] = own;
}

/* A refusal is final: all ranks listen before any connects. */
[[noreturn]] static void throw_unconnected(int error) {
    if (error == EHOSTUNREACH || error == ENETUNREACH || error == ECONNRESET ||
        error == ETIMEDOUT)
        throw connection_ended(strerror(error));
    throw std::system_error(error, std::generic_category(), "connect");
}

static void open_connection(const struct gloo_connect *connect, int socket,
                            struct sockaddr_storage address, int64_t until) {
    int error = 0;
    socklen_t size = sizeof error;
    if (!::connect(socket, generic(&address), address_size(&address)))
        return;
    if (errno != EINPROGRESS)
        throw_unconnected(errno);
    await_socket(connect, socket, POLLOUT, until);
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error)
        throw_unconnected(error);
}

/* Both sides prove themselves over SOCKET, which this rank has opened. */
static void prove_to(const struct gloo_connect *connect, uint32_t peer,
                     uint32_t kind, int socket, int64_t until) {
    uint32_t rank = connect->settings.rank;
    const unsigned char *key = proof_key(connect);
    unsigned char theirs[PROOF_BYTES], proof[PROOF_BYTES], answer[PROOF_BYTES];
    struct gloo_hello hello = {};
    memcpy(hello.magic, MAGIC, sizeof MAGIC);
    hello.from = rank;
    hello.kind = kind;
    proof_challenge(hello.challenge);
    write_until(connect, socket, &hello, sizeof hello, until);
    read_until(connect, socket, theirs, sizeof theirs, until);
    proof_make(proof, key, proof_name(connect, kind, rank, peer).c_str(),
               hello.challenge, theirs);
    write_until(connect, socket, proof, sizeof proof, until);
    read_until(connect, socket, answer, sizeof answer, until);
    if (!proof_holds(answer, key, proof_name(connect, kind, peer, rank).c_str(),
                     hello.challenge, theirs))
        throw std::runtime_error(std::string("it ") + NO_PROOF);
}

/* Calls again while the connection ends too early: unknown peers may have
 * pushed it aside. Who is gone refuses the next. */
static void call(struct gloo_connect *connect, uint32_t peer, uint32_t kind,
                 int64_t until) {
    const struct sockaddr_storage address = connect->places[peer].address;
    for (;;) {
        owned_socket one(socket(address.ss_family,
                                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (one.fd == -1)
            throw_errno("socket");
        set_no_delay(one.fd);
        try {
            open_connection(connect, one.fd, address, until);
            prove_to(connect, peer, kind, one.fd, until);
            connect->sockets[kind][peer] = one.take();
            return;
        } catch (const connection_ended &) {
            if (time_now() + CALL_AGAIN >= until)
                throw;
        }
        wait_some(connect, nullptr, 0, time_now() + CALL_AGAIN);
    }
}

/* A connection that was accepted and is not proved. */
struct half_open {
    int socket; /* -1: it is proved or refused */
    struct sockaddr_storage address;
    int64_t until;
    size_t received;
    bool of_group; /* it comes from an address at which a rank listens */
    bool greeted;  /* the hello is complete; the proof is awaited */
    struct gloo_hello hello;
    unsigned char challenge[PROOF_BYTES], proof[PROOF_BYTES];
};

enum progress { WAITS, IS_PROVED, IS_REFUSED };

/* For how long no awaited rank proves itself: who calls this rank has the time
 * of one call for a lower one before, and names that one first. */
static int64_t patience(const struct gloo_connect *connect) {
    return connect->settings.rank ? 2 * connect->time : connect->time;
}

struct acceptor {
    struct gloo_connect *connect;
    int64_t until; /* put off by each connection that is awaited and proved: at
                      most two of each higher rank */
    std::set<std::string> hosts;            /* where the ranks listen */
    std::deque<struct half_open> half_open; /* the oldest first */
    std::vector<std::string> reported; /* reasons of which the log has a line */
    int error = 0; /* why this process can accept none; 0: it can */

    explicit acceptor(struct gloo_connect *of_rank)
        : connect(of_rank), until(time_now() + patience(of_rank)) {
        for (const struct gloo_place &place : of_rank->places)
            hosts.insert(host_of(&place.address));
    }
    acceptor(const acceptor &) = delete;
    acceptor &operator=(const acceptor &) = delete;
    ~acceptor() {
        for (const struct half_open &one : half_open)
            if (one.socket != -1)
                close(one.socket);
    }
};

/* One line for each reason, as there may be any number of them. */
static void note_refused(struct acceptor *acceptor, const struct half_open *one,
                         const char *reason) {
    const struct collective_settings *settings = &acceptor->connect->settings;
    std::vector<std::string> &reported = acceptor->reported;
    if (std::find(reported.begin(), reported.end(), reason) != reported.end())
        return;
    reported.push_back(reason);
    std::string own = gloo_connect_text(
                    &acceptor->connect->places[settings->rank].address),
                from = gloo_connect_text(&one->address);
    if (settings->reject)
        settings->reject(settings->reject_context, own.c_str(), from.c_str(),
                         reason);
}

/* Is a connection of KIND from RANK to be accepted? */
static bool is_awaited_from(const struct gloo_connect *connect, uint32_t rank,
                            uint32_t kind) {
    return rank > connect->settings.rank && rank < connect->settings.size &&
           (kind == GLOO_VERDICTS ||
            (kind == GLOO_DATA && connect->partners[rank]));
}

/* *REASON says why it is refused. */
static enum progress greet(const struct gloo_connect *connect,
                           struct half_open *one, const char **reason) {
    if (memcmp(one->hello.magic, MAGIC, sizeof MAGIC) ||
        !is_awaited_from(connect, one->hello.from, one->hello.kind)) {
        *reason = NO_RANK;
        return IS_REFUSED;
    }
    one->greeted = true;
    one->received = 0;
    proof_challenge(one->challenge);
    *reason = LEFT;
    return send(one->socket, one->challenge, PROOF_BYTES, MSG_NOSIGNAL) ==
                   PROOF_BYTES
               ? WAITS
               : IS_REFUSED;
}

/* A false proof is answered by zeros, so that an honest rank with another
 * secret can say so. */
static enum progress check(struct gloo_connect *connect, struct half_open *one,
                           const char **reason) {
    uint32_t rank = connect->settings.rank, from = one->hello.from,
             kind = one->hello.kind;
    const unsigned char *key = proof_key(connect);
    unsigned char answer[PROOF_BYTES] = {};
    bool holds = proof_holds(one->proof, key,
                             proof_name(connect, kind, from, rank).c_str(),
                             one->challenge, one->hello.challenge);
    if (holds)
        proof_make(answer, key, proof_name(connect, kind, rank, from).c_str(),
                   one->challenge, one->hello.challenge);
    *reason = holds ? LEFT : NO_PROOF;
    return send(one->socket, answer, PROOF_BYTES, MSG_NOSIGNAL) ==
                       PROOF_BYTES &&
                   holds
               ? IS_PROVED
               : IS_REFUSED;
}

static enum progress step(struct gloo_connect *connect, struct half_open *one,
                          const char **reason) {
    char *into = one->greeted ? reinterpret_cast<char *>(one->proof)
                              : reinterpret_cast<char *>(&one->hello);
    size_t whole = one->greeted ? sizeof one->proof : sizeof one->hello;
    int unread = 0;
    ioctl(one->socket, FIONREAD, &unread);
    if (unread > (int)(sizeof one->hello + sizeof one->proof)) {
        *reason = NO_RANK;
        return IS_REFUSED;
    }
    ssize_t count =
        recv(one->socket, into + one->received, whole - one->received, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return WAITS;
    if (count <= 0) {
        *reason = LEFT;
        return IS_REFUSED;
    }
    one->received += (size_t)count;
    if (one->received < whole)
        return WAITS;
    return one->greeted ? check(connect, one, reason)
                        : greet(connect, one, reason);
}

/* A rank whose answer was lost proves itself again: the newer counts. False:
 * it is such a one. */
static bool keep(struct gloo_connect *connect, const struct half_open *one,
                 int socket) {
    int *place = &connect->sockets[one->hello.kind][one->hello.from];
    int before = *place;
    *place = socket;
    set_no_delay(socket);
    if (before != -1)
        close(before);
    return before == -1;
}

/* Of unknown addresses before those of ranks, so that a flood from elsewhere
 * takes no place of theirs; then who has not greeted; the oldest first. */
static void drop_one(struct acceptor *acceptor) {
    auto least = std::min_element(
        acceptor->half_open.begin(), acceptor->half_open.end(),
        [](const struct half_open &one, const struct half_open &other) {
            return std::make_pair(one.of_group, one.greeted) <
                   std::make_pair(other.of_group, other.greeted);
        });
    note_refused(acceptor, &*least, "gave way to others that call");
    close(least->socket);
    acceptor->half_open.erase(least);
}

/* The process has no descriptor left: one that is not proved gives way. */
static void free_descriptor(struct acceptor *acceptor, int error) {
    acceptor->error = error;
    if (!acceptor->half_open.empty())
        drop_one(acceptor);
    else
        wait_some(acceptor->connect, nullptr, 0, time_now() + ACCEPT_AGAIN);
}

static void accept_some(struct acceptor *acceptor) {
    for (size_t i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct half_open one = {};
        socklen_t size = sizeof one.address;
        owned_socket accepted(accept4(acceptor->connect->listener,
                                      generic(&one.address), &size,
                                      SOCK_NONBLOCK | SOCK_CLOEXEC));
        one.socket = accepted.fd;
        if (one.socket == -1 && (errno == EMFILE || errno == ENFILE ||
                                 errno == ENOBUFS || errno == ENOMEM))
            free_descriptor(acceptor, errno);
        if (one.socket == -1)
            return;
        acceptor->error = 0;
        one.until = time_now() + HALF_OPEN_TIME;
        one.of_group = acceptor->hosts.count(host_of(&one.address)) != 0;
        if (acceptor->half_open.size() == HALF_OPEN)
            drop_one(acceptor);
        acceptor->half_open.push_back(one);
        accepted.take();
    }
}

static void step_one(struct acceptor *acceptor, struct half_open *one,
                     bool is_ready) {
    const char *reason = "";
    enum progress progress =
        is_ready ? step(acceptor->connect, one, &reason) : WAITS;
    if (progress == WAITS && time_now() >= one->until) {
        progress = IS_REFUSED;
        reason = "does not prove itself within 2 s";
    }
    if (progress == WAITS)
        return;
    owned_socket ended(one->socket);
    one->socket = -1;
    if (progress == IS_REFUSED)
        note_refused(acceptor, one, reason);
    else if (keep(acceptor->connect, one, ended.take()))
        acceptor->until = time_now() + patience(acceptor->connect);
}

/* FDS are those of the connections, in their order. */
static void step_all(struct acceptor *acceptor, const struct pollfd *fds) {
    auto *all = &acceptor->half_open;
    for (size_t i = 0; i < all->size(); i++)
        step_one(acceptor, &(*all)[i], fds[i].revents);
    all->erase(std::remove_if(all->begin(), all->end(),
                              [](const struct half_open &one) {
                                  return one.socket == -1;
                              }),
               all->end());
}

/* The first rank whose connections are not complete; the number of ranks if
 * all are. */
static uint32_t find_missing(const struct gloo_connect *connect) {
    uint32_t rank = connect->settings.rank + 1;
    for (; rank < connect->settings.size; rank++)
        for (uint32_t kind = 0; kind < GLOO_KINDS; kind++)
            if (is_awaited_from(connect, rank, kind) &&
                connect->sockets[kind][rank] == -1)
                return rank;
    return rank;
}

[[noreturn]] static void throw_uncalled(const struct acceptor *acceptor) {
    std::string text = "it has not called";
    if (acceptor->error)
        text += std::string("; this process can accept nobody: ") +
                strerror(acceptor->error);
    else if (!acceptor->reported.empty())
        text += "; one that has " + acceptor->reported.back();
    throw std::runtime_error(text);
}

static void accept_ranks(struct gloo_connect *connect) {
    struct acceptor acceptor(connect);
    while ((*connect->waiting_for = find_missing(connect)) <
           connect->settings.size) {
        std::vector<struct pollfd> fds = {{connect->listener, POLLIN, 0}};
        for (const struct half_open &one : acceptor.half_open)
            fds.push_back({one.socket, POLLIN, 0});
        if (time_now() >= acceptor.until)
            throw_uncalled(&acceptor);
        wait_some(connect, fds.data(), fds.size(), acceptor.until);
        step_all(&acceptor, fds.data() + 1);
        accept_some(&acceptor);
    }
}

void gloo_connect_all(struct gloo_connect *connect) {
    for (uint32_t i = 0; i < connect->settings.rank; i++) {
        int64_t until = time_now() + connect->time;
        *connect->waiting_for = i;
        if (connect->partners[i])
            call(connect, i, GLOO_DATA, until);
        call(connect, i, GLOO_VERDICTS, until);
    }
    accept_ranks(connect);
    close(connect->listener);
    connect->listener = -1;
}

void gloo_connect_close(struct gloo_connect *connect) noexcept {
    if (connect->listener != -1)
        close(connect->listener);
    connect->listener = -1;
    for (std::vector<int> &sockets : connect->sockets)
        for (int &socket : sockets)
            if (socket != -1) {
                close(socket);
                socket = -1;
            }
}
