#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a build for machines without compiler and network:
# deploy/bundle.sh BUILD [gz | xz | folder]
#
# Makes BUILD/capstan-VERSION-bundle.tar.gz, or .tar.xz, half as large, or only
# the folder of that name. It contains the sources as committed and, in build/,
# the program, its plugins, the library, the tests and benchmarks in BUILD, and the
# Debian libraries that they need; the manual, completion and header beside build/. A program finds these libraries relative to itself
# (DT_RPATH, $ORIGIN) and does not pass them on to other programs. The host
# provides glibc with the loader, libstdc++ and libgcc if it has them, and all
# NVIDIA libraries (deploy/host-libs.sh). Every machine has tar and gzip, but not
# always xz. LONE_TESTS: the tests that run alone.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
. deploy/debian-libraries.sh
build=${1:?the folder that make built}
pack=${2:-gz}
version=$(sed -n 's/.*VERSION_TEXT "\(.*\)"/\1/p' proto/base/version.h)
name=capstan-$version-bundle
stage=$build/$name

fail() {
    echo "bundle: $*" >&2
    exit 1
}
for tool in git make patchelf strip ldd dpkg-query objdump; do
    command -v "$tool" > /dev/null || fail "there is no $tool on this machine"
done
[[ $pack =~ ^(gz|xz|folder)$ ]] || fail "$pack: gz, xz or folder"
[[ -x $build/capstan ]] || fail "no $build/capstan: make all"
git diff --quiet HEAD 2> /dev/null ||
    echo "bundle: warning: what was built may differ from the sources, which" \
        "are those of $(git rev-parse --short HEAD)" >&2

# The programs and plugins of BUILD, without debug information.
take_built() {
    local file
    while read -r file; do
        [[ $file == *.sh ]] || strip -g -o "$stage/build/$file" "$build/$file" ||
            fail "cannot strip $file"
    done < <(cd "$build" && mkdir -p {gpu,bench,fake,emulated,tests} &&
        find capstan capstan-*.so libcapstan.so.? gpu/*_test tests/* bench/*_bench \
            fake/* emulated/* -maxdepth 0 -type f 2> /dev/null)
    find "$build/tests" -maxdepth 1 -type l -exec cp -P -t "$stage/build/tests" {} +
}

# The manual, completion, and what a program of one's own is built with, as make
# install has them; capstan.pc finds the rest from its own folder.
take_installed() {
    local to=$stage/installed library
    library=$(basename "$stage"/build/libcapstan.so.?)
    MAKEFLAGS='' make -s -f Makefile -o all BUILD="$build" DESTDIR="$to" \
        PREFIX=/usr LIBDIR=lib install > /dev/null &&
        sed -i 's|^prefix=.*|prefix=${pcfiledir}/../..|
            s|^libdir=.*|libdir=${prefix}/build|' \
            "$to/usr/lib/pkgconfig/capstan.pc" &&
        mkdir "$stage"/{lib,share} &&
        mv "$to/usr/include" "$stage/" &&
        mv "$to/usr/lib/pkgconfig" "$stage/lib/" &&
        mv "$to"/usr/share/{man,bash-completion,capstan/job.schema.json} \
            "$stage/share/" &&
        ln -s "$library" "$stage/build/libcapstan.so" ||
        fail "cannot take what make install has"
    rm -r "$to"
}

built() {
    find "$stage/build" -path "$stage/build/lib" -prune -o \
        -type f -perm -u+x -print
}

# Paths of the libraries that the loader finds for the build, with those that
# they need in turn.
needed() {
    built | tr '\n' '\0' | xargs -0 ldd 2> /dev/null |
        awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u
}

# True if the host provides the library of package $1. NVIDIA's libraries belong
# to no package or to one of NVIDIA's.
stays() {
    [[ -z $1 || $1 == libc6 || $1 =~ ^(cuda|libcu|libnccl|libnv) ]]
}

take_library() {
    local path=$1 package=$2 place=$stage/build/lib
    stays "$package" && return
    [[ $package =~ ^(libstdc\+\+6|libgcc-s1)$ ]] && place=$place/gcc
    cp -L "$path" "$place/" && chmod u+w "$place/${path##*/}" &&
        patchelf --force-rpath --set-rpath '$ORIGIN' "$place/${path##*/}" ||
        fail "cannot take $path"
    echo "$package"
}

