/* SPDX-License-Identifier: Apache-2.0 */
/* What a run finds where it is started: ports taken, hosts that are none, full
 * disks, data that cannot be read, a place that another has. Everyone ends, and
 * says what is wrong. */
#define STATE struct cluster_run *run

#include "core/base/time.h"
#include "tests/cluster/bad_peers.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const job[] = {"job.json", NULL};

static void expect_logged(const struct cluster_process *process,
                          const char *text) {
    assert_contains(cluster_run_errors(process), text);
}

/* Replaces the address of task INDEX of TYPE, for tasks started later. */
static void set_address(struct cluster_run *run, const char *type,
                        unsigned index, const char *address) {
    json_array_set_new(json_object_get(run->cluster, type), index,
                       json_string(address));
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* Libraries beneath stand still or end the process then. */
TEST(a_resource_limit_too_low_is_named) {
    static const char *const limits[] = {"-n 12",    "-n 20",     "-n 31",
                                         "-n 66",    "-v 120000", "-v 200000",
                                         "-v 300000"};
    char command[512], name[32];
    cluster_run_job(run, NULL);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const char *arguments[] = {"-c", command, NULL};
        snprintf(command, sizeof command,
                 "ulimit %s && exec \"$CAPSTAN\" run --job_name chief"
                 " --task_index 0 --chief_hosts 127.0.0.1:1"
                 " --ps_hosts 127.0.0.1:2,127.0.0.1:3"
                 " --worker_hosts 127.0.0.1:4,127.0.0.1:5 job.json",
                 limits[i]);
        snprintf(name, sizeof name, "limit-%zu", i);
        struct cluster_process *process =
            cluster_run_program(run, name, "/bin/sh", arguments, NULL);
        cluster_run_expect_soon(process, 2);
        snprintf(command, sizeof command, "raise the limit (ulimit %.2s",
                 limits[i]);
        expect_logged(process, command);
    }
}

TEST(a_port_in_use_is_named) {
    static const char *const types[] = {"chief", "ps", "worker"};
    struct cluster_process *processes[3];
    uint16_t port = 0;
    struct bad_peers_program *taken = bad_peers_start(BAD_PEERS_SILENT, &port);
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 1);
    const char *address = textf("127.0.0.1:%u", port);
    const char *named =
        textf("port %u is in use on this machine (pid %d, cluster_", port,
              (int)getpid());
    for (unsigned i = 0; i < 3; i++) {
        json_t *list = json_object_get(run->cluster, types[i]);
        json_t *kept = json_incref(json_array_get(list, 0));
        set_address(run, types[i], 0, address);
        processes[i] = cluster_run_task(run, types[i], 0, job);
        json_array_set_new(list, 0, kept);
    }
    for (unsigned i = 0; i < 3; i++) {
        cluster_run_expect_soon(processes[i], 138);
        expect_logged(processes[i], named);
    }
    bad_peers_stop(&taken);
}

/* An orphan of its own kind may have it, but not for long. */
TEST(a_caller_tries_a_port_in_use_for_10_s) {
    char caller[PATH_MAX];
    uint16_t port = 0;
    struct bad_peers_program *taken = bad_peers_start(BAD_PEERS_SILENT, &port);
    cluster_fixture_caller(caller);
    cluster_run_describe(run, 1, 1, 0);
    set_address(run, "chief", 0, textf("127.0.0.1:%u", port));
    struct cluster_process *chief = cluster_run_task_program(
        run, "chief", 0, caller, (const char *const[]){"none", NULL});
    int64_t begin = time_now();
    cluster_run_expect_soon(chief, 138);
    assert_true(time_now() - begin < 25 * TIME_S);
    expect_logged(chief, textf("port %u is in use on this machine", port));
    bad_peers_stop(&taken);
}

