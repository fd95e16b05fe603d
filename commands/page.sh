#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the page $1 as text of C: PAGE_POLICY, which lets the page's one style and
# one script, if it has one, count by their hashes and nothing else, and page_text,
# which has that policy in place of the word POLICY.
set -euo pipefail

# The hash of what stands between the lines <$1> and </$1>, line ends included.
hash_of() {
    local sum
    sum=$({ echo; sed -n "/^<$1>\$/,/^<\/$1>\$/p" "$page" | sed '1d;$d'; } | sha256sum)
    # shellcheck disable=SC2059
    printf "$(sed 's/[ -].*//; s/../\\x&/g' <<< "$sum")" | base64
}

page=$1
scripts=$(grep -c '^<script>$' "$page" || true)
[[ $(grep -c '^<style>$' "$page") = 1 && $scripts -le 1 ]]
script= connect=
if [[ $scripts = 1 ]]; then
    script="script-src 'sha256-$(hash_of script)'; "
    connect="connect-src 'self'; "
fi
policy="default-src 'none'; ${script}style-src 'sha256-$(hash_of style)'; \
${connect}img-src data:; base-uri 'none'; form-action 'none'"
echo "#define PAGE_POLICY \"$policy\""
echo "static const char page_text[] ="
sed "s|POLICY|$policy|; s/[\\\\\"]/\\\\&/g; s/.*/    \"&\\\\n\"/" "$page"
echo "    ;"
