#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the page of runs in a browser, and says what is wrong with it.

check_page.py CAPSTAN [FOLDER]: the pages of a run's chief and ps while it trains, that
of the chief once it has ended, the report of a file, and both with hostile names; at
two widths, light and dark, whose pictures go into FOLDER. Nothing may reach the
console, no script but the page's own may run, nothing may be asked of another place,
and no page may be wider than its window. 77: there is no chromium."""
import base64
import http.server
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

EVIL = ("</script><script>owned = 1</script><img src=x onerror='owned = 1'>"
        "<b onclick='owned = 1'>\u202egnp.exe\u2066")
LIMIT = 60


class Browser:
    """Speaks with chromium over two pipes (Chrome DevTools Protocol)."""

    def __init__(self, program, folder):
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()
        # The program reads descriptor 3 and writes 4.
        high = [os.dup2(end, at) for end, at in ((to_read, 203), (to_write, 204))]
        root = ["--no-sandbox"] if os.getuid() == 0 else []
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&203 4>&204', "bash", program, "--headless",
             "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--hide-scrollbars",
             "--host-resolver-rules=MAP evil.example 127.0.0.1",
             f"--user-data-dir={folder}/browser", *root, "about:blank"],
            pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (to_read, to_write, *high):
            os.close(end)
        self.rest, self.number, self.events = b"", 0, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"],
                                 flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(part + ".enable")

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.of, 1 << 20)
            if not part:
                sys.exit("chromium has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression,
                           returnByValue=True)["result"]
        return result.get("value")

    def until(self, expression, what):
        end = time.monotonic() + LIMIT
        while not self.value(expression):
            assert time.monotonic() < end, (
                f"{what}: not within {LIMIT} s: {self.value('document.body.innerText')[:2000]}")
            time.sleep(0.1)

    def problems(self, origin):
        """What has reached the console or was asked elsewhere since the last call."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(json.dumps(params["args"])[:500])
            elif event["method"] == "Log.entryAdded":
                found.append(json.dumps(params["entry"])[:500])
            elif event["method"] == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith((origin, "data:", "about:")):
                    found.append("asks " + url[:200])
        self.events = []
        return found


LOOKS = [(width, scheme) for width in (400, 1280) for scheme in ("light", "dark")]


def look_at(browser, url, name, ready, folder):
    """Opens URL in each look, and waits until READY, an expression."""
    origin = url.rsplit("/", 1)[0]
    for width, scheme in LOOKS:
        what = f"{name}, {width}, {scheme}"
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                     deviceScaleFactor=1, mobile=False)
        browser.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}])
        browser.call("Page.navigate", url=url)
        browser.until(ready, what)
        back = browser.value("getComputedStyle(document.body).backgroundColor")
        dark = sum(int(part) for part in back[4:-1].split(",")[:3]) < 3 * 128
        assert dark == (scheme == "dark"), f"{what}: its background is {back}"
        wide = browser.value("document.documentElement.scrollWidth")
        assert wide <= width, f"{what}: it is {wide} wide"
        assert browser.value("typeof owned") == "undefined", f"{what}: a script ran"
        made = browser.value("[document.scripts.length, document.images.length, "
                             "document.querySelectorAll('b[onclick]').length]")
        assert made == [2, 0, 0], f"{what}: scripts, images, elements: {made}"
        text = browser.value("document.body.textContent.replace("
                             "document.getElementById('data').textContent, '')")
        assert "\u202e" not in text and "\u2066" not in text, f"{what}: turned text"
        problems = browser.problems(origin)
        assert not problems, f"{what}: {problems}"
        if folder:
            picture = browser.call("Page.captureScreenshot", captureBeyondViewport=True)
            with open(f"{folder}/{name}-{width}-{scheme}.png", "wb") as file:
                file.write(base64.b64decode(picture["data"]))
    print(f"{name}: {len(LOOKS)} looks")


