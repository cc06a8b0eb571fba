"""Rows of FSDP2 that train: units, several forwards, micro batches, hybrid sharding."""

from operations import (ACCUMULATED, ADAMW, BACKWARD, BF16, COUNTS, EVENTS, GRADIENTS, LOSSES, MLPS, ORDER, PARAMETERS, SGD, STEP,
                        ZERO_GRAD, Case, blocks_and_root, forward, layers_and_root, micro_batches, observed_step, prefetch,
                        setting, shard, stack, train, transformer, unit, units_of)


def training() -> list[Case]:
    default = [shard(*blocks_and_root()), ADAMW]
    cases = [
        Case("T02", "root_without_inputs", stack(makes_input=True), [*default, *train(3, no_input=True)]),
        Case("T05", "to_float64_after_sharding", stack(), [shard(*blocks_and_root(), then_to="float64"), ADAMW, *train(input="float64")]),
        Case("T11", "a_block_alone_then_the_root", stack(), [*default, *train(1), *train(2, 1, of="blocks.0"), *train(1, 3)],
             ranks=(2, 3)),
        Case("T12", "block_used_twice", stack(order=[0, 0, 1, 2, 1]), [*default, *train()]),
        Case("T13", "explicit_prefetching", stack(4), [
            shard(*blocks_and_root(4)), ADAMW,
            *(prefetch(f"blocks.{i}", "forward", [f"blocks.{j}" for j in range(i + 1, min(i + 3, 4))]) for i in range(3)),
            *(prefetch(f"blocks.{i}", "backward", [f"blocks.{j}" for j in range(i - 1, max(i - 3, -1), -1)]) for i in range(3, 0, -1)),
            *train()]),
        Case("T17", "two_forwards_before_one_backward", stack(), [
            *default, forward(0, **{"as": "a"}), forward(1, **{"as": "b"}), ("backward", {"of": ["a", "b"]}), GRADIENTS, STEP,
            ZERO_GRAD, *train(1, 2)]),
        Case("T17", "two_forwards_with_checkpoints", stack(checkpointed=True), [
            *default, forward(0, **{"as": "a"}), forward(1, **{"as": "b"}), ("backward", {"of": ["a", "b"]}), GRADIENTS, STEP,
            ZERO_GRAD, *train(1, 2)], rounding=ACCUMULATED),
        Case("T17", "forward_without_grad_first", stack(), [
            *default, forward(0, grad=False, **{"as": "a"}), *train(2), forward(1, grad=False, **{"as": "b"}), *train(1, 2)]),
        Case("T27", "world_of_one", stack(), [*default, *observed_step(0), *train(2, 1)], ranks=(1,), long_ranks=(), compare=ORDER),
        Case("T27", "world_of_one_in_bfloat16", stack(), [shard(*blocks_and_root(precision=BF16)), ADAMW, *train(3)],
             ranks=(1,), long_ranks=()),
    ]
    for which, shapes in MLPS.items():
        cases.append(Case("T06", f"one_unit_{which}", {"kind": "mlp", "shapes": shapes}, [shard(""), ADAMW, *train(4)],
                          ranks=(2, 3) if which == "uneven" else (2,), long_ranks=(3, 4)))
    cases.append(Case("T06", "one_unit_zeroed_in_place", {"kind": "mlp", "shapes": MLPS["uneven"]}, [
        shard(""), SGD, *(operation for number in range(4) for operation in (
            forward(number), BACKWARD, STEP, ("zero_grad", {"in_place": number % 2 == 0}))), LOSSES, PARAMETERS]))
    for reshard in (True, False):
        cases.append(Case("T08", f"units_{'resharded' if reshard else 'kept'}", stack(), [
            shard(*blocks_and_root(reshard=reshard)), ADAMW, *train(4)], ranks=(2, 4) if reshard else (2,), long_ranks=(3, 4)))
    # Lists in both directions, with which most is on the way at once.
    ahead = [*(prefetch(f"blocks.{i}", "forward", [f"blocks.{i + 1}"]) for i in range(2)),
             *(prefetch(f"blocks.{i}", "backward", [f"blocks.{i - 1}"]) for i in (2, 1))]
    for what in ("gather", "reduce"):
        for lists in ([], ahead):
            cases.append(Case("T08", f"late_{what}s{'_with_lists' if lists else ''}", stack(), [
                *default, *lists, ("delay", {"what": what}), *train(2)]))
    cases.append(Case("T08", "transformer", transformer(layers=3, is_tied=False), [
        shard(*layers_and_root(3)), ADAMW, *train()]))
    for reshard in (True, False):
        for grouping, names in (("layers", ["layers.0", "layers.1", ""]), ("one_unit", [""]),
                                ("halves", ["layers.0.attention", "layers.1.attention", "layers.0", "layers.1", ""])):
            cases.append(Case("T15", f"checkpoints_{grouping}_{'resharded' if reshard else 'kept'}",
                              transformer(checkpointed=True, is_tied=False), [
                                  shard(*units_of(names, reshard=reshard)), ADAMW, *train(2)]))
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
        Case("T08", "units_resharded_to_two", stack(width=16), [shard(*blocks_and_root(reshard=2)), ADAMW, *observed_step(0), *train(2, 1)],
             ranks=(4,), long_ranks=(), compare=COUNTS),
        Case("T10", "gathered_without_waiting", stack(), [
            shard(*blocks_and_root()), ADAMW, *gather_all, *train(1), *gather_all, ("wait", {}), *train(2, 1)]),
        Case("T10", "gathered_during_the_block_before", stack(gathers_ahead=True), [
            shard(*blocks_and_root()), ADAMW, *observed_step(0), *train(2, 1)], compare=COUNTS),
        Case("T16", "several_modules_in_one_unit", transformer(is_tied=False), [
            shard(*layers_and_root()[:-1], unit("tail", **tail), unit("")), ADAMW, *observed_step(0), *train(2, 1)], compare=COUNTS),
        Case("T16", "several_modules_with_casts", transformer(is_tied=False, checkpointed=True), [
            shard(*layers_and_root(precision=BF16)[:-1], unit("tail", precision=BF16, **tail), unit("", precision=BF16)), ADAMW, *train(3)]),
        Case("T22", "not_the_last_backward", stack(), [
            shard(*blocks_and_root()), ADAMW, setting("is_last_backward", False), forward(0), BACKWARD, forward(1), BACKWARD,
            setting("is_last_backward", True), forward(2), BACKWARD, GRADIENTS, STEP, ZERO_GRAD, *train(1, 3)]),
        Case("T26", "another_method_than_forward", stack(), [shard(*blocks_and_root()), ADAMW, *train(3, method="encode")]),
        Case("C06", "gathered_without_waiting", stack(), [
            shard(*blocks_and_root()), *gather_all, EVENTS, ("wait", {}), ("unsharded", {}), *(("reshard", {"unit": name}) for name in names),
            PARAMETERS], compare=COUNTS),
        Case("C06", "unit_without_parameters", {"kind": "mlp", "shapes": MLPS["uneven"]}, [
            shard("layers.0", "layers.1", ""), ADAMW, ("unshard", {"async": True}), ("wait", {}), EVENTS, *train(3)], compare=ORDER),
        Case("C08", "sums_only", stack(), [shard(*blocks_and_root()), ADAMW, *sums, *train(3)], ranks=(2, 3)),
        Case("C08", "sums_only_hybrid", stack(), [shard(*blocks_and_root(), mesh=(2, 0)), ADAMW, *sums, *train(3)], ranks=(4,), long_ranks=()),
        Case("X03", "ignored_parameters", stack(), [
            shard(*blocks_and_root(ignored=["blocks.1.in_proj", "head.bias"])), ADAMW, *train(3), ("local", {"of": ["blocks.1.in_proj", "head.bias"]})]),
    ]


