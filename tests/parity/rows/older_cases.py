"""Rows of FSDP1 and DDP."""

from operations import (ADAMW, BACKWARD, CLIPPED, COUNTS, DDP, EVENTS, FP16, FSDP1, GRADIENTS, LOSSES, MLPS, PARAMETERS, SGD,
                        STEP, STEPPED_IN_FLOAT16, ZERO_GRAD, Case, blocks_and_root, forward, layers_and_root, micro_batches, observed_step,
                        scaled_step, setting, shard, stack, train, transformer, units_of)


def older() -> list[Case]:
    sync, no_sync = setting("requires_gradient_sync", True), setting("requires_gradient_sync", False)
    kept = {"strategy": "SHARD_GRAD_OP"}
    cases = [
        Case("L01", "nested_units", stack(), [shard(*units_of(["blocks.0.in_proj", "blocks.0", "blocks.1", ""])), ADAMW, *train()],
             reference=FSDP1),
        Case("L01", "kept_parameters", stack(), [shard(*blocks_and_root(reshard=False), **kept), ADAMW, *train()], reference=FSDP1),
        Case("L01", "transformer", transformer(), [shard(*layers_and_root()), ADAMW, *train()], reference=FSDP1),
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
        *(Case("L05", f"norm_{name}_at_{limit:g}", stack(), [
            shard(*blocks_and_root()), ADAMW, forward(0), ("backward", {"scale": 100.0}), ("clip", {"max_norm": limit, "norm_type": norm}),
            GRADIENTS, STEP, ZERO_GRAD, PARAMETERS], reference=FSDP1, rounding=CLIPPED)
          for name, norm in (("1", 1.0), ("2", 2.0), ("infinity", 0.0)) for limit in (1.0, 2.5)),
        Case("L05", "no_gradients", stack(), [shard(*blocks_and_root()), ADAMW, ("clip", {"max_norm": 1.0}), *train(1)], reference=FSDP1),
        Case("L06", "scaled_float16", stack(), [
            shard(*blocks_and_root(precision=FP16)), ADAMW, ("scaler", {"init_scale": 2048.0}), *scaled_step(0),
            *scaled_step(1, overflows=True), *scaled_step(2), LOSSES, PARAMETERS], reference=FSDP1),
        Case("L07", "hybrid", stack(), [
            shard(*blocks_and_root(), mesh=(2, 0), strategy="HYBRID_SHARD"), ADAMW, *observed_step(0), *train(4, 1)],
            reference=FSDP1, ranks=(4,), long_ranks=(), compare=COUNTS),
        Case("L12", "struct_results", stack(carried="struct"), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L12", "results_not_all_used", stack(carried="tuple"), [shard(*blocks_and_root()), ADAMW, *train(4)], reference=FSDP1),
        Case("L12", "no_gradient_at_all", stack(frozen=["blocks.1"]), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L17", "frozen_beginning", stack(frozen=["blocks.0"]), [shard(*blocks_and_root()), ADAMW, *train()], reference=DDP),
        Case("L17", "frozen_middle", stack(frozen=["blocks.1"]), [shard(*blocks_and_root(reshard=True)), ADAMW, *train()], reference=DDP),
        Case("L18", "checkpoints", stack(checkpointed=True), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L20", "dict_inputs", stack(carried="dict"), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L20", "uneven", {"kind": "mlp", "shapes": MLPS["uneven"]}, [shard("layers.0", ""), ADAMW, *train()], reference=FSDP1,
             ranks=(2, 3)),
        Case("L20", "block_used_twice", stack(order=[0, 0, 1, 2]), [shard(*blocks_and_root()), ADAMW, *train()], reference=FSDP1),
        Case("L20", "pure_float16", stack(dtype="float16"), [shard(*blocks_and_root()), SGD, *train(2, input="float16")], reference=FSDP1,
             long_ranks=(), rounding=STEPPED_IN_FLOAT16),
    ]
    for name, first, second, third in (("inside_out", no_sync, sync, no_sync), ("outside_in", sync, no_sync, sync)):
        for reshard in (True, False):
            # What SHARD_GRAD_OP keeps in no_sync() is gathered again here, without set_reshard_after_backward(False).
            script = micro_batches(7, {0: [first], 2: [second], 4: [third], 6: [sync]})
            cases.append(Case("L03", f"{name}_{'resharded' if reshard else 'kept'}", stack(), [
                shard(*blocks_and_root(**({} if reshard else {"reshard": False})), strategy="FULL_SHARD" if reshard else "SHARD_GRAD_OP"),
                ADAMW, *(operation for operation in script if reshard or operation != EVENTS), GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS],
                reference=FSDP1, compare=COUNTS if reshard else None))
    return cases
