/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/calibration.h"

#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/tensor/rule.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SMALL = 64,
    LARGE = 256 << 10,
    FRAME_LIMIT = 4 << 20,
    POOL = 16 << 20, /* larger than a core's own caches */
    PIECES = POOL / LARGE,
    FLOATS = LARGE / 4,
    THREADS = 4, /* that a message passes: two at each end */
    IN_FLIGHT = 64,
};
static const int64_t TIMEOUT = 5 * TIME_S;

/* Two ends in this process, each with its own I/O thread. */
struct loopback {
    void *zmq[2];
    struct link *server, *client;
    struct buffer *buffer;
    uint32_t peer; /* the client's number at the server */
};

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void close_loopback(struct loopback *loopback) {
    link_close(&loopback->client);
    link_close(&loopback->server);
    buffer_release(&loopback->buffer);
    for (int i = 0; i < 2; i++)
        if (loopback->zmq[i])
            zmq_ctx_term(loopback->zmq[i]);
}

static enum status open_loopback(struct loopback *loopback,
                                 struct failure *why) {
    struct link_settings settings = {.max_frame = FRAME_LIMIT,
                                     .address = "127.0.0.1"};
    char address[32];
    *loopback = (struct loopback){.zmq = {zmq_ctx_new(), zmq_ctx_new()}};
    loopback->buffer = buffer_open(LARGE, NULL, NULL);
    if (!loopback->zmq[0] || !loopback->zmq[1] || !loopback->buffer)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory to measure messages");
    enum status status = link_open(&loopback->server, loopback->zmq[0],
                                   LINK_SERVER, &settings, why);
    if (!status)
        status = link_bind(loopback->server, 0, why);
    if (!status)
        status = link_open(&loopback->client, loopback->zmq[1], LINK_CLIENT,
                           &settings, why);
    if (status)
        return status;
    snprintf(address, sizeof address, "127.0.0.1:%u",
             link_port(loopback->server));
    return link_connect(loopback->client, address, why);
}

/* Waits for a frame at LINK and receives it; *PEER is its sender. */
static bool calibration_receive(struct link *link, uint32_t *peer) {
    int64_t deadline = time_now() + TIMEOUT;
    struct link_frame frame;
    while (!link_view(link, &frame)) {
        zmq_pollitem_t items[LINK_POLL_ITEMS];
        int count = link_poll_items(link, items);
        int64_t now = time_now();
        if (now >= deadline)
            return false;
        zmq_poll(items, count, time_poll_ms(now, deadline));
    }
    *peer = frame.peer;
    link_release(&frame);
    return true;
}

static bool calibration_send(struct loopback *loopback, struct link *link,
                             size_t bytes) {
    static const char header[32] = {0};
    struct link_payload payload;
    link_borrow(&payload, loopback->buffer, 0, bytes);
    return link_commit(link, link == loopback->server ? loopback->peer : 0,
                       header, sizeof header, &payload);
}

/* Sends COUNT messages one way, then as many back. */
static bool round_trip(struct loopback *loopback, size_t bytes, int count) {
    uint32_t ignored;
    bool done = true;
    for (int i = 0; done && i < count; i++)
        done = calibration_send(loopback, loopback->client, bytes);
    for (int i = 0; done && i < count; i++)
        done = calibration_receive(loopback->server, &loopback->peer);
    for (int i = 0; done && i < count; i++)
        done = calibration_send(loopback, loopback->server, bytes);
    for (int i = 0; done && i < count; i++)
        done = calibration_receive(loopback->client, &ignored);
    return done;
}

/* The first message is sent once the connection is established. */
static bool send_first(struct loopback *loopback) {
    int64_t deadline = time_now() + TIMEOUT;
    while (!calibration_send(loopback, loopback->client, SMALL)) {
        zmq_pollitem_t items[LINK_POLL_ITEMS];
        int count = link_poll_items(loopback->client, items);
        if (time_now() >= deadline)
            return false;
        zmq_poll(items, count, 1);
    }
    return calibration_receive(loopback->server, &loopback->peer);
}

/* Seconds of one message: processor time of all threads, and elapsed time. */
struct cost {
    double processor, clock;
};

/* Measures messages of BYTES with TOGETHER of them in flight. False: no
 * answer. */
static bool measure_cost(struct loopback *loopback, size_t bytes, int in_flight,
                         double seconds, struct cost *cost) {
    int64_t begin = time_now(), now, end = begin + time_from_seconds(seconds);
    uint64_t count = 0;
    double before = processor_seconds();
    do {
        if (!round_trip(loopback, bytes, in_flight))
            return false;
        count += 2 * (uint64_t)in_flight;
        now = time_now();
    } while (now < end);
    cost->processor = (processor_seconds() - before) / (double)count;
    cost->clock = time_to_seconds(now - begin) / (double)count;
    return true;
}

/* Restricts this thread to the first core that it may use; *BEFORE receives its
 * previous set. */
