# SPDX-License-Identifier: Apache-2.0
"""Trains the model of cluster_numeric_test.c by NumPy, in double precision.

cluster_numeric.py FOLDER FROM TO ROUNDS BATCH RATE TOLERANCE: from the weights
of FOLDER/FROM.safetensors on ROUNDS of SGD must lead to those of
FOLDER/TO.safetensors, to TOLERANCE of each parameter's norm.
"""
import json
import sys

import numpy

folder, start, end = sys.argv[1:4]
rounds, batch = map(int, sys.argv[4:6])
rate, tolerance = map(float, sys.argv[6:8])


def load(name):
    with open(f"{folder}/{name}.safetensors", "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    tensors = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            floats = numpy.frombuffer(data[first:last], "<f4")
            tensors[name] = floats.astype(float).reshape(tensor["shape"])
    return tensors


def gradients(model, pixels, labels):
    layers = len(model) // 2
    inputs, gradient = [pixels], {}
    for layer in range(layers):
        weight, bias = model[f"layer{layer}.weight"], model[f"layer{layer}.bias"]
        sums = inputs[-1] @ weight.T + bias
        inputs.append(numpy.tanh(sums) if layer + 1 < layers else sums)
    delta = numpy.exp(inputs[-1])
    delta /= delta.sum(axis=1, keepdims=True)
    delta[numpy.arange(len(labels)), labels] -= 1
    delta /= len(labels)
    for layer in reversed(range(layers)):
        gradient[f"layer{layer}.weight"] = delta.T @ inputs[layer]
        gradient[f"layer{layer}.bias"] = delta.sum(axis=0)
        delta = delta @ model[f"layer{layer}.weight"]
        delta *= 1 - inputs[layer] ** 2
    return gradient


labels = numpy.fromfile(f"{folder}/train-labels", "u1")[8:]
pixels = numpy.fromfile(f"{folder}/train-images", "u1")[16:]
pixels = pixels.reshape(len(labels), -1) / 255
model, expected = load(start), load(end)
for r in range(rounds):
    chosen = numpy.arange(r * batch, (r + 1) * batch) % len(labels)
    for name, gradient in gradients(model, pixels[chosen],
                                    labels[chosen]).items():
        model[name] -= rate * gradient
for name in expected:
    difference = numpy.linalg.norm(model[name] - expected[name])
    if not difference <= tolerance * numpy.linalg.norm(model[name]):
        sys.exit(f"{name} differs by {difference} of NumPy's")
