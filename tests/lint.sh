#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the compiler does not check of how the tree is built: each room includes
# only rooms before it, each role of the roles only itself, the simulator of them
# only what is pure; basenames and static functions are unique; no identifier has a
# word that the glossary replaces; a test that is skipped says why
# (tests/lib/skip.h); each source names the licence at its head; docs/design.md
# names only files that exist; the rooms of the chief call only rooms before them,
# and files call each other in no more circles than there are; flags, keys of the job
# and control messages have readers. Run from the root; a
# line for each offence.
set -u

offences() {
    git ls-files '*.c' '*.h' '*.cc' '*.cu' | awk '
    BEGIN {
        split("core/base core/net/shm core/net/link core/tensor core/rows core/store " \
              "proto/job proto/cluster proto/messages proto/plan proto/holder " \
              "worker/data,worker/ops,worker/collective,worker/exchange,ps/consistency,ps/units " \
              "worker/ops/cpu,worker/ops/cuda,worker/exchange/client " \
              "worker/models,worker/exchange/allreduce", levels, " ")
        for (i in levels)
            for (count = split(levels[i], names, ","); count; count--)
                order[names[count]] = i + 0
        # Rooms of a role that include each other.
        split("ps worker worker/train chief chief/control chief/plan " \
              "chief/snapshot chief/report", names, " ")
        for (i in names)
            order[names[i]] = together = 16
        split("commands/cli simulator commands/launch commands/measure commands " \
              "library", names, " ")
        for (i in names)
            order[names[i]] = together + i
        split("chief/plan/placement.h ps/consistency/update_core.h " \
              "ps/consistency/gate.h ps/consistency/ledger.h " \
              "worker/exchange/client/window.h", names, " ")
        for (i in names)
            pure[names[i]] = 1
        is_role["ps"] = is_role["worker"] = is_role["chief"] = 1
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
        if (from == "simulator" && is_role[role(to)] && !(included in pure))
            print file ":" line ": of the roles simulator/ includes what is pure"
        if (!(to in order))
            print file ":" line ": includes " included \
                ": from the root, as \"room/file.h\""
        else if (order[from] < order[to] ||
                 (order[from] == order[to] && order[to] != together) ||
                 (is_role[role(from)] && is_role[role(to)] && role(to) != role(from)))
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

# A backtrace shows no file: a static function has a name of its own.
shared_statics() {
    git ls-files '*.c' '*.cc' '*.cu' ':!tests' | xargs perl -0777 -ne '
        while (/^static\s[\w\s*]*?\b(\w+)\([^;{}]*\)\s*\{/mg) {
            print "$1 $ARGV\n"
        }' | sort -u | awk '
        $1 == name { print $2 ": " name "() is a static function of " file " too" }
        { name = $1; file = $2 }'
}

# Words that docs/design.md has standard terms for.
replaced_words() {
    git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.proto' | xargs perl -0777 -ne '
        BEGIN {
            $old{$_} = 1 for qw(crier ferry lender errand crew parcel parcels
                keeper keeping doors meeting tally told slopes forsaken
                unsaid poisoned voided agenda stranger strangers beat
                pace)
        }
        s!/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"!!gs;
        while (/\b([A-Za-z]\w*)\b/g) {
            my $name = $1;
            $seen{"$ARGV: $name: see the glossary of docs/design.md"} = 1
                if grep { $old{lc $_} } split /_/, $name
        }
        END { print map { "$_\n" } sort keys %seen }'
}

silent_skips() {
    git grep -nwE 'skip\(\)' -- 'tests/*.c' ':!tests/lib/skip.c' |
        sed 's/$/: skip_test() gives the reason/'
}

unlicensed() {
    git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.proto' '*.map' '*.sh' '*.py' \
        '*Makefile' '*.mk' .ci/run 'deploy/bundle/*' ':!*.md' | xargs awk '
    function tell() {
        if (file != "" && !named)
            print file ": no SPDX-License-Identifier: Apache-2.0 in line 1," \
                " or 2 after #!"
    }
    FNR == 1 { tell(); file = FILENAME; named = 0 }
    FNR <= 2 && /SPDX-License-Identifier: Apache-2.0/ { named = 1 }
    END { tell() }'
}

# A file that docs/design.md names is in the tree: by its path, or by its name
# alone where one file has it.
unknown_files() {
    git ls-files | awk -v page=docs/design.md '
    {
        name = $0
        sub("^.*/", "", name)
        path[$0] = 1
        files[name]++
    }
    END {
        named = "[A-Za-z0-9_./-]+[.](c|cc|cu|h|proto|sh|txt|json)"
        for (line = 1; (getline text < page) > 0; line++)
            while (match(text, named)) {
                file = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
                if (text ~ /^[A-Za-z0-9_]/ || file in path)
                    continue
                if (!files[file])
                    print page ":" line ": names " file ", which is not there"
                else if (files[file] > 1)
                    print page ":" line ": names " file ", of which there are " \
                        files[file]
            }
    }'
}

found=$(offences; shared_statics; replaced_words; silent_skips; unlicensed;
    unknown_files; python3 tests/circles.py check || echo "tests/circles.py failed"
    python3 tests/readers.py || echo "tests/readers.py failed")
[[ -z $found ]] && exit 0
echo "$found"
exit 1
