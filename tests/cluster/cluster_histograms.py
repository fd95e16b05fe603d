# SPDX-License-Identifier: Apache-2.0
"""Runs of capstan whose histograms of TensorBoard's are read back here, by the
field numbers of TensorFlow's messages, and compared with exported weights:

    cluster_histograms.py CAPSTAN FOLDER [DEVICE]

The oracle counts values one by one."""
import bisect
import glob
import json
import math
import os
import random
import struct
import subprocess
import sys
import unittest

CAPSTAN, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DEVICE = sys.argv[3] if len(sys.argv) > 3 else 'cpu'
LAYERS = [128, 512, 2]  # the first weights are four blocks
RATE = 0.5


def write_idx(path, shape, values):
    with open(f'{FOLDER}/{path}', 'wb') as file:
        file.write(struct.pack(f'>BBBB{len(shape)}I', 0, 0, 8, len(shape),
                               *shape) + bytes(values))


def write_data():
    numbers = random.Random(1)
    write_idx('images', [64, 1, LAYERS[0]],
              [numbers.randrange(256) for _ in range(64 * LAYERS[0])])
    write_idx('labels', [64], [numbers.randrange(2) for _ in range(64)])


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """Each number with its values: ints, or bytes."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def doubles(data):
    return list(struct.unpack(f'<{len(data) // 8}d', data))


class Histogram:
    def __init__(self, data):
        field = fields(data)
        self.least, self.most, self.num, self.sum, self.squares = (
            doubles(field[n][0])[0] if n in field else 0.0
            for n in range(1, 6))
        self.limits, self.counts = doubles(field[6][0]), doubles(field[7][0])

    def __eq__(self, other):
        return vars(self) == vars(other)


def read_values(folder):
    """Of each event its step, whether it is a restart, and its values' fields."""
    for path in sorted(glob.glob(f'{folder}/events.out.tfevents.*')):
        with open(path, 'rb') as file:
            data = file.read()
        at = 0
        while at < len(data):
            size = struct.unpack_from('<Q', data, at)[0]
            event = fields(data[at + 12:at + 12 + size])
            at += size + 16
            values = fields(event[5][0]).get(1, []) if 5 in event else []
            yield event.get(2, [0])[0], 7 in event, map(fields, values)


def read_events(folder):
    """By tag and step all histograms that there are, and the other tags."""
    histograms, scalars, restarts = {}, {}, []
    for step, is_restart, values in read_values(folder):
        if is_restart:
            restarts.append(step)
        for value in values:
            tag = value[1][0].decode()
            if 5 in value:
                histograms.setdefault((tag, step), []).append(
                    Histogram(value[5][0]))
            else:
                scalars.setdefault(tag, []).append(step)
    return histograms, scalars, restarts


def read_scalars(folder):
    """By tag, and by step, each number that is no histogram."""
    found = {}
    for step, _, values in read_values(folder):
        for value in values:
            if 2 in value:
                found.setdefault(value[1][0].decode(), {})[step] = \
                    struct.unpack('<f', value[2][0])[0]
    return found


def read_weights(path):
    with open(path, 'rb') as file:
        data = file.read()
    size = struct.unpack_from('<Q', data)[0]
    found = {}
    for name, about in json.loads(data[8:8 + size]).items():
        if name != '__metadata__':
            begin, end = (8 + size + n for n in about['data_offsets'])
            found[name] = struct.unpack(f'<{(end - begin) // 4}f',
                                        data[begin:end])
    return found


