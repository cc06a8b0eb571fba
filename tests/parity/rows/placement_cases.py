"""Rows of FSDP2 about shard_placement_fn: shapes of shards, training along other dimensions."""

from operations import (ADAMW, BACKWARD, BF16, GRADIENTS, PARAMETERS, SGD, STEP, ZERO_GRAD, Case, blocks_and_root, forward, shard, stack,
                        train, unit)

# Those that divide evenly over 2, 3 and 4 ranks.
INNER = {"in_proj.weight": 1, "out_proj.weight": -1}
SHARDS = ("shards_of_rank", {})


def placements() -> list[Case]:
    rows = blocks_and_root(placement={})
    inner = blocks_and_root(placement=INNER)
    uneven = stack(width=5)
    even = stack(width=12)
    return [
        Case("T07", "along_the_largest_dimension", even, [shard(unit("", placement=INNER)), ADAMW, *train()], ranks=(2, 3)),
        Case("T19", "along_dimension_0", uneven, [shard(*rows), ADAMW, *train()], ranks=(2, 3)),
        Case("T19", "in_bfloat16", even, [shard(*blocks_and_root(placement=INNER, precision=BF16)), ADAMW, *train()]),
        Case("T19", "hybrid", even, [shard(*inner, mesh=(2, 0)), ADAMW, *train()], ranks=(4,), long_ranks=()),
        Case("T19", "frozen", {**even, "frozen": ["blocks.1.in_proj"]}, [shard(*inner), ADAMW, *train()]),
        Case("T19", "state_of_shards", even, [
            shard(*inner), ADAMW, *train(1), ("save", {"full": True}), ("build", {"seed": 7}), shard(*inner), ADAMW, ("load", {"full": True}),
            PARAMETERS, *train(1, 1)]),
        *(Case("T19", f"shards_of_rank_{what}", model, [
            shard(*units), SGD, SHARDS, forward(0), BACKWARD, GRADIENTS, SHARDS, STEP, ZERO_GRAD, *train(1, 1), SHARDS], ranks=(2, 4))
          for what, model, units in (("uneven", uneven, rows), ("inner", even, inner))),
    ]
