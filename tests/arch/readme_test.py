#!/usr/bin/env python3
"""Compiles the C++ example of the README, so that it stays true. usage: readme_test.py ROOT COMPILER INCLUDE_DIR..."""

import re
import subprocess
import sys
from pathlib import Path


def main() -> int:
    root, compiler, includes = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    examples = re.findall(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.S)
    if not examples:
        sys.exit("README.md has no C++ example")
    command = [compiler, "-std=c++20", "-fsyntax-only", "-DUSE_DISTRIBUTED", "-I", str(root / "fsdp_runtime/include")]
    command += [word for folder in includes for word in ("-isystem", folder)] + ["-x", "c++", "-"]
    for example in examples:
        done = subprocess.run(command, input=example, text=True, capture_output=True)
        if done.returncode != 0:
            print(done.stderr[:4000])
            return 1
    print(f"{len(examples)} example compiles")
    return 0


if __name__ == "__main__":
    sys.exit(main())
