"""Rows of FSDP2 with mixed precision."""

from operations import (ADAMW, BACKWARD, BF16, DTYPES, FP16, GRADIENTS, LOSSES, PARAMETERS, SEEN_DTYPES, STEP,
                        ZERO_GRAD, Case, blocks_and_root, forward, micro_batches, observed_step, setting, shard, stack,
                        train, unit, units_of)


def precision() -> list[Case]:
    cases = []
    first_step = observed_step(0, input_requires_grad=True)
    for what, param in (("bfloat16", "bfloat16"), ("float16", "float16")):
        for reshard in (True, False):
            cases.append(Case("M01", f"compute_in_{what}_{'resharded' if reshard else 'kept'}", stack(), [
                shard(*blocks_and_root(reshard=reshard, precision={"param": param})), ADAMW, *first_step, SEEN_DTYPES, *train(2, 1)],
                long_ranks=(), compare=DTYPES))
    for reduce in ("float32", "bfloat16"):
        cases.append(Case("M02", f"reduce_bfloat16_in_{reduce}", stack(), [
            shard(*blocks_and_root(precision={"param": "bfloat16", "reduce": reduce})), ADAMW, *first_step, *train(2, 1)],
            long_ranks=(3,) if reduce == "float32" else (), compare=DTYPES))
    cases.append(Case("M02", "reduce_float32_in_bfloat16", stack(), [
        shard(*blocks_and_root(precision={"reduce": "bfloat16"})), ADAMW, *first_step, *train(2, 1)], long_ranks=(), compare=DTYPES))
    cases.append(Case("M03", "accumulate_in_float32", stack(), [
        shard(*blocks_and_root(precision=BF16)), ADAMW, *micro_batches(
            3, {0: [setting("requires_gradient_sync", False)], 2: [setting("requires_gradient_sync", True)]}, input_requires_grad=True),
        GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], compare=DTYPES))
    cases.append(Case("M03", "accumulate_in_bfloat16", stack(), [
        shard(*blocks_and_root(precision={"param": "bfloat16", "reduce": "bfloat16"})), ADAMW,
        *micro_batches(
            3, {0: [setting("requires_gradient_sync", False)], 2: [setting("requires_gradient_sync", True)]}, input_requires_grad=True),
        GRADIENTS, STEP, ZERO_GRAD, LOSSES, PARAMETERS], long_ranks=(), compare=DTYPES))
    return [
        *cases,
        Case("M04", "one_block_in_float16", stack(), [
            shard(unit("blocks.0"), unit("blocks.1"), unit("blocks.2", precision={**FP16, "output": "float32"}), unit("")), ADAMW,
            *first_step, SEEN_DTYPES, *train(2, 1)], compare=DTYPES),
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
        Case("M05", "recomputed_in_bfloat16", stack(checkpointed=True), [
            shard(*blocks_and_root(precision=BF16)), ADAMW, forward(0, input_requires_grad=True), BACKWARD, SEEN_DTYPES, GRADIENTS, STEP, ZERO_GRAD,
            *train(2, 1)]),
        Case("M04", "results_in_float32", stack(), [
            shard(*blocks_and_root(precision=BF16)[:-1], unit("", precision={**BF16, "output": "float32"})), ADAMW, forward(0), SEEN_DTYPES,
            *train(2, 1)]),
    ]
