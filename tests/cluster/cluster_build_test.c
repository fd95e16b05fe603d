/* SPDX-License-Identifier: Apache-2.0 */
/* What the scripts around a build say: what is missing, what is installed for
 * which tests, how many tests ran. Programs in FOLDER/bin stand in for those
 * that would change this machine. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <sys/stat.h>
#include <unistd.h>

enum { FAILED = 1, REFUSED = 2 };

static char tree[PATH_MAX]; /* of the sources */

static void make_folder(const struct cluster_run *run, const char *name) {
    assert_int_equal(mkdir(cluster_run_path(run, name), 0700), 0);
}

/* To be called first: every package is installed but MISSING ("*": none is). */
static void arrange(const struct cluster_run *run, const char *missing) {
    make_folder(run, "bin");
    cluster_run_script(
        run, "bin/dpkg-query",
        textf("case $4 in %s) exit 1 ;; esac\nprintf installed", missing));
    cluster_run_script(run, "bin/apt-get", "echo apt-get \"$@\"");
    cluster_run_script(run, "bin/sudo",
                       "[ \"$1\" = -n ] && shift; exec \"$@\"");
}

/* COMMAND in a shell, in the folder, where $TREE is the sources'; expects
 * CODE. */
static struct cluster_process *shell(struct cluster_run *run,
                                     const char *command, int code) {
    const char *path =
        textf("PATH=%s:%s", cluster_run_path(run, "bin"), getenv("PATH"));
    struct cluster_process *process = cluster_run_program(
        run, "shell", "/bin/bash", WORDS("-c", command),
        WORDS(path, textf("TREE=%s", tree), "MAKEFLAGS=", "MAKELEVEL="));
    cluster_run_expect(process, code, 10 * CLUSTER_RUN_DEADLINE);
    return process;
}

static void expect(const char *said, const char *part) {
    assert_contains(said, part);
}

static void expect_not(const char *said, const char *part) {
    if (strstr(said, part))
        fail_msg("\"%s\" is in: %s", part, said);
}

static int find_tree(void **state) {
    (void)state;
    return realpath(".", tree) ? 0 : -1;
}

GROUP(find_tree, NULL);

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_missing_library_stops_make_with_the_install_command) {
    skip_unless_installed("make", "make");
    arrange(run, "libgloo-dev");
    struct cluster_process *make =
        shell(run, "make -C \"$TREE\" -j4 BUILD=\"$PWD/b\" all", REFUSED);
    expect_not(cluster_run_output(make), "] cc ");
    expect_not(cluster_run_output(make), "] c++ ");
    expect(cluster_run_errors(make), "  libgloo-dev            all-reduce");
    expect(cluster_run_errors(make),
           "apt-get install -y --no-install-recommends libgloo-dev\n");
    cluster_run_script(run, "bin/dpkg-query",
                       "[ $4 = libcmocka-dev ] || printf installed");
    make = shell(
        run,
        "make -C \"$TREE\" BUILD=\"$PWD/b\" \"$PWD\"/b/tests/unit/core/base/log_test.o",
        REFUSED);
    expect_not(cluster_run_output(make), "log_test.o");
    expect(cluster_run_errors(make), " libcmocka-dev\n");
    shell(
        run,
        "make -C \"$TREE\" BUILD=\"$PWD/b\" PACKAGES=other \"$PWD\"/b/packages",
        0);
}

/* Two objects and what is made of .proto files, none of it there yet. */
TEST(make_counts_what_it_makes) {
    skip_unless_installed("make", "make");
    arrange(run, "-");
    const char *said = cluster_run_output(
        shell(run,
              "make -C \"$TREE\" BUILD=\"$PWD/b\" \"$PWD\"/b/core/base/time.o "
              "\"$PWD\"/b/core/base/decimal.o",
              0));
    expect(said, "[1/2, ");
    expect(said, "[2/2, 0 s left] cc ");
}

/* That of the tests belongs to `make check` alone. */
TEST(no_program_for_users_needs_the_test_framework) {
    skip_unless_installed("make", "make");
    arrange(run, "libcmocka-dev");
    const char *said = cluster_run_output(
        shell(run,
              "make -C \"$TREE\" -n BUILD=\"$PWD/b\" demo demo-sparse bench "
              "gpu-bench install deb",
              0));
    expect(said, "/b/bench/click_log");
    expect(said, "/b/bench/gpu_bench");
    expect(said, "/b/packages\n");
    expect_not(said, "/b/packages-test");
}

