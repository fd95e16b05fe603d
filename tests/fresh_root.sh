# SPDX-License-Identifier: Apache-2.0
# For scripts that source this file, and set root to a folder to make: a fresh root
# file system of Debian or Ubuntu, removed when the script ends. Needs root and
# debootstrap.

# make_root SUITE MIRROR [FLAG...]: FLAGS of debootstrap. Exit code 77: the mirror
# cannot be reached.
make_root() {
    local suite=$1 mirror=$2
    shift 2
    [[ ! -e $root ]] || { echo "$0: $root is there" >&2; exit 2; }
    trap remove_root EXIT
    # Older debootstraps lack the scripts of newer releases.
    local script=sid
    [[ $mirror == *ubuntu* ]] && script=gutsy
    debootstrap --variant=minbase --components=main,universe "$@" "$suite" "$root" \
        "$mirror" "$script" > "$root.log" 2>&1 || {
        tail -n 3 "$root.log" >&2
        exit 77
    }
    rm "$root.log"
    cp -L /etc/resolv.conf "$root/etc/"
    echo '127.0.0.1 localhost' >> "$root/etc/hosts"
    inside 'apt-get -q update' > /dev/null
}

# What a running machine has there, at a mount point of its own, so that programs there
# may mount too.
mount_root() {
    mount --bind --make-private "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t devpts devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
}

remove_root() {
    umount -lR "$root" 2> /dev/null || true
    rm -rf --one-file-system "$root"
}

# COMMAND of bash there, with nothing of this environment.
inside() {
    chroot "$root" env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -eu -o pipefail -c "$1"
}
