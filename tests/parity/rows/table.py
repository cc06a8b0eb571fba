"""The rows of docs/PARITY.md that are run with PyTorch and with libfsdp, as data: both sides read the same JSON.

A case builds a model (models.py, models.cc), draws its parameters from one seed, and runs a script, a list of operations
(reference.py, script.cc). What the operations note is compared: losses and everything else of each step, on each rank.
"""

from dataclasses import dataclass

FSDP2, FSDP1, DDP = "fsdp2", "fsdp1", "ddp"
Operation = tuple[str, dict]

# Of what units communicate: how many of each kind; in which order, for which unit; that and in which dtype; that and how
# many elements.
COUNTS, ORDER, DTYPES, VOLUME = "counts", "order", "dtypes", "volume"
# Tolerances. PyTorch's assert_close, by dtype; None is that at more than two ranks, and else every bit: a sum of two has one order.
CLOSE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}


@dataclass(frozen=True)
class Case:
    row: str
    what: str
    model: dict
    script: list[Operation]
    ranks: tuple[int, ...] = (2,)  # of every change
    long_ranks: tuple[int, ...] = (3,)  # the soak tier's, besides
    reference: str = FSDP2
    compare: str | None = None  # events
    tolerance: dict[str, tuple[float, float]] | None = None

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


def train(steps: int = 4, first: int = 0, before_step: tuple[Operation, ...] = (), **how) -> list[Operation]:
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


# --- FSDP2, training


def training() -> list[Case]:
    default = [shard(*blocks_and_root()), ADAMW]
    cases = [
        Case("T02", "root_without_inputs", stack(makes_input=True), [*default, *train(3, no_input=True)]),
        Case("T05", "to_float64_after_sharding", stack(), [shard(*blocks_and_root(), then_to="float64"), ADAMW, *train(input="float64")],
             tolerance=CLOSE),
        Case("T11", "a_block_alone_then_the_root", stack(), [*default, *train(1), *train(2, 1, of="blocks.0"), *train(1, 3)],
             ranks=(2, 3)),
        Case("T12", "block_used_twice", stack(order=[0, 0, 1, 2, 1]), [*default, *train()], tolerance=CLOSE),
        Case("T13", "explicit_prefetching", stack(4), [
            shard(*blocks_and_root(4)), ADAMW,
            *(prefetch(f"blocks.{i}", "forward", [f"blocks.{j}" for j in range(i + 1, min(i + 3, 4))]) for i in range(3)),
            *(prefetch(f"blocks.{i}", "backward", [f"blocks.{j}" for j in range(i - 1, max(i - 3, -1), -1)]) for i in range(3, 0, -1)),
            *train()]),
        Case("T17", "two_forwards_before_one_backward", stack(), [
            *default, forward(0, **{"as": "a"}), forward(1, **{"as": "b"}), ("backward", {"of": ["a", "b"]}), GRADIENTS, STEP,
            ZERO_GRAD, *train(1, 2)], tolerance=CLOSE),
        Case("T17", "two_forwards_with_checkpoints", stack(checkpointed=True), [
            *default, forward(0, **{"as": "a"}), forward(1, **{"as": "b"}), ("backward", {"of": ["a", "b"]}), GRADIENTS, STEP,
            ZERO_GRAD, *train(1, 2)], tolerance=CLOSE),
        Case("T17", "forward_without_grad_first", stack(), [
            *default, forward(0, grad=False, **{"as": "a"}), *train(2), forward(1, grad=False, **{"as": "b"}), *train(1, 2)]),
        Case("T27", "world_of_one", stack(), [*default, *observed_step(0), *train(3, 1)], ranks=(1,), long_ranks=(), compare=ORDER),
        Case("T27", "world_of_one_in_bfloat16", stack(), [shard(*blocks_and_root(precision=BF16)), ADAMW, *train(3)],
             ranks=(1,), long_ranks=()),
    ]
    for which, shapes in MLPS.items():
        cases.append(Case("T06", f"one_unit_{which}", {"kind": "mlp", "shapes": shapes}, [shard(""), ADAMW, *train(6)],
                          ranks=(2, 3) if which == "uneven" else (2,), long_ranks=(3, 4)))
    cases.append(Case("T06", "one_unit_zeroed_in_place", {"kind": "mlp", "shapes": MLPS["uneven"]}, [
        shard(""), SGD, *(operation for number in range(4) for operation in (
            forward(number), BACKWARD, STEP, ("zero_grad", {"in_place": number % 2 == 0}))), LOSSES, PARAMETERS]))
    for reshard in (True, False):
        cases.append(Case("T08", f"units_{'resharded' if reshard else 'kept'}", stack(), [
            shard(*blocks_and_root(reshard=reshard)), ADAMW, *train(6)], ranks=(2, 4) if reshard else (2,), long_ranks=(3, 4)))
    cases.append(Case("T08", "transformer", transformer(layers=3, is_tied=False), [
        shard(*layers_and_root(3)), ADAMW, *train(4)]))
    for reshard in (True, False):
        for grouping, names in (("layers", ["layers.0", "layers.1", ""]), ("one_unit", [""]),
                                ("halves", ["layers.0.attention", "layers.1.attention", "layers.0", "layers.1", ""])):
            cases.append(Case("T15", f"checkpoints_{grouping}_{'resharded' if reshard else 'kept'}",
                              transformer(checkpointed=True, is_tied=False), [
                                  shard(*units_of(names, reshard=reshard)), ADAMW, *train(3)]))
    cases.append(Case("T16", "tied_weights_with_checkpoints", transformer(checkpointed=True), [
        shard(*layers_and_root()), ADAMW, *train(3)]))
    for reshard in (True, False):
        cases.append(Case("T20", f"tied_weights_{'resharded' if reshard else 'kept'}", transformer(), [
            shard(*layers_and_root(reshard=reshard)), ADAMW, *train(3)], ranks=(2, 3) if reshard else (2,)))
    return cases


