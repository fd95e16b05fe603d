/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoint folders that hosts do not share: each host is a name and a mount
 * of its own, for which the test has to be root. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>

enum { FAILED = 1, CONFIG = 2, RETRY = 138 };
enum { LONG = 4 * CLUSTER_RUN_DEADLINE };

static void skip_unless_hosts_can_be_made(void) {
    if (system("unshare --mount --uts hostname other 2> /dev/null"))
        skip_test("mounts of one's own need root");
}

/* FOLDER/HOST is then a program: capstan, or $PROGRAM, on a host of that name,
 * whose folder `checkpoint` is FOLDER/HOST.disk. */
static void make_host(const struct cluster_run *run, const char *host) {
    char folder[PATH_MAX];
    assert_true(build_folder_find(folder));
    const char *disk = cluster_run_path(run, textf("%s.disk", host));
    assert_int_equal(mkdir(disk, 0700), 0);
    const char *path = cluster_run_path(run, host);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "#!/bin/sh\n"
            "exec unshare --mount --uts sh -c 'hostname %s &&\n"
            "    mount --bind \"%s\" checkpoint &&\n"
            "    exec \"${PROGRAM:-%s/capstan}\" \"$@\"' sh \"$@\"\n",
            host, disk, folder);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0700), 0);
}

static const char *const host_names[] = {"alpha", "beta", "gamma"};

static void make_hosts(struct cluster_run *run) {
    assert_int_equal(mkdir(cluster_run_path(run, "checkpoint"), 0700), 0);
    for (size_t i = 0; i < sizeof host_names / sizeof *host_names; i++)
        make_host(run, host_names[i]);
}

static void start_on(struct cluster_fixture *fixture, unsigned task,
                     const char *host) {
    const char *given = getenv("CAPSTAN");
    char *before = given ? strdup(given) : NULL;
    const char *path = cluster_run_path(fixture->run, host);
    setenv("CAPSTAN", path, 1);
    cluster_fixture_start(fixture, task);
    if (before)
        setenv("CAPSTAN", before, 1);
    else
        unsetenv("CAPSTAN");
    free(before);
}

/* The chief on alpha, the ps on the hosts named, workers that need none. */
static void start_all(struct cluster_fixture *fixture, const char *host_of_ps_0,
                      const char *host_of_ps_1) {
    start_on(fixture, 0, "alpha");
    start_on(fixture, cluster_fixture_find(fixture, "ps", 0), host_of_ps_0);
    start_on(fixture, cluster_fixture_find(fixture, "ps", 1), host_of_ps_1);
    cluster_fixture_start(fixture, cluster_fixture_find(fixture, "worker", 0));
    cluster_fixture_start(fixture, cluster_fixture_find(fixture, "worker", 1));
}

static const char two_epochs[] =
    "{\"chief\": \"coordinate\", \"epochs\": 2,"
    " \"checkpoint\": {\"every_steps\": 10, \"keep\": 2}}";
static const char three_epochs[] =
    "{\"chief\": \"coordinate\", \"epochs\": 3,"
    " \"checkpoint\": {\"every_steps\": 10, \"keep\": 2}}";

static void train_two_epochs(struct cluster_fixture *fixture,
                             struct cluster_run *run) {
    make_hosts(run);
    cluster_run_job(run, two_epochs);
    cluster_fixture_describe(fixture, run, 1, 2, 2);
    start_all(fixture, "beta", "gamma");
    cluster_fixture_expect_soon(fixture, CLUSTER_FIXTURE_TASKS, 0);
}

/* Entries of FOLDER/NAME that begin so. */
static unsigned count_beginning(const struct cluster_run *run, const char *name,
                                const char *beginning) {
    unsigned count = 0;
    const char *path = cluster_run_path(run, name);
    DIR *folder = opendir(path);
    if (!folder)
        fail_msg("no folder %s", path);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += !strncmp(entry->d_name, beginning, strlen(beginning));
    closedir(folder);
    return count;
}

