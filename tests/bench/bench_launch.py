#!/usr/bin/env python3
"""Launch to end of 2 and of 64 x `true`: fsdprun against the installed torchrun, in turns."""

import functools
import os
import shutil
import subprocess
import sys
import time

import limits
import measure


def launch_ms(launcher: str, folder: str, workers: int) -> float:
    started = time.perf_counter()
    process = subprocess.Popen([launcher, "--standalone", f"--nproc-per-node={workers}", "--no-python", "true"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder})
    measure.await_end(process, limit_s=120)
    return (time.perf_counter() - started) * 1e3


def spawn_alone_ms(_: str, workers: int) -> float:
    program = shutil.which("true")
    started = time.perf_counter()
    for process in [os.posix_spawn(program, ["true"], os.environ) for _ in range(workers)]:
        os.waitpid(process, 0)
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    sys.exit(measure.compare_launchers(__doc__, [
        measure.LauncherCase(f"launch of {workers} x true", functools.partial(launch_ms, workers=workers),
                             functools.partial(spawn_alone_ms, workers=workers), limit)
        for workers, limit in limits.LAUNCH.items()], warm_up=True))
