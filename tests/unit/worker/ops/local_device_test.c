/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/local_device.h"

#include "tests/gpu/fake_device.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <unistd.h>

static const struct fake_device_settings two = {.devices = 2};

static struct local_device_request request(enum job_device kind) {
    return (struct local_device_request){
        .kind = kind, .threads = 1, .cuda = fake_device_ops(), .timeout = 60};
}

/* Opens what WISH means, closes it, and returns what was said; *INDEX is -1 for
 * the CPU. */
static const char *take(struct link_fixture *fixture,
                        const struct local_device_request *request,
                        int *index) {
    struct local_device device;
    link_fixture_capture_log(fixture);
    enum status status =
        local_device_open(&device, request, &fixture->log, &failure);
    const char *said = link_fixture_captured_log(fixture);
    if (status)
        fail_msg("%s", failure.text);
    *index = device.ops == ops_cpu() ? -1 : (int)device.index;
    local_device_close(&device);
    assert_null(device.ops);
    return said;
}

static void expect_text(const char *text, const char *part) {
    assert_contains(text, part);
}

FIXTURE(link_fixture_setup, link_fixture_teardown);

TEST(the_local_rank_selects_the_device) {
    int index;
    fake_device_configure(&two);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct local_device_request second = request(JOB_DEVICE_AUTO);
        second.local_rank = rank;
        second.local_trainers = 2;
        const char *said = take(*state, &second, &index);
        assert_int_equal(index, rank);
        expect_text(said, "of 2: Fake GPU, compute capability 9.0");
        expect_text(said, "0.1 of 0.1 GiB free");
        assert_null(strstr(said, "share"));
    }
}

TEST(more_trainers_than_devices_share_and_log_it) {
    int index;
    fake_device_configure(&two);
    struct local_device_request third = request(JOB_DEVICE_CUDA);
    third.local_rank = 2;
    expect_text(take(*state, &third, &index), "they share them");
    assert_int_equal(index, 0);
    third.local_rank = 1; /* of three: another has its device too */
    third.local_trainers = 3;
    expect_text(take(*state, &third, &index), "they share them");
    assert_int_equal(index, 1);
}

TEST(fewer_trainers_than_devices_log_it) {
    int index;
    fake_device_configure(&(struct fake_device_settings){.devices = 4});
    struct local_device_request second = request(JOB_DEVICE_CUDA);
    second.local_rank = 1;
    second.local_trainers = 2;
    expect_text(take(*state, &second, &index), "one each, and the rest stay");
    assert_int_equal(index, 1);
    second.local_rank = 0;
    second.local_trainers = 1;
    assert_null(strstr(take(*state, &second, &index), "one each"));
}

TEST(a_requested_cpu_is_used_silently) {
    int index;
    fake_device_configure(&two);
    struct local_device_request cpu = request(JOB_DEVICE_CPU);
    assert_string_equal(take(*state, &cpu, &index), "");
    assert_int_equal(index, -1);
}

TEST(without_a_gpu_auto_uses_the_cpu_and_logs_why) {
    int index;
    struct local_device_request wanted = request(JOB_DEVICE_AUTO);
    fake_device_configure(&(struct fake_device_settings){.devices = 0});
    setenv("NVIDIA_VISIBLE_DEVICES", "all", 1); /* so that one is expected */
    expect_text(take(*state, &wanted, &index),
                "device cpu; cuda: there is no GPU");
    assert_int_equal(index, -1);
    fake_device_configure(
        &(struct fake_device_settings){.devices = 1, .unsupported = true});
    expect_text(take(*state, &wanted, &index),
                "device cpu; cuda: device 0 (Fake GPU): compute capability 3.0 "
                "is older than this build");
    assert_int_equal(index, -1);
    wanted.cuda = NULL; /* no plugin lies beside a test */
    expect_text(take(*state, &wanted, &index),
                "device cpu; cuda: not in this build: there is no ");
    assert_int_equal(index, -1);
    unsetenv("NVIDIA_VISIBLE_DEVICES");
}

TEST(a_gpu_that_nobody_expects_is_no_news_where_it_is_not) {
    int index;
    struct local_device_request wanted = request(JOB_DEVICE_AUTO);
    if (getenv("CUDA_VISIBLE_DEVICES") || access("/sys/bus", R_OK) ||
        !system("grep -qs 0x10de /sys/bus/pci/devices/*/vendor"))
        skip_test("a GPU may be expected here");
    fake_device_configure(&(struct fake_device_settings){.devices = 0});
    assert_string_equal(take(*state, &wanted, &index), "");
    assert_int_equal(index, -1);
}

static void expect_refusal(struct local_device_request wanted,
                           enum failure_code code, const char *text) {
    struct local_device device;
    assert_error(local_device_open(&device, &wanted, NULL, &failure), code);
    expect_text(failure.text, text);
    expect_text(failure.text, "device: \"cuda\": ");
    assert_null(device.ops);
}

TEST(a_requested_but_missing_gpu_is_an_error) {
    struct local_device_request wanted = request(JOB_DEVICE_CUDA);
    fake_device_configure(&(struct fake_device_settings){.devices = 0});
    expect_refusal(wanted, FAILURE_NO_DEVICE, "there is no GPU");
    fake_device_configure(
        &(struct fake_device_settings){.devices = 1, .unsupported = true});
    expect_refusal(wanted, FAILURE_DEVICE_UNUSABLE, "older than this build");
    wanted.cuda = NULL;
    expect_refusal(wanted, FAILURE_PLUGIN_MISSING, "capstan-cuda.so");
}

