#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the missing packages of deploy/packages.txt through apt.
#
#   deploy/deps.sh          to build and to run the demo
#   deploy/deps.sh test     to run the tests as well
#   deploy/deps.sh all      and to run those that need more, such as Slurm and
#                           MUNGE, which Debian enables as services
#   deploy/deps.sh bundle   to pack a build
#   deploy/deps.sh deb      to pack it as packages of Debian
#   deploy/deps.sh lint     to format the source
#   deploy/deps.sh fuzz     to fuzz the parsers
#   deploy/deps.sh --list [test]
#                           installs nothing: exit code 1 if a package for
#                           building (or for the tests) is missing, with the
#                           command to type
#
# A user who may not install packages gets the reason, the command to type, and
# exit code 1.
set -u
cd "$(dirname "$0")" || exit 1

case ${1-} in
'') whens='build demo' ;;
test) whens='build demo test' ;;
all) whens='build demo test bundle deb all' ;;
bundle) whens='build demo test bundle' ;;
deb) whens='build deb' ;;
lint) whens='build lint' ;;
fuzz) whens='build fuzz' ;;
--list) whens="build ${2-}" ;;
*)
    echo "deps: $1: test, all, bundle, deb, lint, fuzz or --list" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query > /dev/null; then
    echo "deps: no dpkg here; the libraries that Capstan needs are listed" \
        "in deploy/packages.txt" >&2
    exit 0
fi

missing=()
while read -r package when what; do
    [[ $package != '#'* && " $whens " == *" $when "* ]] || continue
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)
    [[ $state == installed ]] && continue
    ((${#missing[@]})) || echo "Missing on this machine:"
    printf '  %-22s %s\n' "$package" "$what"
    missing+=("$package")
done < packages.txt
((${#missing[@]})) || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")

# Prints the reason, the command to type and the user who may run it.
give_up() {
    local sudo='' who=''
    if ((EUID)) && command -v sudo > /dev/null; then
        sudo='sudo '
    elif ((EUID)); then
        who=' as root'
    fi
    {
        echo
        echo "$1. To install them, type$who:"
        echo "  ${sudo}apt-get update && $sudo${install[*]}"
    } >&2
    exit 1
}
[[ ${1-} == --list ]] && give_up "Nothing is built without them"

# Root installs directly, other users through sudo, which asks for a password only
# on a terminal.
as_root=()
if ((EUID)); then
    as_root=(sudo)
    [[ -t 0 ]] || as_root+=(-n)
    command -v sudo > /dev/null ||
        give_up "Not installed: $(id -un) may not, and there is no sudo here"
    "${as_root[@]}" true ||
        give_up "Not installed: sudo does not let $(id -un) do it"
fi
echo "Installing: ${as_root[*]:+${as_root[*]} }${install[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get -q update &&
    "${as_root[@]}" "${install[@]}" ||
    give_up "Not installed: apt-get failed, for what it says above"