def unit_options() -> list[Case]:
    """Units of other shapes, and gathers by hand."""
    names = ["", "blocks.0", "blocks.1", "blocks.2"]
    tail = {"modules": ["norm", "output"]}
    gather_all = [("unshard", {"unit": name, "async": True}) for name in names]
    sums = [setting("force_sum_reduction_for_comms", True, unit=name) for name in names]
    return [
        Case("T08", "units_resharded_to_two", stack(width=16), [shard(*blocks_and_root(reshard=2)), ADAMW, *observed_step(0), *train(3, 1)],
             ranks=(4,), long_ranks=(), compare=COUNTS),
        Case("T10", "gathered_without_waiting", stack(), [
            shard(*blocks_and_root()), ADAMW, *gather_all, *train(1), *gather_all, ("wait", {}), *train(2, 1)]),
        Case("T16", "several_modules_in_one_unit", transformer(is_tied=False), [
            shard(*layers_and_root()[:-1], unit("tail", **tail), unit("")), ADAMW, *observed_step(0), *train(3, 1)], compare=COUNTS),
        Case("T16", "several_modules_with_casts", transformer(is_tied=False, checkpointed=True), [
            shard(*layers_and_root(precision=BF16)[:-1], unit("tail", precision=BF16, **tail), unit("", precision=BF16)), ADAMW, *train(3)]),
        Case("T22", "not_the_last_backward", stack(), [
            shard(*blocks_and_root()), ADAMW, setting("is_last_backward", False), forward(0), BACKWARD, forward(1), BACKWARD,
            setting("is_last_backward", True), forward(2), BACKWARD, GRADIENTS, STEP, ZERO_GRAD, *train(1, 3)]),
        Case("T26", "another_method_than_forward", stack(), [shard(*blocks_and_root()), ADAMW, *train(3, method="encode")]),
        Case("C06", "gathered_without_waiting", stack(), [
            shard(*blocks_and_root()), *gather_all, EVENTS, ("wait", {}), ("unsharded", {}), *(("reshard", {"unit": name}) for name in names),
            PARAMETERS], compare=ORDER),
        Case("C06", "unit_without_parameters", {"kind": "mlp", "shapes": MLPS["uneven"]}, [
            shard("layers.0", "layers.1", ""), ADAMW, ("unshard", {"async": True}), ("wait", {}), EVENTS, *train(3)], compare=ORDER),
        Case("C08", "sums_only", stack(), [shard(*blocks_and_root()), ADAMW, *sums, *train(3)], ranks=(2, 3)),
        Case("C08", "sums_only_hybrid", stack(), [shard(*blocks_and_root(), mesh=(2, 0)), ADAMW, *sums, *train(3)], ranks=(4,), long_ranks=()),
        Case("X03", "ignored_parameters", stack(), [
            shard(*blocks_and_root(ignored=["blocks.1.in_proj", "head.bias"])), ADAMW, *train(3), ("local", {"of": ["blocks.1.in_proj", "head.bias"]})]),
    ]


