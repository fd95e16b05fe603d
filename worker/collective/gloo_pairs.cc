/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_pairs.h"

#include "worker/collective/gloo_address.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/tcp.h> /* its tcp_info is longer than the C library's */
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <system_error>
#include <unistd.h>

using gloo::transport::tcp::Address;

/* Gloo does not expose descriptors: the socket for which IS_IT is true. */
template <typename test> static int find_socket(test is_it) {
    int found = -1;
    DIR *all = opendir("/proc/self/fd");
    if (!all)
        throw std::system_error(errno, std::generic_category(), "/proc");
    while (struct dirent *entry = readdir(all)) {
        int fd = atoi(entry->d_name);
        if (is_it(fd))
            found = fd;
    }
    closedir(all);
    return found;
}

/* ADDRESS is what getsockname or getpeername says of FD. */
static bool has_name(int fd, int (*name)(int, struct sockaddr *, socklen_t *),
                     const struct sockaddr_storage *address) {
    struct sockaddr_storage found = {};
    socklen_t size = sizeof found;
    return !name(fd, reinterpret_cast<struct sockaddr *>(&found), &size) &&
           found.ss_family == AF_INET &&
           !memcmp(&found, address, offsetof(struct sockaddr_in, sin_zero));
}

/* "[127.0.0.1]:4242", without the number that Gloo of 2023 appends. */
static std::string without_number(const Address &address) {
    std::string text = address.str();
    return text.substr(0, text.find('$'));
}

enum { TRIES = 4 }; /* of an address that no other process calls */

enum : size_t { MAX_AHEAD = GLOO_SHM_WINDOW / GLOO_CHUNK };

static void gloo_pairs_set(int socket, int option, const void *value,
                           socklen_t size, int level = SOL_SOCKET) {
    if (setsockopt(socket, level, option, value, size) == -1)
        throw std::system_error(errno, std::generic_category(), "setsockopt");
}

/* The number of messages that a socket's buffer holds; the kernel counts more
 * than their bytes. */
static size_t set_send_buffer(int socket) {
    int buffer_size = 2 * MAX_AHEAD * GLOO_CHUNK;
    socklen_t size = sizeof buffer_size;
    gloo_pairs_set(socket, SO_SNDBUF, &buffer_size, size);
    if (getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer_size, &size) == -1)
        throw std::system_error(errno, std::generic_category(), "getsockopt");
    size_t capacity = (size_t)buffer_size / 4 * 3 / GLOO_CHUNK;
    return std::min(std::max(capacity, (size_t)1), (size_t)MAX_AHEAD);
}

/* An address of this host alone that nobody guesses. Of two that connect Gloo
 * calls from the higher. */
static std::string draw_address(bool is_higher) {
    unsigned char bytes[3];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        throw std::system_error(errno, std::generic_category(), "getrandom");
    char text[INET_ADDRSTRLEN];
    snprintf(text, sizeof text, "127.%d.%d.%d",
             is_higher ? 1 + bytes[0] % 254 : 0, bytes[1], 2 + bytes[2] % 253);
    return text;
}

void gloo_pairs_open(struct gloo_pairs *pairs,
                     const struct gloo_connect *connect, bool use_shm) {
    uint32_t size = connect->settings.size;
    pairs->connect = connect;
    pairs->use_shm = use_shm;
    pairs->names.resize(size);
    pairs->unanswered.assign(size, 0);
    pairs->peers.resize(size);
    pairs->shm.resize(size);
    pairs->errors.resize(size);
    pairs->contexts.resize(size);
    pairs->receive_buffer.resize(GLOO_CHUNK);
    pairs->window = MAX_AHEAD;
}

/* A socket of this process that listens at *ADDRESS, for Gloo to connect to. */
static int listen_for_gloo(struct sockaddr_storage *address) {
    auto generic = reinterpret_cast<struct sockaddr *>(address);
    auto in = reinterpret_cast<struct sockaddr_in *>(address);
    socklen_t size = sizeof *in;
    std::string host = draw_address(false);
    *address = {};
    in->sin_family = AF_INET;
    inet_pton(AF_INET, host.c_str(), &in->sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd == -1 || bind(fd, generic, size) || listen(fd, SOMAXCONN) ||
        getsockname(fd, generic, &size)) {
        int error = errno;
        if (fd != -1)
            close(fd);
        throw std::system_error(
            error, std::generic_category(),
            "cannot listen at " + host +
                " (is the loopback interface up, with 127.0.0.0/8?)");
    }
    return fd;
}

