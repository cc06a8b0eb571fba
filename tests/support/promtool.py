"""Prometheus' own checks, without a Prometheus: scripts/setup --tests brings a promtool."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CANDIDATES = (shutil.which("promtool"), str(ROOT / ".cache/prometheus/usr/bin/promtool"))
PROMTOOL = next((path for path in CANDIDATES if path and os.access(path, os.X_OK)), None)
REASON_TO_SKIP = "" if PROMTOOL else "scripts/setup --tests brings a promtool"


def promtool(*words, text=None):
    """(exit code, all that it said). It reads `text`, where given, from standard input."""
    done = subprocess.run([PROMTOOL, *map(str, words)], input=text, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, check=False)
    return done.returncode, done.stdout
