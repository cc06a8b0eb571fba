"""Support for the tests that state torchrun's contract: the same command line for fsdprun and for the installed torchrun.

    test_X.py                          fsdprun; cases of waits_for.WAITS_FOR must still fail
    test_X.py --launcher torchrun      the installed torchrun; cases of waits_for.TORCHRUN_FAILS must fail, and a score is printed
    test_X.py --soak                   only what is too long for every change
    test_X.py --backend etcd           jobs of CompatCase.meeting() meet through an etcd (or etcd-v2) instead of c10d
"""

import atexit
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "launcher"), str(HERE.parents[1] / "support")]

import events  # noqa: E402
from etcd_server import REASON_TO_SKIP, EtcdServer  # noqa: E402
from events import PATIENCE_S, wait_for_ends, wait_for_files  # noqa: E402, F401
from job_case import (JobCase, free_port, is_alive, is_connected, processes_with, wait_until,  # noqa: E402, F401
                      wait_until_listening)
from oracle import Oracle  # noqa: E402
from waits_for import TORCHRUN_FAILS, WAITS_FOR  # noqa: E402

VARIABLES = ("LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT "
             "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID OMP_NUM_THREADS TORCHELASTIC_ERROR_FILE "
             "SENTINEL").split()
# The same worker in two languages: it needs all variables, makes the file <folder>/<rank>, and fails when told to.
BASH_PROBE = f"""#!/bin/bash
for name in {' '.join(VARIABLES)}; do
  [[ -n ${{!name+set}} ]] || {{ echo "$name is not set" >&2; exit 3; }}
done
folder=${{1#--touch-file-dir=}}
echo "creating $folder/$RANK"
echo > "$folder/$RANK"
[[ $2 != --fail ]]
"""
PYTHON_PROBE = f"""\
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--touch-file-dir", "--touch_file_dir")
parser.add_argument("--fail", action="store_true")
options, _ = parser.parse_known_args()
environment = {{name: os.environ[name] for name in {VARIABLES!r}}}
if options.fail:
    raise RuntimeError("raised on purpose")
path = pathlib.Path(options.touch_file_dir) / environment["RANK"]
print("creating", path)
path.touch()
"""
# Leaves the environment as <folder>/env.<start>.<rank>; the worker itself is the copying program.
BASH_DUMP = """#!/bin/bash
cp /proc/self/environ "$D/part.env.$TORCHELASTIC_RESTART_COUNT.$RANK"
mv "$D/part.env.$TORCHELASTIC_RESTART_COUNT.$RANK" "$D/env.$TORCHELASTIC_RESTART_COUNT.$RANK"
"""


# What other bash workers begin with: waits for a file in the test's folder without starting programs.
BASH_HEAD = """#!/bin/bash
exec 9<> <(:)
wait_for() { until [[ -e $D/$1 ]]; do read -rt 0.02 -u 9; done; true; }
"""


@functools.cache
def oracle():
    made = Oracle()
    atexit.register(made.close)
    return made


def soak(test):
    """Marks a test that is too long for every change."""
    test.is_soak = True
    return test


def fsdprun_only(test):
    """Marks a test that looks at the launcher in a way that torchrun does not have."""
    test.is_fsdprun_only = True
    return test


