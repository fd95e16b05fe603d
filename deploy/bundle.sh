#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a build for machines without compiler and network:
# deploy/bundle.sh BUILD [gz | xz | folder | gpu | gpu-folder]
#
# Makes BUILD/capstan-VERSION-bundle.tar.gz, or .tar.xz, half as large, or only
# the folder of that name. It contains the sources as committed and, in build/, the
# program, its plugins, the library, the tests and benchmarks in BUILD, and the
# Debian libraries that they need; the manual, completion and header beside build/.
# A program finds these libraries relative to itself (DT_RPATH, $ORIGIN) and does not
# pass them on to other programs. The host provides glibc with the loader, libstdc++
# and libgcc if it has them, and all NVIDIA libraries (deploy/host-libs.sh). Every
# machine has tar and gzip, but not always xz.
#
# gpu: BUILD/capstan-VERSION-gpu-bundle.tar.xz, of at most 30 MB, or the folder: of
# these only what deploy/gpu-check.sh and gpu-bench.sh need and the Python package,
# and data that is made here instead of Fashion-MNIST.
#
# LONE_TESTS: the tests that run alone; GPU_CHECKED: those of deploy/gpu-check.sh.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
. deploy/debian-libraries.sh
build=${1:?the folder that make built}
pack=${2:-gz}
version=$(sed -n 's/.*VERSION_TEXT "\(.*\)"/\1/p' core/base/version.h)
name=capstan-$version-bundle
[[ $pack == gpu* ]] && name=capstan-$version-gpu-bundle
stage=$build/$name

fail() {
    echo "bundle: $*" >&2
    exit 1
}
for tool in git make patchelf strip ldd dpkg-query objdump; do
    command -v "$tool" > /dev/null || fail "there is no $tool on this machine"
done
[[ $pack =~ ^(gz|xz|folder|gpu|gpu-folder)$ ]] ||
    fail "$pack: gz, xz, folder, gpu or gpu-folder"
[[ -x $build/capstan ]] || fail "no $build/capstan: make all"
[[ $pack != gpu* || -e $build/capstan-cuda.so ]] ||
    fail "no $build/capstan-cuda.so, which GPUs need: build it where nvcc is"
git diff --quiet HEAD 2> /dev/null ||
    echo "bundle: warning: what was built may differ from the sources, which" \
        "are those of $(git rev-parse --short HEAD)" >&2

take_sources() {
    local only=()
    [[ $pack == gpu* ]] && only=(LICENSE README.md docs/gpu.md deploy/*.sh
        deploy/*.json python tests/run.sh tests/gpu/training.sh)
    git archive HEAD "${only[@]}" | tar -x -C "$stage" || fail "no sources"
}

# The programs and plugins in BUILD, and the links that are tests.
chosen() {
    local test more=(tests/* bench/*_bench fake/* emulated/*)
    if [[ $pack == gpu* ]]; then
        more=(bench/{gpu_bench,click_log})
        for test in ${GPU_CHECKED-}; do
            more+=("tests/$test" "tests/$(readlink "tests/$test")")
        done
    fi
    find capstan capstan-*.so libcapstan.so.? gpu/*_test "${more[@]}" \
        -maxdepth 0 ! -type d 2> /dev/null
}

# All without debug information.
take_built() {
    local file
    while read -r file; do
        mkdir -p "$(dirname "$stage/build/$file")"
        if [[ -L $build/$file ]]; then
            cp -P "$build/$file" "$stage/build/$file"
        else
            strip -g -o "$stage/build/$file" "$build/$file"
        fi || fail "cannot take $file"
    done < <(cd "$build" && chosen)
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
    # Callers of the library are in a folder beside it.
    [[ $folder == */* ]] && path='$ORIGIN/../lib:$ORIGIN/..'
    case $folder in
    *.so | *.so.*) [[ $folder =~ capstan-(gloo|bench)|libcapstan ]] || return 0 ;;
    esac
    patchelf --force-rpath --set-rpath "$path" "$1" || fail "cannot set $1"
}

# The data of the jobs in deploy/, from the folders that the jobs name.
take_data() {
    local from=/usr/share/datasets/fashion-mnist to=datasets/fashion-mnist
    mkdir -p "$stage/datasets"
    if [[ $pack == gpu* ]]; then
        to=datasets/patterns
        make_patterns "$stage/$to" || fail "cannot make $to"
    else
        [[ -d $from ]] || fail "there is no $from: make deps"
        cp -rL "$from" "$stage/datasets/" || fail "cannot take $from"
        echo dataset-fashion-mnist
    fi
    sed -i "s:\"$from\":\"../$to\":" "$stage"/deploy/*.json ||
        fail "cannot name $to in the jobs"
}

# Files of Fashion-MNIST's names and sizes that a model can learn, and that gzip
# packs to a fiftieth: each of the ten classes is one picture, moved by up to 7
# pixels.
make_patterns() {
    mkdir -p "$1" && perl -e '
        srand 1;
        @picture = map { pack "C*", map { int rand 256 } 1 .. 784 } 1 .. 10;
        for (["train", 60000], ["t10k", 10000]) {
            ($name, $count) = @$_;
            ($images, $labels) = map { open my $file, "|-",
                "gzip -9n > \"$ARGV[0]/$name-$_-ubyte.gz\"" or die; $file }
                "images-idx3", "labels-idx1";
            print $images pack "N4", 2051, $count, 28, 28;
            print $labels pack "N2", 2049, $count;
            for (1 .. $count) {
                $class = int rand 10;
                $by = int rand 8;
                print $images substr($picture[$class], $by),
                    substr $picture[$class], 0, $by;
                print $labels chr $class;
            }
            close $_ or die for $images, $labels;
        }' "$1"
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
mkdir -p "$stage/build/lib/gcc"
take_sources
take_built
[[ $pack == gpu* ]] || take_installed
# No loop here is the end of a pipe, so that a failure in it ends the script.
while read -r path package; do
    take_library "$path" "$package"
done < <(needed | packages_of) > "$stage/packages"
take_data >> "$stage/packages"
tell_packages < <(sort -u "$stage/packages")
rm "$stage/packages"
while read -r file; do set_path "$file"; done < <(built)
glibc > "$stage/build/lib/glibc"
if [[ $pack == gpu* ]]; then
    cp deploy/bundle/{capstan,gpu-bench,gpu-check} "$stage/"
    cp deploy/bundle-gpu.md "$stage/BUNDLE.md"
else
    for test in ${LONE_TESTS-}; do
        echo "${test##*/}"
    done > "$stage/build/lone-tests.txt"
    cp deploy/bundle/* "$stage/"
fi
git rev-parse HEAD > "$stage/build/commit.txt"
expect_closed
[[ $pack == *folder ]] && exit

declare -A packers=([gz]="gzip -9n" [xz]="xz -9 -T1" [gpu]="xz -9 -T1")
archive=$build/$name.tar.${pack/gpu/xz}
tar --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$(git log -1 --format=%ct)" -C "$build" -cf - "$name" |
    ${packers[$pack]} > "$archive" || fail "no archive"
rm -rf "$stage"
size=$(stat -c %s "$archive")
[[ $pack != gpu ]] || ((size <= 30000000)) ||
    fail "$archive has $size bytes; a GPU bundle has at most 30000000"
ls -sh "$archive"
