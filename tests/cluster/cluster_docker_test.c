/* SPDX-License-Identifier: Apache-2.0 */
/* The files of deploy/docker, and the program as a restricted container runs it
 * (docs/docker.md): a user without a name and a home, no capabilities, a root
 * that cannot be written, a /dev/shm of 64 MiB of its own, and one folder to
 * write. bubblewrap (Debian's bubblewrap) makes it; tests/check_docker.sh runs
 * the images themselves. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <unistd.h>

/* Runs $0, a shell's command, in such a container, which may write where it
 * starts. */
static const char container[] =
    "build=${CAPSTAN%/*}; exec bwrap --ro-bind / / --dev /dev --proc /proc"
    " --size 67108864 --tmpfs /dev/shm --tmpfs /tmp"
    " --ro-bind \"$build\" \"$build\" --bind \"$PWD\" \"$PWD\""
    " --uid 54321 --gid 54321 --cap-drop ALL --unshare-user --unshare-all"
    " --die-with-parent --clearenv --setenv CAPSTAN \"$CAPSTAN\""
    " sh -c \"$0\"";

/* Starts COMMAND there, in the folder of RUN. */
static struct cluster_process *contain(struct cluster_run *run,
                                       const char *command) {
    skip_unless_installed("bwrap", "bubblewrap");
    return cluster_run_program(run, "contained", "/bin/sh",
                               WORDS("-c", container, command), NULL);
}

/* Skips the test where the kernel makes no such container. */
static void require_containers(struct cluster_run *run) {
    struct cluster_process *process = contain(run, "true");
    if (cluster_run_exit(process, CLUSTER_RUN_DEADLINE))
        skip_test("no containers here: %.*s",
                  (int)strcspn(cluster_run_errors(process), "\n"),
                  cluster_run_errors(process));
}

/* COMMAND ends with CODE; what it said. */
static const char *run_contained(struct cluster_run *run, const char *command,
                                 int code) {
    require_containers(run);
    struct cluster_process *process = contain(run, command);
    cluster_run_expect(process, code, 2 * CLUSTER_RUN_DEADLINE);
    return cluster_run_errors(process);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_container_is_as_restricted_as_its_flags_say) {
    run_contained(run,
                  "test \"$(id -u)\" = 54321 && ! getent passwd 54321 &&"
                  " ! touch /usr/a && touch a && test -z \"$HOME\" &&"
                  " grep -q 'CapEff:.0*$' /proc/self/status &&"
                  " grep -q 'NoNewPrivs:.1$' /proc/self/status &&"
                  " ! head -c 65m /dev/zero > /dev/shm/full",
                  0);
}

TEST(ps_and_workers_train_with_a_full_shared_memory_folder) {
    uint64_t steps[8];
    cluster_run_job(run, NULL);
    const char *said = run_contained(
        run,
        "head -c 65m /dev/zero > /dev/shm/full;"
        "\"$CAPSTAN\" local --ps 1 --workers 2 --json-log job.json",
        0);
    assert_contains(said, "No space left on device"); /* head's */
    assert_contains(said, "over shared memory");
    assert_true(cluster_fixture_checkpoints(run, "checkpoint", steps, 8) > 0);
}

TEST(ranks_train_by_allreduce_without_a_shared_memory_folder) {
    cluster_run_job(run, "{\"strategy\": {\"type\": \"allreduce\"}}");
    const char *said =
        run_contained(run,
                      "head -c 65m /dev/zero > /dev/shm/full;"
                      "\"$CAPSTAN\" local --ps 0 --workers 2 job.json",
                      0);
    assert_contains(said, "all-reduce: over shared memory");
}

TEST(a_folder_that_cannot_be_written_is_named_with_what_to_do) {
    static const char *const keys[] = {"checkpoint.dir", "export.path",
                                       "tensorboard.output_path"};
    cluster_run_job(run, "{\"tensorboard\": {\"enabled\": true}}");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *said = run_contained(
            run,
            textf("\"$CAPSTAN\" run --set %s=/usr/none/out.npz job.json",
                  keys[i]),
            2);
        assert_contains(
            said,
            textf("error: %s: cannot make the folder /usr/none: Read-only file "
                  "system; choose a folder on a disk or volume that can be "
                  "written",
                  keys[i]));
    }
}

/* The limit of a user's processes, which root does not have. */
TEST(a_refused_thread_is_named_with_its_limit) {
    cluster_run_job(run, NULL);
    skip_unless_installed("setpriv", "util-linux");
    struct cluster_process *process = cluster_run_program(
        run, "limited", "/bin/sh",
        WORDS("-c",
              textf("chmod 777 . && exec %s prlimit --nproc=2 \"$CAPSTAN\" run "
                    "job.json",
                    geteuid() ? "" : "setpriv --reuid 54321 --clear-groups")),
        NULL);
    cluster_run_expect_soon(process, 138);
    assert_contains(cluster_run_errors(process),
                    "cannot start the 7 threads of a process: Resource "
                    "temporarily unavailable; the limit of processes "
                    "and threads is reached: ulimit -u, or pids.max");
}

/* Runs cluster_docker.py with ARGUMENTS. */
static void judge(const char *arguments, const char *more) {
    skip_unless_installed("python3", "python3");
    assert_int_equal(
        system(textf("python3 tests/cluster/cluster_docker.py %s '%s' >&2",
                     arguments, more)),
        0);
}

TEST(the_dockerfiles_name_what_exists) {
    judge("files", run->folder);
}

TEST(the_compose_file_describes_its_own_cluster) {
    char build[PATH_MAX];
    if (system("python3 -c 'import yaml' 2> /dev/null"))
        skip_test("no python3 with yaml (python3-yaml)");
    assert_true(build_folder_find(build));
    judge("compose", textf("%s/capstan", build));
}
