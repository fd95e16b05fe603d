#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains Fashion-MNIST with a chief, two servers and two workers, all on this
# machine: deploy/demo.sh CAPSTAN
#
# The job writes to deploy/run. The files of an earlier demo there are removed; if
# there are other files, the demo stops with exit code 2.
set -u
capstan=${1:?the path of the capstan binary}
job=deploy/fashion-mnist.json
run=deploy/run
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

if [[ -e $run || -L $run ]]; then
    other=$(find_other)
    if [[ $other || -L $run || ! -d $run ]]; then
        cat >&2 << END
demo: $run holds what the demo has not made${other:+: $run/$other}
      It would start over there and remove all of it. Move $run elsewhere, or
      remove it yourself (rm -r $run), and run \`make demo\` again.
END
        exit 2
    fi
    echo "Removing $run: what the demo before has left."
    rm -rf "$run"
fi
trap note_files EXIT
echo "+ $capstan local --ps 2 --workers 2 $job"
"$capstan" local --ps 2 --workers 2 "$job" || exit

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
  four terminals with nothing but TF_CONFIG set: README.md
END
