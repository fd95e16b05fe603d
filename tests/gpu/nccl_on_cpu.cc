/* SPDX-License-Identifier: Apache-2.0 */
/* What capstan-nccl.so calls of NCCL, among processes of one machine, beside
 * tests/gpu/cuda_streams.h: a call is put on its stream, and when it is its
 * turn there it meets the other ranks in shared memory. Communicators are such
 * as do not block: a call is ncclInProgress until somebody has asked for it
 * often enough, only then is it put on its stream, and another before that is
 * refused. What is summed is memory of the thread's device. Sums are in rank
 * order, or, as a switch adds them where NVLS is not turned off, in one that
 * chance chooses. A rank that does not come fails the call after PATIENCE, and
 * with it the communicator. Ranks that have one device may share it here. With
 * NCCL_ON_CPU_ABORT_HANGS an abort never returns, and exit(3) waits for it. */
#include "tests/gpu/cuda_ranges.h"
#include "tests/gpu/cuda_streams.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <new>
#include <random>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { RANKS = 8, ROOM = 4 << 20, PATIENCE = 20 /* seconds */ };
enum { ASKED = 2 }; /* times, before what was called is under way */

struct board {
    std::atomic<unsigned> arrived, turn;
    std::atomic<unsigned> first; /* rank of a sum */
    std::atomic<bool> lost;
    char rooms[RANKS][ROOM];
};

struct call;

struct ncclComm {
    board *shared;
    int rank, size;
    std::atomic<ncclResult_t> failed;
    unsigned opening; /* the turn that ends when all ranks are here */
    bool opened;
    std::string name;            /* rank 0's: of `shared`, until all have it */
    int busy;                    /* is to be asked so often */
    std::vector<call *> pending; /* not on their streams yet */
};

/* Of this thread. */
static thread_local int depth;
static thread_local std::vector<ncclComm *> grouped;

static double now() {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static bool adds_by_chance() {
    const char *given = getenv("NCCL_NVLS_ENABLE");
    return !given || strcmp(given, "0") != 0;
}

/* The number of the turn; with the last rank's arrival it ends. */
static unsigned arrive(ncclComm *comm) {
    board *shared = comm->shared;
    unsigned turn = shared->turn;
    if (++shared->arrived < (unsigned)comm->size)
        return turn;
    shared->first =
        adds_by_chance() ? std::random_device()() % (unsigned)comm->size : 0;
    shared->arrived = 0;
    shared->turn++;
    return turn;
}

/* All ranks are here; false: one is not. */
static bool meet(ncclComm *comm) {
    board *shared = comm->shared;
    unsigned turn = arrive(comm);
    double until = now() + PATIENCE;
    while (shared->turn == turn && !shared->lost && now() < until)
        sched_yield();
    if (shared->turn == turn)
        shared->lost = true;
    return shared->turn != turn;
}

enum kind { SUM, SUM_AT_ROOT, SPREAD };

struct call {
    ncclComm *comm;
    kind what;
    const char *from;
    char *to;
    size_t bytes;
    int root;
    cudaStream_t stream;
};

static float *floats(const call *c, int rank) {
    return (float *)c->comm->shared->rooms[rank];
}

static void add_up(const call *c, size_t count) {
    float *sums = (float *)c->to;
    int first = (int)c->comm->shared->first, size = c->comm->size;
    for (size_t i = 0; i < count; i++) {
        float sum = floats(c, first)[i];
        for (int r = 1; r < size; r++)
            sum += floats(c, (first + r) % size)[i];
        sums[i] = sum;
    }
}

/* As much as the rooms hold. */
static bool make_some(const call *c) {
    ncclComm *comm = c->comm;
    if (c->what != SPREAD || comm->rank == c->root)
        memcpy(comm->shared->rooms[comm->rank], c->from, c->bytes);
    if (!meet(comm))
        return false;
    if (c->what == SPREAD)
        memcpy(c->to, comm->shared->rooms[c->root], c->bytes);
    else if (c->what == SUM || comm->rank == c->root)
        add_up(c, c->bytes / sizeof(float));
    return meet(comm);
}

static void make(void *context) {
    call *all = (call *)context, some = *all;
    bool sound = !all->comm->failed;
    for (size_t at = 0; sound && at < all->bytes; at += some.bytes) {
        some.bytes = all->bytes - at < ROOM ? all->bytes - at : (size_t)ROOM;
        some.from = all->from + at;
        some.to = all->to + at;
        sound = make_some(&some);
    }
    if (!sound && !all->comm->failed)
        all->comm->failed = ncclRemoteError;
    delete all;
}

static bool is_here(const void *memory, size_t bytes) {
    int kind;
    return cuda_ranges_kind(memory, bytes, &kind) &&
           kind == cuda_streams_current_device();
}

static ncclResult_t put(ncclComm *comm, kind what, const void *from, void *to,
                        size_t bytes, int root, cudaStream_t stream) {
    bool supports_stream = std::count(grouped.begin(), grouped.end(), comm) > 0;
    if (!comm->opened || (comm->busy && !supports_stream))
        return ncclInvalidUsage;
    if (!is_here(from, bytes) || !is_here(to, bytes))
        return ncclInvalidArgument;
    comm->pending.push_back(new call{comm, what, (const char *)from, (char *)to,
                                     bytes, root, stream});
    comm->busy = ASKED;
    if (!depth)
        return ncclInProgress;
    grouped.push_back(comm);
    return ncclSuccess;
}

/* What was called goes to its stream. */
static ncclResult_t start(ncclComm *comm) {
    int error = 0;
    for (call *each : comm->pending)
        if (error)
            delete each;
        else
            error = cuda_streams_submit_call(each->stream, make, each);
    comm->pending.clear();
    return error ? ncclUnhandledCudaError : ncclSuccess;
}

static board *async_error(const char *name, int flags) {
    int file = shm_open(name, O_RDWR | flags, 0600);
    void *memory = MAP_FAILED;
    if (file >= 0 && !ftruncate(file, sizeof(board)))
        memory = mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return memory == MAP_FAILED ? nullptr : (board *)memory;
}

static std::atomic<bool> abort_hangs;

__attribute__((destructor)) static void wait_for_abort() {
    while (abort_hangs)
        pause();
}

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static std::atomic<unsigned> number;
    snprintf(id->internal, sizeof id->internal, "/capstan-nccl-%d-%u",
             (int)getpid(), number++);
    board *shared = async_error(id->internal, O_CREAT | O_EXCL);
    if (!shared)
        return ncclSystemError;
    munmap(shared, sizeof *shared);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t *config) {
    ncclComm *comm = new (std::nothrow) ncclComm();
    *out = comm;
    if (!comm || size > RANKS || config->blocking)
        return ncclInvalidArgument;
    comm->rank = rank;
    comm->size = size;
    comm->shared = async_error(id.internal, 0);
    if (!comm->shared)
        return ncclSystemError;
    comm->opening = arrive(comm);
    if (rank == 0)
        comm->name = id.internal;
    return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (!comm->opened || comm->busy)
        return ncclInvalidUsage;
    comm->busy = ASKED;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm->name.empty())
        shm_unlink(comm->name.c_str());
    if (comm->shared)
        munmap(comm->shared, sizeof *comm->shared);
    delete comm;
    return ncclSuccess;
}

