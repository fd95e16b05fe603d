/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/cuda_streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

/* Something to be done after others. */
struct step {
    std::function<int()> work; /* none: it only waits */
    std::vector<std::shared_ptr<step>> after;
    bool done;
};
using steps = std::vector<std::shared_ptr<step>>;

/* The same in a graph, by numbers; EVENT: what its launch records there. */
struct node {
    std::function<int()> work;
    std::vector<size_t> after;
    struct CUevent_st *event;
};

/* A capture sequence, and who takes part: the first began it. */
struct capture {
    std::vector<node> nodes;
    std::vector<struct CUstream_st *> streams;
    bool invalid, ended;
};

struct CUstream_st {
    int index; /* of its device */
    std::shared_ptr<step> last;
    std::shared_ptr<capture> capturing;
    std::vector<size_t> front; /* nodes that the next one follows */
};

struct CUevent_st {
    int index; /* of its device */
    std::shared_ptr<step> last;
    std::shared_ptr<capture> captured; /* it was last recorded in */
    std::vector<size_t> front;
};

struct CUgraph_st {
    std::vector<node> nodes;
};

struct CUgraphExec_st {
    std::vector<node> nodes;
    std::shared_ptr<step> last; /* of its last launch */
};

enum { MAXIMUM = 8 };

/* A device. */
static struct machine {
    enum cuda_streams_order order;
    uint64_t random;
    bool refuses_capture, refuses_work, refuses_instantiate, tells;
    unsigned streams;
    steps waiting;
    int failed;
    struct cuda_streams_counts counts;
    std::recursive_mutex mutex; /* work may call for more */
} machines[MAXIMUM];

static thread_local int current;
static thread_local std::shared_ptr<capture> ours; /* this thread's, if any */

/* The one that this thread is at. */
static struct machine *here(void) {
    return &machines[current];
}

using turn = std::lock_guard<std::recursive_mutex>;

static uint64_t number_of(const char *text, const char *name) {
    const char *found = strstr(text, name);
    return found ? strtoull(found + strlen(name), nullptr, 10) : 0;
}

