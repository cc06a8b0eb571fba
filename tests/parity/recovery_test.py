#!/usr/bin/env python3
"""Kills parts of a training job and shows that nothing of the training is lost: every loss stays bit-equal.

cases: worker     kill -9 of one worker, one node
       keeper     kill -9 of one node's keeper, two nodes
       agent      kill -9 of one node's agent, two nodes; a new agent takes the node's place
       launcher   kill -9 of the launcher: nothing of the job goes on; says after how many ms the last process ended
       interrupt  Ctrl-C: everything ends, exit code not zero
       reshard    a checkpoint of 2 ranks resumes at 3 ranks with the same weights and moments

Several cases may be named. Those that are compared with a training that nothing interrupts share it: two ranks compute
the same bits on one node and on two.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dcp_read
import make_case
import torch
from parity_test import float32_bits

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from free_port import free_port  # noqa: E402

STEPS, EVERY, KILL_AT = 120, 20, 50


def processes_of(folder: Path) -> dict[int, str]:
    """Live processes whose command line names the case's folder: pid -> name."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if str(folder).encode() in (entry / "cmdline").read_bytes() and state != "Z":
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def records(path: Path) -> list[dict]:
    """Training records in the order of writing; a last line that is still being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [record for record in map(json.loads, lines) if "loss" in record]


def wait_until(what: str, condition, limit_s: float):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    sys.exit(f"not within {limit_s:g} s: {what}")


class Job:
    """One training job in `folder`: one launcher, or one per node."""

    def __init__(self, bin_dir: Path, folder: Path, nodes: int = 1):
        self.bin, self.folder, self.nodes = bin_dir, folder, nodes
        self.config = make_case.write_case(folder, steps=STEPS, ranks=3)
        self.metrics = folder / "metrics.jsonl"
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.log = open(folder / "job.log", "w")
        self.launchers: list[subprocess.Popen] = []

    def start_node(self, settings: tuple[str, ...] = (), ranks: int = 2) -> subprocess.Popen:
        rendezvous = ["--standalone"] if self.nodes == 1 else [
            f"--nnodes={self.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=recovery"]
        sets = [word for text in (f"checkpoint.every_steps={EVERY}", "checkpoint.resume=auto", *settings)
                for word in ("--set", text)]
        command = [self.bin / "fsdprun", *rendezvous, f"--nproc-per-node={ranks // self.nodes}", "--max-restarts=2",
                   "--no-python", self.bin / "fsdp-train", "--config", self.config, *sets]
        launcher = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log,
                                    env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.launchers.append(launcher)
        return launcher

    def start(self) -> None:
        for _ in range(self.nodes):
            self.start_node()

    def workers(self) -> list[int]:
        return sorted(pid for pid, name in processes_of(self.folder).items() if name == "fsdp-train")

    def wait_for_step(self, step: int) -> None:
        def reached() -> bool:
            if any(launcher.poll() not in (None, 0) for launcher in self.launchers):
                sys.exit(f"the job ended too early:\n{(self.folder / 'job.log').read_text()[-4000:]}")
            done = records(self.metrics)
            return bool(done) and done[-1]["step"] >= step
        wait_until(f"step {step}", reached, 120)

    def finish(self, ignore: tuple[subprocess.Popen, ...] = ()) -> None:
        for launcher in self.launchers:
            if launcher not in ignore and launcher.wait(180) != 0:
                sys.exit(f"exit code {launcher.returncode}:\n{(self.folder / 'job.log').read_text()[-4000:]}")

    def end(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            launcher.wait()
        wait_until("no process of the job left", lambda: not processes_of(self.folder), 10)


def compare_with_reference(reference: list[dict], ours: list[dict]) -> int:
    """One record per step, with the loss that the uninterrupted run had; a restart cuts those of lost steps."""
    for name, run in ("the uninterrupted run", reference), ("the killed one", ours):
        if (steps := [record["step"] for record in run]) != list(range(1, STEPS + 1)):
            sys.exit(f"{name} has records of the steps {steps}, not of 1 to {STEPS} once each")
    expected = {record["step"]: record["loss"] for record in reference}
    wrong = [record for record in ours if float32_bits(record["loss"]) != float32_bits(expected[record["step"]])]
    for record in wrong[:5]:
        print(f"step {record['step']}: {record['loss']!r}, uninterrupted {expected[record['step']]!r}")
    print(f"{len(ours)} records, {len(ours) - len(wrong)} bit-equal to the uninterrupted run")
    return 1 if wrong else 0


def check_resumed_once(job: Job) -> None:
    """The job has gone on from the last checkpoint before the kill: not from step 0, and in one restart."""
    log = (job.folder / "job.log").read_text()
    resumed = [int(step) for step in re.findall(r"resuming after step (\d+) ", log)]
    if len(resumed) != 1 or not KILL_AT - KILL_AT % EVERY <= resumed[0] < STEPS:
        sys.exit(f"resumed after steps {resumed}, expected once after {KILL_AT - KILL_AT % EVERY} or later:\n{log[-4000:]}")
    print(f"resumed once, after step {resumed[0]}")


def reference_records(bin_dir: Path, root: Path) -> list[dict]:
    """Of a training that nothing interrupts."""
    job = Job(bin_dir, root / "reference")
    try:
        job.start()
        job.finish()
        return records(job.metrics)
    finally:
        job.end()


def run_killed(bin_dir: Path, root: Path, case: str, reference: list[dict]) -> int:
    job = Job(bin_dir, root / case, nodes=1 if case == "worker" else 2)
    try:
        job.start()
        job.wait_for_step(KILL_AT)
        victim, lost = job.workers()[-1], ()
        if case == "keeper":
            victim = parent_of(victim)
        elif case == "agent":
            # The coordinator lives in the other launcher: the one whose endpoint is bound goes on.
            lost = (launcher_without_coordinator(job),)
            victim = lost[0].pid
        if not is_alive(victim):
            sys.exit(f"the {case} {victim} was gone before it was killed")
        os.kill(victim, signal.SIGKILL)
        print(f"killed {case} {victim} at step {records(job.metrics)[-1]['step']}")
        if case == "agent":
            lost[0].wait()
            job.start_node()
        job.finish(lost)
        check_resumed_once(job)
        return compare_with_reference(reference, records(job.metrics))
    finally:
        job.end()


def launcher_without_coordinator(job: Job) -> subprocess.Popen:
    """The launcher that does not listen on the rendezvous port, by the sockets that each holds."""
    port = int(job.endpoint.split(":")[1])
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
              if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")}
    for launcher in job.launchers:
        links = []
        for link in Path(f"/proc/{launcher.pid}/fd").iterdir():
            try:
                links.append(os.readlink(link))
            except FileNotFoundError:
                continue
        if not any(f"socket:[{inode}]" in links for inode in inodes):
            return launcher
    sys.exit("both launchers listen on the rendezvous port")


def run_ended(bin_dir: Path, root: Path, case: str) -> int:
    job = Job(bin_dir, root / case)
    try:
        launcher = job.start_node()
        job.wait_for_step(KILL_AT // 5)
        assert len(job.workers()) == 2
        started = time.monotonic()
        launcher.send_signal(signal.SIGKILL if case == "launcher" else signal.SIGINT)
        wait_until("the end of all processes", lambda: launcher.poll() is not None and not processes_of(job.folder), 60)
        code = launcher.wait()
        print(f"{case}: all processes ended after {(time.monotonic() - started) * 1e3:.0f} ms, exit code {code}")
        return 0 if code != 0 else 1
    finally:
        job.end()


def moments_that_went_astray(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    """What AdamW has not made of the moments before in a step whose gradients are as good as zero: each decays by its beta."""
    decays = {".exp_avg": 0.9, ".exp_avg_sq": 0.999}  # of make_case.py
    moments = [(name, decay) for name in before for suffix, decay in decays.items() if name.endswith(suffix)]
    wrong = [name for name, decay in moments if not torch.allclose(after[name], before[name] * decay, rtol=1e-6, atol=1e-30)]
    if not moments or any(not before[name].any() for name, _ in moments):
        sys.exit("there are no moments to compare")
    print(f"{len(moments)} moments, after a step without gradients: {', '.join(wrong) or 'all'} "
          f"{'are not' if wrong else 'are'} what AdamW makes of those before")
    return wrong


def run_reshard(bin_dir: Path, root: Path) -> int:
    """Two ranks train to step 20; three ranks resume with learning rate 0: the weights must come out as they were. The gradients of
    that step are clipped to nothing, so that the moments, which have the names and places of the weights, follow from those before."""
    job = Job(bin_dir, root / "reshard")
    try:
        job.start_node((f"train.steps={EVERY}",))
        job.finish()
        before = dcp_read.load_tensors(dcp_read.newest_complete(job.folder / "checkpoints"))
        job.start_node((f"train.steps={EVERY + 1}", "optimizer.lr=0", "train.max_grad_norm=1e-30"), ranks=3)
        job.finish()
        steps = [record["step"] for record in records(job.metrics)]
        after = dcp_read.load_tensors(dcp_read.newest_complete(job.folder / "checkpoints"))
        weights = [name for name in before if name.startswith("model.")]
        wrong = [name for name in weights if not before[name].equal(after[name])]
        counts = {float(tensor) for name, tensor in after.items() if name.endswith(".step")}
        if set(before) != set(after) or counts != {EVERY + 1}:
            sys.exit(f"the optimizer has done {counts} steps; keys that differ: {set(before) ^ set(after) or 'none'}")
        print(f"steps {steps[0]} to {steps[-1]}; {len(weights)} weights, changed by 2 -> 3 ranks: {wrong or 'none'}")
        astray = moments_that_went_astray(before, after)
        return 0 if weights and not wrong and not astray and steps == list(range(1, EVERY + 2)) else 1
    finally:
        job.end()


def main() -> int:
    killed, ended = ("worker", "keeper", "agent"), ("launcher", "interrupt")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", choices=[*killed, *ended, "reshard"], nargs="+", metavar="case")
    parser.add_argument("--bin", type=Path, default=Path(__file__).resolve().parents[2] / "build/bin")
    options = parser.parse_args()
    bin_dir, wrong = options.bin.resolve(), 0
    with tempfile.TemporaryDirectory(prefix="fsdprun-recovery-") as temporary:
        root = Path(temporary)
        reference = reference_records(bin_dir, root) if set(options.cases) & set(killed) else []
        for case in options.cases:
            if case in killed:
                wrong += run_killed(bin_dir, root, case, reference)
            elif case in ended:
                wrong += run_ended(bin_dir, root, case)
            else:
                wrong += run_reshard(bin_dir, root)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
