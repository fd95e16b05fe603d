/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_pairs.h"

#include "worker/collective/gloo_address.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h> /* its tcp_info is longer than the C library's */
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <system_error>
#include <unistd.h>

using gloo::transport::tcp::Address;

/* The address without the number that Gloo of 2023 appends. */
static std::string without_number(const Address &address) {
    std::string text = address.str();
    return text.substr(0, text.find('$'));
}

/* The result of getsockname or getpeername on FD; "" if it is no socket. */
static std::string name_of(int fd,
                           int (*name)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (name(fd, reinterpret_cast<struct sockaddr *>(&address), &size) == -1 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6))
        return "";
    return without_number(Address(address));
}

/* Gloo does not expose descriptors. The two listening addresses belong to one
 * pair of ranks each, and one of them is an end of the pair's connection, so
 * that they identify its socket. */
static int find_socket(const std::string &local_address,
                       const std::string &remote_address) {
    int found = -1;
    DIR *all = opendir("/proc/self/fd");
    if (!all)
        throw std::system_error(errno, std::generic_category(), "/proc");
    while (struct dirent *entry = readdir(all)) {
        int fd = atoi(entry->d_name);
        std::string peer = name_of(fd, getpeername);
        if (!peer.empty() && (peer == remote_address ||
                              name_of(fd, getsockname) == local_address))
            found = fd;
    }
    closedir(all);
    if (found == -1)
        throw std::runtime_error("no socket is connected to " + remote_address);
    return found;
}

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

/* Opens a listening pair of this rank and PEER. */
static void listen_for(struct gloo_pairs *pairs, uint32_t peer, uint32_t rank,
                       uint32_t size, double seconds) {
    auto &context = pairs->contexts[peer];
    context = pairs->devices[peer]->createContext((int)rank, (int)size);
    /* Gloo multiplies the timeout of a connection by five. */
    context->setTimeout(std::chrono::milliseconds((int64_t)(seconds * 200)));
    context->createPair((int)peer);
}

void gloo_pairs_listen(struct gloo_pairs *pairs, const char *host,
                       uint32_t rank, uint32_t size, double seconds) {
    gloo::transport::tcp::attr attr(host);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    pairs->devices.resize(size);
    pairs->contexts.resize(size);
    pairs->sockets.assign(size, -1);
    pairs->unanswered.assign(size, 0);
    pairs->peers.resize(size);
    pairs->shm.resize(size);
    pairs->errors.resize(size);
    pairs->receive_buffer.resize(GLOO_CHUNK);
    pairs->window = MAX_AHEAD;
    for (uint32_t i = 0; i < size; i++) {
        if (i == rank)
            continue;
        pairs->devices[i] = device;
        listen_for(pairs, i, rank, size, seconds);
        auto address = pairs->contexts[i]->getPair((int)i)->address().str();
        if (address.find('$') != std::string::npos)
            device = gloo::transport::tcp::CreateDevice(attr);
    }
}

std::vector<char> gloo_pairs_address(const struct gloo_pairs *pairs,
                                     uint32_t peer) {
    return pairs->contexts[peer]->getPair((int)peer)->address().bytes();
}

void gloo_pairs_connect(struct gloo_pairs *pairs, uint32_t peer,
                        const std::vector<char> &address) {
    static const struct timeval forever = {};
    auto &pair = pairs->contexts[peer]->getPair((int)peer);
    auto &pair_buffers = pairs->peers[peer];
    std::string local_address =
        without_number(Address(pair->address().bytes()));
    pair->connect(address);
    pair->setSync(true, false);
    int socket =
        fcntl(find_socket(local_address, without_number(Address(address))),
              F_DUPFD_CLOEXEC, 0);
    if (socket == -1)
        throw std::system_error(errno, std::generic_category(), "dup");
    pairs->sockets[peer] = socket;
    gloo_pairs_set(socket, SO_RCVTIMEO, &forever, sizeof forever);
    gloo_pairs_set(socket, SO_SNDTIMEO, &forever, sizeof forever);
    pairs->window = std::min(pairs->window, set_send_buffer(socket));
    for (int operation = GLOO_SUM; operation <= GLOO_COPY; operation++)
        pair_buffers.to[operation] =
            pair->createSendBuffer(operation, nullptr, SIZE_MAX);
    pair_buffers.from[GLOO_SUM] = pair->createRecvBuffer(
        GLOO_SUM, pairs->receive_buffer.data(), pairs->receive_buffer.size());
}

