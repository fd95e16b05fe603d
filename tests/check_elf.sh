#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Are programs and libraries hardened (HARDENING in the Makefile)?
# tests/check_elf.sh FILE...; of a FILE.deb or FILE.whl those of Capstan in it.
# Names each FILE and what it lacks; exit 1: one lacks something.
set -u
[[ $# -ge 1 ]] || { sed -n '4s/^# //p' "$0" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# expect FILE WHAT PATTERN OPTION...: readelf's output with OPTIONs has PATTERN.
expect() {
    local file=$1 what=$2 pattern=$3
    shift 3
    readelf -W "$@" "$file" | grep -qE -- "$pattern" && return
    echo "${file##*/}: $what" >&2
    failed=1
}

check() {
    expect "$1" "functions are bound late" 'Flags:.* NOW' -d
    expect "$1" "no read-only table of functions" GNU_RELRO -l
    expect "$1" "an executable stack" 'GNU_STACK.* RW +0x' -l
    expect "$1" "no guard of the stack" __stack_chk_fail --dyn-syms
    expect "$1" "no bounds of buffers (FORTIFY)" '__[a-z]+_chk@' --dyn-syms
    expect "$1" "no CET" 'x86 feature: IBT, SHSTK' -n
    echo "${1##*/}"
}

for file; do
    case $file in
    *.deb) dpkg -x "$file" "$folder" ;;
    *.whl) python3 -m zipfile -e "$file" "$folder" ;;
    *) check "$file" ;;
    esac || exit
done
while read -r file; do
    check "$file"
done < <(find "$folder" -type f \( -name capstan -path '*/lib/*' -o \
    -name 'capstan-*.so' -o -name 'libcapstan.so.*' \))
exit $failed
