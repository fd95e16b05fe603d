/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a run, on machines, between hosts. A letter goes in pieces,
 * each of which costs its sender's and its receiver's porter (what libzmq's I/O
 * thread does) time for its bytes, and the network its own in between; so a
 * long message is received while it is still sent, as in a real run. Whoever
 * fails to get memory sets `failed`, and the run's result is none. */
#include "simulator/stage.h"

#include "chief/plan/placement.h"
#include "simulator/modelled_ps.h"
#include "simulator/modelled_worker.h"

#include <math.h>
#include <stdlib.h>

enum { HEADER_BYTES = 128, PIECE_BYTES = 128 << 10, THREADS = 3 };

/* A part of a letter on its way. The last one has the letter with it. */
struct piece {
    struct piece *next;
    struct letter *letter;
    uint64_t bytes;
    bool first, last;
};

static uint32_t count_hosts(const struct model_case *given) {
    uint32_t ps = given->num_ps, workers = given->num_workers;
    if (given->place == MODEL_ONE)
        return 1;
    if (given->place == MODEL_APART)
        return ps + workers;
    return ps > workers ? ps : workers;
}

static uint32_t host_of(const struct model_case *given, uint32_t process) {
    bool is_ps = process >= given->num_workers;
    if (given->place == MODEL_ONE)
        return 0;
    return given->place == MODEL_PAIRS && is_ps ? process - given->num_workers
                                                : process;
}

static bool open_machines(struct stage *stage) {
    const struct model_case *given = &stage->given;
    stage->num_machines = given->share_cores ? 1 : stage->num_hosts;
    stage->machines = calloc(stage->num_machines, sizeof *stage->machines);
    struct machine_settings settings = {
        .cores = given->cores,
        .crowded = given->crowded,
        .wake = given->costs.wake,
        .turn = given->costs.turn,
        .threads = THREADS * stage->num_processes,
    };
    if (stage->num_machines > 1 && given->place == MODEL_APART)
        settings.threads = THREADS;
    else if (stage->num_machines > 1)
        settings.threads = 2 * THREADS;
    for (uint32_t i = 0; stage->machines && i < stage->num_machines; i++) {
        stage->machines[i] = machine_open(stage->agenda, &settings);
        if (!stage->machines[i])
            return false;
    }
    return stage->machines;
}

static uint32_t connection(const struct stage *stage, uint32_t from,
                           uint32_t to) {
    uint32_t workers = stage->given.num_workers, ps = stage->given.num_ps;
    return from < workers ? from * ps + (to - workers)
                          : (workers + to) * ps + (from - workers);
}

static void arrived(void *context, void *message);

static void drop(void *message) {
    struct piece *piece = message;
    if (piece && piece->last)
        free(piece->letter);
    free(piece);
}

static bool open_network(struct stage *stage) {
    const struct model_case *given = &stage->given;
    uint32_t workers = given->num_workers;
    struct network_settings settings = {
        .hosts = stage->num_hosts,
        .connections = 2 * workers * given->num_ps,
        .rate = given->link_rate,
        .latency = (int64_t)ceil(1e9 * given->latency),
        .deliver = arrived,
        .context = stage,
        .drop = drop,
    };
    stage->network = network_open(stage->agenda, &settings);
    for (uint32_t w = 0; stage->network && w < workers; w++)
        for (uint32_t p = workers; p < stage->num_processes; p++) {
            network_connect(stage->network, connection(stage, w, p),
                            stage->host_of[w], stage->host_of[p]);
            network_connect(stage->network, connection(stage, p, w),
                            stage->host_of[p], stage->host_of[w]);
        }
    return stage->network;
}

static bool open_porters(struct stage *stage) {
    stage->porters = calloc(stage->num_processes, sizeof *stage->porters);
    for (uint32_t i = 0; stage->porters && i < stage->num_processes; i++)
        stage->porters[i] =
            (struct porter){.stage = stage,
                            .thread.machine = stage_machine(stage, i),
                            .process = i};
    return stage->porters;
}

uint32_t stage_float_bytes(const struct stage *stage) {
    return stage->given.bf16 ? 2 : 4;
}

