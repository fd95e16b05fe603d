#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains with a chief, two servers and two workers, all on this machine:
#   deploy/demo.sh CAPSTAN            Fashion-MNIST
#   deploy/demo.sh CAPSTAN CLICK_LOG  deepfm and linear on a click log, with
#                                     tables on the ps; CLICK_LOG writes the log
#
# The jobs write to deploy/run and deploy/run-sparse. The files of an earlier demo
# there are removed; if there are other files, the demo stops with exit code 2.
set -u
capstan=${1:?the path of the capstan binary}
click_log=${2:-}
target=demo${click_log:+-sparse}
run=deploy/run${click_log:+-sparse}
made=.made-by-the-demo # each file that the demo left, its size and its time

list_files() {
    find "$run" ! -type d ! -name "$made" -printf '%P\t%s\t%T@\n' |
        LC_ALL=C sort
}

# Finds a file that the demo did not make, or that was written after it.
find_other() {
    LC_ALL=C comm -13 <(cat "$run/$made" 2> /dev/null) <(list_files) |
        head -n 1 | cut -f 1
}

note_files() {
    [[ -d $run ]] && list_files > "$run/$made"
}

start_over() {
    local other
    [[ -e $run || -L $run ]] || return
    other=$(find_other)
    if [[ $other || -L $run || ! -d $run ]]; then
        cat >&2 << END
demo: $run holds what the demo has not made${other:+: $run/$other}
      It would start over there and remove all of it. Move $run elsewhere, or
      remove it yourself (rm -r $run), and run \`make $target\` again.
END
        exit 2
    fi
    echo "Removing $run: what the demo before has left."
    rm -rf "$run"
}

exec 3>&1
show() {
    echo "+ $*" >&3
    "$@"
}

fashion_mnist() {
    local job=deploy/fashion-mnist.json
    show "$capstan" local --ps 2 --workers 2 "$job" || exit
    cat << END

Left behind:
  $run/checkpoint         the checkpoint:  $capstan ckpt ls $run/checkpoint
  $run/events             for TensorBoard: tensorboard --logdir $run/events
  $run/model.safetensors  the weights, for PyTorch and others

What to try next:
  the same model, no worker waiting for the other:
    $capstan local --ps 2 --workers 2 $job \\
        --set strategy.staleness=inf --set scheduler.params.warmup_max_lr=0.02 \\
        --set checkpoint.dir=async/checkpoint \\
        --set tensorboard.output_path=async/events \\
        --set export.path=async/model.safetensors
  Ctrl-C while that trains, then the same line again: it resumes
  (make demo starts over; it removes $run only if its own run made all of it)
  four terminals with nothing but TF_CONFIG set: docs/first-hour.md
END
}

# Writes COUNT rows from FIRST to FILE; prints how well the probabilities that
# the clicks were drawn with predict them.
write_clicks() {
    show "$click_log" --cardinality 100 --first "$1" --rows "$2" "$3" \
        2> "$run/truth" || {
        cat "$run/truth" >&2
        exit 1
    }
    cat "$run/truth"
}

# Trains the job of MODEL; the summary is $run/MODEL.json.
train() {
    show "$capstan" local --ps 2 --workers 2 --json "deploy/click-log-$1.json" \
        > "$run/$1.json" || exit
}

# Of the summary of MODEL.
test_auc() {
    grep -o '"test_auc": *[0-9.]*' "$run/$1.json" | grep -o '[0-9.]*$'
}

clicks() {
    local best
    mkdir -p "$run"
    write_clicks 0 400000 "$run/train.tsv"
    write_clicks 400000 50000 "$run/test.tsv"
    best=$(grep -o 'AUC [0-9.]*' "$run/truth" | grep -o '[0-9.]*$')
    rm "$run/truth"
    train linear
    train deepfm
    show "$capstan" ckpt ls "$run/linear"
    printf '\nAUC of the test rows:\n'
    printf '  %-14s %.4f\n' linear "$(test_auc linear)" deepfm \
        "$(test_auc deepfm)" 'best possible' "$best"
    cat << END
The best possible is that of the probabilities that the clicks were drawn with. They
depend on pairs of categories, for which linear has no weights.

What to try next:
  a table as a file:  $capstan ckpt export --table C1/factors $run/deepfm C1.csv
  what a model reads: $capstan data peek deploy/click-log-deepfm.json
  one epoch more, with three ps: the run resumes from its checkpoint
    $capstan local --ps 3 --workers 2 deploy/click-log-deepfm.json \\
        --set epochs=3 --set scheduler.params.total_num_steps=1173
  wide & deep, DLRM, features of your own data: docs/data.md, docs/models.md
END
}

start_over
trap note_files EXIT
if [[ $click_log ]]; then
    clicks
else
    fashion_mnist
fi
