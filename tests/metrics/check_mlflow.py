# SPDX-License-Identifier: Apache-2.0
"""Runs a job twice, the second time resumed, that tells MLflow's own server,
and asks MLflow's client what stands there:

    check_mlflow.py BUILD    (make check-mlflow)"""
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

from mlflow.tracking import MlflowClient

BUILD = os.path.abspath(sys.argv[1])
STEPS, EVERY = 400, 10


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def write_idx(path, shape, values):
    with open(path, 'wb') as file:
        file.write(struct.pack('>I', 0x800 + len(shape)))
        file.write(struct.pack(f'>{len(shape)}I', *shape))
        file.write(bytes(values))


def wait_for(uri, server):
    for _ in range(120):
        assert server.poll() is None, 'the server has ended'
        try:
            return urllib.request.urlopen(uri + '/health', timeout=5).read()
        except OSError:
            time.sleep(1)
    sys.exit('the server does not answer')


def run_job(folder, uri, steps):
    job = {'model': {'layers': [4, 2]},
           'data': {'train': ['images', 'labels'], 'test': ['images', 'labels']},
           'steps': steps, 'steps_per_print': EVERY, 'train_batch_size': 8,
           'steps_per_epoch': 100, 'timeouts': {'stop': 60},
           'optimizer': {'type': 'SGD', 'params': {'lr': 0.5}},
           'checkpoint': {'dir': 'ckpt', 'every_steps': 100},
           'mlflow': {'tracking_uri': uri, 'experiment': 'capstan check'}}
    with open(f'{folder}/job.json', 'w') as file:
        json.dump(job, file)
    subprocess.run([f'{BUILD}/capstan', 'run', 'job.json'], cwd=folder,
                   check=True)


def check(client):
    experiment = client.get_experiment_by_name('capstan check')
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == 'FINISHED', run.info.status
    assert run.data.params['optimizer.params.lr'] == '0.5'
    for name, every in ('train_loss', EVERY), ('test_loss', 100):
        history = client.get_metric_history(run.info.run_id, name)
        steps = [metric.step for metric in history]
        assert sorted(steps) == list(range(every, STEPS + 1, every)), steps
    print(f'mlflow: run {run.info.run_id}: {len(run.data.params)} parameters, '
          f'{len(run.data.metrics)} metrics, each of its points once')


with tempfile.TemporaryDirectory() as folder:
    write_idx(f'{folder}/images', (64, 2, 2), (i % 251 for i in range(256)))
    write_idx(f'{folder}/labels', (64,), (i % 2 for i in range(64)))
    address = f'http://127.0.0.1:{free_port()}'
    with open(f'{folder}/log', 'w') as log, subprocess.Popen(
            [os.path.join(os.path.dirname(sys.executable), 'mlflow'), 'server',
             '--host', '127.0.0.1', '--port', address.rsplit(':', 1)[1],
             '--workers', '1', '--backend-store-uri',
             f'sqlite:///{folder}/mlflow.db', '--default-artifact-root',
             f'{folder}/artifacts'], stdout=log, stderr=log,
            start_new_session=True) as process:
        try:
            wait_for(address, process)
            run_job(folder, address, STEPS // 2)
            run_job(folder, address, STEPS)
            check(MlflowClient(address))
        finally:
            os.killpg(process.pid, 15)