static bool is_listener(int fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) &&
           listens;
}

/* A socket at ADDRESS that listens, or one that was accepted there; not
 * EXCEPT. */
static int find_at(const struct sockaddr_storage *address, bool listens,
                   int except) {
    return find_socket([=](int fd) {
        return fd != except && has_name(fd, getsockname, address) &&
               is_listener(fd) == listens;
    });
}

/* Connections that wait to be accepted; of a listener the kernel counts them
 * as unacknowledged. */
static bool has_callers(int listener) {
    struct tcp_info info = {};
    socklen_t size = sizeof info;
    return getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &size) ||
           info.tcpi_unacked;
}

/* Has the kernel drop each packet to LISTENER. */
static void drop_packets(struct gloo_pairs *pairs, int listener) {
    struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog filter = {1, &drop};
    if (!setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter,
                    sizeof filter))
        return;
    if (pairs->connect->settings.proof)
        throw std::system_error(errno, std::generic_category(),
                                "the kernel takes no filter for Gloo's port, "
                                "which a run with a secret needs");
    pairs->unfiltered = strerror(errno);
}

/* Nobody can call the listener of PAIR from now on. False: somebody has done so
 * before. The duplicate is the same socket whatever Gloo's thread closes. */
static bool deafen(struct gloo_pairs *pairs, gloo::transport::Pair *pair) {
    const struct sockaddr_storage address =
        Address(pair->address().bytes()).getSockaddr();
    int duplicate = fcntl(find_at(&address, true, -1), F_DUPFD_CLOEXEC, 0);
    if (duplicate == -1 && errno != EBADF)
        throw std::system_error(errno, std::generic_category(), "fcntl");
    owned_socket listener(duplicate);
    if (!is_listener(duplicate) || !has_name(duplicate, getsockname, &address))
        return false;
    drop_packets(pairs, duplicate);
    return !has_callers(duplicate) &&
           find_at(&address, true, duplicate) != -1 &&
           find_at(&address, false, -1) == -1;
}

/* A pair for PEER that no other process has called. */
static gloo::transport::Pair *create_pair(struct gloo_pairs *pairs,
                                          uint32_t peer) {
    const struct gloo_connect *connect = pairs->connect;
    const struct collective_settings *settings = &connect->settings;
    for (int i = 0; i < TRIES; i++) {
        auto &context = pairs->contexts[peer];
        if (!pairs->device)
            pairs->device = gloo::transport::tcp::CreateDevice(
                gloo::transport::tcp::attr(draw_address(true).c_str()));
        context = pairs->device->createContext((int)settings->rank,
                                               (int)settings->size);
        /* Gloo multiplies the timeout of a connection by five. */
        context->setTimeout(
            std::chrono::milliseconds(connect->time / 1000000 / 5));
        auto &pair = context->createPair((int)peer);
        if (deafen(pairs, pair.get()))
            return pair.get();
        context.reset();
        pairs->device.reset();
    }
    throw std::runtime_error("a process of this host connects to each port of "
                             "Gloo before it is closed to all");
}

static void set_blocking(int socket) {
    int flags = fcntl(socket, F_GETFL);
    if (flags == -1 || fcntl(socket, F_SETFL, flags & ~O_NONBLOCK) == -1)
        throw std::system_error(errno, std::generic_category(), "fcntl");
}

/* Gloo's pair connects to this process, and gets the socket of PEER in the
 * place of its own: in its synchronous mode no thread of Gloo's uses it. */
static void hand_over(struct gloo_pairs *pairs, uint32_t peer) {
    struct sockaddr_storage address;
    int socket = pairs->connect->sockets[GLOO_DATA][peer];
    owned_socket listener(listen_for_gloo(&address));
    gloo::transport::Pair *pair = create_pair(pairs, peer);
    pair->connect(Address(address, 0).bytes());
    pair->setSync(true, false);
    pairs->names[peer] = without_number(Address(address, 0));
    int own = find_socket(
        [&](int fd) { return has_name(fd, getpeername, &address); });
    if (own == -1)
        throw std::runtime_error("no socket is connected to Gloo's pair");
    set_blocking(socket);
    if (dup3(socket, own, O_CLOEXEC) == -1)
        throw std::system_error(errno, std::generic_category(), "dup3");
}

