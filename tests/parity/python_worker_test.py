#!/usr/bin/env python3
"""Runs an unchanged Python script with Gloo under fsdprun: on one node, and as two nodes on this machine."""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from free_port import free_port  # noqa: E402

SCRIPT = Path(__file__).resolve().parent / "all_reduce_worker.py"


def run_together(commands: list[list[str]]) -> str:
    """Output of all commands; stops if one fails."""
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for command in commands]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, output in zip(started, outputs, strict=True):
        if process.returncode != 0:
            sys.exit(f"exit code {process.returncode}:\n{output}")
    return "\n".join(outputs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=["standalone", "two_nodes", "two_static_nodes"])
    parser.add_argument("--bin", type=Path, default=Path(__file__).resolve().parents[2] / "build/bin")
    options = parser.parse_args()
    fsdprun, program = str(options.bin / "fsdprun"), ["--no-python", sys.executable, str(SCRIPT)]
    if options.case == "standalone":
        commands = [[fsdprun, "--standalone", "--nproc-per-node", "4", *program]]
    elif options.case == "two_nodes":
        rendezvous = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
                      "--rdzv-id", "two"]
        commands = [[fsdprun, *rendezvous, "--nproc-per-node", "2", *program]] * 2
    else:
        port = str(free_port())
        commands = [[fsdprun, "--nnodes", "2", "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port,
                     "--nproc-per-node", "2", *program] for node in ("0", "1")]
    output = run_together(commands)
    print(output)
    missing = [rank for rank in range(4) if f"rank {rank} of 4: sum 10" not in output]
    print(f"no result from ranks {missing}" if missing else "all four ranks have the sum")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
