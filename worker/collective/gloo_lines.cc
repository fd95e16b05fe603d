/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_lines.h"

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
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <system_error>
#include <unistd.h>

using gloo::transport::tcp::Address;

/* Without the number that Gloo of 2023 puts behind it. */
static std::string bare(const Address &address) {
    std::string text = address.str();
    return text.substr(0, text.find('$'));
}

/* What getsockname or getpeername says of FD; nothing where it is no socket. */
static std::string name_of(int fd,
                           int (*name)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (name(fd, reinterpret_cast<struct sockaddr *>(&address), &size) == -1 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6))
        return "";
    return bare(Address(address));
}

/* Gloo tells no descriptors. Of two listening addresses, which belong to one
 * pair of ranks each, one is an end of their connection. */
static int find_socket(const std::string &here, const std::string &there) {
    int found = -1;
    DIR *all = opendir("/proc/self/fd");
    if (!all)
        throw std::system_error(errno, std::generic_category(), "/proc");
    while (struct dirent *entry = readdir(all)) {
        int fd = atoi(entry->d_name);
        std::string peer = name_of(fd, getpeername);
        if (!peer.empty() &&
            (peer == there || name_of(fd, getsockname) == here))
            found = fd;
    }
    closedir(all);
    if (found == -1)
        throw std::runtime_error("no socket is connected to " + there);
    return found;
}

enum : size_t { MOST_AHEAD = GLOO_LANE_AHEAD / GLOO_CHUNK };

static void set(int socket, int option, const void *value, socklen_t size) {
    if (setsockopt(socket, SOL_SOCKET, option, value, size) == -1)
        throw std::system_error(errno, std::generic_category(), "setsockopt");
}

/* How many messages a socket holds; the system counts more than their bytes. */
static size_t make_room(int socket) {
    int room = 2 * MOST_AHEAD * GLOO_CHUNK;
    socklen_t size = sizeof room;
    set(socket, SO_SNDBUF, &room, size);
    if (getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, &size) == -1)
        throw std::system_error(errno, std::generic_category(), "getsockopt");
    size_t held = (size_t)room / 4 * 3 / GLOO_CHUNK;
    return std::min(std::max(held, (size_t)1), (size_t)MOST_AHEAD);
}

/* A pair of this rank and PEER that listens. */
static void listen_for(struct gloo_lines *lines, uint32_t peer, uint32_t rank,
                       uint32_t size, double seconds) {
    auto &context = lines->contexts[peer];
    context = lines->devices[peer]->createContext((int)rank, (int)size);
    /* Gloo waits five times as long for a connection. */
    context->setTimeout(std::chrono::milliseconds((int64_t)(seconds * 200)));
    context->createPair((int)peer);
}

void gloo_lines_listen(struct gloo_lines *lines, const char *host,
                       uint32_t rank, uint32_t size, double seconds) {
    gloo::transport::tcp::attr attr(host);
    auto device = gloo::transport::tcp::CreateDevice(attr);
    lines->devices.resize(size);
    lines->contexts.resize(size);
    lines->sockets.assign(size, -1);
    lines->peers.resize(size);
    lines->lanes.resize(size);
    lines->troubles.resize(size);
    lines->inbox.resize(GLOO_CHUNK);
    lines->window = MOST_AHEAD;
    for (uint32_t i = 0; i < size; i++) {
        if (i == rank)
            continue;
        lines->devices[i] = device;
        listen_for(lines, i, rank, size, seconds);
        auto address = lines->contexts[i]->getPair((int)i)->address().str();
        if (address.find('$') != std::string::npos)
            device = gloo::transport::tcp::CreateDevice(attr);
    }
}

std::vector<char> gloo_lines_address(const struct gloo_lines *lines,
                                     uint32_t peer) {
    return lines->contexts[peer]->getPair((int)peer)->address().bytes();
}

void gloo_lines_connect(struct gloo_lines *lines, uint32_t peer,
                        const std::vector<char> &address) {
    static const struct timeval forever = {};
    auto &pair = lines->contexts[peer]->getPair((int)peer);
    auto &ends = lines->peers[peer];
    std::string here = bare(Address(pair->address().bytes()));
    pair->connect(address);
    pair->setSync(true, false);
    int socket =
        fcntl(find_socket(here, bare(Address(address))), F_DUPFD_CLOEXEC, 0);
    if (socket == -1)
        throw std::system_error(errno, std::generic_category(), "dup");
    lines->sockets[peer] = socket;
    set(socket, SO_RCVTIMEO, &forever, sizeof forever);
    set(socket, SO_SNDTIMEO, &forever, sizeof forever);
    lines->window = std::min(lines->window, make_room(socket));
    for (int goal = GLOO_SUM; goal <= GLOO_PLACE; goal++)
        ends.to[goal] = pair->createSendBuffer(goal, nullptr, SIZE_MAX);
    ends.from[GLOO_SUM] = pair->createRecvBuffer(GLOO_SUM, lines->inbox.data(),
                                                 lines->inbox.size());
}

