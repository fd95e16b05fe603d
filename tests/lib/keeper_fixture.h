/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper of rank 0 with nobody around it: a test stands for the reducer,
 * whose rounds it closes, and for the chief, whose orders it gives. */
#ifndef CAPSTAN_KEEPER_FIXTURE_H
#define CAPSTAN_KEEPER_FIXTURE_H

#include "proto/base/time.h"
#include "proto/store/manifest.h"
#include "worker/exchange/allreduce/keeper.h"

enum {
    KEEPER_RUN = 5,
    KEEPER_RANK = 6, /* incarnations */
    KEEPER_CHIEF = 7,
    KEEPER_ROUNDS = 100, /* of the run */
    KEEPER_TOLD = 8,     /* messages to the chief, at most */
};
#define KEEPER_ASKED ((UINT64_C(1) << 63) + 1) /* the id the chief asks by */
static const int64_t KEEPER_LIMIT = 20 * TIME_S;

/* What the keeper tells the chief, and what it orders of the reducer. The test
 * sets ROUND, the last that has closed. */
struct keeper_seen {
    Capstan__Control__BodyCase kind[KEEPER_TOLD];
    uint64_t id[KEEPER_TOLD], number[KEEPER_TOLD]; /* highest, or step */
    bool written[KEEPER_TOLD], failed[KEEPER_TOLD];
    unsigned told;
    uint64_t round, save_round;
    bool saved_now, ready, shares;
};

extern struct keeper_seen keeper_seen;

struct keeper_fixture {
    void *zmq;
    struct log log;
    char folder[PATH_MAX];
    struct manifest manifest;
    struct job job;
    struct plan plan;
    struct buffer *weights;
    uint64_t offsets[3];
    unsigned opened;
    struct keeper *keeper;
    char inside[32]; /* another name each time: closing takes a moment */
    const struct reducer_keeper *calls;
    float *tensors[3];
    uint64_t due; /* round that save_due hands over */
    bool sets;    /* what transfer does, and how that ended */
    enum status moved;
};

/* The model of checkpoint_fixture with two state slots, as Adam has; rank 0 of
 * 2, begun at round 20. */
int keeper_fixture_setup(void **state);
int keeper_fixture_teardown(void **state);

/* Opens the keeper, and gives it rounds: without them it is as before the first
 * round. */
void keeper_fixture_open_unattached(struct keeper_fixture *fixture);
void keeper_fixture_attach(struct keeper_fixture *fixture);
void keeper_fixture_open(struct keeper_fixture *fixture); /* both */

/* Hands over block B of ROUND, as the reducer does after it has closed. */
void keeper_fixture_save(struct keeper_fixture *fixture, uint64_t round,
                         uint32_t b);

/* All blocks of ROUND, which has closed. */
void keeper_fixture_hand_over(struct keeper_fixture *fixture, uint64_t round);

/* Turns the keeper until the chief has been told COUNT messages in all. */
void keeper_fixture_told(struct keeper_fixture *fixture, unsigned count);

/* The chief's orders: where to cut, and the question at which round that can
 * be. */
void keeper_fixture_cut(struct keeper_fixture *fixture, uint64_t id,
                        uint64_t round, bool write);
void keeper_fixture_ask(struct keeper_fixture *fixture);

/* The test F with a fixture of its own, for cmocka's table. */
#define KEEPER_TEST(f)                                                         \
    cmocka_unit_test_setup_teardown(f, keeper_fixture_setup,                   \
                                    keeper_fixture_teardown)

#endif