static enum status place_blocks(struct stage *stage, struct failure *why) {
    const struct layout *layout = stage->given.layout;
    uint32_t *ps_of_block = calloc(layout->num_blocks, sizeof *ps_of_block);
    uint32_t *counts = calloc(stage->given.num_ps, sizeof *counts);
    enum status status = STATUS_FAILED;
    if (ps_of_block && counts)
        status =
            placement_greedy(layout, stage->given.num_ps, ps_of_block, why);
    else
        status_fail(why, STATUS_FAILED, "no memory to place %u blocks",
                    layout->num_blocks);
    for (uint32_t b = 0; !status && b < layout->num_blocks; b++) {
        stage->block_ps[b] = (uint16_t)ps_of_block[b];
        stage->local[b] = counts[ps_of_block[b]]++;
        stage->block_bytes[b] =
            layout->blocks[b].elements * stage_float_bytes(stage);
        stage->shard_bytes[ps_of_block[b]] += stage->block_bytes[b];
    }
    free(ps_of_block);
    free(counts);
    return status;
}

static bool allocate(struct stage *stage) {
    const struct model_case *given = &stage->given;
    size_t blocks = given->layout->num_blocks;
    stage->host_of = calloc(stage->num_processes, sizeof *stage->host_of);
    stage->block_ps = calloc(blocks, sizeof *stage->block_ps);
    stage->block_bytes = calloc(blocks, sizeof *stage->block_bytes);
    stage->shard_bytes = calloc(given->num_ps, sizeof *stage->shard_bytes);
    stage->local = calloc(blocks, sizeof *stage->local);
    stage->workers = calloc(given->num_workers, sizeof *stage->workers);
    stage->ps = calloc(given->num_ps, sizeof *stage->ps);
    stage->wanted = (size_t)given->num_workers * given->rounds;
    stage->samples = calloc(stage->wanted, sizeof *stage->samples);
    if (!stage->host_of || !stage->block_ps || !stage->block_bytes ||
        !stage->local || !stage->shard_bytes || !stage->workers || !stage->ps ||
        !stage->samples)
        return false;
    for (uint32_t i = 0; i < stage->num_processes; i++)
        stage->host_of[i] = host_of(given, i);
    return true;
}

enum status stage_open(struct stage **out, const struct model_case *given,
                       struct model_result *result, struct failure *why) {
    struct stage *stage = *out = calloc(1, sizeof *stage);
    enum status status = STATUS_FAILED;
    if (stage) {
        stage->given = *given;
        stage->result = result;
        stage->num_processes = given->num_workers + given->num_ps;
        stage->num_hosts = count_hosts(given);
        stage->agenda = agenda_open();
    }
    if (stage && stage->agenda && allocate(stage) && open_machines(stage) &&
        open_network(stage) && open_porters(stage))
        status = place_blocks(stage, why);
    else
        status_fail(why, STATUS_FAILED,
                    "no memory to simulate %u ps and %u workers", given->num_ps,
                    given->num_workers);
    if (status)
        stage_close(out);
    return status;
}

void stage_close(struct stage **where) {
    struct stage *stage = *where;
    *where = NULL;
    if (!stage)
        return;
    for (uint32_t i = 0; stage->porters && i < stage->num_processes; i++) {
        drop(stage->porters[i].at_hand);
        while (stage->porters[i].first) {
            struct piece *piece = stage->porters[i].first;
            stage->porters[i].first = piece->next;
            drop(piece);
        }
    }
    for (uint32_t i = 0; stage->workers && i < stage->given.num_workers; i++)
        modelled_worker_close(&stage->workers[i]);
    for (uint32_t i = 0; stage->ps && i < stage->given.num_ps; i++)
        modelled_ps_close(&stage->ps[i]);
    for (uint32_t i = 0; stage->machines && i < stage->num_machines; i++)
        machine_close(&stage->machines[i]);
    network_close(&stage->network);
    agenda_close(&stage->agenda);
    free(stage->machines);
    free(stage->porters);
    free(stage->host_of);
    free(stage->block_ps);
    free(stage->block_bytes);
    free(stage->shard_bytes);
    free(stage->local);
    free(stage->workers);
    free(stage->ps);
    free(stage->samples);
    free(stage);
}

struct machine *stage_machine(const struct stage *stage, uint32_t process) {
    return stage
        ->machines[stage->num_machines > 1 ? stage->host_of[process] : 0];
}