static void arrange(void) {
    const char *given = getenv("CAPSTAN_EMULATED");
    const char *text = given ? given : "";
    here()->order = (enum cuda_streams_order)number_of(text, "order=");
    here()->random = number_of(text, "seed=");
    here()->refuses_capture = strstr(text, "refuse=capture");
    here()->refuses_work = strstr(text, "refuse=work");
    here()->refuses_instantiate = strstr(text, "refuse=instantiate");
    here()->tells = strstr(text, "count");
    here()->failed = 0;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(void) {
    uint64_t z = here()->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* An error stays, and nothing is done any more. */
static void run(const std::shared_ptr<step> &step) {
    if (!step || step->done)
        return;
    for (const std::shared_ptr<struct step> &before : step->after)
        run(before);
    step->done = true;
    step->after.clear();
    if (step->work && !here()->failed)
        here()->failed = step->work();
    step->work = nullptr;
}

static void go_on(void) {
    steps *waiting = &here()->waiting;
    uint64_t times =
        here()->order == CUDA_STREAMS_RANDOM ? next_random() % 3 : 0;
    for (; times && !waiting->empty(); times--)
        run((*waiting)[next_random() % waiting->size()]);
    waiting->erase(std::remove_if(waiting->begin(), waiting->end(),
                                  [](const std::shared_ptr<step> &step) {
                                      return step->done;
                                  }),
                   waiting->end());
}

static std::shared_ptr<step> add_step(std::function<int()> work, steps after) {
    auto added = std::make_shared<step>();
    added->work = std::move(work);
    added->after = std::move(after);
    here()->waiting.push_back(added);
    if (here()->order == CUDA_STREAMS_EAGER)
        run(added);
    return added;
}

static size_t add_node(struct CUstream_st *stream, std::function<int()> work,
                       struct CUevent_st *event) {
    std::vector<node> *nodes = &stream->capturing->nodes;
    nodes->push_back(node{std::move(work), stream->front, event});
    stream->front = {nodes->size() - 1};
    return nodes->size() - 1;
}

static int invalidate(const std::shared_ptr<capture> &capture, int error) {
    capture->invalid = true;
    return error;
}

int cuda_streams_submit(struct CUstream_st *stream, std::function<int()> work) {
    turn own(here()->mutex);
    here()->counts.works++;
    if (stream->index != current)
        return CUDA_STREAMS_INVALID_HANDLE;
    if (stream->capturing && stream->capturing->invalid)
        return CUDA_STREAMS_INVALIDATED;
    if (stream->capturing && here()->refuses_work)
        return invalidate(stream->capturing, CUDA_STREAMS_UNSUPPORTED);
    if (stream->capturing) {
        add_node(stream, std::move(work), nullptr);
        return 0;
    }
    stream->last = add_step(std::move(work), {stream->last});
    go_on();
    return here()->failed;
}

int cuda_streams_submit_call(struct CUstream_st *stream,
                             void (*run)(void *context), void *context) {
    return cuda_streams_submit(stream, [run, context] {
        run(context);
        return 0;
    });
}

struct CUstream_st *cuda_streams_open(void) {
    turn own(here()->mutex);
    if (here()->streams++ == 0)
        arrange();
    return new CUstream_st{current, nullptr, nullptr, {}};
}

static void tell(void) {
    const struct cuda_streams_counts *counts = &here()->counts;
    fprintf(stderr,
            "emulated: %llu calls of CUDA, %llu graphs, %llu launches of them, "
            "%llu bytes up, %llu bytes of pageable memory\n",
            (unsigned long long)(counts->works + counts->events +
                                 counts->waits + counts->launches),
            (unsigned long long)counts->captures,
            (unsigned long long)counts->launches,
            (unsigned long long)counts->up,
            (unsigned long long)counts->pageable);
}

void cuda_streams_add_copy(uint64_t bytes, bool up, bool pageable) {
    turn own(here()->mutex);
    here()->counts.up += up ? bytes : 0;
    here()->counts.pageable += pageable ? bytes : 0;
}

void cuda_streams_close(struct CUstream_st *stream) {
    turn own(here()->mutex);
    cuda_streams_finish();
    delete stream;
    if (--here()->streams == 0 && here()->tells)
        tell();
}

/* Has all that LAST follows been done? In a random order it takes a while. */
static int ask(const std::shared_ptr<step> &last) {
    go_on();
    if (here()->order != CUDA_STREAMS_RANDOM || next_random() % 4 == 0)
        run(last);
    if (here()->failed)
        return here()->failed;
    return !last || last->done ? 0 : CUDA_STREAMS_NOT_READY;
}

int cuda_streams_query(struct CUstream_st *stream) {
    turn own(here()->mutex);
    if (stream->capturing)
        return invalidate(stream->capturing, CUDA_STREAMS_UNSUPPORTED);
    int error = cuda_streams_check_uncaptured();
    return error ? error : ask(stream->last);
}

struct CUevent_st *cuda_streams_event_open(void) {
    return new CUevent_st{current, nullptr, nullptr, {}};
}

void cuda_streams_event_close(struct CUevent_st *event) {
    delete event;
}

int cuda_streams_event_query(struct CUevent_st *event) {
    turn own(here()->mutex);
    int error = cuda_streams_check_uncaptured();
    if (error)
        return error;
    return event->captured ? (int)CUDA_STREAMS_CAPTURED_EVENT
                           : ask(event->last);
}

int cuda_streams_record(struct CUevent_st *event, struct CUstream_st *stream,
                        bool external) {
    turn own(here()->mutex);
    const std::shared_ptr<capture> &capturing = stream->capturing;
    here()->counts.events++;
    if (event->index != stream->index)
        return CUDA_STREAMS_INVALID_HANDLE;
    if (capturing && capturing->invalid)
        return CUDA_STREAMS_INVALIDATED;
    if (capturing && external) {
        add_node(stream, nullptr, event);
        return 0;
    }
    event->captured = capturing;
    event->front = stream->front;
    event->last = stream->last;
    return 0;
}

static void add_to_front(struct CUstream_st *stream,
                         const std::vector<size_t> &front) {
    for (size_t node : front)
        if (std::find(stream->front.begin(), stream->front.end(), node) ==
            stream->front.end())
            stream->front.push_back(node);
}

/* EVENT was recorded in a capture that goes on. */
static int wait_captured(struct CUstream_st *stream, struct CUevent_st *event) {
    if (!stream->capturing) {
        stream->capturing = event->captured;
        stream->capturing->streams.push_back(stream);
        stream->front = event->front;
        return 0;
    }
    if (stream->capturing != event->captured) {
        invalidate(event->captured, 0);
        return invalidate(stream->capturing, CUDA_STREAMS_MERGE);
    }
    add_to_front(stream, event->front);
    return 0;
}

int cuda_streams_wait(struct CUstream_st *stream, struct CUevent_st *event) {
    turn own(here()->mutex);
    const std::shared_ptr<capture> &capturing = stream->capturing;
    here()->counts.waits++;
    if ((capturing && capturing->invalid) ||
        (event->captured && event->captured->invalid))
        return CUDA_STREAMS_INVALIDATED;
    if (event->captured && event->captured->ended)
        return CUDA_STREAMS_INVALID_VALUE;
    if (event->captured)
        return wait_captured(stream, event);
    if (capturing)
        return invalidate(capturing, CUDA_STREAMS_ISOLATION);
    stream->last = add_step(nullptr, {stream->last, event->last});
    go_on();
    return 0;
}

int cuda_streams_begin_capture(struct CUstream_st *stream) {
    turn own(here()->mutex);
    if (stream->capturing)
        return CUDA_STREAMS_ILLEGAL_STATE;
    if (here()->refuses_capture)
        return CUDA_STREAMS_UNSUPPORTED;
    stream->capturing = std::make_shared<capture>();
    stream->capturing->streams.assign(1, stream);
    stream->front.clear();
    ours = stream->capturing;
    return 0;
}

/* Does all that a stream of CAPTURE was given come before FRONT? */
static bool joined(const struct capture *capture, std::vector<size_t> front) {
    std::vector<bool> before(capture->nodes.size());
    while (!front.empty()) {
        size_t node = front.back();
        front.pop_back();
        if (!before[node])
            for (size_t after : capture->nodes[node].after)
                front.push_back(after);
        before[node] = true;
    }
    for (const struct CUstream_st *stream : capture->streams)
        for (size_t node : stream->front)
            if (!before[node])
                return false;
    return true;
}

int cuda_streams_end_capture(struct CUstream_st *stream,
                             struct CUgraph_st **graph) {
    turn own(here()->mutex);
    std::shared_ptr<capture> ended = stream->capturing;
    *graph = nullptr;
    if (!ended)
        return CUDA_STREAMS_ILLEGAL_STATE;
    if (ended->streams[0] != stream)
        return invalidate(ended, CUDA_STREAMS_UNMATCHED);
    bool whole = joined(ended.get(), stream->front);
    ended->ended = true;
    for (struct CUstream_st *each : ended->streams)
        each->capturing = nullptr;
    ours = nullptr;
    if (ended->invalid)
        return CUDA_STREAMS_INVALIDATED;
    if (!whole)
        return CUDA_STREAMS_UNJOINED;
    *graph = new CUgraph_st{ended->nodes};
    return 0;
}

int cuda_streams_instantiate(struct CUgraphExec_st **exec,
                             struct CUgraph_st *graph) {
    turn own(here()->mutex);
    if (here()->refuses_instantiate)
        return CUDA_STREAMS_OUT_OF_MEMORY;
    here()->counts.captures++;
    *exec = new CUgraphExec_st{graph->nodes, nullptr};
    return 0;
}

/* A graph is launched as a whole: all of it follows the stream and its own last
 * launch, what comes behind in the stream follows all of it. */
int cuda_streams_launch(struct CUgraphExec_st *exec,
                        struct CUstream_st *stream) {
    turn own(here()->mutex);
    steps made;
    if (stream->capturing)
        return invalidate(stream->capturing, CUDA_STREAMS_UNSUPPORTED);
    here()->counts.launches++;
    auto first = add_step(nullptr, {stream->last, exec->last});
    for (const node &node : exec->nodes) {
        steps after = {first};
        for (size_t before : node.after)
            after.push_back(made[before]);
        made.push_back(add_step(node.work, after));
        if (node.event) {
            node.event->last = made.back();
            node.event->captured = nullptr;
        }
    }
    made.push_back(first);
    stream->last = exec->last = add_step(nullptr, made);
    go_on();
    return here()->failed;
}

void cuda_streams_graph_close(struct CUgraph_st *graph) {
    delete graph;
}

void cuda_streams_exec_close(struct CUgraphExec_st *exec) {
    delete exec;
}

int cuda_streams_check_uncaptured(void) {
    return ours ? invalidate(ours, CUDA_STREAMS_UNSUPPORTED) : 0;
}

int cuda_streams_finish(void) {
    turn own(here()->mutex);
    steps all = here()->waiting;
    for (const std::shared_ptr<step> &each : all)
        run(each);
    here()->waiting.clear();
    return here()->failed;
}

void cuda_streams_set_device(int index) {
    current = index;
}

int cuda_streams_current_device(void) {
    return current;
}

unsigned cuda_streams_num_devices(void) {
    const char *text = getenv("CAPSTAN_EMULATED");
    uint64_t devices = number_of(text ? text : "", "devices=");
    return (unsigned)std::min<uint64_t>(devices ? devices : 1, MAXIMUM);
}

void cuda_streams_count(struct cuda_streams_counts *counts) {
    turn own(here()->mutex);
    *counts = here()->counts;
}