TEST(services_are_installed_for_all_tests_only) {
    arrange(run, "*");
    const char *said =
        cluster_run_output(shell(run, "\"$TREE\"/deploy/deps.sh test", 0));
    expect(said, "apt-get install -y ");
    expect(said, " libcmocka-dev");
    expect_not(said, "slurm");
    expect_not(said, "munge");
    expect_not(said, "openmpi");
    said = cluster_run_output(shell(run, "\"$TREE\"/deploy/deps.sh all", 0));
    expect(said, " slurm-wlm munge");
    expect(said, " libcmocka-dev");
    expect_not(said, "clang-format");
}

TEST(skipped_tests_are_counted_and_shown_with_reasons) {
    arrange(run, "-");
    cluster_run_script(run, "one_test",
                       "echo 'ok 1 - a'; echo '# skipped: no such thing here'\n"
                       "echo 'not ok 2 # SKIP b'; echo 'ok 3 # SKIP c'\n"
                       "echo 'ok 4 - d # SKIP'");
    cluster_run_script(run, "two_test", "echo 'ok 1 - a'; echo 'ok 2 - b'");
    const char *said = cluster_run_output(
        shell(run, "\"$TREE\"/tests/run.sh \"$PWD\"/*_test", 0));
    expect(said, "1 passed, 3 skipped (");
    expect(said, "\n    skipped: b: no such thing here\n");
    expect(said, "\n    skipped: c: no reason given\n");
    expect(said, "\n    skipped: d: no reason given\n");
    expect(said, "\n3 passed, 0 failed, 3 skipped\n");
    said = cluster_run_output(
        shell(run, "\"$TREE\"/tests/run.sh \"$PWD\"/two_test", 0));
    expect(said, "\n2 passed, 0 failed\n");
    cluster_run_script(run, "three_test", "echo 'not ok 1 - a'; exit 1");
    said = cluster_run_output(
        shell(run, "\"$TREE\"/tests/run.sh \"$PWD\"/*_test", FAILED));
    expect(said, "\n3 passed, 1 failed, 3 skipped\n");
}

/* Stages that count like tests/run.sh or unittest, and stages that do not. */
TEST(the_last_line_of_all_checks_has_the_totals) {
    if (access(".ci/run", X_OK))
        skip_test("there is no .ci/run here");
    arrange(run, "-");
    make_folder(run, "deploy");
    cluster_run_script(run, "deploy/deps.sh", "[ $1 = all ]");
    cluster_run_script(
        run, "bin/make",
        "case $* in *lint*|*fuzz*|*drill*) ;; *check-all) echo 7 passed, 0 failed,"
        " 2 skipped ;; *python) echo Ran 9 tests in 1.2s;"
        " echo 'OK (skipped=2)' ;;"
        " *wheel) echo Ran 4 tests in 1.2s; echo 'FAILED (errors=1)';"
        " exit 1 ;; *) echo 5 passed, 0 failed, 1 skipped ;; esac");
    const char *said = cluster_run_output(shell(
        run, "mkdir .ci && cp \"$TREE\"/.ci/run .ci/ && .ci/run", FAILED));
    expect(said, "\n36 passed, 1 failed, 7 skipped\n");
}

/* In a small repository, and in what git archive makes of it. */
TEST(the_commit_comes_from_the_checkout_or_the_export) {
    skip_unless_installed("make", "make");
    skip_unless_installed("git", "git");
    arrange(run, "-");
    shell(
        run,
        "set -eux\n"
        "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 EMAIL=a@b.c\n"
        "header=build/core/base/commit.h\n"
        "expect() { make -C \"$1\" $header; grep -F \"\\\"$2\\\"\" $1/$header; }\n"
        "commit() { git commit -qam \"$1\" --allow-empty; }\n"
        "mkdir deploy\n"
        "cp \"$TREE\"/Makefile \"$TREE\"/.gitattributes .\n"
        "echo '$Format:%H$' > deploy/commit.txt\n"
        "expect . unknown\n"
        "git init -q\n"
        "git add Makefile .gitattributes deploy\n"
        "commit one\n"
        "expect . $(git rev-parse --short=12 HEAD)\n"
        "before=$(stat -c %y $header)\n"
        "expect . $(git rev-parse --short=12 HEAD)\n"
        "test \"$before\" = \"$(stat -c %y $header)\"\n"
        "commit two\n"
        "expect . $(git rev-parse --short=12 HEAD)\n"
        "git archive --prefix=export/ HEAD | tar -x\n"
        "expect export $(git rev-parse --short=12 HEAD)\n"
        "echo >> Makefile\n"
        "expect . $(git rev-parse --short=12 HEAD)-dirty\n",
        0);
}

