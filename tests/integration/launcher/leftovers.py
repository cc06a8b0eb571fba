"""What a job may leave behind: processes, zombies, sockets, files. A job that is observed before it is disturbed."""

import os
import pathlib
import re
import signal
import stat
import subprocess

from events import give_up, patience, wait_for_ends, wait_for_files
from job_case import JobCase, free_port, is_alive, processes_with, wait_until, wait_until_listening

# A worker's descendant of each kind tells its pid; then the worker does. One has lost its environment, its session and
# its parent, so that nothing but its ancestry says whose it is.
WORKER = """\
told() { echo "$2" >"$D/$1.$RANK.$FSDPRUN_GENERATION"; }
case $KIND in
  fork) sleep 600 & told child $! ;;
  setsid) (setsid env -i sh -c "echo \\$\\$ >'$D/child.$RANK.$FSDPRUN_GENERATION'; exec sleep 600" &) ;;
  stubborn)
    trap '' TERM INT HUP QUIT
    sleep 600 & told child $!
    ;;
  *) exit 9 ;;
esac
told worker $$
exec sleep 600
"""
KINDS = ("fork", "setsid", "stubborn")
PRODUCT = {"fsdprun", "fsdp-agent", "fsdp-keeper", "fsdp-log-writer"}


def fields_of(pid):
    """(state, parent, start time) of a process, None if there is none."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return fields[0], int(fields[1]), fields[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def sockets_of(pid):
    """Inodes of the sockets that a process has."""
    found = set()
    try:
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(fd)))
            except FileNotFoundError:
                pass
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return found


def listening_sockets():
    """{inode: address} of what listens on this machine, over TCP or on a path."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found[fields[9]] = fields[1]
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:
            found[fields[6]] = " ".join(fields[7:])
    return found


class ObservedJob(JobCase):
    """A job on one or two nodes whose processes are known. Several are used at once, therefore it is not a test case by
    itself: its user calls setUp() and tearDown()."""

    def __init__(self):
        super().__init__("setUp")  # Any method: nobody runs it.

    def setUp(self):
        super().setUp()
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.runtime = self.dir / "runtime"
        self.runtime.mkdir(mode=0o700)
        (self.dir / "logs").mkdir()
        self.worker = self.dir / "worker.sh"
        self.worker.write_text(WORKER)
        # Without a home directory there is no secret of the user, and each job of two nodes writes a token.
        self.env.update({"XDG_RUNTIME_DIR": str(self.runtime), "XDG_CONFIG_HOME": "", "HOME": ""})
        self.seen = {}
        self.sockets = set()
        self.workers = []
        self.port = free_port()

    def tearDown(self):
        try:
            super().tearDown()
        finally:
            self.doCleanups()

    def finish(self, launcher):
        limit_s = patience()
        try:
            out, err = launcher.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.kill_everything()  # Else what is left may keep the launcher's streams open.
            give_up(f"still running after {limit_s:.0f} s: {launcher.args}")
        return launcher.returncode, out, err

    def kill_everything(self):
        for pid in {*processes_with(self.marker), *(pid for pid in self.seen if self.is_same(pid))}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def begin(self, kind, peer=None):
        """Starts the job, on this node alone, or with another launcher or an agent as the second node."""
        # Whoever does not obey is waited for: not long.
        logs, soon = f"--log-dir={self.dir}/logs", ["--shutdown-timeout=0.3", "--abort-timeout=0.3"]
        program = ["--no-python", "sh", str(self.worker)]
        env = {"KIND": kind}
        if peer is None:
            self.start("--standalone", "--nproc-per-node=2", logs, *soon, *program, env=env)
            return
        where = [f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={self.marker}"]
        host = ["--nnodes=2", "--rdzv-backend=c10d"]
        self.start(*host, *where, logs, *soon, *program, env=env)
        wait_until_listening(self.port)  # So that the first one hosts the coordinator.
        if peer == "fsdp-agent":
            self.start(*where, logs, *program, binary="fsdp-agent", env=env)
        else:
            self.start(*host, *where, logs, *soon, *program, env=env)

    def forget(self):
        """Before another job is begun: what the workers of this one have told."""
        for path in [*self.dir.glob("worker.*.1"), *self.dir.glob("child.*.1")]:
            path.unlink()

    def wait_until_it_runs(self):
        names = [f"{what}.{rank}.1" for what in ("worker", "child") for rank in range(2)]

        def told():
            texts = [path.read_text() for name in names if (path := self.dir / name).exists()]
            return texts if len(texts) == len(names) and all(text.endswith("\n") for text in texts) else None
        pids = [int(text) for text in wait_for_files(told, self.dir, "the workers and their children", writes=True)]
        self.workers = pids[:2]
        self.observe(pids)

    def observe(self, more=()):
        """Remembers the job's processes and what they listen on."""
        listening = listening_sockets()
        for pid in {*processes_with(self.marker), *more}:
            if fields := fields_of(pid):
                self.seen[pid] = fields[2]
                self.sockets |= sockets_of(pid) & listening.keys()

    def named(self, name, parent):
        """The job's process of that name below another one."""
        (pid,) = [pid for pid in self.seen if name_of(pid) == name and (fields := fields_of(pid)) and fields[1] == parent]
        return pid

    def is_same(self, pid):
        fields = fields_of(pid)
        return fields is not None and fields[2] == self.seen[pid]

    def wait_until_reaped(self, pids):
        """None of them is a zombie whose parent, a program of ours, does not reap it. Nothing tells when it does."""
        wait_until(lambda: not [pid for pid in pids if self.is_same(pid) and (fields := fields_of(pid)) and fields[0] == "Z"
                                and name_of(fields[1]) in PRODUCT], f"zombies among {pids} to be reaped")

    def wait_until_nothing_runs(self):
        """Nothing of the job runs, neither what has its marker nor what had been seen before."""
        while left := {*processes_with(self.marker), *(p for p in self.seen if self.is_same(p) and is_alive(p))}:
            wait_for_ends(left, "everything to end")

    def assert_clean(self, may_leave_files):
        """To be called when the launchers have ended. A launcher that was killed cannot remove its token and its job's files."""
        self.wait_until_nothing_runs()
        self.assertEqual([pid for pid in self.seen if self.is_same(pid) and fields_of(pid)[1] == os.getpid()], [])
        still = {address for inode, address in listening_sockets().items() if inode in self.sockets}
        self.assertEqual(still, set(), "somebody listens")
        self.assertEqual(self.temporary_files(), [])
        # Other jobs have folders for their workers' pages there, named by their run ids.
        shared = [name for name in set(os.listdir("/dev/shm")) - self.shared_memory if "fsdp" in name]
        self.assertEqual([name for name in shared if self.marker in name or not name.startswith("fsdprun_vitals_")], [])
        # The folders are the user's, for all jobs.
        left = [path for path in self.runtime.rglob("*") if not path.is_dir() or stat.S_IMODE(path.stat().st_mode) != 0o700]
        if may_leave_files:
            kinds = sorted(path.suffix for path in left)
            self.assertIn(kinds, ([], [".token"], [".json", ".sock"], [".json", ".sock", ".token"]))
            self.assertEqual([path for path in left if path.suffix != ".sock" and stat.S_IMODE(path.stat().st_mode) != 0o600], [])
        else:
            self.assertEqual(left, [])
