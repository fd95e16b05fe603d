#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which mistakes do the tests find? tests/mutants/mutants.py [--every] [ONLY...]

Each row of mutants.txt is a mistake in a function. One build of a copy of the
tree, in build/mutants, has them all: a function begins with its mistaken bodies,
of which the variable MUTANT chooses one. For each mutant the unit tests of its
room and the simulation run, those that call the function, until one fails; for
those that survive the other unit tests, then those of whole clusters, but for the
programs that the variable APART names. ONLY: a number, a function or a folder.
--every: no end at the first failure; names all tests of the room that find it.
The exit code is 1 when a mutant survives.
"""
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = ROOT / "build/mutants"
TABLE = ROOT / "tests/mutants/mutants.txt"
JOBS = os.cpu_count()
MEMORY = 4 << 30  # bytes: a mistake may allocate without end
FUNCTION = re.compile(r"^(?:__attribute__\(\(\w+\)\)\s+)?[A-Za-z_][^;{}()=#]*?"
                      r"\b(\w+)\([^;{}]*\)\s*\{", re.M)


class Mutant:
    def __init__(self, number, line, function, old, new):
        self.number, self.line, self.function = number, line, function
        self.old, self.new = old, new
        self.killers, self.seconds = [], 0.0

    def __str__(self):
        return f"{self.number} {self.function}: {self.old} => {self.new}"

    def wrong(self, text):
        return f"{TABLE.name}:{self.line}: {self.function}: {text}"


def read_table():
    mutants, wrong = [], []
    for line, text in enumerate(TABLE.read_text().splitlines(), 1):
        if not text.strip() or text.startswith("#"):
            continue
        row = re.fullmatch(r"(\w+): (.+?) =>(?: (.*))?", text)
        if row:
            mutants.append(Mutant(len(mutants) + 1, line, row[1], row[2],
                                  row[3] or ""))
        else:
            wrong.append(f"{TABLE.name}:{line}: not FUNCTION: OLD => NEW")
    return mutants, wrong


def tree_files():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                           cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.split("\n")
    return [name for name in names if name and (ROOT / name).is_file()]


def find_functions(files):
    """Of each function its places: file, and where its body begins and ends."""
    places = {}
    for name in files:
        if re.search(r"^tests/|^python/|(?<!\.c)(?<!\.h)(?<!\.cc)$", name):
            continue
        text = (ROOT / name).read_text()
        for match in FUNCTION.finditer(text):
            end = text.find("\n}", match.end() - 1)
            places.setdefault(match[1], []).append((name, match.end(), end))
    return places


def mutated(mutant, body):
    """The body with the mistake; which words the texts have counts, not how
    they are broken into lines."""
    old = r"\s+".join(map(re.escape, mutant.old.split()))
    found = list(re.finditer(old, body))
    if len(found) != 1:
        return None, len(found)
    start, end = found[0].span()
    return body[:start] + mutant.new + body[end:], 1


def plant(mutants, files):
    """Texts of the files that have mutants, and what is wrong with the table."""
    places, edits, wrong = find_functions(files), {}, []
    for mutant in mutants:
        found = places.get(mutant.function, [])
        if len(found) != 1:
            where = ", ".join(name for name, _, _ in found)
            wrong.append(mutant.wrong(f"is in {len(found)} places, not in one"
                                      + (f": {where}" if where else "")))
            continue
        name, start, end = found[0]
        mutant.file = name
        body, count = mutated(mutant, (ROOT / name).read_text()[start:end])
        if body is None:
            wrong.append(mutant.wrong(
                f'has "{mutant.old}" {count} times, not once'))
            continue
        edits.setdefault(name, []).extend([
            (start, f" if (mutant_is({mutant.number})) {{{body}\n}} else {{"),
            (end, "\n}")])
    texts = {}
    for name, inserts in edits.items():
        text = (ROOT / name).read_text()
        for at, insert in sorted(inserts, reverse=True):
            text = text[:at] + insert + text[at:]
        texts[name] = '#include "tests/mutants/mutant.h"\n' + text
    return texts, wrong


def write_tree(files, texts):
    """Leaves what has not changed as it was, so that make builds the rest."""
    TREE.mkdir(parents=True, exist_ok=True)
    kept = set(files)
    for path in TREE.rglob("*"):
        name = path.relative_to(TREE).as_posix()
        if path.is_file() and name not in kept and \
                not name.startswith(("build/", "build-")):
            path.unlink()
    for name in files:
        data = texts[name].encode() if name in texts else \
            (ROOT / name).read_bytes()
        path = TREE / name
        if path.is_file() and path.read_bytes() == data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        shutil.copymode(ROOT / name, path)


def build(targets):
    make = subprocess.run(
        ["make", "--no-print-directory", "-C", TREE, f"-j{JOBS}", "BUILD=build",
         "SAN=", "CUDA=", "CFLAGS=-O1 -g0 -w", "all", *targets])
    if make.returncode:
        sys.exit(f"{TREE}: the copy with the mutants cannot be built, for the "
                 "reason above: is the NEW of a row no C?")


def end_group(process):
    """By a signal at which it names its test; then by one that it cannot
    ignore."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(5)
        os.killpg(process.pid, signal.SIGKILL)