/* The port becomes free meanwhile, and the chief comes. */
static void expect_named_and_waited_past(struct cluster_run *run,
                                         enum bad_peers_manner manner,
                                         const char *text) {
    struct cluster_process *processes[3];
    uint16_t port = 0;
    struct bad_peers_program *taken = bad_peers_start(manner, &port);
    cluster_run_job(run, "{\"steps\": 20, \"device\": \"cpu\"}");
    cluster_run_describe(run, 1, 1, 1);
    const char *address = textf("127.0.0.1:%u", port);
    const char *named =
        textf("%s answers, but not as a Capstan chief; %s", address, text);
    set_address(run, "chief", 0, address);
    processes[1] = cluster_run_task(run, "ps", 0, NULL);
    processes[2] = cluster_run_task(run, "worker", 0, NULL);
    cluster_run_await_soon(processes[1], named);
    cluster_run_await_soon(processes[2], named);
    bad_peers_stop(&taken);
    processes[0] = cluster_run_task(run, "chief", 0, job);
    for (int i = 0; i < 3; i++)
        cluster_run_expect_soon(processes[i], 0);
}

TEST(another_protocol_on_the_chiefs_port_is_named) {
    expect_named_and_waited_past(run, BAD_PEERS_GREETS,
                                 "it speaks another protocol");
}

TEST(a_silent_program_on_the_chiefs_port_is_named) {
    expect_named_and_waited_past(run, BAD_PEERS_SILENT,
                                 "it accepts connections and says nothing");
}

/* As when an address of another run was copied. */
TEST(a_ps_in_place_of_the_chief_is_named) {
    char named[256];
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 1);
    const char *address =
        textf("%s", json_string_value(json_array_get(
                        json_object_get(run->cluster, "ps"), 0)));
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await_soon(ps, "listening on port");
    set_address(run, "chief", 0, address);
    set_address(run, "ps", 0, "127.0.0.1:1");
    struct cluster_process *worker =
        cluster_run_task(run, "worker", 0, WORDS("--join-timeout", "9"));
    snprintf(named, sizeof named,
             "%s has not answered a join for 5 s: a ps, a ", address);
    cluster_run_await_soon(worker, named);
    cluster_run_expect_soon(worker, 138);
    snprintf(named, sizeof named,
             "the chief at %s did not answer within 9 s (timeouts.join, or "
             "--join-timeout): %s has not",
             address, address);
    expect_logged(worker, named);
}

TEST(a_chief_with_an_unknown_host_is_named) {
    static const char *const soon[] = {"--join-timeout", "1.5", NULL};
    cluster_run_describe(run, 1, 1, 1);
    set_address(run, "chief", 0, "no-such-host.invalid:2222");
    struct cluster_process *worker = cluster_run_task(run, "worker", 0, soon);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, soon);
    cluster_run_expect_soon(worker, 138);
    cluster_run_expect_soon(ps, 138);
    expect_logged(worker, "no-such-host.invalid:2222");
    expect_logged(ps, "no-such-host.invalid:2222");
}

TEST(a_ps_with_an_unknown_host_is_named) {
    static const char *const tcp[] = {"--lane", "tcp", NULL};
    cluster_run_job(run, "{\"timeouts\": {\"step\": 2}}");
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    set_address(run, "ps", 0, "no-such-host.invalid:2222");
    struct cluster_process *worker = cluster_run_task(run, "worker", 0, tcp);
    struct cluster_process *chief = cluster_run_task(run, "chief", 0, job);
    cluster_run_expect_soon(worker, 138);
    cluster_run_expect_soon(chief, 138);
    cluster_run_expect_soon(ps, 138);
    expect_logged(worker, "no-such-host.invalid");
}

/* A disk of KB, at NAME in the folder; false: not allowed to. It is seen, and
 * ends, with this process and its children. */
static bool mount_disk(const struct cluster_run *run, const char *name,
                       unsigned kb) {
    const char *path = cluster_run_path(run, name);
    return !mkdir(path, 0700) && !unshare(CLONE_NEWNS) &&
           !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("none", path, "tmpfs", 0, textf("size=%uk", kb));
}

