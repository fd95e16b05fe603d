/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/message.h"

#include "core/base/trace.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct message_arena arena;
static unsigned char space[MESSAGE_MAX_HEADER];

static Capstan__DataHeader *read_back(size_t size) {
    Capstan__DataHeader *header;
    assert_ok(message_read_data(&header, &arena, space, size, &failure));
    return header;
}

TEST(random_numbers_are_nonzero_and_distinct) {
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t next = message_random();
        assert_int_not_equal(next, 0);
        assert_int_not_equal(next, last);
        last = next;
    }
}

TEST(a_view_has_every_rank_and_first_clocks_from_1) {
    Capstan__Slot slots[2] = {CAPSTAN__SLOT__INIT, CAPSTAN__SLOT__INIT};
    Capstan__Slot *array[] = {&slots[0], &slots[1]};
    Capstan__View view = CAPSTAN__VIEW__INIT;
    view.n_slots = 2;
    view.slots = array;
    slots[0].incarnation = 7;
    slots[0].from_clock = 1; /* nobody is in the other */
    assert_ok(message_check_view(&view, 2, &failure));
    assert_error(message_check_view(&view, 3, &failure), FAILURE_BAD_MESSAGE);
    slots[0].from_clock = 0;
    assert_error(message_check_view(&view, 2, &failure), FAILURE_BAD_MESSAGE);
    assert_contains(failure.text, "trainer 0 begins at clock 0");
}

TEST(a_data_header_reads_back_unchanged) {
    uint32_t blocks[MESSAGE_MAX_BLOCKS];
    for (uint32_t b = 0; b < MESSAGE_MAX_BLOCKS; b++)
        blocks[b] = (1u << 24) - MESSAGE_MAX_BLOCKS + b;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PUSH;
    header.run = UINT64_MAX;
    header.incarnation = 7;
    header.rank = 1023;
    header.seq = UINT64_MAX;
    header.clock = UINT64_MAX;
    header.n_blocks = MESSAGE_MAX_BLOCKS;
    header.blocks = blocks;
    header.text = "text";
    size_t size = message_write_data(&header, space);
    assert_true(size <= MESSAGE_MAX_HEADER);
    Capstan__DataHeader *back = read_back(size);
    assert_int_equal(back->kind, CAPSTAN__DATA_HEADER__KIND__PUSH);
    assert_int_equal(back->run, UINT64_MAX);
    assert_int_equal(back->clock, UINT64_MAX);
    assert_int_equal(back->rank, 1023);
    assert_string_equal(back->text, "text");
    assert_int_equal(back->n_blocks, MESSAGE_MAX_BLOCKS);
    assert_memory_equal(back->blocks, blocks, sizeof blocks);
}

/* Packs HEADER as it is, with its own version, and reads it back. */
static enum status read_header(const Capstan__DataHeader *header,
                               struct failure *why) {
    unsigned char *bytes = malloc(64 << 10);
    Capstan__DataHeader *out;
    size_t size = capstan__data_header__pack(header, bytes);
    enum status status = message_read_data(&out, &arena, bytes, size, why);
    free(bytes);
    return status;
}

static void refused(const Capstan__DataHeader *header, enum failure_code code,
                    const char *part) {
    assert_error(read_header(header, &failure), code);
    assert_contains(failure.text, part);
}

TEST(fields_out_of_range_are_named) {
    static uint32_t blocks[2 * MESSAGE_MAX_BLOCKS];
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.version = MESSAGE_VERSION;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    assert_ok(read_header(&header, NULL));
    header.version = MESSAGE_VERSION + 1;
    refused(
        &header, FAILURE_VERSION_MISMATCH,
        textf("version %d (this is %d)", MESSAGE_VERSION + 1, MESSAGE_VERSION));
    header.version = MESSAGE_VERSION;
    header.kind = CAPSTAN__DATA_HEADER__KIND__NONE;
    refused(&header, FAILURE_BAD_MESSAGE, "kind 0");
    header.kind = (Capstan__DataHeader__Kind)-1;
    refused(&header, FAILURE_BAD_MESSAGE, "kind -1");
    header.kind = (Capstan__DataHeader__Kind)99;
    refused(&header, FAILURE_BAD_MESSAGE, "kind 99");
    header.kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    header.encoding = (Capstan__DataHeader__Encoding)-3;
    refused(&header, FAILURE_BAD_MESSAGE, "encoding -3");
    header.encoding = (Capstan__DataHeader__Encoding)5;
    refused(&header, FAILURE_BAD_MESSAGE, "encoding 5");
    header.encoding = CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
    header.loss_scale = -1;
    refused(&header, FAILURE_BAD_MESSAGE, "scale of -1");
    header.loss_scale = NAN;
    refused(&header, FAILURE_BAD_MESSAGE, "scale of ");
    header.loss_scale = INFINITY;
    refused(&header, FAILURE_BAD_MESSAGE, "scale of inf");
    header.loss_scale = 0;
    header.blocks = blocks;
    header.n_blocks = MESSAGE_MAX_BLOCKS + 1;
    refused(&header, FAILURE_BAD_MESSAGE, "4097 blocks");
    header.n_blocks = 2 * MESSAGE_MAX_BLOCKS; /* beyond the arena */
    refused(&header, FAILURE_BAD_MESSAGE, "not a data header");
}