class Histograms(unittest.TestCase):
    def train(self, name, ps, steps, **keys):
        job = {'model': {'type': 'mlp', 'layers': LAYERS},
               'data': {'format': 'idx', 'train': ['images', 'labels']},
               'seed': 1, 'steps': steps, 'device': DEVICE,
               'train_micro_batch_size_per_gpu': 4,
               'optimizer': {'type': 'SGD', 'params': {'lr': RATE}},
               'tensorboard': {'enabled': True, 'output_path': f'{name}.tb',
                               'histogram_every_steps': 5},
               'export': {'path': f'{name}-{steps}.safetensors'}, **keys}
        with open(f'{FOLDER}/job.json', 'w') as file:
            json.dump(job, file)
        run = subprocess.run(
            [CAPSTAN, 'local', '--ps', str(ps), '--workers', '2', 'job.json'],
            cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn('histograms_incomplete', run.stderr)
        self.assertNotIn('histograms were not written', run.stderr)
        return read_events(f'{FOLDER}/{name}.tb')[0]

    def expect_weights(self, histogram, values):
        self.assertEqual(
            (histogram.num, histogram.least, histogram.most),
            (len(values), min(values), max(values)))
        self.assertTrue(math.isclose(histogram.sum, math.fsum(values),
                                     rel_tol=1e-9, abs_tol=1e-9))
        self.assertTrue(math.isclose(histogram.squares,
                                     math.fsum(v * v for v in values),
                                     rel_tol=1e-12))
        counts = [0] * len(histogram.limits)
        for value in values:  # a bin has its end that is nearer to 0
            side = bisect.bisect_left if value <= 0 else bisect.bisect_right
            counts[side(histogram.limits, value)] += 1
        self.assertEqual(counts, histogram.counts)

    def test_weights_are_counted_like_the_exported_ones(self):
        for name, ps, keys in [
                ('one', 1, {}), ('three', 3, {}), ('ranks', 0, {}),
                ('zero', 0, {'optimizer': {'type': 'Adam', 'params': {
                    'lr': 0.01}}, 'zero_optimization': {'stage': 2}}),
                ('wire', 3, {'wire': 'bf16'})]:
            with self.subTest(name):
                histograms = self.train(name, ps, 10, **keys)
                weights = read_weights(f'{FOLDER}/{name}-10.safetensors')
                self.assertEqual(len(weights), 4)
                self.assertEqual(
                    set(histograms),
                    {(f'{kind}/{parameter}', step) for step in (5, 10)
                     for kind in ('weights', 'gradients')
                     for parameter in weights})
                for parameter, values in weights.items():
                    (histogram,) = histograms[f'weights/{parameter}', 10]
                    self.expect_weights(histogram, values)

    def test_they_are_the_same_with_any_number_of_ps_and_without(self):
        one = self.train('same-1', 1, 10)
        self.assertEqual(one, self.train('same-3', 3, 10))
        ranks = self.train('same-0', 0, 10)
        self.assertEqual(set(one), set(ranks))
        for key, (histogram,) in one.items():
            other = ranks[key][0]
            for name in 'least', 'most', 'num', 'limits', 'counts':
                self.assertEqual(getattr(histogram, name),
                                 getattr(other, name), (key, name))
            for name in 'sum', 'squares':  # a rank's piece may cut a block
                self.assertTrue(math.isclose(
                    getattr(histogram, name), getattr(other, name),
                    rel_tol=1e-9, abs_tol=1e-9), (key, name))

    def test_gradients_are_those_that_the_rule_has_taken(self):
        for name, ps in ('clipped-ps', 2), ('clipped-ranks', 0):
            with self.subTest(name):
                limit = 0.01
                self.train(name, ps, 9, gradient_clipping=limit)
                histograms = self.train(name + '-10', ps, 10,
                                        gradient_clipping=limit)
                before = read_weights(f'{FOLDER}/{name}-9.safetensors')
                after = read_weights(f'{FOLDER}/{name}-10-10.safetensors')
                squares = 0
                for parameter, values in after.items():
                    (seen,) = histograms[f'gradients/{parameter}', 10]
                    steps = [(b - a) / RATE for b, a in zip(before[parameter],
                                                            values)]
                    near = {'rel_tol': 1e-2, 'abs_tol': 1e-6}
                    self.assertEqual(seen.num, len(values))
                    self.assertTrue(math.isclose(seen.least, min(steps),
                                                 **near))
                    self.assertTrue(math.isclose(seen.most, max(steps),
                                                 **near))
                    self.assertTrue(math.isclose(
                        seen.squares, math.fsum(s * s for s in steps),
                        **near))
                    squares += seen.squares
                self.assertTrue(math.isclose(math.sqrt(squares), limit,
                                             rel_tol=1e-3))

    def test_a_resumed_run_has_no_step_twice(self):
        checkpoint = {'dir': 'resumed.checkpoints', 'every_steps': 10}
        self.train('resumed', 2, 10, checkpoint=checkpoint)
        histograms = self.train('resumed', 2, 20, checkpoint=checkpoint)
        self.assertEqual({step for _, step in histograms}, {5, 10, 15, 20})
        self.assertEqual({len(found) for found in histograms.values()}, {1})
        self.assertEqual(read_events(f'{FOLDER}/resumed.tb')[2], [11])

    def test_with_staleness_a_step_is_the_version_of_a_block(self):
        histograms = self.train('stale', 2, 20,
                                strategy={'type': 'ps', 'staleness': 2})
        for (tag, step), found in histograms.items():
            self.assertEqual((step % 5, len(found)), (0, 1), tag)
        self.assertEqual(len(histograms) % 8, 0)
        self.assertTrue(histograms)

    def test_without_the_key_there_are_none(self):
        histograms = self.train('off', 1, 10, tensorboard={
            'enabled': True, 'output_path': 'off.tb'})
        self.assertEqual(histograms, {})


if __name__ == '__main__':
    write_data()
    unittest.main(argv=sys.argv[:1])