class Test:
    """A test program, with what its run without a mutant has shown."""

    def __init__(self, source):
        self.name = pathlib.Path(source).stem
        self.folder = os.path.dirname(source)
        self.room = source.removeprefix("tests/unit/").removeprefix(
            "tests/").split("/")[0]
        self.seconds, self.reached, self.failed = 0.0, set(), []

    def run(self, environment, limit, every=True):
        """The tests that fail, or the first."""
        failed = []
        with tempfile.TemporaryDirectory() as scratch:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "prlimit",
                 f"--data={MEMORY}", TREE / "build/tests" / self.name],
                cwd=TREE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
                text=True, errors="replace",
                env={**os.environ, "CAPSTAN": str(TREE / "build/capstan"),
                     "SOAK_COUNT": "1", "CMOCKA_MESSAGE_OUTPUT": "TAP",
                     "XDG_CACHE_HOME": scratch, **environment})
            hangs = threading.Timer(limit, end_group, (process,))
            hangs.start()
            for line in process.stdout:
                bad = re.match(r"not ok \d+ (?:- )?(\w+)(?!.*# SKIP)", line)
                if bad and bad[1] not in self.failed:
                    failed.append(bad[1])
                if failed and not every:
                    break
            if failed and not every:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            hangs.cancel()
        return failed or (["its end"] if code and not self.failed else [])

    def measure(self):
        with tempfile.NamedTemporaryFile() as reached:
            os.truncate(reached.name, 4096)
            start = time.monotonic()
            self.failed = self.run({"MUTANTS_REACHED": reached.name}, 600)
            self.seconds = time.monotonic() - start
            self.reached = {number for number, called
                            in enumerate(reached.read()) if called}
        return self

    def judge(self, mutant, every):
        limit = 20 + 10 * self.seconds
        return [f"{self.name} {test}" for test
                in self.run({"MUTANT": str(mutant.number)}, limit, every)]


def side_by_side(work, items):
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(work, items))


def judge_all(mutants, tests_of, every):
    """Runs with each of MUTANTS the tests that TESTS_OF gives for it and that
    call its function, those of its folder first."""
    new = list({test.name: test for mutant in mutants
                for test in tests_of(mutant) if not test.seconds}.values())
    print(f"{len(new)} test programs without a mutant", flush=True)
    side_by_side(Test.measure, new)
    for test in new:
        if test.failed:
            print(f"{test.name}: fails without a mutant, not counted: "
                  + ", ".join(test.failed))

    def judge(mutant):
        start = time.monotonic()
        folder = "tests/unit/" + os.path.dirname(mutant.file)
        for test in sorted(tests_of(mutant), key=lambda t: (
                t.folder != folder, t.seconds)):
            if mutant.number in test.reached and \
                    (every or not mutant.killers):
                mutant.killers += test.judge(mutant, every)
        mutant.seconds += time.monotonic() - start
        verdict = "killed by " + "; ".join(mutant.killers) \
            if mutant.killers else "survived"
        print(f"{mutant}\n    {verdict} ({mutant.seconds:.1f} s)", flush=True)

    side_by_side(judge, mutants)


def chosen(mutants, only):
    """Those that a word of ONLY names; and the words that name none."""
    named = {word: [mutant for mutant in mutants
                    if word in (str(mutant.number), mutant.function)
                    or mutant.file.startswith(word.rstrip("/") + "/")]
             for word in only}
    return [mutant for mutant in mutants
            if not only or any(mutant in some for some in named.values())], \
        [word for word, some in named.items() if not some]


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    every = "--every" in sys.argv
    only = [word for word in sys.argv[1:] if word != "--every"]
    start = time.monotonic()
    files = tree_files()
    mutants, wrong = read_table()
    texts, unplanted = plant(mutants, files)
    if wrong or unplanted:
        sys.exit("\n".join(wrong + unplanted))
    mutants, unknown = chosen(mutants, only)
    if unknown:
        sys.exit(f"{' '.join(unknown)}: no number, function or folder of a "
                 f"mutant of {TABLE.name}")
    apart = os.environ.get("APART", "").split()
    tests = [Test(name) for name in files
             if re.match(r"tests/(unit|simulation|cluster)/.*_test\.c$", name)
             and pathlib.Path(name).stem not in apart]
    write_tree(files, texts)

    def in_room(mutant):
        return [test for test in tests
                if test.room in (mutant.file.split("/")[0], "simulation")]

    def in_other_rooms(mutant):
        return [test for test in tests
                if test.room != "cluster" and test not in in_room(mutant)]

    def of_clusters(mutant):
        return [test for test in tests if test.room == "cluster"]

    for tests_of in in_room, in_other_rooms, of_clusters:
        survivors = [mutant for mutant in mutants if not mutant.killers]
        needed = {f"build/tests/{test.name}" for mutant in survivors
                  for test in tests_of(mutant)}
        if needed:
            build(needed)
            judge_all(survivors, tests_of, every)
    survivors = [mutant for mutant in mutants if not mutant.killers]
    for mutant in survivors:
        print(f"survived: {mutant}")
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed in "
          f"{(time.monotonic() - start) / 60:.0f} min")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
