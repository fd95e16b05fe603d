#!/usr/bin/env bash
# Trains Fashion-MNIST with a chief, two servers and two workers, all on this
# machine: deploy/demo.sh CAPSTAN
set -u
capstan=${1:?the path of the capstan binary}
job=deploy/fashion-mnist.json
run=deploy/run

if [[ -d $run ]]; then
    echo "Removing $run: what earlier runs of $job left."
    rm -rf "$run"
fi
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
        --set checkpoint.dir=run/async --set tensorboard.job_name=async \\
        --set export.path=run/async.safetensors
  Ctrl-C while that trains, then the same line again: it goes on from there
  (make demo begins anew: it removes $run)
  four terminals with nothing but TF_CONFIG set: README.md
END