/* In the manifest of the last checkpoint, on the chief's host. */
static void expect_holder(const struct cluster_run *run, size_t ps,
                          const char *host) {
    const char *path =
        cluster_run_path(run, "alpha.disk/step-000000060/manifest.json");
    json_t *manifest = json_load_file(path, 0, NULL);
    json_t *file = json_array_get(json_object_get(manifest, "files"), ps);
    const char *holder = json_string_value(json_object_get(file, "holder"));
    if (!holder)
        fail_msg("no holder of shard %zu in %s", ps, path);
    assert_string_equal(holder, host);
    json_decref(manifest);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(each_host_keeps_its_shard_and_the_manifest_names_the_hosts) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    train_two_epochs(&fixture, run);
    expect_holder(run, 0, "beta");
    expect_holder(run, 1, "gamma");
    assert_int_equal(count_beginning(run, "alpha.disk/step-000000060", "ps-"),
                     0);
    assert_int_equal(
        count_beginning(run, "beta.disk/step-000000060", "ps-0-of-2"), 1);
    assert_int_equal(
        count_beginning(run, "gamma.disk/step-000000060", "ps-1-of-2"), 1);
}

TEST(each_host_keeps_as_many_checkpoints_as_the_job_says) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    train_two_epochs(&fixture, run);
    assert_int_equal(count_beginning(run, "alpha.disk", "step-"), 2);
    assert_int_equal(count_beginning(run, "beta.disk", "step-"), 2);
    assert_int_equal(count_beginning(run, "gamma.disk", "step-"), 2);
}

/* Of a caller's model: beta has the ps and rank 0, gamma has rank 1 alone. */
TEST(a_host_keeps_no_more_of_what_its_ranks_keep) {
    char program[PATH_MAX + 16], hosts[3][PATH_MAX];
    skip_unless_hosts_can_be_made();
    make_hosts(run);
    assert_true(build_folder_find(program));
    strcat(program, "/tests/caller");
    for (int h = 0; h < 3; h++)
        strcpy(hosts[h], cluster_run_path(run, host_names[h]));
    cluster_run_describe(run, 1, 1, 2);
    setenv("CAPSTAN_SET",
           "chief=coordinate\nsteps=60\ncheckpoint.dir=checkpoint\n"
           "checkpoint.every_steps=10\ncheckpoint.keep=2",
           1);
    setenv("PROGRAM", program, 1);
    struct cluster_process *processes[] = {
        cluster_run_task_program(run, "chief", 0, hosts[0], WORDS("none")),
        cluster_run_task_program(run, "ps", 0, hosts[1], WORDS("none")),
        cluster_run_task_program(run, "worker", 0, hosts[1], WORDS("own")),
        cluster_run_task_program(run, "worker", 1, hosts[2], WORDS("own")),
    };
    unsetenv("PROGRAM");
    unsetenv("CAPSTAN_SET");
    for (int p = 0; p < 4; p++)
        cluster_run_expect_soon(processes[p], 0);
    assert_int_equal(count_beginning(run, "alpha.disk", "step-"), 2);
    assert_int_equal(count_beginning(run, "beta.disk", "step-"), 2);
    assert_int_equal(count_beginning(run, "gamma.disk", "step-"), 2);
    assert_int_equal(
        count_beginning(run, "gamma.disk/step-000000060", "kept-1-"), 1);
}

/* Brings what the hosts have together in FOLDER/NAME. */
static void gather(const struct cluster_run *run, const char *name) {
    assert_int_equal(
        system(textf("cd %s && mkdir %s && cp -r alpha.disk/. beta.disk/. "
                     "gamma.disk/. %s",
                     run->folder, name, name)),
        0);
}

TEST(a_ps_that_finds_its_shard_resumes_to_the_same_bits) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    train_two_epochs(&fixture, run);
    cluster_run_job(run, three_epochs);
    start_all(&fixture, "beta", "gamma");
    cluster_run_await_soon(fixture.tasks[0].process, "step-000000060, epoch 3");
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    gather(run, "gathered");
    cluster_run_expect_soon(
        cluster_fixture_local(run, 2, 2, WORDS("checkpoint.dir=undisturbed")),
        0);
    cluster_fixture_expect_same_checkpoints(run, "gathered", "undisturbed");
}

TEST(a_ps_without_its_shard_names_the_host_that_has_it) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    train_two_epochs(&fixture, run);
    cluster_run_job(run, three_epochs);
    start_all(&fixture, "gamma", "beta");
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, FAILED);
    const struct cluster_process *chief = fixture.tasks[0].process;
    if (!cluster_fixture_has_logged(chief, "host beta holds it") &&
        !cluster_fixture_has_logged(chief, "host gamma holds it"))
        fail_msg("the chief names no host; it said:\n%s",
                 cluster_run_errors(chief));
    assert_int_equal(count_beginning(run, "alpha.disk", "step-"), 2);
    assert_int_equal(count_beginning(run, "beta.disk", "step-"), 2);
}