TEST(an_empty_frame_is_no_message) {
    Capstan__DataHeader *header;
    Capstan__Control *control;
    assert_error(message_read_data(&header, &arena, "", 0, &failure),
                 FAILURE_VERSION_MISMATCH);
    assert_error(message_read_control(&control, "", 0, &failure),
                 FAILURE_VERSION_MISMATCH);
    assert_error(message_read_control(&control, "GET / HTTP/1.1", 14, &failure),
                 FAILURE_BAD_MESSAGE);
}

static enum status read_status(Capstan__Control *control, struct failure *why) {
    Capstan__Control *back = NULL;
    size_t size = capstan__control__pack(control, space);
    enum status status = message_read_control(&back, space, size, why);
    message_free_control(&back);
    return status;
}

TEST(metrics_without_a_number_are_refused) {
    Capstan__Points points = CAPSTAN__POINTS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint64_t two[] = {10, 20};
    double sums[] = {1, 2};
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_POINTS;
    control.points = &points;
    points.step = points.samples = two;
    points.loss_sum = points.training_s = sums;
    points.n_step = points.n_samples = points.n_loss_sum = 2;
    for (points.n_training_s = 1; points.n_training_s <= 2;
         points.n_training_s++)
        assert_int_equal(read_status(&control, &failure),
                         points.n_training_s == 2 ? STATUS_OK : STATUS_FAILED);
}

TEST(a_use_of_gpus_that_is_no_percentage_is_refused) {
    static const double uses[] = {0, 100, 37.5, -0.5, 107, -NAN, INFINITY, NAN};
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_HEARTBEAT;
    control.heartbeat = &heartbeat;
    heartbeat.gpus = 1;
    for (int i = 0; i < 8; i++) {
        heartbeat.gpu_utilization = uses[i];
        assert_int_equal(read_status(&control, &failure),
                         i < 3 ? STATUS_OK : STATUS_FAILED);
    }
    assert_contains(failure.text, "not from 0 to 100");
}

TEST(records_that_are_none_are_refused) {
    Capstan__Trace trace = CAPSTAN__TRACE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    const struct trace_record sound = {
        .start = 1, .duration = 2, .step = 3, .kind = TRACE_KINDS - 1};
    struct trace_record records[] = {sound, sound, sound, sound, sound};
    records[1].kind = TRACE_KINDS;
    records[2].kind = TRACE_NONE;
    records[3].duration = -1;
    records[4].start = INT64_MAX;
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_TRACE;
    control.trace = &trace;
    assert_int_equal(read_status(&control, &failure), STATUS_OK);
    trace.records.len = sizeof sound;
    for (int i = 0; i < 5; i++) {
        trace.records.data = (uint8_t *)&records[i];
        assert_int_equal(read_status(&control, &failure),
                         i ? STATUS_FAILED : STATUS_OK);
    }
    trace.records.data = (uint8_t *)records;
    trace.records.len = sizeof sound - 1;
    assert_int_equal(read_status(&control, &failure), STATUS_FAILED);
    trace.records.len = sizeof sound;
    trace.offset = INT64_MIN;
    assert_int_equal(read_status(&control, &failure), STATUS_FAILED);
}

/* The second has bins that do not ascend, then one of values that are not
 * finite, one that there is not, and more values than elements. */
