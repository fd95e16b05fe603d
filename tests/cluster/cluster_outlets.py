# SPDX-License-Identifier: Apache-2.0
"""One run with every outlet on, in which the same loss stands at the same step:

    cluster_outlets.py CAPSTAN FOLDER

MLflow's server holds the run's end up, so that the pages are read at it."""
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

import cluster_histograms
import cluster_mlflow

STEPS, EVERY, DEADLINE = 400, 10, 60


def rounded(points, digits=6):
    return {step: f'{value:.{digits}g}' for step, value in points.items()}


def free_ports(count):
    """The first of COUNT ports that nobody has."""
    while True:
        first = random.randrange(20000, 32000)
        taken = []
        try:
            for port in range(first, first + count):
                taken.append(socket.create_server(('127.0.0.1', port)))
            return first
        except OSError:
            pass
        finally:
            for server in taken:
                server.close()


class Outlets(cluster_mlflow.Run):
    def read(self, base, path, found):
        """What GET says once FOUND holds of its text."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            with urllib.request.urlopen(f'{base}/{path}',
                                        timeout=DEADLINE) as answer:
                text = answer.read().decode()
            if found(text):
                return text
            time.sleep(0.02)
        self.fail(f'{path} has never what it should: {text}')

    def run_until_outlets_end(self):
        """The run's log, its JSON and its three pages at the last step."""
        self.server = cluster_mlflow.Server()
        self.server.silence = threading.Event()
        port = free_ports(4)
        process = self.start(
            {'tracking_uri': f'http://127.0.0.1:{self.server.port}'},
            verb=('local', '--ps', '1', '--workers', '2', '--json',
                  '--metrics-port', str(port)),
            steps=STEPS, stdout=subprocess.PIPE,
            metrics={'jsonl': 'run.jsonl'},
            tensorboard={'enabled': True, 'output_path': 'board'})
        said, base = '', f'http://127.0.0.1:{port}'
        for line in process.stderr:
            said += line
            if json.loads(line)['event'] == 'run_over':
                break
        status = self.read(base, 'status',
                           lambda text: json.loads(text)['step'] == STEPS and
                           json.loads(text)['state'] == 'ending')
        pages = [json.loads(status)] + [self.read(base, path, bool) for path in
                                        ('metrics', 'points')]
        self.server.silence.set()
        out, text = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0, said + text)
        return said + text, json.loads(out.splitlines()[-1]), pages

    def test_every_outlet_tells_the_same_numbers_of_a_run(self):
        log, summary, (status, metrics, points) = self.run_until_outlets_end()
        lines = {}
        with open(f'{self.folder}/run.jsonl') as file:
            for line in map(json.loads, file):
                for name in 'train_loss', 'learning_rate', 'test_loss':
                    if name in line:
                        lines.setdefault(name, {})[line['step']] = line[name]
        losses = lines['train_loss']
        self.assertEqual(sorted(losses), list(range(EVERY, STEPS + 1, EVERY)))
        self.assertGreater(len(set(losses.values())), 10)
        told = {}
        for metric in self.server.metrics:
            told.setdefault(metric['key'], {})[metric['step']] = \
                metric['value']
        tags = cluster_histograms.read_scalars(f'{self.folder}/board')
        for name, tag in (('train_loss', 'train/loss'),
                          ('learning_rate', 'train/learning_rate'),
                          ('test_loss', 'test/loss')):
            self.assertEqual(rounded(told[name]), rounded(lines[name]), name)
            self.assertEqual(rounded(tags[tag]), rounded(lines[name]), name)
        shown = {int(step): float(loss) for step, loss in re.findall(
            r'"step (\d+)/\d+ \(\d+%\): loss ([\d.]+),', log)}
        self.assertEqual(
            {step: f'{loss:.4f}' for step, loss in losses.items()},
            {step: f'{loss:.4f}' for step, loss in shown.items()})
        curve = json.loads(points)['points']
        self.assertEqual(rounded(dict(zip(curve['step'],
                                          curve['train_loss']))),
                         rounded(losses))
        last = {STEPS: losses[STEPS]}
        self.assertEqual(rounded({STEPS: status['train_loss']}),
                         rounded(last))
        page = dict(re.findall(r'^capstan_(\w+)\{role="chief",index="0"\} '
                               r'(\S+)$', metrics, re.MULTILINE))
        self.assertEqual(rounded({STEPS: float(page['train_loss'])}),
                         rounded(last))
        self.assertEqual(float(page['steps_total']), STEPS)
        self.assertEqual(summary['steps'], STEPS)
        # The summary's loss is the mean of the last epoch's samples.
        epoch = [losses[step] for step in range(300 + EVERY, STEPS + 1, EVERY)]
        self.assertAlmostEqual(summary['train_loss'], sum(epoch) / len(epoch),
                               6)
        self.assertEqual(rounded({STEPS: summary['test_loss']}),
                         rounded({STEPS: lines['test_loss'][STEPS]}))
        self.assertEqual(rounded({STEPS: float(page['test_loss'])}),
                         rounded({STEPS: summary['test_loss']}))


if __name__ == '__main__':
    cluster_mlflow.write_data()
    unittest.main(argv=sys.argv[:1], verbosity=2)
