#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the compiler does not check of how the tree is built: each room
# includes only rooms before it, each role only proto/ and itself, the model
# only proto/, itself and what is pure in the roles; basenames are unique; a
# test that is skipped says why (tests/skip.h); each source names the licence
# at its head. Run from the root; a line for each offence.
set -u

offences() {
    git ls-files '*.c' '*.h' '*.cc' '*.cu' | awk '
    BEGIN {
        split("base conf wire math store", names)
        for (i in names)
            order["proto/" names[i]] = i + 0
        split("data ops client collective bench", names)
        for (i in names)
            order["worker/" names[i]] = 6
        order["worker/reduce"] = order["chief/launch"] = 7
        order["ps"] = order["worker"] = order["chief"] = 8
        order["chief/compare"] = 9
        order["model"] = 10
        split("chief/placement.h ps/exchange.h ps/gate.h " \
              "ps/ledger.h worker/client/window.h", names)
        for (i in names)
            core[names[i]] = 1
    }
    function room(path) {
        return sub("/[^/]*$", "", path) ? path : ""
    }
    function role(path) {
        sub("/.*", "", path)
        return path
    }
    function check(file, line, from, included,  to) {
        to = room(included)
        if (to == from || !(from in order))
            return
        if (from == "model" && order[to] >= 6 && !(included in core))
            print file ":" line ": of the roles model/ includes what is pure"
        if (!(to in order))
            print file ":" line ": includes " included \
                ": from the root, as \"room/file.h\""
        else if (order[from] <= order[to] || (from != "model" &&
                 role(to) != "proto" && role(to) != role(from)))
            print file ":" line ": " from "/ may not include " to "/"
    }
    {
        file = $0
        from = room(file)
        stem = file
        gsub("^.*/|[.](c|h|cc|cu)$", "", stem)
        if (stem in home && home[stem] != from)
            print file ": " home[stem] "/ has a file of that name already"
        home[stem] = from
        for (line = 1; (getline text < file) > 0; line++)
            if (match(text, "^#include \"[^\"]*\""))
                check(file, line, from, substr(text, 11, RLENGTH - 11))
        close(file)
    }'
}

silent_skips() {
    git grep -nwE 'skip\(\)' -- 'tests/*.c' ':!tests/skip.c' |
        sed 's/$/: skip_test() gives the reason/'
}

unlicensed() {
    git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.proto' '*.map' '*.sh' '*.py' \
        '*Makefile' .ci/run 'deploy/bundle/*' ':!*.md' | xargs awk '
    function tell() {
        if (file != "" && !named)
            print file ": no SPDX-License-Identifier: Apache-2.0 in line 1," \
                " or 2 after #!"
    }
    FNR == 1 { tell(); file = FILENAME; named = 0 }
    FNR <= 2 && /SPDX-License-Identifier: Apache-2.0/ { named = 1 }
    END { tell() }'
}

found=$(offences; silent_skips; unlicensed)
[[ -z $found ]] && exit 0
echo "$found"
exit 1