def accumulation() -> list[Case]:
    cases = [
        Case("T18", "accumulation_in_chunks", stack(), [
            shard(*blocks_and_root()), ADAMW, *micro_batches(3, {0: [setting("requires_gradient_sync", False)],
                                                                2: [setting("requires_gradient_sync", True)]}),
            GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=COUNTS),
        Case("T18", "resharding_toggled", stack(), [
            shard(*blocks_and_root()), ADAMW, *observed_step(0), setting("reshard_after_forward", False), *observed_step(1),
            setting("reshard_after_forward", True), *observed_step(2), LOSSES, PARAMETERS], compare=COUNTS),
        Case("T22", "one_forward_one_backward", stack(), [
            shard(*blocks_and_root()), ADAMW, *(("unshard", {"unit": name}) for name in ("", "blocks.0", "blocks.1", "blocks.2")), EVENTS,
            *micro_batches(3, {0: [setting("requires_gradient_sync", False), setting("reshard_after_backward", False)],
                               2: [setting("requires_gradient_sync", True), setting("reshard_after_backward", True)]}),
            GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=COUNTS),
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
        shard(*blocks_and_root(reshard=reshard), mesh=(2, 0)), ADAMW, *observed_step(0), *train(2, 1)], ranks=(4,) if width == 3 else (),
        long_ranks=(4,), compare=COUNTS) for width in (3, 16, 17) for reshard in (True, False)]
