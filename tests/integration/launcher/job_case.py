"""Support for black-box tests: start launchers, wait for what they do, prove that nothing is left behind."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import uuid

import events
from events import give_up, patience, wait_for_ends, wait_for_files

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
from free_port import free_port  # noqa: E402, F401

BIN = pathlib.Path(os.environ.get("FSDPRUN_BIN", "build/release/bin")).resolve()
MARKER = "FSDPRUN_TEST_MARKER"
# A busy machine can be too slow for a sanitizer that looks whether it is to be silent about something.
SYMBOLIZER_WARNING = re.compile(r"==\d+==WARNING: .*symbolizer")
MAY_BE_DEFINED = {"setUp", "tearDown", "setUpClass", "tearDownClass", "maxDiff", "longMessage"}


def wait_until_listening(port):
    """Nothing tells of a stranger's socket: the port is tried again and again."""
    wait_until(lambda: is_listening(port), f"somebody to listen on port {port}")


def wait_until(condition, what):
    """For what nothing tells of: the condition is asked again and again."""
    limit_s = patience()
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            give_up(f"waited {limit_s:.0f} s for {what}")
        time.sleep(0.002)


def is_listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def is_connected(pid, port):
    """Whether the process has a connection to this port, of whatever machine."""
    sockets = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(entry))
    rows = [line.split() for table in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == "01" and f"socket:[{row[9]}]" in sockets for row in rows)


def is_alive(pid):
    """True for a process that exists and is no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def keeper_of(launcher):
    (keeper,) = [p for p in children_of(launcher.pid) if "keeper" in pathlib.Path(f"/proc/{p}/comm").read_text()]
    return keeper


def processes_with(text):
    """Pids of live processes whose environment contains the text; children keep it whatever they do."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if text.encode() in (entry / "environ").read_bytes() and is_alive(int(entry.name)):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return found


def describe_process(pid):
    """One line: what runs there, and where in the kernel each of its threads is."""
    entry = pathlib.Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        threads = [f"{(task / 'comm').read_text().strip()} in {(task / 'wchan').read_text() or '?'}"
                   for task in (entry / "task").iterdir()]
        return f"process {pid}: {words[:200]} [{'; '.join(threads)}]"
    return f"process {pid}: has ended"


