/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct machine *machine

#include "core/base/free_memory.h"

#include "core/base/limits.h"
#include "tests/lib/test.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A machine of files in a folder. */
struct machine {
    char root[64];
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    unsigned count;
};

static void write_file(const struct machine *machine, const char *path,
                       const char *text) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", machine->root, path);
    for (char *slash = whole + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state) {
    struct machine *machine = calloc(1, sizeof *machine);
    strcpy(machine->root, "/tmp/free_memory_test.XXXXXX");
    if (!mkdtemp(machine->root))
        return -1;
    write_file(machine, "/proc/meminfo",
               "MemTotal:       24684436 kB\nMemAvailable:   1000 kB\n"
               "SwapTotal:      700 kB\nSwapFree:       500 kB\n");
    write_file(machine, "/proc/sys/kernel/random/boot_id", "one-machine\n");
    *state = machine;
    return 0;
}

static int teardown(void **state) {
    struct machine *machine = *state;
    int removed = system(textf("rm -r %s", machine->root));
    free(machine);
    return removed;
}

FIXTURE(setup, teardown);

static void look(struct machine *machine) {
    machine->count = free_memory_limits(machine->root, machine->limits);
}

static const struct free_memory_limit *find(const struct machine *machine,
                                            const char *name) {
    for (unsigned i = 0; i < machine->count; i++)
        if (strstr(machine->limits[i].name, name))
            return &machine->limits[i];
    fail_msg("no limit is called %s", name);
    return NULL;
}

TEST(host_memory_is_available_memory_plus_swap) {
    look(machine);
    assert_int_equal(machine->count, 1);
    assert_int_equal(machine->limits[0].free, 1500 << 10);
    assert_true(machine->limits[0].most == UINT64_C(24685136) << 10);
    assert_string_equal(machine->limits[0].key, "one-machine");
    assert_string_equal(machine->limits[0].name, "free memory");
}

TEST(the_zfs_cache_counts_as_free) {
    write_file(machine, "/proc/spl/kstat/zfs/arcstats",
               "name type data\nc_min 4 1000\nsize 4 7000\n"
               "compressed_size 4 99\n");
    look(machine);
    assert_int_equal(machine->limits[0].free, (1500 << 10) + 6000);
}

TEST(each_control_group_around_a_process_is_a_limit) {
    write_file(machine, "/proc/self/cgroup", "0::/all/job\n");
    write_file(machine, "/sys/fs/cgroup/all/job/memory.max", "9000000\n");
    write_file(machine, "/sys/fs/cgroup/all/job/memory.current", "5000000\n");
    write_file(machine, "/sys/fs/cgroup/all/job/memory.stat",
               "anon 1\nfile 9\ninactive_file 1000000\nactive_file 500000\n"
               "slab_reclaimable 20000\nworkingset 7\n");
    write_file(machine, "/sys/fs/cgroup/all/memory.max", "max\n");
    write_file(machine, "/sys/fs/cgroup/all/memory.current", "5000000\n");
    write_file(machine, "/sys/fs/cgroup/memory.max", "20000000\n");
    write_file(machine, "/sys/fs/cgroup/memory.current", "19000000\n");
    look(machine);
    assert_int_equal(machine->count, 3);
    const struct free_memory_limit *job = find(machine, "group /all/job,");
    const struct free_memory_limit *top = find(machine, "group /,");
    assert_int_equal(job->free, 4000000 + 1520000 + (500 << 10));
    assert_int_equal(job->most, 9000000 + (700 << 10));
    assert_int_equal(top->free, 1000000 + (500 << 10));
    assert_contains(job->name, "memory.max");
    assert_string_not_equal(job->key, top->key);
}

TEST(cgroup_v1_is_a_limit_too) {
    write_file(machine, "/proc/self/cgroup",
               "5:cpu:/cpus\n4:memory:/job\n1:name=systemd:/\n");
    write_file(machine, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes",
               "9000000\n");
    write_file(machine, "/sys/fs/cgroup/memory/job/memory.usage_in_bytes",
               "8000000\n");
    write_file(machine, "/sys/fs/cgroup/memory/job/memory.stat",
               "cache 3\ninactive_file 5\ntotal_inactive_file 300000\n");
    write_file(machine, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
               "9223372036854771712\n");
    write_file(machine, "/sys/fs/cgroup/memory/memory.usage_in_bytes",
               "8000000\n");
    look(machine);
    assert_int_equal(machine->count, 2);
    assert_int_equal(find(machine, "group /job,")->free,
                     1000000 + 300000 + (500 << 10));
}

/* A container sees its own group as the root, whatever its name is outside. */
TEST(an_invisible_control_group_is_replaced_by_the_visible_root) {
    write_file(machine, "/proc/self/cgroup", "0::/docker/1234\n");
    write_file(machine, "/sys/fs/cgroup/memory.max", "20000000\n");
    write_file(machine, "/sys/fs/cgroup/memory.current", "19000000\n");
    look(machine);
    assert_int_equal(machine->count, 2);
    find(machine, "group /,");
}

TEST(a_full_group_leaves_nothing) {
    write_file(machine, "/proc/meminfo", "MemAvailable: 1000 kB\n");
    write_file(machine, "/proc/self/cgroup", "0::/\n");
    write_file(machine, "/sys/fs/cgroup/memory.max", "1000\n");
    write_file(machine, "/sys/fs/cgroup/memory.current", "2000\n");
    look(machine);
    assert_int_equal(find(machine, "group /,")->free, 0);
}

TEST(a_missing_file_is_no_limit) {
    write_file(machine, "/proc/meminfo", "nothing\n");
    write_file(machine, "/proc/self/cgroup", "nonsense\n0::/job\n");
    look(machine);
    assert_int_equal(machine->count, 0);
}

TEST(an_rlimit_limits_only_the_process) {
    struct rlimit before, less;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    less = before;
    less.rlim_cur = (rlim_t)1 << 46; /* a sanitizer maps 20 TiB */
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    write_file(machine, "/proc/self/status", "VmSize:\t 1024 kB\n");
    look(machine);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    const struct free_memory_limit *own = find(machine, "ulimit -v");
    assert_int_equal(own->free, (UINT64_C(1) << 46) - (1 << 20));
    assert_true(own->most == own->free); /* nobody else takes any of it */
    assert_contains(own->key, textf("pid %d ", (int)getpid()));
}

TEST_WITH(NULL, NULL, free_memory_is_above_zero_and_below_all_memory) {
    uint64_t all =
        (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t half = free_memory_half();
    assert_true(half > 0);
    assert_true(half <= all / 2);
}

TEST(a_quota_of_processor_time_limits_the_cores) {
    assert_int_equal(cores_limited(machine->root, 8), 8);
    write_file(machine, "/proc/self/cgroup", "0::/all/job\n");
    write_file(machine, "/sys/fs/cgroup/all/job/cpu.max", "max 100000\n");
    assert_int_equal(cores_limited(machine->root, 8), 8);
    write_file(machine, "/sys/fs/cgroup/all/cpu.max", "250000 100000\n");
    assert_int_equal(cores_limited(machine->root, 8), 3);
    assert_int_equal(cores_limited(machine->root, 2), 2);
    write_file(machine, "/sys/fs/cgroup/all/job/cpu.max", "1000 100000\n");
    assert_int_equal(cores_limited(machine->root, 8), 1);
    write_file(machine, "/proc/self/cgroup",
               "9:memory:/\n4:cpuset:/job\n3:cpu,cpuacct:/job\n");
    write_file(machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    write_file(machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_limited(machine->root, 8), 8);
    write_file(machine, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(cores_limited(machine->root, 8), 2);
}
