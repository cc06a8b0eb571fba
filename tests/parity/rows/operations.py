"""What a case is, and the operations and models of which the cases are made. Both sides read them as the same JSON.

A case builds a model (models.py, models.cc), draws its parameters from one seed, and runs a script, a list of operations
(reference.py, script.cc). What the operations note is compared: losses and everything else of each step, on each rank.
"""

from dataclasses import dataclass

FSDP2, REPLICATE, FSDP1, DDP = "fsdp2", "replicate", "fsdp1", "ddp"
Operation = tuple[str, dict]

# Of what units communicate: how many of each kind; in which order, for which unit; that and in which dtype; that and how
# many elements.
COUNTS, ORDER, DTYPES, VOLUME = "counts", "order", "dtypes", "volume"
# PyTorch's tolerances of assert_close, by dtype, at more than two ranks. At two every bit is compared: a sum of two has one order.
CLOSE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}


@dataclass(frozen=True)
class Rounding:
    """Where two ranks, too, are compared by a tolerance: in what is noted behind the first operation of that name."""
    behind: str
    why: str  # in the words of docs/PARITY.md
    tolerance: dict[str, tuple[float, float]]


CLIPPED = Rounding("clip", "the norm adds up in another order", CLOSE)
ACCUMULATED = Rounding("backward", "two gradients of a parameter are added in another order", CLOSE)
STEPPED_IN_FLOAT16 = Rounding("step", "the optimizer's step rounds to float16 in between", {**CLOSE, "losses": CLOSE["float16"]})


@dataclass(frozen=True)
class Case:
    row: str
    what: str
    model: dict
    script: list[Operation]
    ranks: tuple[int, ...] = (2,)  # of every change
    # The soak tier's, besides; none where three are added up in float16 or bfloat16, which rounds in the backend's order.
    long_ranks: tuple[int, ...] = (3,)
    reference: str = FSDP2
    compare: str | None = None  # events
    rounding: Rounding | None = None

    def __post_init__(self):
        operations = [name for name, _ in self.script]
        assert ("events" in operations) == (self.compare is not None), f"{self.name}: events that nobody compares, or none to compare"
        assert self.rounding is None or self.rounding.behind in operations, f"{self.name} has no {self.rounding.behind}"

    def tolerance(self, ranks: int, position: int) -> dict[str, tuple[float, float]] | None:
        """Of what the operation at this position has noted; None: all bits are the same."""
        if self.rounding and position >= [name for name, _ in self.script].index(self.rounding.behind):
            return self.rounding.tolerance
        return CLOSE if ranks > 2 else None

    @property
    def name(self) -> str:
        return f"{self.row}_{self.what}"


# --- operations


def unit(name: str, **how) -> dict:
    return {"name": name, **how}


def shard(*units: dict | str, mesh: tuple[int, ...] = (0,), strategy: str = "FULL_SHARD", **options) -> Operation:
    """A mesh with 0 has all ranks there."""
    described = [unit(each) if isinstance(each, str) else each for each in units]
    return "shard", {"units": [*described], "mesh": list(mesh), "strategy": strategy, **options}


def freeze(of: list[str], value: bool) -> Operation:
    return "freeze", {"of": of, "value": value}


def units_of(names: list[str], **how) -> list[dict]:
    return [unit(name, **how) for name in names]


ADAMW: Operation = ("optimizer", {"kind": "adamw", "lr": 1e-2})
SGD: Operation = ("optimizer", {"kind": "sgd", "lr": 1e-2})
BACKWARD: Operation = ("backward", {})
STEP: Operation = ("step", {})
ZERO_GRAD: Operation = ("zero_grad", {})
LOSSES: Operation = ("losses", {})
GRADIENTS: Operation = ("gradients", {})
PARAMETERS: Operation = ("parameters", {})
EVENTS: Operation = ("events", {})
SEEN_DTYPES: Operation = ("dtypes", {})


def forward(seed: int, **how) -> Operation:
    return "forward", {"seed": seed, **how}


def setting(what: str, value: bool | float, **how) -> Operation:
    return "set", {"what": what, "value": value, **how}


def prefetch(unit_name: str, which: str, units: list[str]) -> Operation:
    return "prefetch", {"unit": unit_name, "pass": which, "units": units}


def train(steps: int = 3, first: int = 0, before_step: tuple[Operation, ...] = (), **how) -> list[Operation]:
    """Whole steps; the gradients of the first and all losses and parameters are compared."""
    script: list[Operation] = []
    for number in range(first, first + steps):
        script += [forward(number, **how), BACKWARD]
        script += [GRADIENTS] if number == first else []
        script += [*before_step, STEP, ZERO_GRAD]
    return [*script, LOSSES, PARAMETERS]


def observed_step(seed: int, **how) -> list[Operation]:
    """A step with what is communicated in its forward and in its backward."""
    return [forward(seed, **how), EVENTS, BACKWARD, EVENTS, STEP, ZERO_GRAD]


def scaled_step(seed: int, **how) -> list[Operation]:
    return [forward(seed), ("backward", how), STEP, ("update_scale", {}), ZERO_GRAD]


def micro_batches(count: int, before: dict[int, list[Operation]] | None = None, seed: int = 0, **how) -> list[Operation]:
    script = []
    for number in range(count):
        script += [*(before or {}).get(number, []), forward(seed + number, **how), BACKWARD, EVENTS]
    return script


# --- models


def stack(blocks: int = 3, width: int = 8, order: list[int] | None = None, **how) -> dict:
    return {"kind": "stack", "blocks": blocks, "width": width, "order": list(range(blocks)) if order is None else order, **how}


def blocks_and_root(count: int = 3, **how) -> list[dict]:
    return [*units_of([f"blocks.{number}" for number in range(count)], **how), unit("", **how)]


def transformer(**how) -> dict:
    return {"kind": "transformer", **how}


def layers_and_root(count: int = 2, **how) -> list[dict]:
    return [*units_of([f"layers.{number}" for number in range(count)], **how), unit("", **how)]


MLPS = {"even": [[16, 15], [15, 8]], "uneven": [[7, 15], [15, 3]], "odd": [[16, 17], [17, 8]]}
# Those with which PyTorch tests its collectives.
SIZES = [[17, 257], [17], [64, 312], [64], [64, 64], [512, 64], [256], [64, 297]]
BF16 = {"param": "bfloat16", "reduce": "float32"}
FP16 = {"param": "float16", "reduce": "float32"}


def case_for(case: Case, ranks: int) -> dict:
    """As both sides read it."""
    script = []
    for name, options in case.script:
        if name == "shard":
            known = [size for size in options["mesh"] if size]
            options = {**options, "mesh": [size or ranks // (known[0] if known else 1) for size in options["mesh"]]}
        script.append([name, options])
    return {"name": case.name, "model": case.model, "script": script, "reference": case.reference}
