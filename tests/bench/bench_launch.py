#!/usr/bin/env python3
"""Launch to end of 2 x `true`: fsdprun against the installed torchrun, in turns."""

import subprocess
import sys
import time

import measure

ARGUMENTS = ["--standalone", "--nproc-per-node=2", "--no-python", "true"]


def launch_ms(launcher: str) -> float:
    started = time.perf_counter()
    subprocess.run([launcher, *ARGUMENTS], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    sys.exit(measure.compare_launchers(__doc__, "launch of 2 x true", launch_ms, at_least=20.0, warm_up=True))
