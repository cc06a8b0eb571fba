"""Rows of FSDP2 about frozen and unused parts, clipping, state dicts and memory."""

from operations import (ADAMW, BACKWARD, CLIPPED, COUNTS, EVENTS, FP16, GRADIENTS, LOSSES, PARAMETERS, STEP, VOLUME,
                        ZERO_GRAD, Case, blocks_and_root, forward, freeze, observed_step, scaled_step, shard, stack, train)


def parts() -> list[Case]:
    # 64 elements per rank leave nothing to be padded on either side.
    square = stack(blocks=2, width=64, head=64)
    return [
        Case("F01", "frozen_in_each_unit", {**square, "frozen": ["blocks.0.in_proj", "blocks.1.in_proj"]}, [
            shard(*blocks_and_root(2)), ADAMW, forward(0), BACKWARD, EVENTS, GRADIENTS, *train(2, 1)], long_ranks=(), compare=VOLUME),
        Case("F01", "nothing_frozen", square, [shard(*blocks_and_root(2)), ADAMW, forward(0), BACKWARD, EVENTS], long_ranks=(), compare=VOLUME),
        Case("F02", "frozen_units", stack(frozen=["blocks.0", "blocks.2"]), [
            shard(*blocks_and_root()), ADAMW, *observed_step(0), *train(2, 1)], ranks=(2, 3), compare=COUNTS),
        Case("F02", "frozen_and_used_twice", stack(order=[0, 1, 0, 2], frozen=["blocks.0.in_proj"]), [
            shard(*blocks_and_root()), ADAMW, *train()]),
        Case("F02", "others_in_each_step", stack(), [
            shard(*blocks_and_root()), ADAMW, freeze(["blocks.0", "blocks.1.in_proj"], True), *train(1),
            freeze(["blocks.0", "blocks.1.in_proj"], False), freeze(["blocks.1", "head"], True), *train(1, 1),
            freeze(["blocks.1", "head"], False), *train(1, 2)]),
        Case("A01", "unused_output", stack(carried="tuple"), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "unused_module", stack(unused_block=1, order=[0, 2]), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "module_that_never_runs", stack(order=[0, 2]), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "dicts", stack(carried="dict"), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "structs", stack(carried="struct"), [shard(*blocks_and_root()), ADAMW, *train()]),
        Case("A01", "input_with_gradient", stack(), [shard(*blocks_and_root()), ADAMW, *train(input_requires_grad=True)]),
        Case("G01", "norms_hybrid", stack(), [
            shard(*blocks_and_root(), mesh=(2, 0)), ADAMW, forward(0), BACKWARD, EVENTS,
            *(operation for norm in (1.0, 2.0, 3.0, 0.0) for operation in (("clip", {"max_norm": 0.05, "norm_type": norm}), GRADIENTS)),
            STEP, ZERO_GRAD, PARAMETERS], ranks=(4,), long_ranks=(), compare=COUNTS, rounding=CLIPPED),
        *(Case("G01", f"norm_{name}", stack(), [
            shard(*blocks_and_root()), ADAMW, forward(0), BACKWARD, EVENTS, ("clip", {"max_norm": 0.05, "norm_type": norm}),
            *((EVENTS,) if norm else ()), GRADIENTS,
            STEP, ZERO_GRAD, *train(2, 1, (("clip", {"max_norm": 0.05, "norm_type": norm}),))],
               # PyTorch cannot tell the largest element of an empty shard, and has two all-reduces for an infinity norm.
               ranks=(2, 3) if norm == 2.0 else (2,), long_ranks=(3,) if norm else (), compare=COUNTS, rounding=CLIPPED)
          for name, norm in (("1", 1.0), ("2", 2.0), ("3", 3.0), ("infinity", 0.0))),
        Case("X01", "overflow_on_one_rank", stack(), [
            shard(*blocks_and_root(precision=FP16)), ADAMW, ("scaler", {"init_scale": 1024.0, "growth_interval": 2}), *scaled_step(0),
            *scaled_step(1, overflows=True), *scaled_step(2), *scaled_step(3), LOSSES, PARAMETERS], ranks=(2, 3)),
        Case("X01", "unscaled_and_clipped", stack(), [
            shard(*blocks_and_root()), ADAMW, ("scaler", {"init_scale": 256.0}), forward(0), BACKWARD, ("unscale", {}), GRADIENTS,
            ("clip", {"max_norm": 0.05}), STEP, ("update_scale", {}), ZERO_GRAD, LOSSES, PARAMETERS], rounding=CLIPPED),
        Case("X01", "float32", stack(), [
            shard(*blocks_and_root()), ADAMW, ("scaler", {"init_scale": 256.0}), *scaled_step(0), *scaled_step(1), LOSSES, PARAMETERS]),
        *(Case("S01", f"{'whole' if whole else 'shards'}_width_{width}", stack(width=width), [
            shard(*blocks_and_root()), ADAMW, *train(1), ("save", {"full": whole}), ("build", {"seed": 7}), shard(*blocks_and_root()),
            ADAMW, ("load", {"full": whole}), PARAMETERS, *train(1, 1)], ranks=(2, 3) if width == 5 else (2,))
          for width in (3, 5, 16) for whole in (False, True)),
        Case("S03", "whole_on_rank_0", stack(), [
            shard(*blocks_and_root()), ADAMW, *train(1), ("save", {"full": True, "cpu_offload": True}), ("build", {"seed": 7}),
            shard(*blocks_and_root()), ADAMW, ("load", {"full": True, "broadcast_from_rank0": True}), PARAMETERS], ranks=(2, 3)),
        Case("R02", "deleted_model", stack(), [shard(*blocks_and_root()), ADAMW, *train(2), ("forget", {})]),
    ]
