"""Rows of which most is tested in libfsdp's unit tests: what of it PyTorch can be asked for. docs/PARITY.md, "Tested without
PyTorch", has the rest."""

from operations import (ADAMW, BACKWARD, BF16, COUNTS, FSDP1, GRADIENTS, LOSSES, PARAMETERS, STEP, ZERO_GRAD, Case, Operation,
                        blocks_and_root, forward, layers_and_root, micro_batches, observed_step, setting, shard, stack, train,
                        transformer, unit)

MEMBERS: Operation = ("members", {})


def units() -> list[Case]:
    """Which parameters are in which unit; which modules a policy makes units."""
    large = {"policy": "size", "min": 1000}
    return [
        Case("I01", "members_of_nested_units", stack(), [
            shard("blocks.0.in_proj", "blocks.0", "blocks.2", unit("", ignored=["blocks.1.in_proj"])), MEMBERS]),
        Case("I02", "shards_of_fewer_rows_than_ranks", stack(width=2, head=1), [
            shard(*blocks_and_root(placement={})), MEMBERS, ("shards_of_rank", {})], ranks=(3,), long_ranks=(4,)),
        Case("L16", "always", transformer(is_tied=False), [("planned", {"policy": "always"})], reference=FSDP1),
        Case("L16", "by_size", transformer(layers=3), [("planned", large)], reference=FSDP1),
        Case("L16", "by_size_without_ignored_modules", transformer(layers=3), [("planned", {**large, "ignored": ["layers.1"]})],
             reference=FSDP1),
        Case("L16", "by_name", transformer(is_tied=False), [
            ("planned", {"policy": "named", "names": ["layers.0", "layers.1.attention", "layers.1", "output"]})], reference=FSDP1),
    ]


def offload() -> list[Case]:
    sync, no_sync = setting("requires_gradient_sync", True), setting("requires_gradient_sync", False)
    return [
        *(Case("T09", f"offloaded_{'resharded' if reshard else 'kept'}", stack(), [
            shard(*blocks_and_root(reshard=reshard, offload=True)), ADAMW, *observed_step(0), *train(2, 1)], compare=COUNTS)
          for reshard in (True, False)),
        Case("T09", "offloaded_in_bfloat16", stack(), [shard(*blocks_and_root(offload=True, precision=BF16)), ADAMW, *train()]),
        Case("T09", "offloaded_micro_batches", stack(), [
            shard(*blocks_and_root(offload=True)), ADAMW, *micro_batches(3, {0: [no_sync], 2: [sync]}), GRADIENTS, STEP, ZERO_GRAD, LOSSES,
            PARAMETERS], compare=COUNTS),
    ]


def of_fsdp1() -> list[Case]:
    groups = [{"suffix": "weight", "lr": 2e-2, "weight_decay": 0.2}, {"suffix": "bias", "lr": 1e-2, "weight_decay": 0.0}]
    biases = [f"blocks.{number}.{layer}.bias" for number in range(3) for layer in ("in_proj", "out_proj")]
    start = [shard(*blocks_and_root()), ADAMW]
    cases = [
        Case("L08", "groups_of_their_own", stack(), [
            shard(*blocks_and_root()), ("optimizer", {"kind": "adamw", "lr": 1e-2, "groups": groups}), *train()]),
        Case("L08", "frozen_biases", stack(frozen=biases), [*start, *train()]),
        Case("L08", "summoned_between_forwards", stack(), [
            *start, *train(1), ("summon", {"of": [""], "writeback": False}), *train(1, 1)]),
        Case("L09", "computed_in_bfloat16", stack(), [shard(*blocks_and_root(precision=BF16)), ADAMW, *train()]),
        Case("L09", "reduced_in_bfloat16", stack(), [
            shard(*blocks_and_root(precision={"reduce": "bfloat16"})), ADAMW, *train()], long_ranks=()),
        # Up to the gradients, which are the same: FSDP1's step then makes other parameters of the root than without the evaluation. That libfsdp's
        # do not depend on it is EvalPrecisionTest's.
        Case("L09", "evaluated_in_full_precision", stack(), [
            shard(*blocks_and_root(precision={**BF16, "full_precision_in_eval": True})), ADAMW, *train(1), ("mode", {"train": False}),
            forward(1, grad=False, **{"as": "eval"}), ("mode", {"train": True}), forward(2), BACKWARD, GRADIENTS,
            LOSSES]),
        *(Case("L14", f"compressed_to_{dtype}", stack(), [
            shard(*blocks_and_root(precision={"reduce": dtype}), by_hook=True), ADAMW, *train()], long_ranks=()) for dtype in ("float16", "bfloat16")),
        Case("L13", "written", stack(), [*start, *train(1), ("summon", {"of": [""]}), PARAMETERS, *train(1, 1)]),
        Case("L13", "not_kept", stack(width=5), [*start, ("summon", {"of": [""], "writeback": False}), PARAMETERS]),
        Case("L13", "of_the_root_alone", stack(), [*start, ("summon", {"of": ["head"], "recurse": False}), PARAMETERS]),
        Case("L13", "of_one_unit", stack(), [*start, *train(1), ("summon", {"of": ["blocks.1"], "unit": "blocks.1"}), PARAMETERS]),
        Case("L13", "with_gradients", stack(width=5), [
            *start, forward(0), BACKWARD, ("summon", {"of": [""], "with_grads": True, "writeback": False}), GRADIENTS]),
    ]
    return [Case(**{**vars(case), "reference": FSDP1}) for case in cases]


def elsewhere() -> list[Case]:
    return [*units(), *offload(), *of_fsdp1()]
