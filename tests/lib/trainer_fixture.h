/* SPDX-License-Identifier: Apache-2.0 */
/* One trainer on twelve images of 2 x 2 and, in the test's thread, the ps and
 * the communication thread: a whole run without a cluster. */
#ifndef CAPSTAN_TRAINER_FIXTURE_H
#define CAPSTAN_TRAINER_FIXTURE_H

#include "ps/server.h"
#include "tests/lib/link_fixture.h"
#include "worker/exchange/client/client.h"
#include "worker/models/mlp.h"
#include "worker/train/trainer.h"

enum {
    TRAINER_SAMPLES = 12,
    TRAINER_TEST_SAMPLES = 5, /* samples too */
    TRAINER_STEPS = 8,
    TRAINER_BATCH = 3,
};

struct trainer_fixture {
    struct link_fixture *wire;
    struct process process, ps_process;
    struct job job;
    struct mlp_settings model;
    uint64_t steps;
    struct trainer *trainer;
    char folder[PATH_MAX];
    struct plan plan;
    struct ps_links_peer place;
    uint16_t block_ps[16];
    uint32_t ids[16];
    struct server *server;
    struct client *client;
    struct message_arena arena;
    unsigned pushes;  /* messages */
    uint32_t threads; /* of the ps */
    struct trainer_report event_queue[8];
    unsigned num_reports;
};

/* A job of TRAINER_STEPS steps on the CPU, all of which may be changed before
 * trainer_fixture_open. */
int trainer_fixture_setup(void **state);

/* Closes what there is, opened or not. */
int trainer_fixture_teardown(void **state);

/* Starts the compute thread, which first reads the data. */
void trainer_fixture_open(struct trainer_fixture *fixture);

/* The next report says what data there is. */
void trainer_fixture_expect_declaration(struct trainer_fixture *fixture);

/* Opens the ps and the client, and lets the run begin; CANCELLED: with a client
 * that is told to give up. */
void trainer_fixture_begin_with(struct trainer_fixture *fixture,
                                bool cancelled);
void trainer_fixture_begin(struct trainer_fixture *fixture);

/* The ps and the communication thread do what there is to do. */
void trainer_fixture_run_once(struct trainer_fixture *fixture);

/* Goes on until the next report. */
struct trainer_report trainer_fixture_report(struct trainer_fixture *fixture);

/* All of it, from trainer_fixture_open to the report that is not of an
 * evaluation. */
struct trainer_report trainer_fixture_train(struct trainer_fixture *fixture);

/* Losses scaled by 2 to the POWER at first, halved at each overflow and (in so
 * short a run) never doubled. */
struct job_fp16 trainer_fixture_fp16(uint32_t power);

#endif