/* Rounds before `warm` fill the pipes and are not counted. With staleness
 * workers go on until all have what they need, so that the load stays what it
 * was. */
bool stage_step(struct stage *stage, uint64_t clock, double seconds) {
    const struct model_case *given = &stage->given;
    bool counts = given->staleness ? stage->warmed == given->num_workers
                                   : clock > given->warm;
    if (counts && stage->num_samples < stage->wanted)
        stage->samples[stage->num_samples++] = seconds;
    if (clock == given->warm && ++stage->warmed == given->num_workers)
        stage->begun = agenda_now(stage->agenda);
    return given->staleness || clock < given->warm + given->rounds;
}

static void go_on(struct porter *porter);

static bool leaves(const struct porter *porter) {
    return porter->at_hand->letter->from == porter->process;
}

static void hand_over(struct stage *stage, struct piece *piece) {
    uint32_t workers = stage->given.num_workers;
    struct letter *letter = piece->letter;
    bool whole = piece->last;
    free(piece);
    if (whole && letter->to < workers)
        modelled_worker_take(stage->workers[letter->to], letter);
    else if (whole)
        modelled_ps_take(stage->ps[letter->to - workers], letter);
}

static void carried(void *context) {
    struct porter *porter = context;
    struct stage *stage = porter->stage;
    struct piece *piece = porter->at_hand;
    const struct letter *letter = piece->letter;
    bool out = leaves(porter);
    porter->at_hand = NULL;
    if (!out)
        hand_over(stage, piece);
    else if (stage->host_of[letter->from] == stage->host_of[letter->to])
        arrived(stage, piece);
    else if (!network_send(
                 stage->network, connection(stage, letter->from, letter->to),
                 piece->bytes + (piece->first ? HEADER_BYTES : 0), piece)) {
        stage->failed = true;
        drop(piece);
    }
    go_on(porter);
}

static void go_on(struct porter *porter) {
    const struct model_costs *costs = &porter->stage->given.costs;
    struct piece *piece = porter->first;
    if (porter->at_hand || !piece)
        return;
    porter->first = piece->next;
    porter->at_hand = piece;
    double byte = leaves(porter) ? costs->send_byte : costs->receive_byte;
    machine_run(&porter->thread,
                (piece->first ? costs->message : 0) +
                    byte * (double)piece->bytes,
                carried, porter);
}

static void queue(struct porter *porter, struct piece *piece) {
    piece->next = NULL;
    if (porter->first)
        porter->last->next = piece;
    else
        porter->first = piece;
    porter->last = piece;
}

static void arrived(void *context, void *message) {
    struct stage *stage = context;
    struct piece *piece = message;
    struct porter *porter = &stage->porters[piece->letter->to];
    queue(porter, piece);
    go_on(porter);
}

void stage_post(struct stage *stage, struct letter *letter) {
    uint64_t done = 0, bytes;
    struct piece *piece = NULL;
    stage->failed |= !letter;
    for (; letter && !(piece && piece->last); done += bytes) {
        uint64_t left = letter->bytes - done;
        bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        piece = malloc(sizeof *piece);
        if (!piece) {
            stage->failed = true;
            return;
        }
        *piece = (struct piece){NULL, letter, bytes, !done, bytes == left};
        queue(&stage->porters[letter->from], piece);
    }
    if (letter)
        go_on(&stage->porters[letter->from]);
}

/* The chief's word has come to every ps. */
static void norm_is_known(void *context, uint64_t round) {
    struct stage *stage = context;
    for (uint32_t p = 0; p < stage->given.num_ps; p++) {
        struct letter head = {.kind = LETTER_NORM, .clock = round};
        struct letter *letter = letter_write(&head, NULL, 0);
        if (letter)
            modelled_ps_take(stage->ps[p], letter);
        else
            stage->failed = true;
    }
}

/* To the chief and back: two ways, and a message at each end of both. */
void stage_summed(struct stage *stage, uint64_t round) {
    const struct model_case *given = &stage->given;
    double latency = given->place == MODEL_ONE ? 0 : given->latency;
    if (++stage->summed < given->num_ps)
        return;
    stage->summed = 0;
    double seconds =
        2 * latency + 8 * (given->costs.message + given->costs.wake);
    agenda_add(stage->agenda, (int64_t)ceil(1e9 * seconds), norm_is_known,
               stage, round);
}