TEST(an_installation_has_the_program_and_its_licence) {
    char build[PATH_MAX];
    skip_unless_installed("make", "make");
    assert_true(build_folder_find(build));
    arrange(run, "-");
    expect(cluster_run_output(shell(
               run,
               textf("set -e; make -C \"$TREE\" -f Makefile -o all BUILD='%s' "
                     "DESTDIR=\"$PWD/to\" install >&2; cd to/usr/local; "
                     "diff share/doc/capstan/LICENSE \"$TREE\"/LICENSE; "
                     "ls share/doc/capstan/CHANGELOG.md; bin/capstan --version",
                     build),
               0)),
           "capstan 0.");
}

/* With nothing but what `make install` has put there. */
TEST(a_program_is_built_by_pkg_config_alone) {
    char build[PATH_MAX], command[3 * PATH_MAX];
    skip_unless_installed("pkg-config", "pkg-config");
    assert_true(build_folder_find(build));
    arrange(run, "-");
    snprintf(
        command, sizeof command,
        "set -e; make -C \"$TREE\" -f Makefile -o all BUILD='%s' "
        "PREFIX=\"$PWD/to\" install >&2; "
        "export PKG_CONFIG_PATH=\"$PWD/to/lib/pkgconfig\"; "
        "gcc -Wall -Wextra -Werror \"$TREE\"/python/capstan/examples/linear.c "
        "$(pkg-config --cflags --libs capstan) -o linear; "
        "export LD_LIBRARY_PATH=\"$PWD/to/lib\"; ./linear; "
        "nm -D --defined-only to/lib/libcapstan.so | "
        "sed -n 's/.* T \\([a-z_]*\\)@.*/\\1/p' | sort > symbols; "
        "sed -n 's/^ *\\(capstan_[a-z_]*\\);/\\1/p' "
        "\"$TREE\"/library/capstan.map | sort | diff symbols -; "
        "grep -o 'capstan_[a-z_]*(capstan_run\\|capstan_[a-z_]*(const "
        "capstan_run\\|capstan_version(' to/include/capstan.h | "
        "sed 's/(.*//' | sort | diff symbols -",
        build);
    expect(cluster_run_output(shell(run, command, 0)), "2.000 -3.000 1.000\n");
}

/* Nothing is built for it. Files of others stay, in folders of theirs and in
 * shared ones. A DESTDIR may be relative. */
TEST(nothing_is_left_after_uninstall) {
    char build[PATH_MAX], command[3 * PATH_MAX];
    skip_unless_installed("make", "make");
    assert_true(build_folder_find(build));
    arrange(run, "-");
    snprintf(
        command, sizeof command,
        "set -e; list() { find to ! -type d -o -path '*capstan*' | sort; }\n"
        "mkdir -p to/usr/bin to/usr/share/man/man1\n"
        "touch to/usr/bin/other to/usr/share/man/man1/other.1\n"
        "target() { make -C \"$TREE\" -f Makefile -o all BUILD='%s' "
        "DESTDIR=\"$at\" PREFIX=/usr $1 >&2; }\n"
        "list > before; at=$PWD/to; target install; list | wc -l\n"
        "remove() { make -C \"$TREE\" -f Makefile BUILD=\"$PWD/none\" "
        "DESTDIR=\"$at\" PREFIX=/usr uninstall >&2; }\n"
        "remove; list | diff before -; [ ! -e none ]; target install\n"
        "touch to/usr/lib/capstan/own\n"
        "at=docs/$(realpath --relative-to=\"$TREE/docs\" \"$PWD/to\")\n"
        "remove; list | diff before - || true; at=$PWD/empty; ! remove",
        build);
    const char *said = cluster_run_output(shell(run, command, 0));
    assert_in_range(strtoul(said, NULL, 10), 40, 200);
    expect(said, "> to/usr/lib/capstan\n> to/usr/lib/capstan/own\n");
    expect_not(said, "to/usr/share");
}

