#!/usr/bin/env python3
"""kill -9 of one of eight workers to all running again: fsdprun against the installed torchrun, in turns.

The workers are shells that write their process id down and wait, so that nothing but the launcher is measured.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import limits
import measure

WORKERS = 8
# In a file, since torchrun substitutes dollar signs in arguments.
WORKER = 'echo $$ > "$1/$RANK.$TORCHELASTIC_RESTART_COUNT"; exec tail -f /dev/null\n'


def wait_for_workers(folder: Path, restart: int, limit_s: float) -> list[int]:
    """The process ids of the workers of that restart, as soon as all have written theirs."""
    deadline = time.perf_counter() + limit_s
    files = [folder / f"{rank}.{restart}" for rank in range(WORKERS)]
    while time.perf_counter() < deadline:
        try:
            texts = [file.read_text() for file in files]
            if all(text.endswith("\n") for text in texts):
                return [int(text) for text in texts]
        except FileNotFoundError:
            pass
        time.sleep(0.0002)
    sys.exit(f"workers of restart {restart} did not appear within {limit_s:g} s")


def respawn_ms(launcher: str, temporary: str) -> float:
    with tempfile.TemporaryDirectory(dir=temporary) as folder:
        script = Path(folder) / "worker.sh"
        script.write_text(WORKER)
        process = subprocess.Popen(
            [launcher, "--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=1", "--no-python", "sh", str(script),
             folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": temporary})
        try:
            victim = wait_for_workers(Path(folder), 0, 60)[-1]
            time.sleep(0.5)  # the launcher is at rest
            started = time.perf_counter()
            os.kill(victim, signal.SIGKILL)
            wait_for_workers(Path(folder), 1, 60)
            return (time.perf_counter() - started) * 1e3
        finally:
            process.terminate()  # SIGINT is ignored by what was started in the background
            process.wait(60)


def spawn_alone(folder: str, restart: int) -> list[int]:
    return [os.posix_spawn(shutil.which("sh"), ["sh", str(Path(folder) / "worker.sh"), folder],
                           {**os.environ, "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(restart)})
            for rank in range(WORKERS)]


def end_alone(workers: list[int]) -> None:
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    for worker in workers:
        os.waitpid(worker, 0)


def respawn_alone_ms(folder: str) -> float:
    (Path(folder) / "worker.sh").write_text(WORKER)
    workers = spawn_alone(folder, 0)
    wait_for_workers(Path(folder), 0, 60)
    started = time.perf_counter()
    end_alone(workers)
    workers = spawn_alone(folder, 1)
    wait_for_workers(Path(folder), 1, 60)
    took = (time.perf_counter() - started) * 1e3
    end_alone(workers)
    return took


if __name__ == "__main__":
    case = measure.LauncherCase(f"kill -9 of one of {WORKERS} workers to all respawned", respawn_ms, respawn_alone_ms,
                                limits.RESPAWN)
    sys.exit(measure.compare_launchers(__doc__, [case], warm_up=False))