static void unmount_disk(const struct cluster_run *run, const char *name) {
    umount2(cluster_run_path(run, name), MNT_DETACH);
}

static int teardown_with_disk(void **state) {
    unmount_disk(*state, "checkpoint");
    return cluster_run_teardown(state);
}

/* About 100 KB a checkpoint, none is removed, and disk for one: however many
 * are skipped because one is being written, the last finds no room. */
TEST_WITH(cluster_run_setup, teardown_with_disk,
          a_full_disk_loses_only_later_checkpoints) {
    static const char *const verify[] = {"ckpt", "verify", "checkpoint", NULL};
    if (!mount_disk(run, "checkpoint", 180))
        skip_test("a small disk cannot be mounted: that needs root");
    cluster_run_job(run, "{\"model\": {\"layers\": [64, 256, 10]},"
                         " \"checkpoint\": {\"every_steps\": 10,"
                         "                  \"keep\": 100}}");
    struct cluster_process *training = cluster_run_start(
        run, "run", WORDS("local", "--ps", "2", "--workers", "2", "job.json"),
        NULL);
    cluster_run_expect_soon(training, 1);
    expect_logged(training, "step-000000010");
    expect_logged(training, "there is no checkpoint of step ");
    expect_logged(training, "bytes wanted");
    expect_logged(training, "epoch 3/3");
    expect_logged(training, "the last checkpoint was not written");
    cluster_run_expect_soon(cluster_run_start(run, "verify", verify, NULL), 0);
}

static void write_file(const struct cluster_run *run, const char *name,
                       const void *bytes, size_t size) {
    FILE *file = cluster_run_create(run, name);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* All of a cluster end with 2, and who found it names FILE. */
static void expect_bad_data(struct cluster_run *run, const char *file) {
    cluster_run_describe(run, 1, 1, 2);
    struct cluster_process *processes[] = {
        cluster_run_task(run, "worker", 0, NULL),
        cluster_run_task(run, "worker", 1, NULL),
        cluster_run_task(run, "ps", 0, NULL),
        cluster_run_task(run, "chief", 0, job),
    };
    for (unsigned i = 0; i < 4; i++)
        cluster_run_expect_soon(processes[i], 2);
    expect_logged(processes[3], file);
    /* who came too late was told so, and had nothing more to say */
    assert_null(strstr(cluster_run_errors(processes[3]), "a message of run"));
}

/* The others have never heard of the chief, and would wait for it. */
TEST(a_chief_without_its_folder_ends_a_local_cluster_at_once) {
    static const char *const local[] = {"local", "--ps",     "1", "--workers",
                                        "2",     "job.json", NULL};
    cluster_run_job(run, "{\"checkpoint\": {\"dir\": \"/proc/x\"},"
                         " \"timeouts\": {\"stop\": 60}}");
    struct cluster_process *process =
        cluster_run_start(run, "local", local, NULL);
    cluster_run_expect(process, 2, CLUSTER_RUN_DEADLINE / 2);
    expect_logged(process,
                  "chief: error: checkpoint.dir: cannot make the folder "
                  "/proc/x: No such file");
}

static const struct start {
    unsigned chiefs; /* 0: worker 0 leads */
    const char *job, *said;
} starts[] = {
    {1, "{\"checkpoint\": {\"dir\": \"/proc/x\"}}",
     "checkpoint.dir: cannot make the folder /proc/x: "},
    {0, "{\"export\": {\"path\": \"/proc/x/y.npz\"}}",
     "export.path: cannot make the folder /proc/x: "},
    {1, "{\"epoch\": 3}", "epochs"},
    {0, "{\"train_batch_size\": 7}", "batch: train_batch_size 7"},
    {1, "{\"compare\": {\"csv\": \"/proc/x\"}}", "--csv /proc/x"},
};

/* Whatever it is that keeps a chief from beginning, the others learn it. */
static void expect_all_logged(struct cluster_run *run,
                              const struct start *start) {
    cluster_run_job(run, start->job);
    cluster_run_describe(run, start->chiefs, 1, 2);
    struct cluster_process *others[] = {
        cluster_run_task(run, "worker", 1, NULL),
        cluster_run_task(run, "ps", 0, NULL),
        start->chiefs ? cluster_run_task(run, "worker", 0, NULL) : NULL,
    };
    struct cluster_process *chief =
        cluster_run_task(run, start->chiefs ? "chief" : "worker", 0, job);
    cluster_run_expect_soon(chief, 2);
    expect_logged(chief, "error: ");
    expect_logged(chief, start->said);
    for (unsigned i = 0; i < 2 + start->chiefs; i++) {
        cluster_run_expect_soon(others[i], 2);
        expect_logged(others[i], "the chief ended the run: ");
        expect_logged(others[i], start->said);
    }
}

TEST(a_chief_that_cannot_start_refuses_joiners) {
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        print_message("# %s\n", starts[i].job);
        expect_all_logged(cluster_fixture_reset(state), &starts[i]);
    }
}

