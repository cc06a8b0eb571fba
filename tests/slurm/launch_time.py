"""How long it takes from the start of the batch file to the first line of the last rank on four nodes: fsdprun in the
batch file, srun fsdprun, and srun torchrun, one after the other, in rounds. Prints the medians and their ratio.

    launch_time.py [ROUNDS]
"""

import pathlib
import statistics
import sys
import tempfile

from cluster import Cluster, free_port
from slurm_case import FSDPRUN

NODES = 4
PRINT_TIME = "import os, pathlib, time\npathlib.Path(os.environ['D'], 'at.' + os.environ['RANK']).write_text(str(time.time()))\n"


def measure(slurm, folder, command):
    for path in folder.glob("at.*"):
        path.unlink()
    job = slurm.sbatch(f"#!/bin/bash\ndate +%s.%N >{folder}/start\n{command}\n", f"--nodes={NODES}", "--ntasks-per-node=1",
                       environment={"D": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHON_EXEC": sys.executable})
    slurm.wait_for_state(job, "COMPLETED")
    times = [float(path.read_text()) for path in folder.glob("at.*")]
    assert len(times) == NODES, slurm.output(job)
    return max(times) - float((folder / "start").read_text())


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name, Cluster(nodes=NODES) as slurm:
        folder = pathlib.Path(name)
        worker = folder / "worker.py"
        worker.write_text(PRINT_TIME)
        seconds = {"fsdprun": [], "srun fsdprun": [], "srun torchrun": []}
        for _ in range(rounds):
            # Told an address: it does not get by with names that do not resolve.
            torchrun = (f"srun {sys.executable} -m torch.distributed.run --nnodes {NODES} --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID"
                        f" --rdzv-endpoint 127.0.0.1:{free_port()} {worker}")
            for what, command in (("fsdprun", f"{FSDPRUN} {worker}"), ("srun fsdprun", f"srun {FSDPRUN} {worker}"),
                                  ("srun torchrun", torchrun)):
                seconds[what].append(measure(slurm, folder, command))
    medians = {what: statistics.median(values) for what, values in seconds.items()}
    for what, values in seconds.items():
        print(f"{what:14} median {medians[what]:6.2f} s of {', '.join(f'{value:.2f}' for value in values)}")
    print(f"srun torchrun / fsdprun: {medians['srun torchrun'] / medians['fsdprun']:.1f}")


if __name__ == "__main__":
    main()