TEST(histograms_that_are_none_are_refused) {
    uint32_t bins[] = {1016, 1017}, counts[] = {3, 4};
    Capstan__Histogram histogram = CAPSTAN__HISTOGRAM__INIT,
                       *list[] = {&histogram};
    Capstan__Histograms histograms = CAPSTAN__HISTOGRAMS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    const uint32_t second[] = {1017, 1016, 2047, 4095, 4096};
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_HISTOGRAMS;
    control.histograms = &histograms;
    histograms.n_list = 1;
    histograms.list = list;
    histogram.elements = 9;
    histogram.bins = bins;
    histogram.counts = counts;
    histogram.n_bins = histogram.n_counts = 2;
    for (int i = 0; i < 5; i++) {
        bins[1] = second[i];
        assert_int_equal(read_status(&control, &failure),
                         i ? STATUS_FAILED : STATUS_OK);
    }
    bins[1] = second[0];
    histogram.elements = 6;
    assert_int_equal(read_status(&control, &failure), STATUS_FAILED);
    histogram.elements = 9;
    histogram.n_counts = 1;
    assert_int_equal(read_status(&control, &failure), STATUS_FAILED);
    histogram.n_counts = 2;
    histogram.least = NAN;
    assert_int_equal(read_status(&control, &failure), STATUS_FAILED);
    histogram.least = 0;
    histogram.sum = INFINITY;
    assert_int_equal(read_status(&control, &failure), STATUS_FAILED);
    assert_contains(failure.text, "histograms that are none");
}

TEST(an_unknown_failure_code_is_refused) {
    static const uint32_t sound[] = {FAILURE_TERMINATED, FAILURE_PEER_LOST,
                                     FAILURE_SIMULATION_FAILED},
                          wrong[] = {7, 138, 256 + FAILURE_HUNG_UP, UINT32_MAX};
    Capstan__Failed failed = CAPSTAN__FAILED__INIT;
    Capstan__Stop stop = CAPSTAN__STOP__INIT;
    Capstan__Refusal refusal = CAPSTAN__REFUSAL__INIT;
    Capstan__Control controls[3];
    for (int i = 0; i < 3; i++) {
        capstan__control__init(&controls[i]);
        controls[i].version = MESSAGE_VERSION;
    }
    controls[0].body_case = CAPSTAN__CONTROL__BODY_FAILED;
    controls[0].failed = &failed;
    controls[1].body_case = CAPSTAN__CONTROL__BODY_STOP;
    controls[1].stop = &stop;
    controls[2].body_case = CAPSTAN__CONTROL__BODY_REFUSAL;
    controls[2].refusal = &refusal;
    for (int i = 0; i < 3; i++) {
        for (unsigned n = 0; n < sizeof sound / sizeof *sound; n++) {
            failed.code = stop.code = refusal.code = sound[n];
            assert_ok(read_status(&controls[i], &failure));
        }
        for (unsigned n = 0; n < sizeof wrong / sizeof *wrong; n++) {
            failed.code = stop.code = refusal.code = wrong[n];
            assert_error(read_status(&controls[i], &failure),
                         FAILURE_BAD_MESSAGE);
        }
    }
    failed.code = stop.code = refusal.code = FAILURE_NONE;
    assert_error(read_status(&controls[0], &failure), FAILURE_BAD_MESSAGE);
    assert_ok(read_status(&controls[1], &failure));
    assert_error(read_status(&controls[2], &failure), FAILURE_BAD_MESSAGE);
}

/* The next term is above it, and ids of snapshots follow from that. */
TEST(a_term_that_no_chief_can_follow_is_refused) {
    static const struct {
        uint64_t term;
        bool is_sound;
    } cases[] = {{0, true},
                 {MESSAGE_MAX_TERM - 1, true},
                 {MESSAGE_MAX_TERM, false},
                 {UINT64_MAX, false}};
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Rejoin rejoin = CAPSTAN__REJOIN__INIT;
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    join.rejoin = &rejoin;
    rejoin.heartbeat = &heartbeat;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        rejoin.term = cases[i].term;
        assert_int_equal(read_status(&control, &failure),
                         cases[i].is_sound ? STATUS_OK : STATUS_FAILED);
    }
    rejoin.term = 0;
    rejoin.heartbeat = NULL;
    assert_error(read_status(&control, &failure), FAILURE_BAD_MESSAGE);
}

/* Who takes part divides by their number. */
TEST(a_welcome_to_no_trainers_is_refused) {
    Capstan__Welcome welcome = CAPSTAN__WELCOME__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_WELCOME;
    control.welcome = &welcome;
    assert_error(read_status(&control, &failure), FAILURE_BAD_MESSAGE);
    welcome.trainers = 1;
    assert_ok(read_status(&control, &failure));
    welcome.num_beyond = 1;
    assert_error(read_status(&control, &failure), FAILURE_BAD_MESSAGE);
}

TEST(a_version_mismatch_says_what_to_do) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT, *back = NULL;
    control.version = MESSAGE_VERSION + 1;
    size_t size = capstan__control__pack(&control, space);
    assert_error(message_read_control(&back, space, size, &failure),
                 FAILURE_VERSION_MISMATCH);
    assert_contains(failure.text, "same release");
    control.version = MESSAGE_VERSION;
    size = capstan__control__pack(&control, space);
    assert_ok(message_read_control(&back, space, size, &failure));
    message_free_control(&back);
    assert_null(back);
    message_free_control(&back);
}