/* What was put and not made yet is not made any more. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    abort_hangs = getenv("NCCL_ON_CPU_ABORT_HANGS") != nullptr;
    while (abort_hangs)
        pause();
    if (!comm->name.empty())
        shm_unlink(comm->name.c_str());
    if (comm->shared)
        comm->shared->lost = true;
    comm->failed = ncclInternalError;
    return ncclSuccess;
}

/* Ranks meet while they are asked. */
static bool has_opened(ncclComm *comm) {
    comm->opened = comm->opened || comm->shared->turn != comm->opening;
    if (!comm->opened && comm->shared->lost && !comm->failed)
        comm->failed = ncclRemoteError;
    if (comm->opened && !comm->name.empty()) {
        shm_unlink(comm->name.c_str());
        comm->name.clear();
    }
    return comm->opened;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
    ncclResult_t started = ncclSuccess;
    bool under_way = has_opened(comm) && (!comm->busy || --comm->busy == 0);
    if (under_way)
        started = start(comm);
    if (started && !comm->failed)
        comm->failed = started;
    *result = comm->failed ? comm->failed.load()
              : under_way  ? ncclSuccess
                           : ncclInProgress;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                           ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
    return put(comm, SUM, from, to, count * sizeof(float), 0, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count,
                        ncclDataType_t, ncclRedOp_t, int root, ncclComm_t comm,
                        cudaStream_t stream) {
    return put(comm, SUM_AT_ROOT, from, to, count * sizeof(float), root,
               stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    size_t size = type == ncclFloat ? sizeof(float) : 1;
    return put(comm, SPREAD, from, to, count * size, root, stream);
}

ncclResult_t ncclGroupStart() {
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    bool any = !grouped.empty();
    if (--depth)
        return ncclSuccess;
    grouped.clear();
    return any ? ncclInProgress : ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t) {
    return "an error of the NCCL that the CPU plays";
}

const char *ncclGetLastError(ncclComm_t) {
    return "a rank is lost";
}
}