/* CUDA's libraries are not Debian's, so their plugins are in no package. */
TEST(packages_of_debian_have_no_errors) {
    char build[PATH_MAX];
    skip_unless_installed("dh", "debhelper");
    skip_unless_installed("lintian", "lintian");
    assert_true(build_folder_find(build));
    const char *said = cluster_run_output(shell(
        run,
        textf("set -e; PATH=${PATH#*:}; "
              "DEBFULLNAME='A & B / C' \"$TREE\"/deploy/deb.sh '%s' > files; "
              "wc -l < files; for file in $(< files); do dpkg -c $file; done; "
              "dpkg -f $(head -n 1 files) Depends Maintainer",
              build),
        0));
    assert_int_equal(strtoul(said, NULL, 10), 2);
    expect(said, "./usr/lib/capstan/capstan-gloo.so");
    expect(said, "./usr/share/man/man1/capstan-ckpt-ls.1.gz");
    expect(said, "libcapstan.so.0 -> ../capstan/libcapstan.so.0");
    expect(said, "libzmq5 (");
    expect(said, "Maintainer: A & B / C <");
    expect_not(said, "cuda.so");
    expect_not(said, "nccl.so");
    shell(run,
          "PATH=${PATH#*:}; root=(); ((UID)) || root=(--allow-root)\n"
          "lintian --fail-on error \"${root[@]}\" $(< files) >&2",
          0);
    said = cluster_run_output(
        shell(run, "\"$TREE\"/tests/check_elf.sh $(head -n 1 files)", 0));
    expect(said, "capstan\n");
    expect(said, "libcapstan.so.0\n");
    expect(said, "capstan-gloo.so\n");
}

/* Sanitizers have guards of their own. */
TEST(programs_and_libraries_are_hardened) {
    char build[PATH_MAX];
    assert_true(build_folder_find(build));
    if (strstr(build, "/build-"))
        skip_test("a build with a sanitizer");
    arrange(run, "-");
    expect(
        cluster_run_output(shell(
            run,
            textf("\"$TREE\"/tests/check_elf.sh '%s'/{capstan,libcapstan.so.0,"
                  "capstan-*.so}",
                  build),
            0)),
        "capstan-gloo.so\n");
}

/* groff warns of all that it cannot set as the page says. */
TEST(each_page_of_the_manual_is_set_without_a_warning) {
    char build[PATH_MAX], command[3 * PATH_MAX];
    skip_unless_installed("groff", "groff-base");
    assert_true(build_folder_find(build));
    arrange(run, "-");
    snprintf(
        command, sizeof command,
        "set -e; capstan='%s/capstan'; for page in $($capstan manual); do\n"
        "[[ $page == bash-completion ]] || $capstan manual $page | "
        "groff -man -ww -Tascii -P-cbou > $page; done\n"
        "for verb in $($capstan --help | sed -n 's/^  capstan \\([a-z]*\\)"
        ".*/\\1/p'); do grep -q OPTIONS capstan-$verb; done\n"
        "grep -q ' ckpt ls|verify|export' capstan\n"
        "grep -A2 'zero_optimization.stage' capstan-job | tr -s ' \\n' ' '",
        build);
    struct cluster_process *process = shell(run, command, 0);
    expect(cluster_run_output(process), "keeps a part of the");
    assert_string_equal(cluster_run_errors(process), "");
}

/* What bash offers behind a line, words apart as it has them. */
TEST(bash_completes_verbs_flags_words_and_files) {
    static const char *const lines[][2] = {
        {"capstan co", "compare"},
        {"capstan local --la", "--lane="},
        {"capstan local --lane = ''", "auto tcp"},
        {"capstan local --lane t", "tcp"},
        {"capstan ckpt ''", "ls verify export diff"},
        {"capstan ckpt export --format = n", "npz"},
        {"capstan run --set = data.shuffle_", "data.shuffle_buffer="},
        {"capstan run --set data.shuffle = ''", "true false"},
        {"capstan run --set = wire = b", "bf16"},
        {"capstan local --json jo", "job.json"},
        {"capstan run --checkpoint-dir = fo", "folder"},
        {"capstan manual capstan-ckpt-v", "capstan-ckpt-verify"},
        {"capstan local -- anything jo", ""},
    };
    char build[PATH_MAX], command[3 * PATH_MAX], expected[128];
    assert_true(build_folder_find(build));
    arrange(run, "-");
    make_folder(run, "folder");
    cluster_run_job(run, NULL);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(command, sizeof command,
                 "set -e; PATH='%s':$PATH; touch jot.txt\n"
                 "capstan manual bash-completion > script; . ./script\n"
                 "complete -p capstan; COMP_WORDS=(%s)\n"
                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); set +e\n"
                 "_capstan capstan; echo \"${COMPREPLY[*]}\"",
                 build, lines[i][0]);
        snprintf(expected, sizeof expected,
                 "complete -F _capstan capstan\n%s\n", lines[i][1]);
        assert_string_equal(cluster_run_output(shell(run, command, 0)),
                            expected);
    }
}