static void make_pair(struct gloo_pairs *pairs, uint32_t peer) {
    int socket = pairs->connect->sockets[GLOO_DATA][peer];
    auto &pair_buffers = pairs->peers[peer];
    hand_over(pairs, peer);
    auto &pair = pairs->contexts[peer]->getPair((int)peer);
    pairs->window = std::min(pairs->window, set_send_buffer(socket));
    for (int operation = GLOO_SUM; operation <= GLOO_COPY; operation++)
        pair_buffers.to[operation] =
            pair->createSendBuffer(operation, nullptr, SIZE_MAX);
    pair_buffers.from[GLOO_SUM] = pair->createRecvBuffer(
        GLOO_SUM, pairs->receive_buffer.data(), pairs->receive_buffer.size());
}

/* The messages by which two ranks agree on shared memory. */
struct handshake {
    uint32_t ready;
    char place[128], name[GLOO_SHM_NAME]; /* of the side that offers */
};

static void send_handshake(struct gloo_pairs *pairs, uint32_t peer,
                           const struct handshake &handshake) {
    gloo_connect_write(pairs->connect, pairs->connect->sockets[GLOO_DATA][peer],
                       &handshake, sizeof handshake);
}

static struct handshake receive_handshake(struct gloo_pairs *pairs,
                                          uint32_t peer) {
    struct handshake handshake;
    gloo_connect_read(pairs->connect, pairs->connect->sockets[GLOO_DATA][peer],
                      &handshake, sizeof handshake);
    handshake.place[sizeof handshake.place - 1] = 0;
    handshake.name[sizeof handshake.name - 1] = 0;
    return handshake;
}

/* A shared-memory connection, closed with its owner, and the reason if there is
 * none. */
struct shm_attempt {
    struct gloo_shm *connection = nullptr;
    int listener = -1;
    char error[128] = "";

    void abandon(const char *text) {
        gloo_shm_close(&connection);
        snprintf(error, sizeof error, "%s", text);
    }
    ~shm_attempt() {
        gloo_shm_close(&connection);
        if (listener != -1)
            close(listener);
    }
};

static struct gloo_shm_ends ends_of_pair(const struct gloo_pairs *pairs,
                                         uint32_t peer) {
    const struct collective_settings &settings = pairs->connect->settings;
    return {settings.proof, settings.rank, peer};
}

/* Opens the connection, if there is one, and tells the other side. */
static void open_and_tell(struct gloo_pairs *pairs, uint32_t peer,
                          struct shm_attempt *attempt) {
    struct handshake local = {};
    local.ready = attempt->connection &&
                  gloo_shm_open(attempt->connection, attempt->error,
                                sizeof attempt->error);
    if (!local.ready)
        gloo_shm_close(&attempt->connection);
    send_handshake(pairs, peer, local);
}

/* Each side answers the other's step: offer, connect, accept, open, open. */
static void open_as_server(struct gloo_pairs *pairs, uint32_t peer,
                           struct shm_attempt *attempt) {
    struct handshake local = {};
    struct gloo_shm_ends ends = ends_of_pair(pairs, peer);
    if (pairs->use_shm)
        attempt->listener =
            gloo_shm_listen(local.name, attempt->error, sizeof attempt->error);
    local.ready = attempt->listener != -1;
    gloo_address_host_key().copy(local.place, sizeof local.place - 1);
    send_handshake(pairs, peer, local);
    if (receive_handshake(pairs, peer).ready && local.ready)
        attempt->connection = gloo_shm_accept(
            attempt->listener, &ends, attempt->error, sizeof attempt->error);
    local.ready = attempt->connection != nullptr;
    send_handshake(pairs, peer, local);
    if (!receive_handshake(pairs, peer).ready && attempt->connection)
        attempt->abandon("it cannot open it");
    open_and_tell(pairs, peer, attempt);
}

static void open_as_client(struct gloo_pairs *pairs, uint32_t peer,
                           struct shm_attempt *attempt) {
    struct handshake local = {}, remote = receive_handshake(pairs, peer);
    struct gloo_shm_ends ends = ends_of_pair(pairs, peer);
    if (remote.ready && pairs->use_shm &&
        gloo_address_host_key() == remote.place)
        attempt->connection = gloo_shm_connect(
            remote.name, &ends, attempt->error, sizeof attempt->error);
    local.ready = attempt->connection != nullptr;
    send_handshake(pairs, peer, local);
    if (!receive_handshake(pairs, peer).ready && attempt->connection)
        attempt->abandon("it does not answer");
    open_and_tell(pairs, peer, attempt);
    if (!receive_handshake(pairs, peer).ready && attempt->connection)
        attempt->abandon("it cannot open it");
}

