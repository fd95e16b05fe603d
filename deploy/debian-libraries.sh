# SPDX-License-Identifier: Apache-2.0
# Sourced: the Debian packages of libraries, and their licences.

# Reads paths of libraries; prints "PATH PACKAGE", or "PATH" without a package.
# A package may list a path with or without /usr.
packages_of() {
    local path pair
    local -A package=() all=()
    while read -r path; do
        all[$path]=1
    done
    while read -r pair; do
        package[${pair##* }]=${pair%%[: ]*}
    done < <(for path in "${!all[@]}"; do
        printf '%s\0' "$path" "/usr$path" "${path#/usr}"
    done | xargs -0 dpkg-query -S 2> /dev/null)
    for path in "${!all[@]}"; do
        echo "$path" "${package[$path]-${package[/usr$path]-${package[${path#/usr}]-}}}"
    done
}

# Copies the licence of package $1 into folder $2, with the common licences that
# it refers to.
take_licence() {
    local common=/usr/share/common-licenses
    cp -L "/usr/share/doc/$1/copyright" "$2/$1" &&
        sed -n "s:.*\($common/[A-Za-z0-9.-]*[A-Za-z0-9]\).*:\1:p" "$2/$1" |
        sort -u | xargs -r cp -L -t "$2"
}
