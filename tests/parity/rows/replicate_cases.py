"""Rows of replicate(), DDP on FSDP2's engine: copies of one rank each."""

from operations import (ADAMW, BF16, CLIPPED, COUNTS, GRADIENTS, LOSSES, PARAMETERS, REPLICATE, STEP, ZERO_GRAD, Case,
                        blocks_and_root, layers_and_root, micro_batches, observed_step, setting, shard, stack, train,
                        transformer)

COPIES = (0, 1)


def replicated() -> list[Case]:
    sync, no_sync = setting("requires_gradient_sync", True), setting("requires_gradient_sync", False)
    cases = [
        ("units", stack(), [shard(*blocks_and_root(), mesh=COPIES), ADAMW, *observed_step(0), *train(2, 1)], {"ranks": (2, 3)}),
        ("transformer_with_checkpoints", transformer(checkpointed=True), [
            shard(*layers_and_root(), mesh=COPIES), ADAMW, *observed_step(0), *train(2, 1)], {}),
        ("gradient_accumulation", stack(), [
            shard(*blocks_and_root(), mesh=COPIES), ADAMW, *micro_batches(3, {0: [no_sync], 2: [sync]}), GRADIENTS, STEP, ZERO_GRAD,
            LOSSES, PARAMETERS], {}),
        # libfsdp casts by a gather, of one rank.
        ("computed_in_bfloat16", stack(), [shard(*blocks_and_root(precision=BF16), mesh=COPIES), ADAMW, *train()], {"compare": None}),
        ("reduced_in_bfloat16", stack(), [
            shard(*blocks_and_root(precision={"param": "bfloat16", "reduce": "bfloat16"}), mesh=COPIES), ADAMW, *train()],
         {"compare": None, "long_ranks": ()}),
        ("clipped", stack(), [
            shard(*blocks_and_root(), mesh=COPIES), ADAMW, *observed_step(0),
            *train(2, 1, (("clip", {"max_norm": 0.05}),))], {"rounding": CLIPPED}),
    ]
    return [Case("K02", what, model, script, reference=REPLICATE, **{"compare": COUNTS, **how}) for what, model, script, how in cases]
