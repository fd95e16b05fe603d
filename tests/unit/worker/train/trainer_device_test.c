/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/train/trainer.h"

#include "core/base/time.h"
#include "tests/gpu/fake_device.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/test.h"
#include "worker/models/mlp.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A trainer on two images of 2 x 2, of which reports are awaited. */
struct fixture {
    struct link_fixture *wire;
    char folder[PATH_MAX], images[PATH_MAX + 8], labels[PATH_MAX + 8];
    struct job job;
    struct trainer_settings settings;
    struct trainer *trainer;
};

static void write_file(char *path, const char *folder, const char *name,
                       const uint8_t *bytes, size_t count) {
    snprintf(path, PATH_MAX + 8, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static int setup(void **state) {
    static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,
                                     0, 0, 0, 2, 9, 9, 9, 9, 0, 0, 0, 0};
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 0, 1};
    struct fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    link_fixture_setup(&wire);
    fixture->wire = wire;
    checkpoint_fixture_folder(fixture->folder);
    write_file(fixture->images, fixture->folder, "i", images, sizeof images);
    write_file(fixture->labels, fixture->folder, "l", labels, sizeof labels);
    static const struct mlp_settings model = {.layers = {2, {4, 2}}};
    fixture->job = (struct job){
        .model.settings = &model,
        .micro_batch = 1,
        .threads = 1,
        .timeouts.step = 60,
        .data = {.train.paths = {fixture->images, fixture->labels}}};
    fixture->settings = (struct trainer_settings){.log = &fixture->wire->log,
                                                  .job = &fixture->job,
                                                  .num_ranks = 1,
                                                  .requests_assignment = true,
                                                  .cuda = fake_device_ops()};
    fake_device_configure(
        &(struct fake_device_settings){.devices = 4, .machine = 7});
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    void *wire = fixture->wire;
    trainer_close(&fixture->trainer);
    checkpoint_fixture_remove(fixture->folder);
    link_fixture_teardown(&wire);
    free(fixture);
    return 0;
}

FIXTURE(setup, teardown);

static struct trainer_report await(struct fixture *fixture,
                                   enum trainer_event event) {
    struct trainer_report report;
    while (!trainer_next_report(fixture->trainer, &report)) {
        struct pollfd item = {trainer_descriptor(fixture->trainer), POLLIN, 0};
        assert_int_equal(poll(&item, 1, (int)(LINK_FIXTURE_DEADLINE / TIME_MS)),
                         1);
    }
    if (report.event == TRAINER_FAILED)
        fail_msg("%s", report.why.text);
    assert_int_equal(report.event, event);
    return report;
}

static struct trainer_report begin(struct fixture *fixture) {
    trainer_close(&fixture->trainer);
    assert_ok(trainer_open(&fixture->trainer, &fixture->settings, &failure));
    return await(fixture, TRAINER_DEVICES_LISTED);
}

/* It is the PLACE-th of TRAINERS: takes COUNT devices, FIRST and after. */
static void expect_taken(struct fixture *fixture, uint32_t place,
                         uint32_t trainers, uint32_t count, uint32_t first) {
    begin(fixture);
    trainer_assign_device(fixture->trainer, place, trainers);
    struct trainer_report report = await(fixture, TRAINER_DECLARED);
    assert_int_equal(report.replicas, count);
    assert_int_equal(trainer_device_index(fixture->trainer), first);
    assert_string_equal(report.devices[0].id, textf("fake 7.%u", first));
}

TEST(a_trainer_reports_visible_and_wanted_devices) {
    struct trainer_report sight = begin(fixture);
    assert_int_equal(sight.num_devices, 4);
    assert_string_equal(sight.devices[3].id, "fake 7.3");
    assert_int_equal(sight.replicas, 4);
    fixture->job.devices = 3;
    sight = begin(fixture);
    assert_int_equal(sight.num_devices, 4);
    assert_int_equal(sight.replicas, 3);
    fixture->settings.reported = true;
    assert_int_equal(begin(fixture).replicas, 1);
    fixture->settings.local_trainers = 1;
    assert_int_equal(begin(fixture).replicas, 3);
}

TEST(a_sharing_trainer_uses_the_device_of_its_index) {
    expect_taken(fixture, 1, 3, 1, 1);
    expect_taken(fixture, 5, 6, 1, 1);
    fixture->settings.local_trainers = 1; /* as the cluster's names have it */
    expect_taken(fixture, 2, 3, 1, 2);
    fixture->settings.reported = true;
    fixture->settings.local_rank = 3;
    expect_taken(fixture, 2, 3, 1, 3);
}

TEST(a_single_trainer_uses_all_devices) {
    expect_taken(fixture, 0, 1, 4, 0);
    fixture->settings.local_rank = 1; /* likewise */
    fixture->settings.local_trainers = 2;
    expect_taken(fixture, 0, 1, 4, 0);
}

/* It is one of a process a device. */
TEST(a_given_local_rank_limits_a_trainer_to_one_device) {
    fixture->settings.reported = true;
    fixture->settings.local_rank = 2;
    expect_taken(fixture, 0, 1, 1, 2);
    fixture->settings.local_rank = 0;
    expect_taken(fixture, 0, 1, 1, 0);
    fixture->settings.local_trainers = 1;
    expect_taken(fixture, 0, 1, 4, 0);
}

TEST(devices_without_ids_are_matched_by_host_name) {
    fake_device_configure(
        &(struct fake_device_settings){.devices = 4, .without_ids = true});
    fixture->settings.local_rank = 1;
    fixture->settings.local_trainers = 2;
    assert_int_equal(begin(fixture).num_devices, 0);
    assert_int_equal(await(fixture, TRAINER_DECLARED).replicas, 1);
    assert_int_equal(trainer_device_index(fixture->trainer), 1);
}

TEST(a_cpu_trainer_waits_for_no_assignment) {
    fixture->job.device = JOB_DEVICE_CPU;
    assert_int_equal(begin(fixture).num_devices, 0);
    assert_int_equal(await(fixture, TRAINER_DECLARED).replicas, 1);
    assert_false(trainer_has_device_memory(fixture->trainer));
}

/* What there is no code for would not be taken. */
TEST(an_unsupported_device_is_visible_and_not_counted) {
    fake_device_configure(
        &(struct fake_device_settings){.devices = 2, .unsupported = true});
    struct trainer_report sight = begin(fixture);
    assert_int_equal(sight.num_devices, 2);
    assert_int_equal(sight.replicas, 1);
}

TEST(a_trainer_can_end_while_it_waits_for_its_assignment) {
    begin(fixture);
    trainer_close(&fixture->trainer);
    assert_null(fixture->trainer);
}
