#!/usr/bin/env bash
# Installs through apt what is missing of deploy/packages.txt.
#
#   deploy/deps.sh          to build and to run the demo
#   deploy/deps.sh test     to run the tests as well
#   deploy/deps.sh lint     to lay out the source
#   deploy/deps.sh --list   installs nothing: exit code 1 when something that
#                           building needs is missing, with a list
#
# Who may not install gets the reason, the one line to type, and exit code 1.
set -u
cd "$(dirname "$0")" || exit 1

if ! command -v dpkg-query > /dev/null; then
    echo "deps: no dpkg here; the libraries that Capstan needs are listed" \
        "in deploy/packages.txt" >&2
    exit 0
fi

missing=()
while read -r package when what; do
    [[ $package == '#'* ]] && continue
    [[ $when == build || $when == "${1-}" ]] || continue
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)
    [[ $state == installed ]] && continue
    ((${#missing[@]})) || echo "Missing on this machine:"
    printf '  %-22s %s\n' "$package" "$what"
    missing+=("$package")
done < packages.txt
((${#missing[@]})) || exit 0
if [[ ${1-} == --list ]]; then
    echo "\`make deps\` installs them through apt."
    exit 1
fi

# Root installs; sudo is asked, for a password only where there is a terminal.
as_root=()
if ((EUID)); then
    as_root=(sudo)
    [[ -t 0 ]] || as_root+=(-n)
fi
install=(apt-get install -y --no-install-recommends "${missing[@]}")

# Why it did not work here, then the line to type, by whom.
give_up() {
    local sudo='' who=''
    if ((EUID)) && command -v sudo > /dev/null; then
        sudo='sudo '
    elif ((EUID)); then
        who=' as root'
    fi
    {
        echo
        echo "Not installed: $1. To install them, type$who:"
        echo "  ${sudo}apt-get update && $sudo${install[*]}"
    } >&2
    exit 1
}

if ((EUID)); then
    command -v sudo > /dev/null ||
        give_up "$(id -un) may not, and there is no sudo here"
    "${as_root[@]}" true || give_up "sudo does not let $(id -un) do it"
fi
echo "Installing: ${as_root[*]:+${as_root[*]} }${install[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get -q update &&
    "${as_root[@]}" "${install[@]}" ||
    give_up "apt-get failed, for what it says above"