class CompatCase(JobCase):
    """A job of the launcher under test. Workers find the test's folder in D."""

    launcher = "fsdprun"
    backend = "c10d"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if cls.backend != "c10d":
            if REASON_TO_SKIP:
                raise unittest.SkipTest(REASON_TO_SKIP)
            folder = tempfile.TemporaryDirectory()
            cls.addClassCleanup(folder.cleanup)
            cls.etcd = EtcdServer(pathlib.Path(folder.name), os.environ)
            cls.addClassCleanup(cls.etcd.stop)
            cls.etcd.start()

    def meeting(self):
        """Options of a rendezvous that no other job has."""
        if self.backend == "c10d":
            return c10d(free_port())
        return [f"--rdzv-backend={self.backend}", f"--rdzv-endpoint=localhost:{self.etcd.port}", f"--rdzv-id={uuid.uuid4().hex}"]

    def setUp(self):
        super().setUp()
        # What is waited for in vain should not take hours in all.
        is_expected_to_fail = _name(self) in _known_to_fail()
        events.PATIENCE_S = 5.0 if is_expected_to_fail else 30.0 if self.launcher == "torchrun" else PATIENCE_S
        self.env["SENTINEL"] = "inherited"
        self.files = self.dir / "touched"
        self.files.mkdir()

    def start(self, *args, launcher=None, binary="fsdprun", env=None, **popen):
        """As JobCase.start, for either launcher."""
        launcher = launcher or self.launcher
        if launcher == "fsdprun" or binary != "fsdprun":
            return super().start(*args, binary=binary, env=env, **popen)
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        popen.setdefault("stdin", subprocess.DEVNULL)
        process = oracle().start(args, {**self.env, **(env or {})}, **popen)
        self.launchers.append(process)
        return process

    def run_jobs(self, *command_lines, env=None):
        """[(exit code, stdout, stderr)] of launchers that run at the same time."""
        started = [self.start(*words, env=env) for words in command_lines]
        return [self.finish(process) for process in started]

    def tearDown(self):
        if self.launcher == "torchrun":  # Its orphans would keep the pipes open that are read to their ends.
            for launcher in self.launchers:
                launcher.kill()
            self.assert_nothing_left()
        super().tearDown()

    def assert_nothing_left(self):
        if self.launcher == "fsdprun":
            super().assert_nothing_left()
        else:
            for pid in processes_with(self.marker):
                os.kill(pid, signal.SIGKILL)

    def program(self, text, name="worker.sh"):
        """An executable script; if it does not say otherwise, for bash with wait_for()."""
        path = self.dir / name
        path.write_text(text if text.startswith("#!") else f"{BASH_HEAD}{text}\n")
        path.chmod(0o755)
        return str(path)

    def python(self, text, name="worker.py"):
        path = self.dir / name
        path.write_text(text)
        return str(path)

    def bash_probe(self):
        return self.program(BASH_PROBE, "test_script.sh")

    def python_probe(self):
        return self.python(PYTHON_PROBE, "test_script.py")

    def dump(self):
        return self.program(BASH_DUMP, "dump.sh")

    def environments(self, start=0):
        """{rank: {name: value}} of the workers that ran dump()."""
        found = {}
        for path in self.dir.glob(f"env.{start}.*"):
            entries = [entry.split(b"=", 1) for entry in path.read_bytes().split(b"\0") if b"=" in entry]
            found[int(path.suffix[1:])] = {name.decode(): value.decode() for name, value in entries}
        return found

    def assert_world(self, size):
        """Each rank has made its file, and nobody else one."""
        self.assertEqual(sorted(int(path.name) for path in self.files.iterdir()), list(range(size)))

    def assert_success(self, result):
        self.assertEqual(result[0], 0, result[2])

    def assert_refused(self, result, code=1, *words):
        """Refused before any worker started. fsdprun says so in one line."""
        rc, _, err = result
        self.assertEqual(rc, code, err)
        if self.launcher == "fsdprun":
            self.assert_one_line_error(result, code, *words)

    def assert_summary(self, err, *words):
        for word in ("ChildFailedError", "FAILED", "Root Cause (first observed failure):", *words):
            self.assertIn(word, err)

    def wait_for(self, *names):
        """Until workers have made these files in the test's folder."""
        wait_for_files(lambda: all((self.dir / name).exists() for name in names), self.dir, f"files {names}")

    def wait_for_entries(self, folder, count):
        wait_for_files(lambda: len(list(folder.iterdir())) >= count, folder, f"{count} entries of {folder}")

    def lines(self, name):
        path = self.dir / name
        return path.read_text().splitlines() if path.exists() else []

    def log_tree(self, folder):
        """{path below the run directory: bytes} of the only run directory in the folder; without fsdprun's events.jsonl and ledger.json."""
        (run,) = [path for path in pathlib.Path(folder).iterdir() if path.is_dir()]
        return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*"))
                if path.is_file() and path not in (run / "events.jsonl", run / "ledger.json")}


def c10d(port, *words, run_id="test"):
    """Options of the rendezvous that PyTorch's own tests use."""
    return ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", f"--rdzv-id={run_id}", *words]


def _known_to_fail():
    return WAITS_FOR if CompatCase.launcher == "fsdprun" else TORCHRUN_FAILS


def _name(test):
    return test.id().removeprefix("__main__.")


def _chosen(suite, tiers):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _chosen(test, tiers)
            continue
        method = getattr(test, test._testMethodName, None)
        can_run = CompatCase.launcher == "fsdprun" or not getattr(method, "is_fsdprun_only", False)
        if can_run and getattr(method, "is_soak", False) in tiers:
            yield test


def _expect_failures(tests, expected):
    for test in tests:
        if _name(test) in expected:
            test.__unittest_expecting_failure__ = True  # What unittest.expectedFailure sets on a method.


def main():
    """Runs the file's cases for the launcher that was asked for. Exit code 77 if all passed and some were skipped."""
    words = sys.argv[1:]
    is_soak = "--soak" in words
    if "--launcher" in words:
        CompatCase.launcher = words.pop(words.index("--launcher") + 1)
    if "--backend" in words:
        CompatCase.backend = words.pop(words.index("--backend") + 1)
    names = [word for word in words if not word.startswith("--")]
    module = sys.modules["__main__"]
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    tests = list(_chosen(suite, {True, False} if names else {is_soak}))
    expected = _known_to_fail()
    _expect_failures(tests, expected)
    begin = time.monotonic()
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(tests))
    for test in result.unexpectedSuccesses:
        print(f"{_name(test)} passes: remove it from waits_for.py", file=sys.stderr)
    failed = len(result.failures) + len(result.errors) + len(result.expectedFailures)
    print(f"{CompatCase.launcher}: {result.testsRun - failed} of {result.testsRun} cases, "
          f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
    for test, _ in result.expectedFailures:
        print(f"  {_name(test)}: {expected[_name(test)]}", file=sys.stderr)
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.skipped else 0)
