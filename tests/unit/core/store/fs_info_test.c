/* SPDX-License-Identifier: Apache-2.0 */

#include "core/store/fs_info.h"

#include "tests/lib/test.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(network_mounts_are_distinguished_from_local_disks) {
    static const uint64_t network[] = {
        NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC,
        FUSE_SUPER_MAGIC, V9FS_MAGIC, CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC,
        0x0bd00bd0, 0x47504653,
        /* as a signed 32-bit f_type arrives */
        (uint64_t)(int32_t)0xff534d42};
    static const uint64_t local[] = {EXT4_SUPER_MAGIC,
                                     XFS_SUPER_MAGIC,
                                     BTRFS_SUPER_MAGIC,
                                     TMPFS_MAGIC,
                                     OVERLAYFS_SUPER_MAGIC,
                                     0x2fc12fc1 /* ZFS */,
                                     0};
    for (size_t i = 0; i < sizeof network / sizeof network[0]; i++)
        assert_true(fs_info_type_is_network(network[i]));
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        assert_false(fs_info_type_is_network(local[i]));
    assert_false(fs_info_is_network("/nowhere"));
}

TEST(the_local_folder_is_the_first_writable_one) {
    char folder[64];
    setenv("TMPDIR", "/dev/shm", 1);
    assert_ok(fs_info_local_folder(folder, sizeof folder, &failure));
    assert_string_equal(folder, "/dev/shm");
    setenv("TMPDIR", "/nowhere", 1);
    assert_ok(fs_info_local_folder(folder, sizeof folder, &failure));
    assert_string_equal(folder, "/var/tmp");
    unsetenv("TMPDIR");
    assert_error(fs_info_local_folder(folder, 1, &failure),
                 FAILURE_FILE_UNWRITABLE);
    assert_contains(failure.text, "set TMPDIR");
}

/* As a user for whom rights count. */
TEST(a_folder_that_cannot_be_created_is_named_with_the_reason) {
    char closed[] = "/tmp/disk-test-XXXXXX", path[64], expected[192];
    assert_non_null(mkdtemp(closed));
    assert_int_equal(chmod(closed, 0500), 0);
    snprintf(path, sizeof path, "%s/run/events", closed);
    uid_t user = geteuid();
    assert_true(user || !seteuid(65534));
    snprintf(expected, sizeof expected,
             "cannot make the folder %s/run: Permission denied to user %u, "
             "group %u",
             closed, (unsigned)geteuid(), (unsigned)getegid());
    enum status status = fs_info_make_folder(path, &failure);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(rmdir(closed), 0);
    assert_error(status, FAILURE_FILE_UNWRITABLE);
    assert_string_equal(failure.text, expected);
}

TEST(the_folder_of_a_path_is_its_parent) {
    static const char *const cases[][2] = {
        {"a/b/c", "a/b"}, {"c", "."}, {"/c", "/"}, {"a/c", "a"}};
    char folder[4];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(fs_info_parent_folder(cases[i][0], folder, sizeof folder,
                                        &failure));
        assert_string_equal(folder, cases[i][1]);
    }
    assert_error(
        fs_info_parent_folder("long/c", folder, sizeof folder, &failure),
        FAILURE_NAME_TOO_LONG);
}

TEST(a_failed_write_names_path_bytes_and_free_space) {
    assert_error(fs_info_write_failure("/tmp/x", 123, EDQUOT, &failure),
                 FAILURE_DISK_FULL);
    assert_contains(failure.text, "/tmp/x: 123 bytes wanted, ");
    assert_contains(failure.text, " free in /tmp: Disk quota exceeded");
    assert_error(fs_info_write_failure("/tmp/x", UINT64_MAX, EIO, &failure),
                 FAILURE_DISK_FULL);
    assert_error(fs_info_write_failure("/tmp/x", 1, EIO, &failure),
                 FAILURE_FILE_UNWRITABLE);
    fs_info_write_failure("/nowhere/x", 9, EIO, &failure);
    assert_contains(failure.text, "/nowhere/x: 9 bytes wanted");
}

TEST(the_required_space_is_compared_with_free_space) {
    assert_ok(fs_info_check_space("/tmp", "f", 1, &failure));
    assert_error(fs_info_check_space("/tmp", "f", UINT64_MAX, &failure),
                 FAILURE_DISK_FULL);
    /* Where nobody can tell, writing will. */
    assert_ok(fs_info_check_space("/nowhere", "f", UINT64_MAX, &failure));
    assert_ok(fs_info_check_space("/proc", "f", UINT64_MAX, &failure));
}