/* And not waited for once more, until timeouts.stop. */
TEST(a_process_that_does_not_join_in_time_is_named) {
    cluster_run_job(run, "{\"timeouts\": {\"join\": 2, \"stop\": 60}}");
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *chief = cluster_run_task(run, "chief", 0, job);
    cluster_run_expect_soon(chief, 138);
    expect_logged(chief, "did not join within 2 s (timeouts.join): worker 0 at "
                         "127.0.0.1:");
    expect_logged(chief, ", ps 0 at 127.0.0.1:");
    /* which is first said after 5 s */
    assert_null(strstr(cluster_run_errors(chief), "waiting for"));
}

TEST(missing_data_ends_all) {
    cluster_run_job(run, "{\"data\": {\"train\": [\"nowhere\","
                         " \"train-labels\"]}}");
    expect_bad_data(run, "data.train: /");
}

/* Here the trainers will be, too. */
TEST(missing_data_starts_no_local_cluster) {
    static const char *const local[] = {
        "local",    "--workers", "2", "--set", "data.dir=/no/such",
        "job.json", NULL};
    cluster_run_job(run, NULL);
    struct cluster_process *process =
        cluster_run_start(run, "local", local, NULL);
    cluster_run_expect_soon(process, 2);
    const char *said = cluster_run_errors(process);
    expect_logged(process, "error: data.train, in data.dir: /no/such/");
    if (strchr(said, '\n')[1])
        fail_msg("more than one line:\n%s", said);
}

/* Only the chief's counts, and the run goes on; but it was meant to be read. */
TEST(an_invalid_job_given_to_a_worker_is_reported) {
    static const char *const empty[] = {"empty.json", NULL};
    cluster_run_job(run, NULL);
    write_file(run, "empty.json", "{}", 2);
    cluster_run_describe(run, 1, 1, 1);
    struct cluster_process *worker =
        cluster_run_task(run, "worker", 0, WORDS("nowhere.json"));
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, empty);
    struct cluster_process *chief = cluster_run_task(run, "chief", 0, job);
    cluster_run_expect_soon(worker, 0);
    cluster_run_expect_soon(ps, 0);
    cluster_run_expect_soon(chief, 0);
    expect_logged(worker,
                  "warning: the job given here is wrong; it is ignored, "
                  "as the chief's job is used: nowhere.json");
    expect_logged(ps, "as the chief's job is used: empty.json: ");
}

TEST(truncated_data_ends_all) {
    char head[16 + 64 * 100] = {0, 0, 8, 3, 0, 0, 2, 88,
                                0, 0, 0, 8, 0, 0, 0, 8};
    cluster_run_job(run, NULL);
    write_file(run, "train-images", head, sizeof head);
    expect_bad_data(run, "train-images");
}

