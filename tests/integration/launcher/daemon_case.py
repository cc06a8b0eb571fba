"""Support for tests of daemons: several on this machine, each with a port and a folder of its own."""

import os
import pathlib
import signal

from events import wait_for_ends
from job_case import JobCase, free_port, wait_until

# A worker of one of several jobs at once: its first argument names the job, its second is rank 0's exit code.
NAMED_WORKER = """
    name = sys.argv[1]
    note(f"pid-{name}")
    print(f"{name} begins on {RANK}", flush=True)
    wait_for(f"go-{name}")
    print(f"{name} ends on {RANK}", flush=True)
    note(f"end-{name}")
    wait_for(*(f"end-{name}.1.{rank}" for rank in range(WORLD)))  # Who fails ends the others.
    sys.exit(int(sys.argv[2]) if RANK == 0 else 0)
"""


def family(roots):
    """These processes and all that descend from them."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended meanwhile.
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class DaemonCase(JobCase):
    def setUp(self):
        super().setUp()
        self.daemons = {}  # port -> process

    def folder_of(self, port):
        return self.dir / f"daemon-{port}"

    def daemon_words(self, port, *more, slots=4):
        return ["--daemon", f"--listen=127.0.0.1:{port}", f"--slots={slots}", f"--runtime-dir={self.folder_of(port)}",
                "--launcher-grace=3", *more]

    def start_daemon(self, *more, port=None, slots=4, **kwargs):
        """Its port, once it listens."""
        port = port or free_port()
        daemon = self.start(*self.daemon_words(port, *more, slots=slots), binary="fsdp-agent", **kwargs)
        self.daemons[port] = daemon
        self.wait_for_line(daemon, "daemon at")
        return port

    def start_job(self, ports, *more, **kwargs):
        return self.start("--agents=" + ",".join(f"127.0.0.1:{port}" for port in ports), *more, **kwargs)

    def sessions_of(self, port):
        return [path for path in self.folder_of(port).glob("*") if path.is_dir()]

    def wait_until_forgotten(self, *ports):
        """Until no daemon knows of a job any more."""
        wait_until(lambda: not any(self.sessions_of(port) for port in ports), "the sessions to be forgotten")

    def kill_daemon(self, port):
        self.daemons[port].kill()
        self.daemons[port].wait()

    def restart_daemon(self, port, slots=4):
        """Kills it, and starts another that takes over what it has left."""
        self.kill_daemon(port)
        self.start_daemon(port=port, slots=slots)

    def assert_named_job(self, launcher, name, expected_code, ranks):
        """The launcher shows all lines of a job of NAMED_WORKER, and exits with its code."""
        code, out, err = self.finish(launcher)
        self.assertEqual(code, expected_code, err)
        self.assertEqual(sorted(out.splitlines()), sorted(f"{name} {what} on {rank}" for what in ("begins", "ends") for rank in range(ranks)))

    def lose_machine(self, port):
        """As a machine that fails: all of the daemon's processes end at once, and nothing is said."""
        roots = [self.daemons[port].pid, *(int(path.read_text().split()[0]) for path in self.folder_of(port).glob("*/alive"))]
        pids = family(roots)
        for pid in pids:  # None may tell of the end of another.
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.daemons[port].wait()
        wait_for_ends(pids)

    def parent_of(self, pid):
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

    def keeper_of(self, worker):
        return self.parent_of(worker)

    def stop_daemons(self):
        """In order, as systemd does: nothing of them stays."""
        for port, daemon in self.daemons.items():
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for port, daemon in self.daemons.items():
            code, _, err = self.finish(daemon)
            if code != -signal.SIGKILL:
                self.assertEqual(code, 0, err)
                self.assertFalse(self.folder_of(port).exists(), list(self.folder_of(port).rglob("*")) if self.folder_of(port).exists() else "")

    def tearDown(self):
        try:
            self.stop_daemons()
        finally:
            super().tearDown()
