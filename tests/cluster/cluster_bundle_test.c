/* SPDX-License-Identifier: Apache-2.0 */
/* deploy/bundle.sh: what it packs runs where it is put, with the libraries it
 * brings along. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <sys/stat.h>
#include <unistd.h>

enum { DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

/* The script, and the folder of what was built. */
static char script[PATH_MAX + 32], built[PATH_MAX];

static int find_script(void **state) {
    (void)state;
    char folder[PATH_MAX];
    if (realpath("deploy", folder) && build_folder_find(built))
        snprintf(script, sizeof script, "%s/bundle.sh", folder);
    return 0;
}

GROUP(find_script, NULL);

/* What the shell says to COMMAND, which ends with CODE. */
static const char *shell(struct cluster_run *run, const char *name,
                         const char *command, int code) {
    struct cluster_process *process =
        cluster_run_program(run, name, "/bin/bash", WORDS("-c", command), NULL);
    cluster_run_expect(process, code, DEADLINE);
    return cluster_run_output(process);
}

/* FOLDER/odd place/ is what PACK makes of the program, its plugins and a few
 * tests. */
static void pack(struct cluster_run *run, const char *how) {
    char command[4 * PATH_MAX];
    if (access(".git", F_OK))
        skip_test("this is no git checkout");
    skip_unless_installed("patchelf", "patchelf");
    snprintf(
        command, sizeof command,
        "mkdir -p b/{gpu,tests} && cd '%s' && cp capstan capstan-*.so "
        "libcapstan.so.0 \"$OLDPWD/b/\" && cp -P tests/{caller,table_rates,"
        "ops_test,room-unit-worker-ops} \"$OLDPWD/b/tests/\" && cd - && "
        "GPU_CHECKED=ops_test '%s' \"$PWD/b\" %s && "
        "mv b/capstan-*-bundle 'odd place'",
        built, script, how);
    shell(run, "pack", command, 0);
}

static bool build_has(const char *file) {
    return access(textf("%s/%s", built, file), F_OK) == 0;
}

static void expect_own_libraries(struct cluster_run *run) {
    const char *said =
        shell(run, "ldd", "ldd 'odd place/build/capstan' | grep '=> /'", 0);
    char line[PATH_MAX];
    unsigned own = 0;
    for (; *said; said += strcspn(said, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(said, "\n"), said);
        if (strstr(line, "/odd place/build/lib/"))
            own++;
        else if (!strstr(line, "libc.so.6") && !strstr(line, "libm.so.6") &&
                 !strstr(line, "libresolv.so.2") &&
                 !strstr(line, "libpthread") && !strstr(line, "libdl.so.2") &&
                 !strstr(line, "librt.so.1") &&
                 !strstr(line, "libstdc++.so.6") && !strstr(line, "libgcc_s"))
            fail_msg("of this machine: %s", line);
    }
    assert_true(own >= 10);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_bundle_runs_anywhere_with_its_own_libraries) {
    pack(run, "folder");
    expect_own_libraries(run);
    shell(run, "caller",
          "ldd 'odd place/build/tests/caller' | grep 'libcapstan.so.0 => "
          ".*/odd place/build/'",
          0);
    cluster_run_job(run, NULL);
    const char *said = shell(run, "info", "'odd place/build/capstan' info", 0);
    assert_contains(said, "/odd place/build/capstan-gloo.so");
    shell(run, "train",
          "'odd place/build/capstan' local --ps 1 --workers 2 job.json", 0);
    said =
        shell(run, "data",
              "cd 'odd place' && grep -l '\"dir\": "
              "\"../datasets/fashion-mnist\"' deploy/*.json && "
              "ls datasets/fashion-mnist BUNDLE.md LICENSE gpu-check gpu-bench "
              "licenses/libzmq5 build/packages.txt",
              0);
    assert_contains(said, "deploy/fashion-mnist.json");
    assert_contains(said, "train-images-idx3-ubyte.gz");
}