def write_data(folder):
    """Small images of four classes, in files of IDX."""
    random.seed(1)
    for kind, count in (("train", 2000), ("test", 500)):
        labels = bytes(random.randrange(4) for _ in range(count))
        images = b"".join(
            bytes(random.randrange(90) + 150 * (i % 4 == label) for i in range(64))
            for label in labels)
        for name, dims, content in (("images", (count, 8, 8), images),
                                    ("labels", (count,), labels)):
            with open(f"{folder}/{kind}-{name}", "wb") as file:
                file.write(bytes((0, 0, 8, len(dims))) + struct.pack(
                    f">{len(dims)}I", *dims) + content)


JOB = {"model": {"type": "mlp", "layers": [64, 16, 4]},
       "data": {"format": "idx", "train": ["train-images", "train-labels"],
                "test": ["test-images", "test-labels"]},
       "steps": 10000000, "steps_per_epoch": 2000, "steps_per_print": 50,
       "train_micro_batch_size_per_gpu": 10, "seed": 1,
       "optimizer": {"type": "SGD", "params": {"lr": 0.001}},
       "checkpoint": {"dir": "checkpoint", "every_steps": 3000},
       "metrics": {"jsonl": "run.jsonl"}}


def free_ports():
    """The first of four ports that are free, one after the other."""
    while True:
        sockets = []
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                for i in range(1, 4):
                    sockets.append(socket.create_server(("127.0.0.1", port + i)))
                return port
            except OSError:
                continue
            finally:
                for one in sockets:
                    one.close()


def get(url):
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        return answer.headers, answer.read()


def hostile(data):
    """DATA with each text in it hostile."""
    if isinstance(data, dict):
        return {key: hostile(value) for key, value in data.items()}
    if isinstance(data, list):
        return [hostile(value) for value in data]
    return EVIL * 4 if isinstance(data, str) else data


