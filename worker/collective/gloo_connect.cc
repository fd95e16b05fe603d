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
#include <sodium.h>
#include <stdexcept>
#include <system_error>
#include <unistd.h>

/* Connections that have not proved themselves yet: the oldest gives way to a
 * new one. An honest rank answers within a round trip, and calls again. */
enum : size_t { HALF_OPEN = 256, ACCEPTED_AT_ONCE = 16 };
static const int64_t HALF_OPEN_TIME = 2 * TIME_S;
/* Polling interval for a cancelled rendezvous. */
static const int64_t CANCEL_INTERVAL = TIME_S / 20;

static const char MAGIC[8] = {'c', 'a', 'p', 'g', 'l', 'o', 'o', '1'};

struct gloo_hello {
    char magic[sizeof MAGIC];
    uint32_t from, kind;
    unsigned char challenge[PROOF_BYTES];
};
static_assert(sizeof(struct gloo_hello) == 16 + PROOF_BYTES, "no padding");

/* The connection has ended before it was proved: the other side may have had
 * too many, and can be called again. */
struct connection_ended : std::runtime_error {
    using std::runtime_error::runtime_error;
};

static const char NO_PROOF[] =
    "does not prove that it has the run's secret: is the secret file the same?";

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

/* The name under which FROM proves a connection of KIND to TO. */
static std::string proof_name(const struct gloo_connect *connect, uint32_t kind,
                              uint32_t from, uint32_t to) {
    std::string name = kind == GLOO_DATA ? "gloo data" : "gloo verdicts";
    for (uint32_t rank : {from, to}) {
        const struct gloo_place *place = &connect->places[rank];
        char number[2 * PROOF_BYTES + 1];
        sodium_bin2hex(number, sizeof number, place->number, PROOF_BYTES);
        name += " " + std::to_string(rank) + " at " +
                gloo_connect_text(&place->address) + " " + number;
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
    socklen_t size = sizeof own.address;
    hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    connect->places.resize(settings->size);
    for (std::vector<int> &sockets : connect->sockets)
        sockets.assign(settings->size, -1);
    if (getaddrinfo(host, "0", &hints, &found))
        throw std::runtime_error(std::string(host) + " is no address");
    int listener =
        socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    connect->listener = listener;
    bool listens = listener != -1 &&
                   !bind(listener, found->ai_addr, found->ai_addrlen) &&
                   !listen(listener, SOMAXCONN) &&
                   !getsockname(listener, generic(&own.address), &size);
    int error = errno;
    freeaddrinfo(found);
    if (!listens)
        throw std::system_error(error, std::generic_category(), host);
    proof_challenge(own.number);
    connect->places[settings->rank] = own;
}

/* A socket, closed unless it is taken. */
class owned_socket {
  public:
    explicit owned_socket(int opened) : fd(opened) {
    }
    owned_socket(const owned_socket &) = delete;
    owned_socket &operator=(const owned_socket &) = delete;
    ~owned_socket() {
        if (fd != -1)
            close(fd);
    }
    int take() {
        int taken = fd;
        fd = -1;
        return taken;
    }
    int fd;
};

static void open_connection(const struct gloo_connect *connect, int socket,
                            struct sockaddr_storage address, int64_t until) {
    int error = 0;
    socklen_t size = sizeof error;
    if (!::connect(socket, generic(&address), address_size(&address)))
        return;
    if (errno != EINPROGRESS)
        throw_errno("connect");
    await_socket(connect, socket, POLLOUT, until);
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error)
        throw std::system_error(error, std::generic_category(), "connect");
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
static void call(struct gloo_connect *connect, uint32_t peer, uint32_t kind) {
    const struct sockaddr_storage address = connect->places[peer].address;
    int64_t until = time_now() + connect->time;
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
            if (time_now() >= until)
                throw;
        }
    }
}

/* A connection that was accepted and is not proved. */
struct half_open {
    int socket;
    struct sockaddr_storage address;
    int64_t until;
    size_t received;
    bool greeted; /* the hello is complete; the proof is awaited */
    struct gloo_hello hello;
    unsigned char challenge[PROOF_BYTES], proof[PROOF_BYTES];
};

enum progress { WAITS, IS_PROVED, IS_REFUSED };

struct acceptor {
    struct gloo_connect *connect;
    std::deque<struct half_open> half_open; /* the oldest first */
    std::vector<std::string> reported; /* reasons of which the log has a line */

    explicit acceptor(struct gloo_connect *of_rank) : connect(of_rank) {
    }
    acceptor(const acceptor &) = delete;
    acceptor &operator=(const acceptor &) = delete;
    ~acceptor() {
        for (const struct half_open &one : half_open)
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
        *reason = "is no rank of this group";
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

/* A rank whose answer was lost proves itself again: the newer counts. */
static void keep(struct gloo_connect *connect, const struct half_open *one) {
    int *place = &connect->sockets[one->hello.kind][one->hello.from];
    if (*place != -1)
        close(*place);
    *place = one->socket;
    set_no_delay(one->socket);
}

static void drop_oldest(struct acceptor *acceptor) {
    struct half_open *oldest = &acceptor->half_open.front();
    note_refused(acceptor, oldest, "gave way to others that call");
    close(oldest->socket);
    acceptor->half_open.pop_front();
}

static void accept_some(struct acceptor *acceptor) {
    for (size_t i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct half_open one = {};
        socklen_t size = sizeof one.address;
        one.socket = accept4(acceptor->connect->listener, generic(&one.address),
                             &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (one.socket == -1 && (errno == EMFILE || errno == ENFILE) &&
            !acceptor->half_open.empty())
            drop_oldest(acceptor);
        if (one.socket == -1)
            return;
        one.until = time_now() + HALF_OPEN_TIME;
        if (acceptor->half_open.size() == HALF_OPEN)
            drop_oldest(acceptor);
        acceptor->half_open.push_back(one);
    }
}

static void step_all(struct acceptor *acceptor) {
    std::deque<struct half_open> rest;
    int64_t now = time_now();
    for (struct half_open &one : acceptor->half_open) {
        const char *reason = "";
        enum progress progress = step(acceptor->connect, &one, &reason);
        if (progress == WAITS && now >= one.until) {
            progress = IS_REFUSED;
            reason = "does not prove itself within 2 s";
        }
        if (progress == IS_PROVED)
            keep(acceptor->connect, &one);
        else if (progress == WAITS)
            rest.push_back(one);
        if (progress != IS_REFUSED)
            continue;
        note_refused(acceptor, &one, reason);
        close(one.socket);
    }
    acceptor->half_open.swap(rest);
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

static void accept_ranks(struct gloo_connect *connect) {
    struct acceptor acceptor(connect);
    int64_t until = time_now() + connect->time;
    while ((*connect->waiting_for = find_missing(connect)) <
           connect->settings.size) {
        std::vector<struct pollfd> fds = {{connect->listener, POLLIN, 0}};
        for (const struct half_open &one : acceptor.half_open)
            fds.push_back({one.socket, POLLIN, 0});
        if (time_now() >= until)
            throw std::runtime_error(acceptor.reported.empty()
                                         ? "it has not called"
                                         : "it has not called; one that has " +
                                               acceptor.reported.back());
        wait_some(connect, fds.data(), fds.size(), until);
        step_all(&acceptor);
        accept_some(&acceptor);
    }
}

void gloo_connect_all(struct gloo_connect *connect) {
    for (uint32_t i = 0; i < connect->settings.rank; i++) {
        *connect->waiting_for = i;
        if (connect->partners[i])
            call(connect, i, GLOO_DATA);
        call(connect, i, GLOO_VERDICTS);
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