void gloo_pairs_connect(struct gloo_pairs *pairs, uint32_t peer) {
    struct shm_attempt attempt;
    if (pairs->connect->settings.rank < peer)
        open_as_server(pairs, peer, &attempt);
    else
        open_as_client(pairs, peer, &attempt);
    pairs->shm[peer] = attempt.connection;
    pairs->errors[peer] = attempt.error;
    attempt.connection = nullptr;
    if (!pairs->shm[peer])
        make_pair(pairs, peer);
}

std::string gloo_pairs_plain(const struct gloo_pairs *pairs, std::string text) {
    for (uint32_t i = 0; i < pairs->names.size(); i++) {
        const std::string &name = pairs->names[i];
        size_t at = name.empty() ? std::string::npos : text.find(name);
        if (at != std::string::npos)
            text.replace(at, name.size(),
                         gloo_connect_text(&pairs->connect->places[i].address));
    }
    return text;
}

static bool is_within(struct buffer *buffer, const char *data, size_t bytes) {
    auto first = static_cast<const char *>(buffer_data(buffer));
    return data >= first && data + bytes <= first + buffer_bytes(buffer);
}

void gloo_pairs_begin(struct gloo_pairs *pairs, void *data, size_t bytes,
                      enum gloo_operation shared_operation) {
    for (auto &pair_buffers : pairs->peers)
        pair_buffers.from[GLOO_COPY].reset();
    pairs->data = static_cast<char *>(data);
    pairs->bytes = bytes;
    pairs->shared_operation = shared_operation;
    pairs->shared_buffer = nullptr;
    for (struct buffer *buffer : pairs->registered)
        if (is_within(buffer, pairs->data, bytes))
            pairs->shared_buffer = buffer;
}

static void send_by_tcp(struct gloo_pairs *pairs, uint32_t to,
                        const void *bytes, size_t size,
                        enum gloo_operation operation) {
    auto place = static_cast<const char *>(bytes) - pairs->data;
    auto &buffer = pairs->peers[to].to[operation];
    buffer->send(reinterpret_cast<uintptr_t>(bytes), size,
                 operation == GLOO_COPY ? (size_t)place : 0);
    buffer->waitSend();
    if (size > pairs->peers[to].largest) {
        pairs->peers[to].largest = size;
        set_send_buffer(pairs->connect->sockets[GLOO_DATA][to]);
    }
}

void gloo_pairs_send(struct gloo_pairs *pairs, uint32_t to, const void *bytes,
                     size_t size, enum gloo_operation operation) {
    auto shm = pairs->shm[to];
    auto shared_buffer =
        operation == pairs->shared_operation ? pairs->shared_buffer : nullptr;
    if (!shm)
        send_by_tcp(pairs, to, bytes, size, operation);
    else if (!gloo_shm_send_shared(shm, bytes, size, shared_buffer))
        throw std::runtime_error(gloo_shm_error(shm));
}

static void receive_by_tcp(struct gloo_pairs *pairs, uint32_t from,
                           enum gloo_operation operation) {
    auto &buffer = pairs->peers[from].from[operation];
    if (!buffer)
        buffer = pairs->contexts[from]->getPair((int)from)->createRecvBuffer(
            operation, pairs->data, pairs->bytes);
    buffer->waitRecv();
}

/* Calls DO_WITH(at, piece, bytes) for all pieces of a message of SIZE bytes. */
template <typename work>
static void for_chunks(struct gloo_shm *shm, size_t size, work do_with) {
    for (size_t at = 0; at < size; at += GLOO_SHM_CHUNK) {
        size_t bytes = std::min((size_t)GLOO_SHM_CHUNK, size - at);
        const void *piece = gloo_shm_view(shm, bytes);
        if (!piece)
            throw std::runtime_error(gloo_shm_error(shm));
        do_with(at, piece, bytes);
        gloo_shm_release(shm);
    }
}

