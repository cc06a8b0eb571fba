#!/usr/bin/env python3
"""Launch to end of 2 and of 64 x `true`: fsdprun against the installed torchrun, in turns."""

import functools
import os
import subprocess
import sys
import time

import limits
import measure


def launch_ms(launcher: str, folder: str, workers: int) -> float:
    started = time.perf_counter()
    subprocess.run([launcher, "--standalone", f"--nproc-per-node={workers}", "--no-python", "true"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, env={**os.environ, "TMPDIR": folder})
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    sys.exit(measure.compare_launchers(__doc__, [
        measure.LauncherCase(f"launch of {workers} x true", functools.partial(launch_ms, workers=workers), limit)
        for workers, limit in limits.LAUNCH.items()], warm_up=True))
