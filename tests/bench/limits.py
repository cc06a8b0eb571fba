"""What the benchmarks aim at, and what fails them. docs/BENCHMARKS.md has the same numbers.

An aim says what the product promises; a table shows whether it is met. A run fails only at the second number, which is for
regressions, and not for a machine that is busy with other work, which slows both sides. For the launcher it is at most half of
what is measured, so that it notices a time that has doubled; for training beside FSDP2, whose ratio is small, it is between
half and two thirds. Beside DDP and beside no communication, which a step costs a few percent at most, the aim itself is the limit:
what is far enough below it to be no noise would be most of what is promised. There a busy machine may fail a run; it says so in its
table.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How many times faster than PyTorch, or than another side."""

    aim: float
    fails_below: float


@dataclass(frozen=True)
class Time:
    """In milliseconds."""

    aim: float
    fails_above: float


@dataclass(frozen=True)
class Bound:
    """In the unit of its name."""

    aim: float
    fails_above: float


LAUNCH = {2: Ratio(50, 30), 64: Ratio(50, 10)}
RESPAWN = Ratio(20, 4)
SLURM = Ratio(20, 10)
ELASTIC_LEASE_MS = 3000
ELASTIC = {
    "killed": Time(500, 1200),
    "silent": Time(ELASTIC_LEASE_MS + 500, ELASTIC_LEASE_MS + 1500),
    "spare": Time(1000, 2000),
    "join": Time(1200, 2400),
}
# Beside FSDP2, by the side and the batch of bench_train.py.
TRAIN = {("shm", "4 x 128"): Ratio(1.38, 1.0), ("shm", "1 x 256"): Ratio(1.85, 1.0),
         ("gloo", "4 x 128"): Ratio(1.15, 0.7), ("gloo", "1 x 256"): Ratio(1.15, 0.7)}
# Over shared memory, by the mode and the batch of bench_train.py: beside the same program without communication, and beside DDP.
TRAIN_ALONE = {("fp32", "4 x 128"): Ratio(0.97, 0.97),
               **{(mode, "1 x 256"): Ratio(0.95, 0.95) for mode in ("fp32", "bf16", "accumulation", "checkpointing")}}
TRAIN_DDP = {("fp32", "4 x 128"): Ratio(1.0, 1.0), ("fp32", "1 x 256"): Ratio(1.1, 1.1)}
# Beside the same with PyTorch, by the comparison and the batch of bench_library.py.
LIBRARY = {("ddp", "4 x 128"): Ratio(1.0, 0.8), ("ddp", "1 x 256"): Ratio(1.1, 0.8),
           ("float16", "1 x 256"): Ratio(1.0, 0.7), ("offload", "1 x 256"): Ratio(1.0, 0.7)}
HOST_COST_US = Bound(5, 15)
ADDED_HOST_COST_US = Bound(0.5, 2)  # by one build, to what another costs
SECOND_RANK_MS = Bound(0.1, 1)  # per layer
DATA_WAIT = Bound(0.01, 0.01)  # of a step
MEMORY_OFF = Bound(0.03, 0.06)  # of what is expected, up or down
AGENTS = {"formed_s": Bound(3, 6), "known_s": Bound(0.3, 0.6)}  # of 1,000, in seconds
