"""Rows of FSDP2 about what is communicated: counts, orders, factors."""

from operations import (ADAMW, BACKWARD, COUNTS, EVENTS, GRADIENTS, LOSSES, ORDER, PARAMETERS, SIZES, Case,
                        blocks_and_root, forward, observed_step, prefetch, setting, shard, stack, train, unit)


def communication() -> list[Case]:
    parameters = {"kind": "parameters", "shapes": SIZES}
    cases = [
        Case("C01", "all_gather", parameters, [shard(""), ("unshard", {}), ("unsharded", {}), ("reshard", {}), PARAMETERS],
             ranks=(2, 3), long_ranks=(3, 4)),
        Case("C01", "reduce_scatter", parameters, [shard(""), forward(0), BACKWARD, GRADIENTS], ranks=(2, 3), long_ranks=(3, 4)),
        Case("C01", "reduce_scatter_in_float16", parameters, [
            shard(unit("", precision={"reduce": "float16"})), forward(0), BACKWARD, GRADIENTS], long_ranks=()),
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
                *train(2)], long_ranks=() if precision else (3,)))
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
             compare=ORDER),
    ]
