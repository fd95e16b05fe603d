#!/usr/bin/env bash
# Installs through apt what is missing of deploy/packages.txt.
#
#   deploy/deps.sh          to build and to run the demo
#   deploy/deps.sh test     to run the tests as well
#   deploy/deps.sh lint     to lay out the source
#
# Who may not install gets the one line to type, and exit code 1.
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

# Root installs; sudo is asked, for a password only where there is a terminal.
as_root=()
if ((EUID)); then
    as_root=(sudo)
    [[ -t 0 ]] || as_root+=(-n)
fi
install=(apt-get install -y --no-install-recommends "${missing[@]}")

echo "Installing: ${as_root[*]:+${as_root[*]} }${install[*]}"
export DEBIAN_FRONTEND=noninteractive
if { ((!EUID)) || command -v sudo > /dev/null; } &&
    "${as_root[@]}" apt-get -q update &&
    "${as_root[@]}" "${install[@]}"; then
    exit 0
fi
{
    echo
    echo "That did not work here. As someone who may install, type:"
    echo "  sudo apt-get update && sudo ${install[*]}"
} >&2
exit 1