class JobCase(unittest.TestCase):
    """A temporary directory, a unique marker in the environment of everything started, and a check that no process
    with the marker lives when the test is over."""

    def __init_subclass__(cls, **kwargs):
        """A helper called `fail` would make assertions pass: a case may not redefine what unittest calls by itself."""
        super().__init_subclass__(**kwargs)
        hidden = {name for name in vars(cls) if hasattr(unittest.TestCase, name) and not name.startswith("__")} - MAY_BE_DEFINED
        if hidden:
            raise TypeError(f"{cls.__name__} redefines {', '.join(sorted(hidden))} of unittest.TestCase; choose another name")

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="fsdprun_test_"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.marker = uuid.uuid4().hex
        self.launchers = []
        events.watch(self)
        self.addCleanup(events.watch, None)
        (self.dir / "tmp").mkdir()
        self.env = {
            k: v for k, v in os.environ.items()
            if not k.startswith(("PET_", "TORCHELASTIC_", "FSDPRUN_")) and k not in (
                "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "LOGLEVEL")
        }
        self.env.update({
            MARKER: self.marker, "D": str(self.dir), "TMPDIR": str(self.dir / "tmp"), "PYTHON_EXEC": sys.executable,
            "XDG_CONFIG_HOME": str(self.dir / "config"),
            "PYTHONDONTWRITEBYTECODE": "1", "LOGLEVEL": "ERROR",
        })

    def alive(self):
        """Launchers that run, or if there is none, other processes of the job."""
        return [launcher.pid for launcher in self.launchers if launcher.poll() is None] or processes_with(self.marker)

    def words_of_launchers(self):
        """What each launcher has said until now, for who has waited in vain; ends them."""
        words = [describe_process(pid) for pid in processes_with(self.marker)]
        for number, launcher in enumerate(self.launchers):
            state = "still running" if launcher.poll() is None else f"exit code {launcher.returncode}"
            launcher.kill()
            self.kill_all()  # They may have its streams, too.
            try:
                out, err = launcher.communicate(timeout=patience())
            except (subprocess.TimeoutExpired, ValueError) as error:
                out, err = "", f"cannot be read: {error}"
            words.append(f"launcher {number} ({state}):\nstdout: {out}\nstderr: {err}")
        return words

    def standbys(self):
        """Processes that go on as the coordinator should a launcher die that hosts it."""
        found = []
        for pid in processes_with(self.marker):
            with contextlib.suppress(OSError):
                if b"--standby" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def kill_with_standbys(self, *launchers):
        for launcher in launchers:
            launcher.send_signal(signal.SIGSTOP)  # So that it starts no other one.
        for pid in self.standbys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for launcher in launchers:
            launcher.kill()
            launcher.wait()

    def kill_all(self):
        for pid in processes_with(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def drain(self, launcher):
        """Reads what a launcher that has ended has written. Somebody else may hold its streams."""
        try:
            launcher.communicate(timeout=patience())
        except subprocess.TimeoutExpired:
            holders = processes_with(self.marker)
            self.kill_all()
            launcher.communicate()
            self.fail(f"launcher {self.launchers.index(launcher)} has ended, and its output is still open: perhaps by {holders}")

    def tearDown(self):
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            self.drain(launcher)
        try:
            self.assert_nothing_left()
        finally:
            self.kill_all()

    def script(self, body, name="worker.py"):
        """A worker script with the usual imports; D is the test's directory."""
        head = f"""\
            import json, os, pathlib, signal, subprocess, sys, time
            D = pathlib.Path(os.environ["D"])
            RANK, LOCAL_RANK, WORLD = (int(os.environ[k]) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
            RESTART, GENERATION = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["FSDPRUN_GENERATION"])
            def note(kind, text=None):
                name = f"{{kind}}.{{GENERATION}}.{{RANK}}"
                (D / f"part-{{name}}").write_text(str(os.getpid() if text is None else text))
                (D / f"part-{{name}}").rename(D / name)
            def wait_until(condition):
                sys.path.insert(0, {str(HERE)!r})
                from events import wait_for_files
                wait_for_files(condition, D, "what other workers or the test do")
            def wait_for(*names):
                wait_until(lambda: all((D / name).exists() for name in names))
            def live_on():  # A signal that comes before the wait wakes it too, which time.sleep() does not promise.
                waker, woken = os.pipe()
                os.set_blocking(woken, False)
                signal.set_wakeup_fd(woken)
                while True:
                    os.read(waker, 1)
            """
        path = self.dir / name
        path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        return str(path)

    def start(self, *args, binary="fsdprun", env=None, **popen):
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        popen.setdefault("stdin", subprocess.DEVNULL)
        launcher = subprocess.Popen([str(BIN / binary), *map(str, args)], env={**self.env, **(env or {})}, text=True,
                                    errors="replace", **popen)
        self.launchers.append(launcher)
        return launcher

    def wait_for_line(self, launcher, *words):
        """Reads standard error until a line has all words. What was read is not in finish()'s text any more."""
        for line in launcher.stderr:
            if all(word in line for word in words):
                return line
        self.fail(f"the launcher has ended without a line with {words}")

    def finish(self, launcher):
        """(exit code, stdout, stderr) once the launcher has ended by itself."""
        limit_s = patience()
        try:
            out, err = launcher.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            give_up(f"launcher {self.launchers.index(launcher)} still runs after {limit_s:.0f} s")
        return launcher.returncode, out, err

    def run_job(self, *args, **kwargs):
        return self.finish(self.start(*args, **kwargs))

    def notes(self, kind):
        """{(generation, rank): text} of the notes that workers have left."""
        found = {}
        for path in self.dir.glob(f"{kind}.*.*"):
            _, generation, rank = path.name.split(".")
            found[int(generation), int(rank)] = path.read_text()
        return found

    def wait_for_notes(self, kind, generation, ranks):
        def all_there():
            notes = self.notes(kind)
            return notes if all((generation, r) in notes for r in ranks) else None
        return wait_for_files(all_there, self.dir, f"notes {kind} of generation {generation}")

    def temporary_files(self):
        """Whatever is in TMPDIR but for a file that ThreadSanitizer has there for a moment, and leaves where it is killed."""
        return [path for path in (self.dir / "tmp").rglob("*") if not path.name.startswith("tsan.rodata.")]

    def wait_for_run_directory(self):
        """A launcher makes it before it waits for anybody."""
        wait_for_files(self.temporary_files, self.dir / "tmp", "the run directory")

    def wait_for_end_of_all_but(self, launcher):
        """Its workers and its keeper."""
        while left := [pid for pid in processes_with(self.marker) if pid != launcher.pid]:
            wait_for_ends(left)

    def assert_nothing_left(self):
        """Everything that has been started ends without further ado. Workers that must be ended live on by themselves."""
        while left := processes_with(self.marker):
            wait_for_ends(left, "everything to end")

    def assert_one_line_error(self, result, code, *words):
        rc, _, err = result
        self.assertEqual(rc, code, err)
        lines = [line for line in err.strip().splitlines() if not SYMBOLIZER_WARNING.match(line)]
        self.assertEqual(len(lines), 1, err)
        for word in words:
            self.assertIn(str(word), err)