/* What two ranks that could share memory say to each other, by TCP. */
struct saying {
    uint32_t yes;
    char place[128], name[GLOO_LANE_NAME]; /* of who offers */
};

static void say(struct gloo_lines *lines, uint32_t peer,
                const struct saying &saying) {
    auto &buffer = lines->peers[peer].to[GLOO_SUM];
    buffer->send(reinterpret_cast<uintptr_t>(&saying), sizeof saying, 0);
    buffer->waitSend();
}

static struct saying hear(struct gloo_lines *lines, uint32_t peer) {
    struct saying saying;
    lines->peers[peer].from[GLOO_SUM]->waitRecv();
    memcpy(&saying, lines->inbox.data(), sizeof saying);
    saying.place[sizeof saying.place - 1] = 0;
    saying.name[sizeof saying.name - 1] = 0;
    return saying;
}

/* A line that is closed with its owner, and why there is none. */
struct half_open {
    struct gloo_lane *line = nullptr;
    int listener = -1;
    char trouble[128] = "";

    void leave(const char *text) {
        gloo_lane_close(&line);
        snprintf(trouble, sizeof trouble, "%s", text);
    }
    ~half_open() {
        gloo_lane_close(&line);
        if (listener != -1)
            close(listener);
    }
};

/* Each answers what the other has done: offered, called, answered, opened. */
static void offer(struct gloo_lines *lines, uint32_t peer,
                  struct half_open *half) {
    struct saying own = {};
    if (lines->shares)
        half->listener =
            gloo_lane_listen(own.name, half->trouble, sizeof half->trouble);
    own.yes = half->listener != -1;
    gloo_address_place().copy(own.place, sizeof own.place - 1);
    say(lines, peer, own);
    if (hear(lines, peer).yes && own.yes)
        half->line = gloo_lane_answer(half->listener, half->trouble,
                                      sizeof half->trouble);
    own.yes = half->line != nullptr;
    say(lines, peer, own);
    if (!hear(lines, peer).yes && half->line)
        half->leave("it cannot open it");
}

static void call(struct gloo_lines *lines, uint32_t peer,
                 struct half_open *half) {
    struct saying own = {}, its = hear(lines, peer);
    if (its.yes && lines->shares && gloo_address_place() == its.place)
        half->line =
            gloo_lane_call(its.name, half->trouble, sizeof half->trouble);
    own.yes = half->line != nullptr;
    say(lines, peer, own);
    if (!hear(lines, peer).yes && half->line)
        half->leave("it does not answer");
    own.yes = half->line &&
              gloo_lane_open(half->line, half->trouble, sizeof half->trouble);
    say(lines, peer, own);
    if (!own.yes)
        gloo_lane_close(&half->line);
}

void gloo_lines_share(struct gloo_lines *lines, uint32_t peer, bool offers) {
    struct half_open half;
    if (offers)
        offer(lines, peer, &half);
    else
        call(lines, peer, &half);
    lines->lanes[peer] = half.line;
    lines->troubles[peer] = half.trouble;
    half.line = nullptr;
}

void gloo_lines_way(const struct gloo_lines *lines, char *text, size_t size) {
    size_t ranks = lines->lanes.size(), shared = 0, refused = ranks;
    size_t partners =
        (size_t)std::count(lines->partners.begin(), lines->partners.end(), 1);
    for (size_t i = 0; i < ranks; i++) {
        shared += lines->lanes[i] != nullptr;
        if (!lines->troubles[i].empty())
            refused = i;
    }
    *text = 0;
    if (refused < ranks)
        snprintf(text, size, "over TCP with rank %zu, though on this host: %s",
                 refused, lines->troubles[refused].c_str());
    else if (shared && shared == partners)
        snprintf(text, size, "over shared memory");
    else if (shared)
        snprintf(text, size, "over shared memory with %zu of %zu ranks", shared,
                 partners);
}

void gloo_lines_show(struct gloo_lines *lines, struct buffer *buffer) {
    lines->shown.push_back(buffer);
}