/* From where it is unpacked, with the bundle's libraries. */
TEST(a_program_is_built_with_a_bundle) {
    skip_unless_installed("pkg-config", "pkg-config");
    pack(run, "folder");
    const char *said =
        shell(run, "link",
              "set -e; mv 'odd place' even; cd even; "
              "export PKG_CONFIG_PATH=$PWD/lib/pkgconfig; "
              "gcc python/capstan/examples/linear.c "
              "$(pkg-config --cflags --libs capstan) -o linear; "
              "export LD_LIBRARY_PATH=$PWD/build; ldd linear | grep libzmq; "
              "./linear; find share -type f",
              0);
    assert_contains(said, "/even/build/lib/libzmq.so.5");
    assert_contains(said, "2.000 -3.000 1.000\n");
    assert_contains(said, "share/man/man5/capstan-job.5\n");
    assert_contains(said, "share/bash-completion/completions/capstan");
}

/* What the machine lacks is said; nothing of the emulation goes along. */
TEST(a_gpu_bundle_checks_and_trains_with_what_it_brings) {
    if (!build_has("capstan-cuda.so"))
        skip_test("built where CUDA's headers are");
    pack(run, "gpu-folder");
    const char *said =
        shell(run, "check",
              "cd 'odd place' && ls . build build/tests datasets/* && "
              "CUDA_VISIBLE_DEVICES= ./gpu-check tests",
              77);
    assert_contains(said, "\nops_test ");
    assert_contains(said, "did not run: all that needs a GPU: ");
    assert_null(strstr(said, "emulated"));
    assert_null(strstr(said, "caller"));
    said = shell(run, "train",
                 "'odd place/capstan' local --json --ps 1 --workers 1 "
                 "--set device=cpu 'odd place/deploy/gpu-bench.json'",
                 0);
    assert_contains(said, "\"train_loss\":");
}

/* As the machines that they are for take no more. */
TEST(a_gpu_bundle_above_30_mb_is_refused) {
    if (!build_has("capstan-cuda.so"))
        skip_test("built where CUDA's headers are");
    pack(run, "gpu-folder");
    assert_contains(
        shell(
            run, "large",
            textf(
                "mkdir bin && printf '#!/bin/sh\ncat > /dev/null\n"
                "head -c 30000001 /dev/zero\n' > bin/xz && chmod +x bin/xz && "
                "PATH=$PWD/bin:$PATH '%s' \"$PWD/b\" gpu 2>&1",
                script),
            1),
        "has 30000001 bytes; a GPU bundle has at most");
}

/* A host that is older than what was built hears it from the program too. */
TEST(an_old_host_names_what_is_missing) {
    pack(run, "folder");
    const char *said = shell(run, "old",
                             "echo 99.1 > 'odd place/build/lib/glibc'; "
                             "'odd place/capstan' --version 2>&1",
                             2);
    assert_contains(said, "built for glibc 99.1 or newer");
}

/* The archive would lack it, and nobody would know before it is elsewhere. */
TEST(an_unpackable_file_fails_the_bundle) {
    static const char *const broken[] = {"patchelf", "cp"};
    static const char *const patterns[] = {"*build/capstan*", "*licenses*"};
    pack(run, "folder");
    for (int i = 0; i < 2; i++) {
        const char *said = shell(
            run, broken[i],
            textf("mkdir -p bin && printf '#!/bin/sh\ncase \"$*\" in "
                  "%s) exit 1;; esac\nPATH=${PATH#*:} exec %s \"$@\"\n' > "
                  "bin/%s && chmod +x bin/%s && "
                  "PATH=$PWD/bin:$PATH '%s' \"$PWD/b\" folder 2>&1; "
                  "code=$?; rm bin/%s; exit $code",
                  patterns[i], broken[i], broken[i], broken[i], script,
                  broken[i]),
            1);
        assert_contains(said, "bundle: ");
    }
}
