/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper of rank 0 with nobody around it: a test stands for the reducer,
 * whose rounds it closes, and for the chief, whose orders it gives. */
#ifndef CAPSTAN_RANK0_SNAPSHOT_AGENT_FIXTURE_H
#define CAPSTAN_RANK0_SNAPSHOT_AGENT_FIXTURE_H

#include "core/base/time.h"
#include "core/store/manifest.h"
#include "worker/exchange/allreduce/rank0_snapshot_agent.h"

enum {
    RANK0_AGENT_RUN = 5,
    RANK0_AGENT_RANK = 6, /* incarnations */
    RANK0_AGENT_CHIEF = 7,
    RANK0_AGENT_ROUNDS = 100,     /* of the run */
    RANK0_AGENT_MAX_MESSAGES = 8, /* messages to the chief, at most */
};
#define RANK0_AGENT_REQUESTED                                                  \
    ((UINT64_C(1) << 63) + 1) /* the id the chief asks by */
static const int64_t RANK0_AGENT_DEADLINE = 60 * TIME_S;

/* What the keeper tells the chief, and what it orders of the reducer. The test
 * sets ROUND, the last that has closed. */
struct rank0_agent_seen {
    Capstan__Control__BodyCase kind[RANK0_AGENT_MAX_MESSAGES];
    uint64_t id[RANK0_AGENT_MAX_MESSAGES],
        number[RANK0_AGENT_MAX_MESSAGES]; /* highest, or step */
    bool written[RANK0_AGENT_MAX_MESSAGES], failed[RANK0_AGENT_MAX_MESSAGES];
    unsigned num_sent;
    uint64_t round, save_round;
    bool saved_now, ready, shares;
};

extern struct rank0_agent_seen rank0_agent_seen;

struct rank0_snapshot_agent_fixture {
    void *zmq;
    struct log log;
    struct process process;
    char folder[PATH_MAX];
    struct manifest manifest;
    struct job job;
    struct plan plan;
    struct buffer *weights;
    uint64_t offsets[3];
    unsigned opened;
    struct rank0_snapshot_agent *rank0_snapshot_agent;
    char inproc[32]; /* another name each time: closing takes a moment */
    const struct reducer_storage *calls;
    float *tensors[3];
    bool sets; /* what transfer does, and how that ended */
    enum status moved;
};

/* The model of checkpoint_fixture with two state slots, as Adam has; rank 0 of
 * 2, begun at round 20. */
int rank0_snapshot_agent_fixture_setup(void **state);
int rank0_snapshot_agent_fixture_teardown(void **state);

/* Opens the keeper, and gives it rounds: without them it is as before the first
 * round. */
void rank0_snapshot_agent_fixture_open_unattached(
    struct rank0_snapshot_agent_fixture *fixture);
void rank0_snapshot_agent_fixture_attach(
    struct rank0_snapshot_agent_fixture *fixture);
void rank0_snapshot_agent_fixture_open(
    struct rank0_snapshot_agent_fixture *fixture); /* both */

/* Hands over block B of ROUND, as the reducer does after it has closed. */
void rank0_snapshot_agent_fixture_save(
    struct rank0_snapshot_agent_fixture *fixture, uint64_t round, uint32_t b);

/* All blocks of ROUND, which has closed. */
void rank0_snapshot_agent_fixture_hand_over(
    struct rank0_snapshot_agent_fixture *fixture, uint64_t round);

/* Turns the keeper until the chief has been told COUNT messages in all. */
void rank0_snapshot_agent_fixture_await_messages(
    struct rank0_snapshot_agent_fixture *fixture, unsigned count);

/* A command of the chief, which succeeds. */
void rank0_snapshot_agent_fixture_handle(
    struct rank0_snapshot_agent_fixture *fixture,
    const Capstan__Control *command);

/* The chief's orders: where to cut, and the question at which round that can
 * be. */
void rank0_snapshot_agent_fixture_cut(
    struct rank0_snapshot_agent_fixture *fixture, uint64_t id, uint64_t round,
    bool write);
void rank0_snapshot_agent_fixture_ask(
    struct rank0_snapshot_agent_fixture *fixture);

#endif