# --- gradients of several micro batches


def micro_batches(count: int, before: dict[int, list[Operation]] | None = None, seed: int = 0, **how) -> list[Operation]:
    script = []
    for number in range(count):
        script += [*(before or {}).get(number, []), forward(seed + number, **how), BACKWARD, EVENTS]
    return script


def accumulation() -> list[Case]:
    cases = [
        Case("T18", "accumulation_in_chunks", stack(), [
            shard(*blocks_and_root()), ADAMW, *micro_batches(3, {0: [setting("requires_gradient_sync", False)],
                                                                2: [setting("requires_gradient_sync", True)]}),
            GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS]),
        Case("T18", "resharding_toggled", stack(), [
            shard(*blocks_and_root()), ADAMW, *observed_step(0), setting("reshard_after_forward", False), *observed_step(1),
            setting("reshard_after_forward", True), *observed_step(2), LOSSES, PARAMETERS], compare=COUNTS),
        Case("T22", "one_forward_one_backward", stack(), [
            shard(*blocks_and_root()), ADAMW, *(("unshard", {"unit": name}) for name in ("", "blocks.0", "blocks.1", "blocks.2")), EVENTS,
            *micro_batches(3, {0: [setting("requires_gradient_sync", False), setting("reshard_after_backward", False)],
                               2: [setting("requires_gradient_sync", True), setting("reshard_after_backward", True)]}),
            GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS]),
    ]
    # Which units put their reductions off.
    modes = {"all": [("", True)], "root_only": [("", False)], "some_blocks": [("blocks.0", True), ("blocks.2", True)]}
    for mode, chosen in modes.items():
        for reshard in (True, False):
            off = [setting("requires_gradient_sync", False, unit=name, recurse=recurse) for name, recurse in chosen]
            on = [setting("requires_gradient_sync", True, unit=name, recurse=recurse) for name, recurse in chosen]
            cases.append(Case("T21", f"{mode}_{'resharded' if reshard else 'kept'}", stack(), [
                shard(*blocks_and_root(reshard=reshard)), ADAMW, *micro_batches(3, {0: off, 2: on}), GRADIENTS, STEP, ZERO_GRAD,
                *micro_batches(2, {0: off, 1: on}, 3), STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=COUNTS))
    cases.append(Case("T21", "parameters_kept_between_backwards", stack(), [
        shard(*blocks_and_root(reshard=False)), ADAMW,
        *micro_batches(3, {0: [setting("requires_gradient_sync", False), setting("reshard_after_backward", False)],
                           2: [setting("requires_gradient_sync", True), setting("reshard_after_backward", True)]}),
        GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=COUNTS))
    for what in ("requires_all_reduce", "requires_gradient_sync"):
        cases.append(Case("T21", f"hybrid_{what}", stack(), [
            shard(*blocks_and_root(), mesh=(2, 0)), ADAMW, *micro_batches(3, {0: [setting(what, False)], 2: [setting(what, True)]}),
            GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], ranks=(4,), long_ranks=(), compare=COUNTS))
    return cases


def hybrid() -> list[Case]:
    return [Case("T25", f"hybrid_width_{width}_{'resharded' if reshard else 'kept'}", stack(width=width), [
        shard(*blocks_and_root(reshard=reshard), mesh=(2, 0)), ADAMW, *observed_step(0), *train(3, 1)], ranks=(4,) if width == 3 else (),
        long_ranks=(4,), compare=COUNTS) for width in (3, 16, 17) for reshard in (True, False)]


# --- communication


def communication() -> list[Case]:
    parameters = {"kind": "parameters", "shapes": SIZES}
    cases = [
        Case("C01", "all_gather", parameters, [shard(""), ("unshard", {}), ("unsharded", {}), ("reshard", {}), PARAMETERS],
             ranks=(2, 3), long_ranks=(3, 4)),
        Case("C01", "reduce_scatter", parameters, [shard(""), forward(0), BACKWARD, GRADIENTS], ranks=(2, 3), long_ranks=(3, 4)),
        Case("C01", "reduce_scatter_in_float16", parameters, [
            shard(unit("", precision={"reduce": "float16"})), forward(0), BACKWARD, GRADIENTS], tolerance=CLOSE),
        Case("C02", "resharded_by_hand", stack(), [
            shard(*blocks_and_root(reshard=False)), ADAMW, forward(0), EVENTS,
            *(("reshard", {"unit": name}) for name in ("", "blocks.0", "blocks.1", "blocks.2")), BACKWARD, EVENTS, GRADIENTS], compare=COUNTS),
        Case("C04", "set_reshard_after_forward", stack(), [
            shard(*blocks_and_root()), ADAMW, *observed_step(0), setting("reshard_after_forward", False), *observed_step(1),
            setting("reshard_after_forward", True, unit="blocks.1", recurse=False), *observed_step(2), LOSSES], compare=COUNTS),
        Case("C09", "reduction_in_a_world_of_one", stack(), [
            shard(*blocks_and_root()), forward(0), BACKWARD, EVENTS, GRADIENTS], ranks=(1,), long_ranks=(), compare=ORDER),
    ]
    for reshard in (None, True, False):
        how = {} if reshard is None else {"reshard": reshard}
        cases.append(Case("C02", f"counts_{ {None: 'default', True: 'resharded', False: 'kept'}[reshard]}", stack(), [
            shard(*blocks_and_root(**how)), ADAMW, *observed_step(0), *observed_step(1), LOSSES], ranks=(2, 3), compare=COUNTS))
    for factor in (2.0, 3.0, 16.0):
        for what, precision in (("float32", {}), ("bfloat16", {"param": "bfloat16", "reduce": "bfloat16"}),
                                ("float16", {"param": "float16", "reduce": "float16"})):
            cases.append(Case("C03", f"divide_by_{factor:g}_in_{what}", stack(), [
                shard(*blocks_and_root(precision=precision)), ADAMW,
                *(setting("gradient_divide_factor", factor, unit=name) for name in ("", "blocks.0", "blocks.1", "blocks.2")),
                *train(2)], tolerance=CLOSE))
    return [*cases, *prefetching()]


def prefetching() -> list[Case]:
    """Orders of what units communicate."""
    # Of a unit whose input needs no gradient, PyTorch does not notice that its backward has ended before the root's has.
    three_steps = [operation for number in range(3) for operation in observed_step(number, input_requires_grad=True)]
    names = [f"blocks.{number}" for number in range(3)]
    cases = [
        Case("C05", f"{which}_{'checkpointed' if checkpointed else 'plain'}", stack(checkpointed=checkpointed), [
            shard(*blocks_and_root(reshard=reshard) if reshard is not None else blocks_and_root()), ADAMW, *three_steps], compare=ORDER)
        for which, reshard in (("default", None), ("resharded", True), ("kept", False)) for checkpointed in (False, True)
    ]
    return [
        *cases,
        Case("C05", "forward_lists", stack(), [
            shard(*blocks_and_root()), ADAMW, prefetch("", "forward", ["blocks.0"]), prefetch("blocks.0", "forward", names[1:]),
            *three_steps], compare=ORDER),
        Case("C05", "backward_lists", stack(), [
            shard(*blocks_and_root()), ADAMW, prefetch("blocks.2", "backward", ["blocks.1", "blocks.0"]), *three_steps], compare=ORDER),
        Case("C05", "block_without_backward", stack(unused_block=1, order=[0, 2]), [shard(*blocks_and_root()), ADAMW, *three_steps],
             compare=ORDER),
        Case("C05", "two_forwards", stack(), [
            shard(*blocks_and_root()), ADAMW, forward(0, input_requires_grad=True, **{"as": "a"}), EVENTS,
            forward(1, input_requires_grad=True, **{"as": "b"}), EVENTS, ("backward", {"of": ["a", "b"]}), EVENTS, GRADIENTS],
             compare=ORDER, tolerance=CLOSE),
    ]


# --- mixed precision


def precision() -> list[Case]:
    cases = []
    first_step = observed_step(0, input_requires_grad=True)
    for what, param in (("bfloat16", "bfloat16"), ("float16", "float16")):
        for reshard in (True, False):
            cases.append(Case("M01", f"compute_in_{what}_{'resharded' if reshard else 'kept'}", stack(), [
                shard(*blocks_and_root(reshard=reshard, precision={"param": param})), ADAMW, *first_step, SEEN_DTYPES, *train(3, 1)],
                compare=DTYPES, tolerance=CLOSE if param == "float16" else None))
    for reduce in ("float32", "bfloat16"):
        cases.append(Case("M02", f"reduce_bfloat16_in_{reduce}", stack(), [
            shard(*blocks_and_root(precision={"param": "bfloat16", "reduce": reduce})), ADAMW, *first_step, *train(3, 1)],
            compare=DTYPES))
    cases.append(Case("M02", "reduce_float32_in_bfloat16", stack(), [
        shard(*blocks_and_root(precision={"reduce": "bfloat16"})), ADAMW, *first_step, *train(3, 1)], compare=DTYPES))
    cases.append(Case("M03", "accumulate_in_float32", stack(), [
        shard(*blocks_and_root(precision=BF16)), ADAMW, *micro_batches(
            3, {0: [setting("requires_gradient_sync", False)], 2: [setting("requires_gradient_sync", True)]}, input_requires_grad=True),
        GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=DTYPES))
    cases.append(Case("M03", "accumulate_in_bfloat16", stack(), [
        shard(*blocks_and_root(precision={"param": "bfloat16", "reduce": "bfloat16"})), ADAMW,
        *micro_batches(
            3, {0: [setting("requires_gradient_sync", False)], 2: [setting("requires_gradient_sync", True)]}, input_requires_grad=True),
        GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=DTYPES))
    return [
        *cases,
        Case("M04", "one_block_in_float16", stack(), [
            shard(unit("blocks.0"), unit("blocks.1"), unit("blocks.2", precision={**FP16, "output": "float32"}), unit("")), ADAMW,
            *first_step, SEEN_DTYPES, *train(2, 1)], compare=DTYPES, tolerance=CLOSE),
        Case("M04", "input_from_outside", stack(external_input=True), [
            shard(*blocks_and_root(precision=BF16)), ADAMW, forward(0), SEEN_DTYPES, BACKWARD, GRADIENTS, *train(2, 1)]),
        Case("M04", "norms_in_float32", stack(has_norm=True), [
            shard(*units_of([f"blocks.{i}.norm" for i in range(3)], precision={"param": "float32", "output": "bfloat16"}),
                  *blocks_and_root(precision=BF16)), ADAMW, forward(0), SEEN_DTYPES, BACKWARD, GRADIENTS, *train(2, 1)]),
        Case("M04", "tensors_in_dicts", stack(carried="dict"), [
            shard(*blocks_and_root(precision=BF16)[:-1], unit("", precision={**BF16, "output": "float32"})), ADAMW, forward(0), SEEN_DTYPES,
            *train(2, 1)]),
        Case("M04", "no_cast_of_inputs", stack(), [
            shard(*blocks_and_root(precision={**BF16, "cast_forward_inputs": False})), ADAMW, *train(2, input="bfloat16")]),
        Case("M04", "results_in_float32", stack(), [
            shard(*blocks_and_root(precision=BF16)[:-1], unit("", precision={**BF16, "output": "float32"})), ADAMW, forward(0), SEEN_DTYPES,
            *train(2, 1)]),
    ]


# --- frozen and unused parts, clipping, state dicts, memory


def parts() -> list[Case]:
    # 64 elements per rank leave nothing to be padded on either side.
    square = stack(blocks=2, width=64, head=64)
    return [
        Case("F01", "frozen_in_each_unit", {**square, "frozen": ["blocks.0.in_proj", "blocks.1.in_proj"]}, [
            shard(*blocks_and_root(2)), ADAMW, forward(0), BACKWARD, EVENTS, GRADIENTS, *train(2, 1)], compare=VOLUME),
        Case("F01", "nothing_frozen", square, [shard(*blocks_and_root(2)), ADAMW, forward(0), BACKWARD, EVENTS], compare=VOLUME),
        Case("F02", "frozen_units", stack(frozen=["blocks.0", "blocks.2"]), [
            shard(*blocks_and_root()), ADAMW, *observed_step(0), *train(3, 1)], ranks=(2, 3), compare=COUNTS),
        Case("F02", "frozen_and_used_twice", stack(order=[0, 1, 0, 2], frozen=["blocks.0.in_proj"]), [
            shard(*blocks_and_root()), ADAMW, *train()], tolerance=CLOSE),
        Case("A01", "unused_output", stack(carried="tuple"), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "unused_module", stack(unused_block=1, order=[0, 2]), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "module_that_never_runs", stack(order=[0, 2]), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "dicts", stack(carried="dict"), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "structs", stack(carried="struct"), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "input_with_gradient", stack(), [shard(*blocks_and_root()), ADAMW, *train(input_requires_grad=True)]),
        Case("G01", "norm_2", stack(), [
            shard(*blocks_and_root()), ADAMW, forward(0), BACKWARD, EVENTS, ("clip", {"max_norm": 0.05}), EVENTS, GRADIENTS, STEP, ZERO_GRAD,
            *train(2, 1, (("clip", {"max_norm": 0.05}),))], ranks=(2, 3), compare=COUNTS, tolerance=CLOSE),
        *(Case("S01", f"{'whole' if whole else 'shards'}_width_{width}", stack(width=width), [
            shard(*blocks_and_root()), ADAMW, *train(1), ("save", {"full": whole}), ("build", {"seed": 7}), shard(*blocks_and_root()),
            ADAMW, ("load", {"full": whole}), PARAMETERS, *train(1, 1)], ranks=(2, 3) if width == 5 else (2,))
          for width in (3, 5, 16) for whole in (False, True)),
        Case("S03", "whole_on_rank_0", stack(), [
            shard(*blocks_and_root()), ADAMW, *train(1), ("save", {"full": True, "cpu_offload": True}), ("build", {"seed": 7}),
            shard(*blocks_and_root()), ADAMW, ("load", {"full": True, "broadcast_from_rank0": True}), PARAMETERS], ranks=(2, 3)),
        Case("R02", "deleted_model", stack(), [shard(*blocks_and_root()), ADAMW, *train(2), ("forget", {})]),
    ]


# --- what FSDP1 and DDP are tested with


def older() -> list[Case]:
    sync, no_sync = setting("requires_gradient_sync", True), setting("requires_gradient_sync", False)
    kept = {"strategy": "SHARD_GRAD_OP"}
    cases = [
        Case("L01", "nested_units", stack(), [shard(*units_of(["blocks.0.in_proj", "blocks.0", "blocks.1", ""])), ADAMW, *train()],
             reference=FSDP1),
        Case("L01", "kept_parameters", stack(), [shard(*blocks_and_root(reshard=False), **kept), ADAMW, *train()], reference=FSDP1),
        Case("L01", "transformer", transformer(), [shard(*layers_and_root()), ADAMW, *train()], reference=FSDP1, tolerance=CLOSE),
        Case("L01", "as_ddp", stack(), [shard(*blocks_and_root()), ADAMW, *train()], reference=DDP, ranks=(2, 3)),
        Case("L01", "delayed_step", stack(), [
            shard(*blocks_and_root()), ADAMW, forward(0), BACKWARD, forward(1, grad=False, **{"as": "eval"}), STEP, ZERO_GRAD, *train(1, 2)],
             reference=DDP),
        Case("L04", "full_shard", stack(), [shard(*blocks_and_root()), ADAMW, *observed_step(0), *observed_step(1)], reference=FSDP1,
             compare=COUNTS),
        Case("L04", "shard_grad_op", stack(), [
            shard(*blocks_and_root(reshard=False), **kept), ADAMW, *observed_step(0), *observed_step(1)], reference=FSDP1, compare=COUNTS),
        Case("L04", "shard_grad_op_no_sync", stack(), [
            shard(*blocks_and_root(reshard=False), **kept), ADAMW, no_sync, setting("reshard_after_backward", False),
            forward(0), EVENTS, BACKWARD, EVENTS, sync, setting("reshard_after_backward", True), forward(1), EVENTS, BACKWARD, EVENTS,
            GRADIENTS], reference=FSDP1, compare=COUNTS),
        Case("L07", "hybrid", stack(), [
            shard(*blocks_and_root(), mesh=(2, 0), strategy="HYBRID_SHARD"), ADAMW, *observed_step(0), *train(4, 1)],
            reference=FSDP1, ranks=(4,), long_ranks=(), compare=COUNTS),
        Case("L12", "struct_results", stack(carried="struct"), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L12", "results_not_all_used", stack(carried="tuple"), [shard(*blocks_and_root()), ADAMW, *train(6)], reference=FSDP1),
        Case("L12", "no_gradient_at_all", stack(frozen=["blocks.1"]), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L17", "frozen_beginning", stack(frozen=["blocks.0"]), [shard(*blocks_and_root()), ADAMW, *train()], reference=DDP),
        Case("L17", "frozen_middle", stack(frozen=["blocks.1"]), [shard(*blocks_and_root(reshard=True)), ADAMW, *train()], reference=DDP),
        Case("L18", "checkpoints", stack(checkpointed=True), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L20", "dict_inputs", stack(carried="dict"), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L20", "uneven", {"kind": "mlp", "shapes": MLPS["uneven"]}, [shard("layers.0", ""), ADAMW, *train()], reference=FSDP1,
             ranks=(2, 3)),
        Case("L20", "block_used_twice", stack(order=[0, 0, 1, 2]), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1,
             tolerance=CLOSE),
        Case("L20", "pure_float16", stack(dtype="float16"), [shard(*blocks_and_root()), SGD, *train(2, input="float16")], reference=FSDP1,
             tolerance={**CLOSE, "losses": CLOSE["float16"]}),
    ]
    for name, first, second, third in (("inside_out", no_sync, sync, no_sync), ("outside_in", sync, no_sync, sync)):
        for reshard in (True, False):
            cases.append(Case("L03", f"{name}_{'resharded' if reshard else 'kept'}", stack(), [
                shard(*blocks_and_root(**({} if reshard else {"reshard": False})), strategy="FULL_SHARD" if reshard else "SHARD_GRAD_OP"),
                ADAMW, *micro_batches(7, {0: [first], 2: [second], 4: [third], 6: [sync]}), GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS],
                reference=FSDP1, tolerance=CLOSE))
    return cases


CASES = [*training(), *unit_options(), *accumulation(), *hybrid(), *communication(), *precision(), *parts(), *older()]


def case_for(case: Case, ranks: int) -> dict:
    """As both sides read it."""
    script = []
    for name, options in case.script:
        if name == "shard":
            known = [size for size in options["mesh"] if size]
            options = {**options, "mesh": [size or ranks // (known[0] if known else 1) for size in options["mesh"]]}
        script.append([name, options])
    return {"name": case.name, "model": case.model, "script": script, "reference": case.reference}
