#!/usr/bin/env python3
"""systemd's own verdict on the units in deploy/systemd, with the built agent in the place of the installed one."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77


def main() -> int:
    root, agent = Path(sys.argv[1]), sys.argv[2]
    if shutil.which("systemd-analyze") is None:
        print("systemd-analyze is not installed")
        return SKIPPED
    units = sorted((root / "deploy/systemd").glob("*.service"))
    assert units, "no units found"
    with tempfile.TemporaryDirectory() as folder:
        for unit in units:
            text = unit.read_text()
            assert "/usr/local/bin/fsdp-agent" in text, unit
            copy = Path(folder) / unit.name
            copy.write_text(text.replace("/usr/local/bin/fsdp-agent", agent))
            done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
            if done.returncode != 0 or str(copy) in done.stderr:
                print(f"{unit.name}: {done.stderr}")
                return 1
    print(f"{len(units)} unit(s) verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