/* Its shard is on its own host. */
TEST(a_ps_that_alone_has_its_shard_is_awaited) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    make_hosts(run);
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"epochs\": 300,"
                         " \"checkpoint\": {\"every_steps\": 250},"
                         " \"timeouts\": {\"peer\": 2, \"spare\": 0}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_all(&fixture, "beta", "gamma");
    struct cluster_process *leader = fixture.tasks[0].process;
    unsigned ps = cluster_fixture_find(&fixture, "ps", 1);
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_run_await_soon(leader, "worker 1 joined");
    start_on(&fixture, ps, "gamma");
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    assert_false(cluster_fixture_has_logged(leader, "so that the run goes on"));
}

/* Its shard of the newest checkpoint is lost, not the copy of before it. */
TEST(a_host_that_is_lost_for_good_has_a_copy_on_another) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    make_hosts(run);
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"epochs\": 900,"
                         " \"checkpoint\": {\"every_steps\": 6500},"
                         " \"strategy\": {\"replicas\": 1, \"buddy_steps\": "
                         "6000}, \"timeouts\": {\"peer\": 2, \"spare\": 0}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_all(&fixture, "beta", "gamma");
    struct cluster_process *leader = fixture.tasks[0].process;
    unsigned ps = cluster_fixture_find(&fixture, "ps", 1);
    cluster_run_await_soon(leader, "step-000006500: ");
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_run_await_soon(leader, "so that the run goes on with 1 ps");
    const char *line =
        cluster_run_await_soon(leader, "the run goes on after step ");
    assert_contains(line, "000, ");
    cluster_fixture_expect(&fixture, ps, 0, LONG);
    gather(run, "gathered");
    cluster_run_expect(
        cluster_fixture_local(
            run, 2, 2, WORDS("checkpoint.dir=undisturbed", "strategy=null")),
        0, LONG);
    cluster_fixture_expect_same_checkpoints(run, "gathered", "undisturbed");
}

TEST(a_second_run_on_the_host_of_a_ps_is_refused) {
    struct cluster_fixture fixture;
    const char *beta;
    char text[64];
    skip_unless_hosts_can_be_made();
    make_hosts(run);
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"steps\": 1000000,"
                         " \"steps_per_epoch\": 1000000,"
                         " \"timeouts\": {\"stop\": 1}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_all(&fixture, "beta", "gamma");
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_await_soon(chief, "examples/s");
    beta = cluster_run_path(run, "beta");
    struct cluster_process *second =
        cluster_run_program(run, "second", beta,
                            WORDS("local", "--workers", "1", "job.json"), NULL);
    cluster_run_expect_soon(second, CONFIG);
    snprintf(
        text, sizeof text, "ps 0, pid %d on host beta",
        cluster_run_pid(
            fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process));
    assert_true(cluster_fixture_has_logged(second, text));
    cluster_run_signal(chief, SIGTERM);
    cluster_run_expect_soon(chief, 128 + SIGTERM);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
}

/* Only the host that wrote it can read the shard of a ps that is gone. */
TEST(a_ps_that_does_not_come_back_is_named_with_the_host_of_its_shard) {
    struct cluster_fixture fixture;
    skip_unless_hosts_can_be_made();
    make_hosts(run);
    cluster_run_job(run, "{\"chief\": \"coordinate\", \"epochs\": 100000,"
                         " \"checkpoint\": {\"every_steps\": 50},"
                         " \"timeouts\": {\"peer\": 2, \"recover\": 4}}");
    cluster_fixture_describe(&fixture, run, 1, 2, 2);
    start_all(&fixture, "beta", "gamma");
    struct cluster_process *chief = fixture.tasks[0].process;
    unsigned ps = cluster_fixture_find(&fixture, "ps", 1);
    cluster_run_await_soon(chief, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_fixture_expect_soon(&fixture, ps, RETRY);
    for (unsigned t = 0; t < fixture.count; t++)
        if (t != ps)
            cluster_fixture_expect_logged(
                fixture.tasks[t].process,
                "; the shard of ps 1 is on host gamma: start it there");
}
