# SPDX-License-Identifier: Apache-2.0
"""Runs of capstan that tell a server of MLflow's, a small one in this process
that keeps what it is told as often as it is told:

    cluster_mlflow.py CAPSTAN FOLDER

What MLflow's own server makes of it: tests/metrics/check_mlflow.py."""
import collections
import http.server
import json
import os
import random
import ssl
import struct
import subprocess
import sys
import threading
import unittest
import urllib.parse

CAPSTAN, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DEADLINE = 120
STEPS = 400
EVERY = 10


class Server:
    """FAULTS of a hundred answers are lost, half of these after the work."""

    def __init__(self, faults=0, port=0, certificate=None, prefix='',
                 authorization=None):
        self.faults, self.prefix = faults, prefix
        self.authorization = authorization
        self.random = random.Random(random.randrange(1 << 30))
        self.experiments, self.runs, self.metrics = {}, {}, []
        self.lock = threading.Lock()
        self.denied = self.histories = 0
        self.silence = None  # of the first batch of metrics, until it is set
        self.silent_to = 0  # the last step of that batch
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                server.answer(self)

            do_POST = do_GET

        self.http = http.server.ThreadingHTTPServer(('127.0.0.1', port),
                                                    Handler)
        self.port = self.http.server_address[1]
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.http.socket = context.wrap_socket(self.http.socket,
                                                   server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def answer(self, request):
        length = int(request.headers.get('Content-Length', 0))
        body = json.loads(request.rfile.read(length) or '{}')
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        with self.lock:
            how = self.random.randrange(200)
            if how < self.faults:
                request.close_connection = True
                return
            code, said = self.work(request, url.path, query, body)
            silent = self.silence and body.get('metrics') and \
                not self.silent_to
            if silent:
                self.silent_to = max(metric['step']
                                     for metric in body['metrics'])
        if silent:
            self.silence.wait(DEADLINE)
            request.close_connection = True
            return
        if how < 2 * self.faults:
            if how % 2:
                request.close_connection = True
                return
            code, said = 503, {}
        text = json.dumps(said).encode()
        request.send_response(code)
        request.send_header('Content-Length', str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def work(self, request, path, query, body):
        if request.headers.get('Authorization') != self.authorization:
            self.denied += 1
            return 401, {}
        prefix = self.prefix + '/api/2.0/mlflow/'
        assert path.startswith(prefix), path
        name = path[len(prefix):]
        method = getattr(self, name.replace('/', '_').replace('-', '_'))
        return method(query or body)

    MISSING = 404, {'error_code': 'RESOURCE_DOES_NOT_EXIST', 'message': 'none'}

    def experiments_get_by_name(self, asked):
        name = asked['experiment_name']
        if name not in self.experiments:
            return self.MISSING
        return 200, {'experiment': {'experiment_id': self.experiments[name],
                                    'lifecycle_stage': 'active'}}

    def experiments_create(self, asked):
        number = str(len(self.experiments) + 1)
        assert asked['name'] not in self.experiments
        self.experiments[asked['name']] = number
        return 200, {'experiment_id': number}

    def add_run(self, number, name, tags):
        self.runs[number] = {
            'info': {'run_id': number, 'run_name': name, 'experiment_id': '1'},
            'data': {'tags': tags, 'params': []}}

    def runs_create(self, asked):
        number = f'run{len(self.runs)}'
        self.add_run(number, asked['run_name'], asked['tags'])
        return 200, {'run': self.runs[number]}

    def runs_search(self, asked):
        key, value = asked['filter'].split(' = ')
        tag = {'key': key[len('tags.'):], 'value': value.strip("'")}
        return 200, {'runs': [run for run in self.runs.values()
                              if tag in run['data']['tags']]}

    def runs_get(self, asked):
        run = self.runs.get(asked['run_id'])
        return (200, {'run': run}) if run else self.MISSING

    def runs_update(self, asked):
        self.runs[asked['run_id']]['info']['status'] = asked['status']
        return 200, {}

    def runs_log_batch(self, asked):
        data = self.runs[asked['run_id']]['data']
        assert len(asked.get('metrics', [])) <= 1000
        assert len(asked.get('params', [])) <= 100
        data['params'] += asked.get('params', [])
        data['tags'] += asked.get('tags', [])
        self.metrics += asked.get('metrics', [])
        return 200, {}

    def metrics_get_history(self, asked):
        self.histories += 1
        return 200, {'metrics': [metric for metric in self.metrics
                                 if metric['key'] == asked['metric_key']]}


def write_idx(path, shape, values):
    with open(path, 'wb') as file:
        file.write(struct.pack('>I', 0x800 + len(shape)))
        file.write(struct.pack(f'>{len(shape)}I', *shape))
        file.write(bytes(values))


def write_data():
    write_idx(f'{FOLDER}/images', (64, 2, 2), (i % 251 for i in range(256)))
    write_idx(f'{FOLDER}/labels', (64,), (i % 2 for i in range(64)))


class Run(unittest.TestCase):
    def setUp(self):
        self.server = None
        self.folder = os.path.join(FOLDER, self.id().split('.')[-1])
        os.mkdir(self.folder)

    def tearDown(self):
        if self.server:
            self.server.close()

    def start(self, mlflow, variables=None, steps=STEPS, verb=('run',),
              stdout=subprocess.DEVNULL, **keys):
        job = {'model': {'layers': [4, 2]},
               'data': {'dir': FOLDER, 'train': ['images', 'labels'],
                        'test': ['images', 'labels']},
               'steps': steps, 'steps_per_print': EVERY,
               'train_batch_size': 8, 'steps_per_epoch': 100,
               'optimizer': {'type': 'SGD', 'params': {'lr': 0.5}},
               'timeouts': {'stop': 60}, **keys}
        if mlflow is not None:
            job['mlflow'] = mlflow
        with open(f'{self.folder}/job.json', 'w') as file:
            json.dump(job, file)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(('MLFLOW_', 'AZUREML_'))
                       and not name.lower().endswith('_proxy')}
        environment.update(variables or {}, CAPSTAN_JSON_LOG='1')
        return subprocess.Popen(
            [CAPSTAN, *verb, 'job.json'], cwd=self.folder, env=environment,
            stdout=stdout, stderr=subprocess.PIPE, text=True)

    def run_job(self, mlflow, variables=None, code=0, **keys):
        process = self.start(mlflow, variables, **keys)
        return self.finish(process, code)

    def finish(self, process, code=0, before=''):
        _, text = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, code, before + text)
        return before + text