TEST(data_that_cannot_be_read_ends_all) {
    cluster_run_job(run, "{\"data\": {\"train\": [\"train-images\","
                         " \"folder\"]}}");
    assert_int_equal(mkdir(cluster_run_path(run, "folder"), 0700), 0);
    expect_bad_data(run, "folder");
}

/* A download that was cut and joined, or two files in one. */
TEST(trailing_bytes_after_gzip_data_are_logged_and_ignored) {
    static const char *const spoil[] = {
        "-c", "gzip train-images && printf junk >>train-images.gz", NULL};
    cluster_run_job(run, "{\"data\": {\"train\": [\"train-images.gz\","
                         " \"train-labels\"]}}");
    cluster_run_expect_soon(
        cluster_run_program(run, "spoil", "/bin/sh", spoil, NULL), 0);
    struct cluster_process *alone =
        cluster_run_start(run, "alone", WORDS("run", "job.json"), NULL);
    cluster_run_expect_soon(alone, 0);
    expect_logged(alone, "train-images.gz: 4 bytes follow the end of the gzip "
                         "data and are left out");
}

TEST(a_second_joiner_of_a_slot_is_refused_naming_both_hosts) {
    char host[256] = "", first[512], second[512];
    gethostname(host, sizeof host - 1);
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 2);
    struct cluster_process *chief = cluster_run_task(run, "chief", 0, job);
    struct cluster_process *holder = cluster_run_task(run, "worker", 0, NULL);
    cluster_run_await_soon(chief, "worker 0 joined");
    set_address(run, "worker", 0, "127.0.0.1:0");
    struct cluster_process *claimant = cluster_run_task(run, "worker", 0, NULL);
    cluster_run_expect_soon(claimant, 2);
    snprintf(first, sizeof first, "from host %s (pid %d)", host,
             cluster_run_pid(holder));
    snprintf(second, sizeof second, "on host %s (pid %d)", host,
             cluster_run_pid(claimant));
    expect_logged(claimant, first);
    expect_logged(claimant, second);
}

/* As where one of several manifests was changed, and not the others. */
TEST(a_process_of_another_cluster_is_refused) {
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 1);
    json_t *ps = json_object_get(run->cluster, "ps");
    struct cluster_process *chief = cluster_run_task(run, "chief", 0, job);
    json_array_append_new(ps, json_string("127.0.0.1:0"));
    struct cluster_process *worker = cluster_run_task(run, "worker", 0, NULL);
    cluster_run_expect_soon(worker, 2);
    expect_logged(worker, "worker 0 on host");
    expect_logged(worker,
                  "counts 1 worker and 2 ps by TF_CONFIG, and the chief "
                  "1 worker and 1 ps by TF_CONFIG");
    json_array_remove(ps, 1);
    worker = cluster_run_task(run, "worker", 0, NULL);
    struct cluster_process *good = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_expect_soon(worker, 0);
    cluster_run_expect_soon(good, 0);
    cluster_run_expect_soon(chief, 0);
}

/* In a process of its own: capstan under a sandbox that refuses eventfd2. */
TEST_IF(getenv("IN_SANDBOX"), a_sandbox_becomes_a_run) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_eventfd2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    const char *capstan = getenv("CAPSTAN");
    if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
        !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        execl(capstan, capstan, "run", "job.json", NULL);
    fail();
}

/* As a sandbox does. */
TEST(permission_errors_are_not_retryable) {
    static const char *const refused[] = {"cluster_startup_failure_test",
                                          "a_sandbox_becomes_a_run", NULL};
    cluster_run_job(run, NULL);
    struct cluster_process *process = cluster_run_program(
        run, "refused", "/proc/self/exe", refused, WORDS("IN_SANDBOX=1"));
    cluster_run_expect_soon(process, 1);
    expect_logged(process, "Operation not permitted");
}
