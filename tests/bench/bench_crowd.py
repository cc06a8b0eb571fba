#!/usr/bin/env python3
"""Many launchers of one worker each, all started at once on this machine: a load under which all must meet, and end with 0.

Each is a node of its own, and most of what is measured is what so many processes cost. With `--stop` the process of the launcher
that hosts the coordinator is stopped (SIGSTOP) for some seconds once a share of the others has connected.
"""

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import measure

sys.path.insert(0, str(measure.ROOT / "tests/support"))
from free_port import free_port  # noqa: E402

LIMIT_S = 60.0
ESTABLISHED, LISTENS = "01", "0A"


@dataclass
class Crowd:
    seconds: float = 0
    cpu_seconds: float = 0
    host_mib: float = 0
    stopped_after: float = 0
    """When the host was stopped; 0: it was not."""
    failures: list[str] = field(default_factory=list)


def sockets(port: int, state: str) -> list[str]:
    """The inodes of this machine's sockets that have this port themselves."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            row = line.split()
            if row[1].endswith(f":{port:04X}") and row[3] == state:
                found.append(row[9])
    return found


def holder(port: int, processes: list[subprocess.Popen]) -> subprocess.Popen | None:
    inodes = {f"socket:[{inode}]" for inode in sockets(port, LISTENS)}
    for process in processes:
        if inodes & open_files(process.pid):
            return process
    return None


def open_files(pid: int) -> set[str]:
    files = set()
    with contextlib.suppress(OSError):  # It has ended.
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # It was closed since.
                files.add(os.readlink(fd))
    return files


def start(count: int, port: int, folder: Path) -> list[subprocess.Popen]:
    arguments = [measure.FSDPRUN, f"--nnodes={count}", "--nproc-per-node=1", "--rdzv-backend=c10d",
                 f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={uuid.uuid4().hex}", "--no-python", shutil.which("true")]
    environment = {**os.environ, "FSDPRUN_TOKEN": uuid.uuid4().hex, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    processes = []
    for number in range(count):
        with (folder / f"said.{number}").open("w") as said:
            processes.append(subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said))
    return processes


def stop_host(processes: list[subprocess.Popen], port: int, share: float, seconds: float, begin: float) -> float:
    while len(sockets(port, ESTABLISHED)) < share * len(processes):
        if time.monotonic() - begin > LIMIT_S:
            return 0
        time.sleep(0.05)
    host = holder(port, processes)
    if host is None:
        return 0
    os.kill(host.pid, signal.SIGSTOP)
    after = time.monotonic() - begin
    time.sleep(seconds)
    os.kill(host.pid, signal.SIGCONT)
    return after


def run(count: int, stop_s: float, share: float, limit_s: float) -> Crowd:
    crowd = Crowd()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        begin = time.monotonic()
        processes = start(count, port, folder)
        try:
            if stop_s:
                crowd.stopped_after = stop_host(processes, port, share, stop_s, begin)
                if not crowd.stopped_after:
                    crowd.failures.append("the host could not be stopped in the middle of the joins")
            for process in processes:
                try:
                    process.wait(max(0.1, begin + limit_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    break
            crowd.seconds = time.monotonic() - begin
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        for number, process in enumerate(processes):
            if process.returncode != 0:
                said = (folder / f"said.{number}").read_text().strip()
                crowd.failures.append(f"{process.returncode}: {said[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    crowd.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    crowd.host_mib = after.ru_maxrss / 1024
    return crowd


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", nargs="+", type=int, default=[64, 256, 512, 1024])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stop", type=float, default=0, help="seconds for which the host is stopped")
    parser.add_argument("--share", type=float, default=0.5, help="the share of launchers that have connected before that")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    options = parser.parse_args()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows, failed = [], False
    for count in options.counts:
        crowds = [run(count, options.stop, options.share, options.limit) for _ in range(options.repeats)]
        failures = [failure for crowd in crowds for failure in crowd.failures]
        failed |= bool(failures)
        rows.append([str(count), measure.summary([crowd.seconds for crowd in crowds]),
                     f"{1000 * sum(crowd.cpu_seconds for crowd in crowds) / count / len(crowds):.0f}",
                     f"{max(crowd.host_mib for crowd in crowds):.0f}", str(len(failures))])
        print(f"{count}: {rows[-1]}", file=sys.stderr)
        for failure in failures[:5]:
            print(f"{count}: {failure}", file=sys.stderr)
    print(measure.table(["launchers", f"s until all have ended{f', the host stopped for {options.stop:g} s' if options.stop else ''}",
                         "CPU ms of each, workers included", "largest process, MiB", "failures"], rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