def serve_hostile(page, status, points, report):
    """The page as it is served, with hostile answers; the server."""
    points = dict(points, job={EVIL: EVIL, "name": EVIL + "A" * 1000000})
    answers = {"/": page, "/status": json.dumps(hostile(status)).encode(),
               "/points": json.dumps(points).encode(),
               "/report": json.dumps(hostile(report)).encode()}

    class Answer(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            found = answers.get(self.path)
            self.send_response(200 if found else 404)
            if self.path == "/":
                self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(found or b"")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


DRAWN = ("document.querySelectorAll('#charts path').length > 1 && "
         "document.getElementById('state').textContent == ")


def check_run(capstan, browser, folder, pictures):
    write_data(folder)
    with open(f"{folder}/job.json", "w") as file:
        json.dump(JOB, file)
    port = free_ports()
    log = open(f"{folder}/log", "w")
    run = subprocess.Popen(
        [capstan, "local", "--ps", "1", "--workers", "2", "--link-gbits", "1",
         "--metrics-port", str(port), "job.json"], cwd=folder, stderr=log)
    try:
        at = f"http://127.0.0.1:{port}"
        end = time.monotonic() + LIMIT
        while True:
            try:
                if json.loads(get(at + "/status")[1])["step"] > 2000:
                    break
            except OSError:
                pass
            assert time.monotonic() < end and run.poll() is None, open(log.name).read()
            time.sleep(0.2)
        look_at(browser, at + "/", "chief", DRAWN + "'training'", pictures)
        assert browser.value("document.querySelectorAll('#processes tr').length") == 5
        look_at(browser, f"http://127.0.0.1:{port + 1}/", "ps",
                "document.getElementById('who').textContent.includes('ps 0')", pictures)
        browser.call("Page.navigate", url=f"http://evil.example:{port}/")
        browser.until("document.body && document.body.innerText.includes('NAME:PORT')",
                      "another name")
        browser.problems("http://evil.example")
        page = get(at + "/")[1]
        data = [json.loads(get(at + path)[1]) for path in ("/status", "/points", "/report")]
        browser.call("Page.navigate", url=at + "/")
        browser.until(DRAWN + "'training'", "the last look")
    finally:
        run.terminate()
        run.wait()
    browser.until("document.getElementById('state').textContent == 'no answer'", "the end")
    browser.events = []
    subprocess.run([capstan, "report", "run.jsonl", "-o", "run.html"], cwd=folder,
                   check=True)
    look_at(browser, f"file://{folder}/run.html", "report of the run",
            "document.querySelectorAll('#charts path').length > 1 && "
            "!document.getElementById('causes').hidden", pictures)
    server = serve_hostile(page, *data)
    look_at(browser, f"http://127.0.0.1:{server.server_port}/", "hostile",
            "document.querySelectorAll('#charts path').length > 1 && "
            "document.querySelectorAll('#processes tr').length > 1", pictures)
    server.shutdown()


def check_report(capstan, browser, folder, pictures):
    """Of a file whose every text is hostile, with 50,000 points."""
    lines = [{"run": EVIL, "start": 0, "time": 1700000000.5,
              "job": {EVIL: EVIL, "name": "A" * 1000000}}]
    for step in range(10, 500001, 10):
        lines.append({"step": step, "time": 1700000000 + step, "train_loss": 1 + 1e4 / step,
                      "steps_per_second": 10 + step % 7, "learning_rate": 0.1, EVIL: 1})
        if step % 5000 == 0:
            lines.append({"step": step, "time": 1700000000 + step, "test_loss": 1.5})
    lines.append({"summary": {"exit": 0, "steps": 500000, "checkpoint": EVIL,
                              "seconds_per_step": {"input": 0.01, "compute": 0.05,
                                                   "waiting_for_weights": 0.02}}})
    with open(f"{folder}/m.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    subprocess.run([capstan, "report", f"{folder}/m.jsonl", "-o", f"{folder}/m.html"],
                   check=True)
    look_at(browser, f"file://{folder}/m.html", "report", DRAWN + "'done'", pictures)
    assert "of 50,000 points" in browser.value(
        "document.getElementById('thinned').textContent")
    box = browser.value("(box => [box.x + box.width / 2, box.y + box.height / 2])"
                        "(document.querySelector('#charts svg').getBoundingClientRect())")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    steps = browser.value("[...document.querySelectorAll('figcaption small')]"
                          ".map(one => one.textContent)")
    assert len(set(steps)) == 1 and steps[0].startswith("step 2"), steps
    browser.value("document.querySelector('#job summary').click()")
    assert browser.value("document.querySelector('#job pre').innerText.length") < 100000


def check_losses(capstan, browser, folder, pictures):
    """Of runs without a finite loss at any step: of a model, and of a script that
    reports none, whose page says nothing of it."""
    for model, told in (("mlp", True), ("external", False)):
        lines = [{"run": "1", "start": 0, "time": 1700000000, "job": {"model": {"type": model}}}]
        lines += [{"step": step, "time": 1700000000 + step, "learning_rate": 0.1,
                   "steps_per_second": 10} for step in range(10, 101, 10)]
        lines.append({"summary": {"exit": 0, "steps": 100, "train_loss": None}})
        with open(f"{folder}/n.jsonl", "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        subprocess.run([capstan, "report", f"{folder}/n.jsonl", "-o", f"{folder}/n.html"],
                       check=True)
        look_at(browser, f"file://{folder}/n.html", f"no loss, {model}",
                "document.querySelectorAll('#charts path').length > 0", pictures)
        said = [browser.value(f"document.getElementById('{part}').textContent.includes("
                              f"'{text}')") for part, text in (
                                  ("notes", "The loss of step 100 is not finite."),
                                  ("tiles", "Training lossnot finite"))]
        assert said == [told, told], f"{model}: {said}"


def main():
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        print("no chromium: apt-get install chromium")
        return 77
    capstan = os.path.abspath(sys.argv[1])
    pictures = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
    if pictures:
        os.makedirs(pictures, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        try:
            check_losses(capstan, browser, folder, pictures)
            check_report(capstan, browser, folder, pictures)
            check_run(capstan, browser, folder, pictures)
        finally:
            browser.process.terminate()
            browser.process.wait()
    print("the page is as it has to be")
    return 0


sys.exit(main())
