# SPDX-License-Identifier: Apache-2.0
# Sourced: finds the host's libraries that Capstan does not contain. Sets
# LD_LIBRARY_PATH so that programs of the folder $build find them, and prints
# where each was found.
#
#   The driver, CUDA's runtime and cuBLAS (capstan-cuda.so), NCCL (capstan-nccl.so): in
#   the loader's folders, else below /usr/local/cuda*, in PyPI's nvidia/
#   folders of the installed Pythons. CAPSTAN_CUDA_LIBS, folders separated by
#   colons, comes before all of them.
#   libstdc++ and libgcc: the host's, because other libraries of the host may need
#   them, and they are new enough if glibc is; else those of $build/lib/gcc.
#
# If host_libs_quiet is set, only fatal errors are printed.

# Folders that may contain CUDA's libraries, best first.
host_libs_folders() {
    local root python
    tr : '\n' <<< "${CAPSTAN_CUDA_LIBS-}"
    for root in /usr/local/cuda-"$1"* /usr/local/cuda /opt/cuda; do
        printf '%s\n' "$root"/lib64 "$root"/lib "$root"/targets/x86_64-linux/lib
    done
    printf '%s\n' /usr/local/nvidia/{lib64,lib} "${CONDA_PREFIX-/nowhere}"/lib
    {
        for python in python3 python "${VIRTUAL_ENV-/nowhere}"/bin/python; do
            "$python" -c 'import sys; print("\n".join(filter(None, sys.path)))'
        done 2> /dev/null
        printf '%s\n' /usr/{local/,}lib/python3*/{site,dist}-packages \
            /opt/{*/,}{.venv,venv}/lib/python3*/site-packages \
            ~/.local/lib/python3*/site-packages
    } | while read -r root; do
        printf '%s\n' "$root"/nvidia/{cu"$1",cuda_runtime,cublas,nccl}/lib
    done
}

# The path at which the loader finds library $1, or nothing.
host_libs_known() {
    local folder
    while read -r folder; do
        [[ -n $folder && -e $folder/$1 ]] && echo "$folder/$1" && return
    done <<< "${LD_LIBRARY_PATH+${LD_LIBRARY_PATH//:/$'\n'}}"
    { ldconfig -p || /sbin/ldconfig -p; } 2> /dev/null |
        awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }'
}

# Prints where library $1 is; $2 is its name for people.
host_libs_find() {
    local found folder
    [[ -n ${CAPSTAN_CUDA_LIBS-} ]] || found=$(host_libs_known "$1")
    if [[ -z ${found-} ]]; then
        while read -r folder; do
            [[ -n $folder && -e $folder/$1 ]] || continue
            found=$folder/$1
            LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
            break
        done < <(host_libs_folders "$host_libs_major")
    fi
    [[ -n ${found-} ]] || found=$(host_libs_known "$1")
    [[ -n ${host_libs_quiet-} ]] ||
        echo "$2: ${found:-no $1 here (docs/gpu.md says where it is looked for)}" >&2
}

# Ends the program if the host is too old for the build.
host_libs_glibc() {
    local needed here
    needed=$(cat "$build/lib/glibc" 2> /dev/null) || return 0
    here=$(getconf GNU_LIBC_VERSION 2> /dev/null)
    here=${here##* }
    [[ $(printf '%s\n' "$needed" "${here:-0}" | sort -V | head -n 1) \
        == "$needed" ]] && return
    echo "This was built for glibc $needed or newer (Debian 12, Ubuntu" \
        "24.04); here is ${here:-none}. Build it here: make" >&2
    exit 2
}

host_libs_glibc
if [[ -d $build/lib/gcc && -z $(host_libs_known libstdc++.so.6) ]]; then
    LD_LIBRARY_PATH=$(realpath "$build/lib/gcc")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
host_libs_major=$(grep -aom 1 'libcudart\.so\.[0-9]*' \
    "$build/capstan-cuda.so" 2> /dev/null | head -n 1)
host_libs_major=${host_libs_major##*.}
if [[ -n $host_libs_major ]]; then
    host_libs_find libcuda.so.1 "the driver"
    host_libs_find "libcudart.so.$host_libs_major" "CUDA's runtime"
    host_libs_find "libcublas.so.$host_libs_major" "cuBLAS"
    [[ -e $build/capstan-nccl.so ]] && host_libs_find libnccl.so.2 "NCCL"
elif [[ -z ${host_libs_quiet-} ]]; then
    echo "$build has no capstan-cuda.so: it was built where nvcc or cuBLAS's" \
        "headers were missing" >&2
fi
[[ -z ${LD_LIBRARY_PATH-} ]] || export LD_LIBRARY_PATH

# The reason why no GPU can be used, or nothing.
host_libs_no_gpu() {
    local said
    said=$("$build/capstan" info --json 2>&1)
    [[ $said == *'{"name":"cuda","available":true'* ]] && return
    sed -n 's/.*{"name":"cuda","available":false,"reason":"\([^"]*\)".*/\1/p' \
        <<< "$said" | grep . || echo "capstan info says: ${said:-nothing}"
}