class Case(Run):
    def expect_whole(self, server, first=0, steps=STEPS):
        found = collections.Counter((metric['key'], metric['step'])
                                    for metric in server.metrics)
        self.assertEqual(set(found.values()), {1})
        points = {step for name, step in found if name == 'train_loss'}
        self.assertEqual(points, set(range(EVERY, steps + 1, EVERY)))
        self.assertIn(('test_loss', steps), found)
        self.assertIn(('learning_rate', steps), found)
        params = {param['key']: param['value']
                  for param in server.runs[list(server.runs)[first]]['data'][
                      'params']}
        self.assertEqual(params['optimizer.params.lr'], '0.5')
        self.assertEqual(params['model.layers'], '[4,2]')

    def test_half_of_the_answers_are_lost(self):
        self.server = Server(faults=50)
        uri = f'http://127.0.0.1:{self.server.port}'
        text = self.run_job({'tracking_uri': uri + '/', 'experiment': 'a b',
                             'run_name': 'first'})
        self.assertIn('"mlflow_run"', text)
        self.assertNotIn('"mlflow_incomplete"', text)
        self.expect_whole(self.server)
        (run,) = self.server.runs.values()
        self.assertEqual(run['info']['status'], 'FINISHED')
        self.assertEqual(run['info']['run_name'], 'first')
        self.assertEqual(list(self.server.experiments), ['a b'])

    def test_a_server_that_stores_in_silence_is_read_back(self):
        """It is silent until training is over, and for 12 s at least, of
        which capstan waits for 10."""
        steps = 8000
        self.server = Server()
        self.server.silence = threading.Event()
        silence = threading.Timer(12, self.server.silence.set)
        process = self.start({'tracking_uri':
                              f'http://127.0.0.1:{self.server.port}'},
                             steps=steps)
        seen = ''
        for line in process.stderr:
            seen += line
            if f'epoch {steps // 100}/{steps // 100}: test' in line:
                break
        self.assertIn(self.server.silent_to, range(EVERY, steps), seen)
        silence.start()
        text = self.finish(process, before=seen)
        silence.join()
        self.assertNotIn('"mlflow_incomplete"', text)
        self.assertGreater(self.server.histories, 0)
        self.expect_whole(self.server, steps=steps)

    def test_a_server_that_comes_later_gets_all(self):
        self.server = Server()
        port = self.server.port
        self.server.close()
        self.server = None
        process = self.start({'tracking_uri': f'http://127.0.0.1:{port}'})
        seen = ''
        for line in process.stderr:
            seen += line
            if '"mlflow_unreachable"' in line:
                break
        self.server = Server(port=port)
        self.finish(process, before=seen)
        self.expect_whole(self.server)
        self.assertEqual(list(self.server.experiments), ['Default'])

    def test_a_server_that_is_away_holds_no_run_up(self):
        self.server = Server()
        port = self.server.port
        self.server.close()
        self.server = None
        text = self.run_job({'tracking_uri': f'http://127.0.0.1:{port}'},
                            timeouts={'stop': 5})
        self.assertIn('"mlflow_incomplete"', text)
        self.assertIn(f'has not got {STEPS // EVERY + 4} points', text)

    def test_a_resumed_run_goes_on_in_its_run(self):
        self.server = Server()
        mlflow = {'tracking_uri': f'http://127.0.0.1:{self.server.port}'}
        for steps in STEPS // 2, STEPS:
            self.run_job(mlflow, steps=steps,
                         checkpoint={'dir': 'ckpt', 'every_steps': 100})
        self.expect_whole(self.server)
        self.assertEqual(len(self.server.runs), 1)

    def test_a_run_that_goes_back_goes_on_in_its_run(self):
        self.server = Server()
        mlflow = {'tracking_uri': f'http://127.0.0.1:{self.server.port}'}
        steps = 20 * STEPS
        process = self.start(
            mlflow, steps=steps, verb=('local', '--ps', '1', '--workers', '1'),
            checkpoint={'dir': 'ckpt', 'every_steps': 5 * EVERY},
            steps_per_print=1)
        said, pid = '', None
        for line in process.stderr:
            said += line
            event = json.loads(line)
            if event['text'].startswith('ps 0 joined '):
                pid = int(event['text'].split('pid ')[1])
            if event['event'] == 'checkpoint_written':
                os.kill(pid, 9)
                break
        text = self.finish(process, before=said)
        self.assertIn('"run_rewound"', text)
        (run,) = self.server.runs.values()
        self.assertEqual(run['info']['status'], 'FINISHED')
        losses = [metric['step'] for metric in self.server.metrics
                  if metric['key'] == 'train_loss']
        self.assertEqual(sorted(losses), list(range(1, steps + 1)))

    def certificate(self):
        path = f'{self.folder}/server.pem'
        made = subprocess.run(
            ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes',
             '-keyout', path, '-out', path + '.crt', '-days', '2', '-subj',
             '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'],
            stderr=subprocess.DEVNULL, check=False)
        self.assertEqual(made.returncode, 0)
        with open(path, 'a') as file, open(path + '.crt') as more:
            file.write(more.read())
        return path, path + '.crt'

    def azureml(self, **more):
        """The form of Azure ML's variables, of which no key is needed."""
        key, self.trusted = self.certificate()
        workspace = '/mlflow/v1.0/subscriptions/s/resourceGroups/g'
        self.server = Server(certificate=key, prefix=workspace,
                             authorization='Bearer secret')
        self.server.add_run('az_1', 'theirs', [])
        return {'MLFLOW_TRACKING_URI':
                f'azureml://localhost:{self.server.port}{workspace}',
                'MLFLOW_TRACKING_TOKEN': 'secret', 'AZUREML_RUN_ID': 'az_1',
                'MLFLOW_EXPERIMENT_NAME': 'theirs', **more}

    def test_azure_mls_variables_are_enough(self):
        variables = self.azureml()
        text = self.run_job(None, {
            **variables, 'MLFLOW_TRACKING_SERVER_CERT_PATH': self.trusted})
        self.assertNotIn('secret', text)
        self.expect_whole(self.server)
        (run,) = self.server.runs.values()
        self.assertNotIn('status', run['info'])
        self.assertEqual(self.server.denied, 0)

    def test_a_certificate_that_nobody_vouches_for_is_not_taken(self):
        variables = self.azureml()
        text = self.run_job(None, variables, timeouts={'stop': 5})
        self.assertIn('certificate', text)
        self.assertEqual(self.server.metrics, [])
        text = self.run_job(None, {**variables,
                                   'MLFLOW_TRACKING_INSECURE_TLS': 'true'})
        self.expect_whole(self.server)

    def test_a_wrong_token_is_said_and_the_run_goes_on(self):
        variables = self.azureml(MLFLOW_TRACKING_TOKEN='wrong',
                                 MLFLOW_TRACKING_INSECURE_TLS='true')
        text = self.run_job(None, variables)
        self.assertIn('it answered 401', text)
        self.assertEqual(self.server.denied, 1)

    def test_what_is_no_server_is_refused_before_the_run(self):
        for mlflow, variables, words in (
                ({'tracking_uri': 'file:///x'}, {}, 'mlflow server'),
                ({'tracking_uri': 'sqlite:///x'}, {}, 'a database'),
                ({'tracking_uri': 'databricks'}, {}, 'MLFLOW_TRACKING_TOKEN'),
                ({'experiment': 'x'}, {}, 'mlflow.tracking_uri: missing'),
                ({'experiment': 'x'}, {'MLFLOW_TRACKING_URI': 'mlruns'},
                 'a folder')):
            self.assertIn(words, self.run_job(mlflow, variables, code=2))

    def test_a_leftover_variable_ends_no_run(self):
        for uri, run in ('file:///x', 'r'), ('http://127.0.0.1:9', ''):
            text = self.run_job(None, {'MLFLOW_TRACKING_URI': uri,
                                       'MLFLOW_RUN_ID': run})
            self.assertIn('"mlflow_not_used"', text)


if __name__ == '__main__':
    write_data()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