static void pin_to_one_core(cpu_set_t *before) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_ZERO(before);
    if (pthread_getaffinity_np(pthread_self(), sizeof *before, before))
        return;
    for (int c = 0; c < CPU_SETSIZE && !CPU_COUNT(&one); c++)
        if (CPU_ISSET(c, before))
            CPU_SET(c, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

/* One message alone, with all threads that it passes on one core. */
static enum status measure_on_one_core(double seconds, struct cost *cost,
                                       bool *arrived, struct failure *why) {
    struct loopback loopback;
    cpu_set_t before;
    pin_to_one_core(&before); /* the link's threads inherit it */
    enum status status = open_loopback(&loopback, why);
    *arrived = !status && send_first(&loopback) &&
               measure_cost(&loopback, SMALL, 1, seconds, cost);
    close_loopback(&loopback);
    if (CPU_COUNT(&before))
        pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    return status;
}

/* A single message wakes each thread that it passes; with many in flight hardly
 * any thread sleeps. */
static enum status measure_messages(struct simulator_costs *costs,
                                    double seconds, struct failure *why) {
    struct loopback loopback;
    struct cost many = {0}, alone = {0}, large = {0}, one_core = {0};
    enum status status = open_loopback(&loopback, why);
    bool arrived =
        !status && send_first(&loopback) &&
        measure_cost(&loopback, LARGE, 1, seconds / 8, &large) &&
        measure_cost(&loopback, SMALL, IN_FLIGHT, seconds / 8, &many) &&
        measure_cost(&loopback, SMALL, 1, seconds / 4, &alone) &&
        measure_cost(&loopback, LARGE, 1, seconds / 4, &large);
    close_loopback(&loopback);
    if (arrived)
        status = measure_on_one_core(seconds / 4, &one_core, &arrived, why);
    if (!status && !arrived)
        status = status_fail(why, FAILURE_PEER_SILENT,
                             "no message came over 127.0.0.1 for %.0f s",
                             time_to_seconds(TIMEOUT));
    if (status)
        return status;
    double message = fmin(many.processor, one_core.processor);
    double bytes = (large.processor - alone.processor) / (LARGE - SMALL);
    costs->message = message / THREADS;
    costs->idle_wakeup = fmax(alone.clock - message, 0) / THREADS;
    costs->busy_wakeup = (one_core.processor - message) / THREADS;
    costs->send_byte = costs->receive_byte = fmax(bytes, 0) / 2;
    return STATUS_OK;
}

struct pools {
    float *weights, *gradients;
    float *state[RULE_MAX_SLOTS];
};

/* Seconds of a byte in an update by RULE of COUNT gradients, or in a copy if
 * COUNT is 0. Each piece was last touched a whole pool ago, so it is not in a
 * cache. */
static double update_seconds(const struct pools *pools,
                             const struct optimizer *rule, unsigned count,
                             double seconds) {
    size_t variants;
    const struct rule_loops *loops = rule_variants(&variants)[0];
    int64_t end = time_now() + time_from_seconds(seconds);
    double before = processor_seconds();
    uint64_t passes = 0;
    do {
        size_t at = passes++ % PIECES * FLOATS;
        const void *gradients[4];
        for (unsigned i = 0; i < 4; i++)
            gradients[i] =
                pools->gradients + (at + i * (POOL / 16)) % (POOL / 4);
        struct rule_update update = {.step = 1,
                                     .rate = 1e-3,
                                     .scale = 1,
                                     .elements = FLOATS,
                                     .num_gradients = count,
                                     .gradients = gradients,
                                     .weights = pools->weights + at,
                                     .weights_out = pools->weights + at};
        for (unsigned i = 0; i < rule_slots(rule); i++)
            update.state[i] = update.state_out[i] = pools->state[i] + at;
        if (count)
            rule_apply(loops, rule, &update);
        else
            memcpy(pools->weights + at, pools->gradients + at, LARGE);
    } while (time_now() < end);
    return (processor_seconds() - before) / (double)passes / LARGE;
}

static void close_pools(struct pools *pools) {
    free(pools->weights);
    free(pools->gradients);
    for (int i = 0; i < RULE_MAX_SLOTS; i++)
        free(pools->state[i]);
}

static enum status measure_updates(struct simulator_costs *costs,
                                   const struct optimizer *rule, double seconds,
                                   struct failure *why) {
    struct pools pools = {.weights = calloc(1, POOL),
                          .gradients = calloc(1, POOL)};
    bool memory = pools.weights && pools.gradients;
    for (unsigned i = 0; memory && i < rule_slots(rule); i++) {
        pools.state[i] = calloc(1, POOL);
        memory = pools.state[i];
    }
    if (memory) {
        (void)update_seconds(&pools, rule, 4,
                             seconds / 8); /* touches all of it */
        costs->copy_byte = update_seconds(&pools, rule, 0, seconds / 4);
        double one = update_seconds(&pools, rule, 1, seconds / 4);
        double four = update_seconds(&pools, rule, 4, seconds / 4);
        costs->gradient_byte = four > one ? (four - one) / 3 : 0;
        costs->update_byte =
            one > costs->gradient_byte ? one - costs->gradient_byte : 0;
    }
    close_pools(&pools);
    return memory ? STATUS_OK
                  : status_fail(why, FAILURE_NO_MEMORY,
                                "no memory to measure updates");
}

enum status calibration_measure(struct simulator_costs *costs,
                                const struct optimizer *rule, double seconds,
                                struct failure *why) {
    enum status status = measure_messages(costs, seconds / 2, why);
    return status ? status : measure_updates(costs, rule, seconds / 2, why);
}