void gloo_pairs_exchange(struct gloo_pairs *pairs, uint32_t peer,
                         const void *own, void *theirs, size_t size) {
    auto &pair_buffers = pairs->peers[peer];
    pair_buffers.to[GLOO_SUM]->send(reinterpret_cast<uintptr_t>(own), size, 0);
    pair_buffers.to[GLOO_SUM]->waitSend();
    pair_buffers.from[GLOO_SUM]->waitRecv();
    memcpy(theirs, pairs->receive_buffer.data(), size);
}

/* The messages, over TCP, by which two ranks agree on shared memory. */
struct handshake {
    uint32_t ready;
    char place[128], name[GLOO_SHM_NAME]; /* of the side that offers */
};

static void send_handshake(struct gloo_pairs *pairs, uint32_t peer,
                           const struct handshake &handshake) {
    auto &buffer = pairs->peers[peer].to[GLOO_SUM];
    buffer->send(reinterpret_cast<uintptr_t>(&handshake), sizeof handshake, 0);
    buffer->waitSend();
}

static struct handshake receive_handshake(struct gloo_pairs *pairs,
                                          uint32_t peer) {
    struct handshake handshake;
    pairs->peers[peer].from[GLOO_SUM]->waitRecv();
    memcpy(&handshake, pairs->receive_buffer.data(), sizeof handshake);
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

/* Each side answers the other's step: offer, connect, accept, open. */
static void open_as_server(struct gloo_pairs *pairs, uint32_t peer,
                           struct shm_attempt *attempt) {
    struct handshake local = {};
    if (pairs->use_shm)
        attempt->listener =
            gloo_shm_listen(local.name, attempt->error, sizeof attempt->error);
    local.ready = attempt->listener != -1;
    gloo_address_host_key().copy(local.place, sizeof local.place - 1);
    send_handshake(pairs, peer, local);
    if (receive_handshake(pairs, peer).ready && local.ready)
        attempt->connection = gloo_shm_accept(attempt->listener, attempt->error,
                                              sizeof attempt->error);
    local.ready = attempt->connection != nullptr;
    send_handshake(pairs, peer, local);
    if (!receive_handshake(pairs, peer).ready && attempt->connection)
        attempt->abandon("it cannot open it");
}

static void open_as_client(struct gloo_pairs *pairs, uint32_t peer,
                           struct shm_attempt *attempt) {
    struct handshake local = {}, remote = receive_handshake(pairs, peer);
    if (remote.ready && pairs->use_shm &&
        gloo_address_host_key() == remote.place)
        attempt->connection = gloo_shm_connect(remote.name, attempt->error,
                                               sizeof attempt->error);
    local.ready = attempt->connection != nullptr;
    send_handshake(pairs, peer, local);
    if (!receive_handshake(pairs, peer).ready && attempt->connection)
        attempt->abandon("it does not answer");
    local.ready = attempt->connection &&
                  gloo_shm_open(attempt->connection, attempt->error,
                                sizeof attempt->error);
    send_handshake(pairs, peer, local);
    if (!local.ready)
        gloo_shm_close(&attempt->connection);
}

void gloo_pairs_open_shm(struct gloo_pairs *pairs, uint32_t peer,
                         bool is_server) {
    struct shm_attempt attempt;
    if (is_server)
        open_as_server(pairs, peer, &attempt);
    else
        open_as_client(pairs, peer, &attempt);
    pairs->shm[peer] = attempt.connection;
    pairs->errors[peer] = attempt.error;
    attempt.connection = nullptr;
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
        set_send_buffer(pairs->sockets[to]);
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

static bool carries_data(const struct gloo_pairs *pairs, uint32_t peer) {
    return pairs->partners[peer] && !pairs->shm[peer] &&
           pairs->sockets[peer] != -1;
}

/* So many probes that this process notices the silence before the kernel. */
void gloo_pairs_keep_alive(struct gloo_pairs *pairs, double limit) {
    int on = 1, idle = 1, count = 127, interval = 1 + (int)(limit / 64);
    for (uint32_t i = 0; i < pairs->sockets.size(); i++) {
        int socket = pairs->sockets[i];
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
    for (uint32_t i = 0; i < pairs->sockets.size(); i++) {
        if (!carries_data(pairs, i))
            continue;
        int64_t *unanswered = &pairs->unanswered[i];
        bool silent = is_unanswered(pairs->sockets[i], elapsed);
        *unanswered = silent ? *unanswered + elapsed : 0;
        if (*unanswered > limit)
            return i;
    }
    return -1;
}

void gloo_pairs_shutdown(struct gloo_pairs *pairs) noexcept {
    for (int socket : pairs->sockets)
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
    pairs->devices.clear();
    for (int socket : pairs->sockets)
        if (socket != -1)
            close(socket);
    pairs->sockets.clear();
}