static size_t random_header(struct philox_sequence *random) {
    uint32_t blocks[64];
    char text[32] = {0};
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = (Capstan__DataHeader__Kind)(1 + philox_below(random, 10));
    header.run = philox_next(random);
    header.incarnation = philox_next(random);
    header.rank = philox_below(random, 1024);
    header.clock = philox_next(random);
    header.n_blocks = philox_below(random, 64);
    header.blocks = blocks;
    for (size_t i = 0; i < header.n_blocks; i++)
        blocks[i] = philox_next(random);
    memset(text, 'a', philox_below(random, sizeof text));
    header.text = text;
    return message_write_data(&header, space);
}

static size_t mutate(struct philox_sequence *random, size_t size) {
    for (uint32_t n = 1 + philox_below(random, 4); size && n; n--) {
        uint32_t at = philox_below(random, (uint32_t)size);
        switch (philox_below(random, 4)) {
        case 0:
            space[at] ^= (unsigned char)(1u << philox_below(random, 8));
            break;
        case 1:
            space[at] = (unsigned char)philox_next(random);
            break;
        case 2:
            size = at;
            break;
        default:
            memmove(space + at + 1, space + at, size - at);
            space[at] = 0xff;
            size++;
        }
    }
    return size;
}

/* Every byte of what was read is looked at: a sanitizer finds the rest. */
static void touch(const Capstan__DataHeader *header) {
    volatile size_t sum = strlen(header->text);
    assert_int_equal(header->version, MESSAGE_VERSION);
    assert_in_range(header->kind, 1, CAPSTAN__DATA_HEADER__KIND__PIECE);
    assert_true(header->n_blocks <= MESSAGE_MAX_BLOCKS);
    for (size_t i = 0; i < header->n_blocks; i++)
        sum += header->blocks[i];
    assert_true(arena.used <= sizeof arena.memory);
}

TEST(mutated_headers_are_refused_or_in_range) {
    struct philox_sequence random;
    unsigned taken = 0, mutants = 50000;
    seed_open(&random);
    for (unsigned i = 0; i < mutants; i++) {
        size_t size = mutate(&random, random_header(&random));
        unsigned char *exact = malloc(size ? size : 1);
        Capstan__DataHeader *header;
        memcpy(exact, space, size);
        if (!message_read_data(&header, &arena, exact, size, &failure)) {
            touch(header);
            taken++;
        }
        free(exact);
    }
    assert_in_range(taken, mutants / 20, mutants - mutants / 20);
}

TEST(mutated_control_messages_do_no_harm) {
    struct philox_sequence random;
    seed_open(&random);
    Capstan__Slot slot = CAPSTAN__SLOT__INIT, *slots[8];
    Capstan__View view = CAPSTAN__VIEW__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_VIEW;
    control.view = &view;
    view.n_slots = 8;
    view.slots = slots;
    for (int i = 0; i < 8; i++)
        slots[i] = &slot;
    slot.incarnation = 77;
    for (unsigned i = 0; i < 20000; i++) {
        size_t size = capstan__control__pack(&control, space);
        size = mutate(&random, size);
        Capstan__Control *back;
        if (!message_read_control(&back, space, size, &failure))
            message_free_control(&back);
    }
}

TEST(a_message_of_blocks_is_checked_in_half_a_millisecond) {
    assert_int_equal(message_group_bytes(0.1), 64 << 10);
    assert_int_equal(message_group_bytes(1), 64 << 10);
    assert_int_equal(message_group_bytes(10), 640 << 10);
    assert_int_equal(message_group_bytes(100), 1 << 20);
    assert_int_equal(message_group_bytes(0), 1 << 20);
}

TEST(a_report_that_no_process_sends_is_refused) {
    Capstan__Report report = CAPSTAN__REPORT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT, *back;
    unsigned char bytes[4096];
    char wait[2048];
    memset(wait, 'w', sizeof wait - 1);
    wait[sizeof wait - 1] = 0;
    control.version = MESSAGE_VERSION;
    control.body_case = CAPSTAN__CONTROL__BODY_REPORT;
    control.report = &report;
    size_t size = capstan__control__pack(&control, bytes);
    assert_ok(message_read_control(&back, bytes, size, &failure));
    message_free_control(&back);
    report.waiting_for = wait;
    size = capstan__control__pack(&control, bytes);
    assert_error(message_read_control(&back, bytes, size, &failure),
                 FAILURE_BAD_MESSAGE);
}