void gloo_pairs_receive(struct gloo_pairs *pairs, uint32_t from, void *place,
                        size_t size) {
    auto shm = pairs->shm[from];
    auto to = static_cast<char *>(place);
    if (!shm)
        receive_by_tcp(pairs, from, GLOO_COPY);
    else
        for_chunks(shm, size, [=](size_t at, const void *piece, size_t bytes) {
            memcpy(to + at, piece, bytes);
        });
}

static void gloo_pairs_add_floats(float *__restrict sum, const void *more,
                                  size_t count) {
    auto floats = static_cast<const float *__restrict>(more);
    for (size_t i = 0; i < count; i++)
        sum[i] += floats[i];
}

void gloo_pairs_add(struct gloo_pairs *pairs, uint32_t from, float *sum,
                    size_t count) {
    auto shm = pairs->shm[from];
    if (shm) {
        for_chunks(shm, count * sizeof *sum,
                   [=](size_t at, const void *piece, size_t bytes) {
                       gloo_pairs_add_floats(sum + at / sizeof *sum, piece,
                                             bytes / sizeof *sum);
                   });
        return;
    }
    receive_by_tcp(pairs, from, GLOO_SUM);
    gloo_pairs_add_floats(sum, pairs->receive_buffer.data(), count);
}

static const std::vector<int> &sockets_of(const struct gloo_pairs *pairs) {
    return pairs->connect->sockets[GLOO_DATA];
}

static bool carries_data(const struct gloo_pairs *pairs, uint32_t peer) {
    return !pairs->shm[peer] && sockets_of(pairs)[peer] != -1;
}

/* So many probes that this process notices the silence before the kernel. */
void gloo_pairs_keep_alive(struct gloo_pairs *pairs, double limit) {
    int on = 1, idle = 1, count = 127, interval = 1 + (int)(limit / 64);
    for (uint32_t i = 0; i < pairs->shm.size(); i++) {
        int socket = sockets_of(pairs)[i];
        if (!carries_data(pairs, i))
            continue;
        gloo_pairs_set(socket, TCP_KEEPIDLE, &idle, sizeof idle, IPPROTO_TCP);
        gloo_pairs_set(socket, TCP_KEEPINTVL, &interval, sizeof interval,
                       IPPROTO_TCP);
        gloo_pairs_set(socket, TCP_KEEPCNT, &count, sizeof count, IPPROTO_TCP);
        gloo_pairs_set(socket, SO_KEEPALIVE, &on, sizeof on);
    }
}

/* Data or a keepalive probe is unacknowledged, and no acknowledgement has come
 * for ELAPSED ns. Not while the window is closed, as that of a peer which reads
 * nothing for long: its kernel answers, but is asked ever less often. Such a
 * peer has nothing to send and finds a cut by keepalive. */
static bool is_unanswered(int socket, int64_t elapsed) {
    struct tcp_info info = {};
    socklen_t size = sizeof info;
    return !getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) &&
           info.tcpi_snd_wnd &&
           (info.tcpi_unacked ||
            (info.tcpi_probes && !info.tcpi_notsent_bytes)) &&
           (int64_t)info.tcpi_last_ack_recv * 1000000 >= elapsed;
}

int64_t gloo_pairs_find_silent(struct gloo_pairs *pairs, int64_t elapsed,
                               int64_t limit) {
    for (uint32_t i = 0; i < pairs->shm.size(); i++) {
        if (!carries_data(pairs, i))
            continue;
        int64_t *unanswered = &pairs->unanswered[i];
        bool silent = is_unanswered(sockets_of(pairs)[i], elapsed);
        *unanswered = silent ? *unanswered + elapsed : 0;
        if (*unanswered > limit)
            return i;
    }
    return -1;
}

void gloo_pairs_shutdown(struct gloo_pairs *pairs) noexcept {
    if (!pairs->connect)
        return;
    for (int socket : sockets_of(pairs))
        if (socket != -1)
            shutdown(socket, SHUT_RDWR);
    for (struct gloo_shm *shm : pairs->shm)
        if (shm)
            gloo_shm_shutdown(shm);
}

void gloo_pairs_close(struct gloo_pairs *pairs) noexcept {
    pairs->peers.clear();
    for (struct gloo_shm *&shm : pairs->shm)
        gloo_shm_close(&shm);
    pairs->shm.clear();
    pairs->contexts.clear();
    pairs->device.reset();
}