TEST(graphs_are_made_unless_the_environment_forbids_it) {
    static const char *const given[] = {NULL, "1", "0"};
    struct local_device_request wanted = request(JOB_DEVICE_AUTO);
    struct local_device device;
    fake_device_configure(&two);
    for (int i = 0; i < 3; i++) {
        if (given[i])
            setenv("CAPSTAN_CUDA_GRAPHS", given[i], 1);
        assert_ok(local_device_open(&device, &wanted, NULL, &failure));
        assert_int_equal(fake_device_has_graphs(device.handle), i < 2);
        local_device_close(&device);
    }
    setenv("CAPSTAN_CUDA_GRAPHS", "off", 1);
    assert_error(local_device_open(&device, &wanted, NULL, &failure),
                 FAILURE_BAD_VARIABLE);
    expect_text(failure.text,
                "CAPSTAN_CUDA_GRAPHS is 'off'; allowed are 0 and 1");
    unsetenv("CAPSTAN_CUDA_GRAPHS");
}

TEST(devices_without_tf32_log_what_they_compute_in) {
    int index;
    struct local_device_request wanted = request(JOB_DEVICE_AUTO);
    wanted.tf32 = true;
    fake_device_configure(&(struct fake_device_settings){.devices = 0});
    expect_text(take(*state, &wanted, &index),
                "tf32: device cpu has none, and computes in float32");
    fake_device_configure(
        &(struct fake_device_settings){.devices = 1, .before_tf32 = true});
    expect_text(take(*state, &wanted, &index),
                "tf32: device cuda 0 (Fake GPU) has none, and computes in");
    assert_int_equal(index, 0);
    fake_device_configure(&two);
    assert_null(strstr(take(*state, &wanted, &index), "tf32"));
}

/* cuBLAS obeys it whatever it is asked for. */
TEST(an_environment_that_overrides_the_jobs_tf32_is_refused) {
    static const struct {
        const char *given;
        bool tf32, refused;
    } cases[] = {{"0", true, true},  {"0", false, false}, {"1", false, true},
                 {"1", true, false}, {"", false, false},  {"", true, false}};
    struct local_device_request wanted = request(JOB_DEVICE_AUTO);
    struct local_device device;
    fake_device_configure(&two);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("NVIDIA_TF32_OVERRIDE", cases[i].given, 1);
        wanted.tf32 = cases[i].tf32;
        enum status status =
            local_device_open(&device, &wanted, NULL, &failure);
        if (cases[i].refused)
            assert_error(status, FAILURE_BAD_VARIABLE);
        else
            assert_int_equal(status, STATUS_OK);
        assert_true(cases[i].refused ? !device.ops : device.ops != ops_cpu());
        local_device_close(&device);
    }
    fake_device_configure(&(struct fake_device_settings){.devices = 0});
    setenv("NVIDIA_TF32_OVERRIDE", "0", 1); /* the CPU does not read it */
    assert_ok(local_device_open(&device, &wanted, NULL, &failure));
    local_device_close(&device);
    unsetenv("NVIDIA_TF32_OVERRIDE");
}

TEST(an_allocation_failure_names_the_keys_to_reduce) {
    struct local_device device;
    struct local_device_request wanted = request(JOB_DEVICE_CUDA);
    struct job job = {.micro_batch = 64, .accumulation = 3};
    fake_device_configure(
        &(struct fake_device_settings){.devices = 1, .memory = 3u << 30});
    assert_ok(local_device_open(&device, &wanted, NULL, &failure));
    void *half = device.ops->allocate(device.handle, 1u << 20);
    status_fail(&failure, FAILURE_DEVICE_MEMORY, "no memory for tea");
    assert_error(local_device_add_memory_hint(&device, &job, &failure),
                 FAILURE_DEVICE_MEMORY);
    assert_string_equal(
        failure.text,
        "no memory for tea, where 3 of 3 GiB are free. What needs less: "
        "train_micro_batch_size_per_gpu 32 with gradient_accumulation_steps 6; "
        "activation_checkpointing.number_checkpoints, of the same bits; "
        "zero_optimization.stage 2, or strategy.type \"ps\"; bf16.enabled");
    job.micro_batch = 1;
    status_fail(&failure, FAILURE_DEVICE_MEMORY, "no memory for tea");
    local_device_add_memory_hint(&device, &job, &failure);
    assert_null(strstr(failure.text, "micro_batch"));
    device.ops->release(device.handle, half);
    local_device_close(&device);
}

TEST(a_pinning_failure_is_logged) {
    struct link_fixture *fixture = *state;
    struct local_device device;
    struct local_device_request wanted = request(JOB_DEVICE_CUDA);
    char memory[100];
    fake_device_configure(
        &(struct fake_device_settings){.devices = 1, .unpinnable = true});
    assert_ok(local_device_open(&device, &wanted, &fixture->log, &failure));
    link_fixture_capture_log(fixture);
    local_device_pin(&device, memory, sizeof memory);
    expect_text(link_fixture_captured_log(fixture),
                "device cuda 0 (Fake GPU): 100 bytes of host memory "
                "cannot be pinned");
    local_device_unpin(&device, memory);
    local_device_close(&device);
}

TEST(closing_null_does_nothing) {
    struct local_device none = {0};
    local_device_close(&none);
    assert_null(none.ops);
}