# Makes $1 find the libraries relative to itself.
set_path() {
    local folder=${1#"$stage/build/"} path='$ORIGIN/lib'
    [[ $folder == */* ]] && path='$ORIGIN/../lib'
    case $folder in
    *.so | *.so.*) [[ $folder =~ capstan-(gloo|bench)|libcapstan ]] || return 0 ;;
    esac
    patchelf --force-rpath --set-rpath "$path" "$1" || fail "cannot set $1"
}

# The data of the jobs in deploy/, from the folders that the jobs name.
take_data() {
    local from=/usr/share/datasets/fashion-mnist
    [[ -d $from ]] || fail "there is no $from: make deps"
    mkdir -p "$stage/datasets" && cp -rL "$from" "$stage/datasets/" &&
        sed -i "s:\"$from\":\"../datasets/fashion-mnist\":" \
            "$stage"/deploy/*.json || fail "cannot take $from"
    echo dataset-fashion-mnist
}

# The licences of the libraries, and the version of each.
tell_packages() {
    local package
    mkdir -p "$stage/licenses"
    while read -r package; do
        take_licence "$package" "$stage/licenses" ||
            fail "no licence of $package"
        dpkg-query -W -f '${Package} ${Version}\n' "$package"
    done > "$stage/build/packages.txt"
}

# The newest glibc that any file of the bundle needs.
glibc() {
    find "$stage/build" -type f -perm -u+r | tr '\n' '\0' |
        xargs -0 objdump -T 2> /dev/null |
        grep -oE 'GLIBC_2\.[0-9]+' | sort -uV | tail -n 1 | cut -d _ -f 2
}

# Checks that every library outside the bundle belongs to a package that the host
# provides, and that every missing one is NVIDIA's.
expect_closed() {
    local inside lines path package
    inside=$(realpath "$stage")/
    lines=$(find "$stage/build" -type f \( -perm -u+x -o -name '*.so*' \) -print0 |
        xargs -0 ldd 2> /dev/null | grep '=>' | sort -u)
    while read -r path; do
        [[ $path =~ ^lib(cuda|cudart|cublas|nccl) ]] || fail "$path is nowhere"
    done < <(awk '$3 == "not" { print $1 }' <<< "$lines")
    while read -r path package; do
        stays "$package" || [[ $package =~ ^(libstdc\+\+6|libgcc-s1)$ ]] ||
            fail "$path of this machine is used"
    done < <(awk -v inside="$inside" '$3 ~ "^/" && index($0, inside) == 0 {
        print $3 }' <<< "$lines" | packages_of)
}

rm -rf "$stage"
mkdir -p "$stage/build"/{gpu,bench,fake,emulated,tests,lib/gcc}
git archive HEAD | tar -x -C "$stage" || fail "no sources"
take_built
take_installed
# No loop here is the end of a pipe, so that a failure in it ends the script.
while read -r path package; do
    take_library "$path" "$package"
done < <(needed | packages_of) > "$stage/packages"
take_data >> "$stage/packages"
tell_packages < <(sort -u "$stage/packages")
rm "$stage/packages"
while read -r file; do set_path "$file"; done < <(built)
glibc > "$stage/build/lib/glibc"
for test in ${LONE_TESTS-}; do
    echo "${test##*/}"
done > "$stage/build/lone-tests.txt"
cp deploy/bundle/* "$stage/"
git rev-parse HEAD > "$stage/build/commit.txt"
expect_closed
[[ $pack == folder ]] && exit

declare -A packers=([gz]="gzip -9n" [xz]="xz -9 -T1")
tar --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$(git log -1 --format=%ct)" -C "$build" -cf - "$name" |
    ${packers[$pack]} > "$build/$name.tar.$pack" || fail "no archive"
rm -rf "$stage"
ls -sh "$build/$name.tar.$pack"
