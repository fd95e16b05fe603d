#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints, as text of C, what `capstan how` shows: for each framework the lines in
# which the example $1/NAME.py differs from $1/NAME_plain.py.
set -euo pipefail

pairs=(ddp=ddp horovod=horovod_mnist keras=keras_mnist trainer=bert_tiny
    lightning=lightning_mnist deepspeed=deepspeed_images)

echo "static const struct how { const char *name, *diff; } hows[] = {"
for pair in "${pairs[@]}"; do
    plain=${pair#*=}_plain.py ours=${pair#*=}.py
    echo "    {\"${pair%%=*}\","
    diff -u --label "$plain" --label "$ours" "$1/$plain" "$1/$ours" |
        sed 's/[\\"]/\\&/g; s/.*/     "&\\n"/' || [[ ${PIPESTATUS[0]} = 1 ]]
    echo "    },"
done
echo "};"
