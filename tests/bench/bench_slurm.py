#!/usr/bin/env python3
"""From the first command of a batch file to the first line of all ranks, 2 on each of 4 nodes of a real Slurm: `fsdprun`
against `srun torchrun`, in turns. The nodes are all this machine (tests/slurm/cluster.py)."""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import limits
import measure

sys.path.insert(0, str(measure.ROOT / "tests/slurm"))
from cluster import Cluster, free_port, reason_to_skip  # noqa: E402

NODES, LOCAL = 4, 2
FIRST_LINE = '#!/bin/sh\ndate +%s%N >"$D/rank.$RANK"\n'
BATCH_FILE = """\
#!/bin/sh
date +%s%N >"$D/began"
{command} --nproc-per-node={local} --no-python "$D/worker.sh"
"""


def command_of(launcher: str) -> str:
    if launcher == measure.FSDPRUN:
        return f"exec {launcher}"
    return (f"srun {launcher} --nnodes={NODES} --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
            f"--rdzv-endpoint=127.0.0.1:{free_port()}")


def first_lines_ms(slurm: Cluster, launcher: str) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "worker.sh").write_text(FIRST_LINE)
        (folder / "worker.sh").chmod(0o755)
        script = BATCH_FILE.format(command=command_of(launcher), local=LOCAL)
        job = slurm.sbatch(script, f"--nodes={NODES}", "--ntasks-per-node=1", f"--cpus-per-task={LOCAL}",
                           environment={"D": name, "TMPDIR": name, "XDG_CONFIG_HOME": name, "LOGLEVEL": "ERROR",
                                        "OMP_NUM_THREADS": "1"})
        slurm.wait_for_state(job, "COMPLETED")
        slurm.wait_until(lambda: not slurm.processes(), "everything on the nodes to end")
        ranks = [int((folder / f"rank.{rank}").read_text()) for rank in range(NODES * LOCAL)]
        return (max(ranks) - int((folder / "began").read_text())) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if reason := reason_to_skip():
        sys.exit(reason)
    times: dict[str, list[float]] = {measure.TORCHRUN: [], measure.FSDPRUN: []}
    with Cluster(nodes=NODES) as slurm:
        for launcher in times:
            first_lines_ms(slurm, launcher)  # files into the page cache
        for _ in range(options.repeats):
            for launcher, values in times.items():
                values.append(first_lines_ms(slurm, launcher))
    ratio = statistics.median(times[measure.TORCHRUN]) / statistics.median(times[measure.FSDPRUN])
    print(measure.table(
        [f"batch file to first lines of {NODES} x {LOCAL} ranks, ms", "median (range)", "times faster", "aim", "fails below"],
        [["srun torchrun", measure.summary(times[measure.TORCHRUN]), "1", "", ""],
         ["fsdprun", measure.summary(times[measure.FSDPRUN]), f"{ratio:.1f}", measure.in_words(ratio, limits.SLURM.aim),
          f"{limits.SLURM.fails_below:g}"]]))
    return int(ratio < limits.SLURM.fails_below)


if __name__ == "__main__":
    sys.exit(main())
