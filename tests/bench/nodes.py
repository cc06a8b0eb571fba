"""Nodes of a job on this machine whose workers reduce with Gloo: start one, kill or stop all of it, await a collective."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import measure

sys.path.insert(0, str(measure.ROOT / "tests/support"))
from free_port import free_port  # noqa: E402

WORKER = measure.BIN / "collective_worker"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Node:
    """A launcher with its workers; everything that it starts has its mark in the environment."""

    def __init__(self, launcher: str, arguments: list[str], folder: Path):
        self.mark = f"NODE_OF_BENCH={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        # torchrun: with its shared store a job of several nodes does not survive a change (pytorch 182221, 194710).
        environment = {**os.environ, name: value, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "LOGLEVEL": "ERROR",
                       "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if launcher == measure.TORCHRUN else "0"}
        self.log = folder / f"log.{value}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([launcher, *arguments, "--no-python", str(WORKER), str(folder)],
                                            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def pids(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass
        return found

    def signal_all(self, number: int) -> int:
        """The launcher first, as if the machine were gone. Returns the time of it, in ns."""
        pids = sorted(self.pids(), key=lambda pid: pid != self.process.pid)
        now = time.monotonic_ns()
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        return now

    def end(self) -> None:
        # What torchrun leaves behind would disturb the next measurement.
        while self.pids():
            self.signal_all(signal.SIGKILL)
            self.process.poll()
            time.sleep(0.01)
        self.process.wait()


class Job:
    """Nodes that meet at one endpoint. Use it in a `with`."""

    def __init__(self, launcher: str, folder: Path, nnodes: str, nproc: int, *options: str):
        self.launcher, self.folder, self.port = launcher, folder, free_port()
        self.arguments = [f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", "--rdzv-backend=c10d", "--max-restarts=3",
                          f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={uuid.uuid4().hex}", *options]
        self.nodes: list[Node] = []

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.end()

    def add_node(self) -> Node:
        """The first one hosts the coordinator, or torchrun's store: the others are added when it listens."""
        self.nodes.append(Node(self.launcher, self.arguments, self.folder))
        while len(self.nodes) == 1 and not self.is_listening():
            if self.nodes[0].process.poll() is not None:
                sys.exit(f"the first node has ended: {self.said()}")
            time.sleep(0.005)
        return self.nodes[-1]

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def first_collective(self, world: int, after_ns: int, limit_s: float) -> tuple[float, float] | None:
        """When all ranks of a world of that size have done their first collective, if that world began after a moment:
        ms since then, and ms that the last of its workers took to load LibTorch. None: not in time."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            found = {}
            for path in self.folder.glob(f"met.{world}.*"):
                rank, pid = map(int, path.name.split(".")[2:])
                began_ns, met_ns = map(int, path.read_text().split())
                if began_ns > after_ns:
                    found[rank] = max(found.get(rank, (0, 0)), (met_ns, began_ns - start_ns(pid)))
            if len(found) == world:
                met_ns, load_ns = max(found.values())
                return (met_ns - after_ns) / 1e6, load_ns / 1e6
            time.sleep(0.001)
        return None

    def said(self) -> str:
        return "\n".join(node.log.read_text()[-2000:] for node in self.nodes)


def start_ns(pid: int) -> int:
    """When a process was started, which the kernel tells in ticks of 10 ms."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return time.monotonic_ns()
    return int(fields[19]) * (10**9 // TICKS_PER_SECOND)
