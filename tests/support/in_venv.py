#!/usr/bin/env python3
"""Runs a Python script of the tests with the Python of .venv, which has PyTorch. Without one: exit code 77, skipped.

usage: in_venv.py SCRIPT [ARGUMENTS]     a script that was not even declared would be missed by nobody
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77


def main() -> int:
    python = ROOT / ".venv/bin/python"
    if not os.access(python, os.X_OK):
        print(f"skipped: {' '.join(sys.argv[1:])} needs PyTorch, and there is no {python}; run scripts/setup --tests first")
        return SKIPPED
    os.execv(python, [str(python), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