static bool lies_in(struct buffer *buffer, const char *data, size_t bytes) {
    auto first = static_cast<const char *>(buffer_data(buffer));
    return data >= first && data + bytes <= first + buffer_bytes(buffer);
}

void gloo_lines_begin(struct gloo_lines *lines, void *data, size_t bytes,
                      enum gloo_goal lends) {
    for (auto &ends : lines->peers)
        ends.from[GLOO_PLACE].reset();
    lines->data = static_cast<char *>(data);
    lines->bytes = bytes;
    lines->lends = lends;
    lines->lender = nullptr;
    for (struct buffer *buffer : lines->shown)
        if (lies_in(buffer, lines->data, bytes))
            lines->lender = buffer;
}

static void send_by_tcp(struct gloo_lines *lines, uint32_t to,
                        const void *bytes, size_t size, enum gloo_goal goal) {
    auto place = static_cast<const char *>(bytes) - lines->data;
    auto &buffer = lines->peers[to].to[goal];
    buffer->send(reinterpret_cast<uintptr_t>(bytes), size,
                 goal == GLOO_PLACE ? (size_t)place : 0);
    buffer->waitSend();
    if (size > lines->peers[to].largest) {
        lines->peers[to].largest = size;
        make_room(lines->sockets[to]);
    }
}

void gloo_lines_send(struct gloo_lines *lines, uint32_t to, const void *bytes,
                     size_t size, enum gloo_goal goal) {
    auto lane = lines->lanes[to];
    auto lender = goal == lines->lends ? lines->lender : nullptr;
    if (!lane)
        send_by_tcp(lines, to, bytes, size, goal);
    else if (!gloo_lane_lend(lane, bytes, size, lender))
        throw std::runtime_error(gloo_lane_trouble(lane));
}

static void receive_by_tcp(struct gloo_lines *lines, uint32_t from,
                           enum gloo_goal goal) {
    auto &buffer = lines->peers[from].from[goal];
    if (!buffer)
        buffer = lines->contexts[from]->getPair((int)from)->createRecvBuffer(
            goal, lines->data, lines->bytes);
    buffer->waitRecv();
}

/* DO_WITH(at, piece, bytes) for all pieces of what was sent as SIZE. */
template <typename work>
static void for_pieces(struct gloo_lane *lane, size_t size, work do_with) {
    for (size_t at = 0; at < size; at += GLOO_LANE_PIECE) {
        size_t bytes = std::min((size_t)GLOO_LANE_PIECE, size - at);
        const void *piece = gloo_lane_view(lane, bytes);
        if (!piece)
            throw std::runtime_error(gloo_lane_trouble(lane));
        do_with(at, piece, bytes);
        gloo_lane_done(lane);
    }
}

void gloo_lines_receive(struct gloo_lines *lines, uint32_t from, void *place,
                        size_t size) {
    auto lane = lines->lanes[from];
    auto to = static_cast<char *>(place);
    if (!lane)
        receive_by_tcp(lines, from, GLOO_PLACE);
    else
        for_pieces(lane, size, [=](size_t at, const void *piece, size_t bytes) {
            memcpy(to + at, piece, bytes);
        });
}

static void add(float *__restrict sum, const void *more, size_t count) {
    auto floats = static_cast<const float *__restrict>(more);
    for (size_t i = 0; i < count; i++)
        sum[i] += floats[i];
}

void gloo_lines_add(struct gloo_lines *lines, uint32_t from, float *sum,
                    size_t count) {
    auto lane = lines->lanes[from];
    if (lane) {
        for_pieces(lane, count * sizeof *sum,
                   [=](size_t at, const void *piece, size_t bytes) {
                       add(sum + at / sizeof *sum, piece, bytes / sizeof *sum);
                   });
        return;
    }
    receive_by_tcp(lines, from, GLOO_SUM);
    add(sum, lines->inbox.data(), count);
}

void gloo_lines_cut(struct gloo_lines *lines) noexcept {
    for (int socket : lines->sockets)
        if (socket != -1)
            shutdown(socket, SHUT_RDWR);
    for (struct gloo_lane *lane : lines->lanes)
        if (lane)
            gloo_lane_cut(lane);
}

void gloo_lines_close(struct gloo_lines *lines) noexcept {
    lines->peers.clear();
    for (struct gloo_lane *&lane : lines->lanes)
        gloo_lane_close(&lane);
    lines->lanes.clear();
    lines->contexts.clear();
    lines->devices.clear();
    for (int socket : lines->sockets)
        if (socket != -1)
            close(socket);
    lines->sockets.clear();
}
