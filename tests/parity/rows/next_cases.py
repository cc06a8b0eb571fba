"""Rows of FSDP2 and FSDP1: kinds of checkpoints, integers that reshard, ignored parameters of copies, what is gathered ahead,
optimizers in backward."""

from operations import (ADAMW, BF16, COUNTS, FSDP1, Case, blocks_and_root, observed_step, prefetch, shard, stack, train,
                        transformer, layers_and_root)


def checkpoints() -> list[Case]:
    cases = []
    for kind in ("reentrant", "hooks", "selective"):
        for reshard in (True, False):
            cases.append(Case("T15", f"{kind}_checkpoints_{'resharded' if reshard else 'kept'}", stack(checkpointed=kind), [
                shard(*blocks_and_root(reshard=reshard)), ADAMW, *train(input_requires_grad=True)]))
        cases.append(Case("T16", f"tied_weights_with_{kind}_checkpoints", transformer(checkpointed=kind), [
            shard(*layers_and_root()), ADAMW, *train(2)]))
        cases.append(Case("M05", f"{kind}_checkpoints_in_bfloat16", stack(checkpointed=kind), [
            shard(*blocks_and_root(precision=BF16)), ADAMW, *train(2, input_requires_grad=True)]))
        cases.append(Case("L18", f"{kind}_checkpoints", stack(checkpointed=kind), [
            shard(*blocks_and_root()), ADAMW, *train(input_requires_grad=True)], reference=FSDP1))
    return cases


def sharding() -> list[Case]:
    ignored = ["blocks.1.in_proj", "head.bias"]
    return [
        *(Case("T08", f"resharded_to_{ranks}_of_{ranks}", stack(width=16), [
            shard(*blocks_and_root(reshard=ranks)), ADAMW, *observed_step(0), *train(2, 1)], ranks=(ranks,), long_ranks=(), compare=COUNTS)
          for ranks in (3, 4)),
        Case("T08", "resharded_to_two_in_bfloat16", stack(width=16), [
            shard(*blocks_and_root(reshard=2, precision=BF16)), ADAMW, *observed_step(0), *train(2, 1)], ranks=(4,), long_ranks=(),
             compare=COUNTS),
        Case("X03", "ignored_parameters_hybrid", stack(), [
            shard(*blocks_and_root(ignored=ignored), mesh=(2, 0)), ADAMW, *train(3), ("local", {"of": ignored})], ranks=(4,), long_ranks=()),
    ]


def gathered_ahead() -> list[Case]:
    steps = [*observed_step(0), *observed_step(1), *train(2, 2)]
    return [Case("L01", f"prefetch_{what}", stack(4), [shard(*blocks_and_root(4), **how), ADAMW, *steps], reference=FSDP1, compare=COUNTS)
            for what, how in (("before_the_backward", {"backward_prefetch": "BACKWARD_PRE"}), ("behind_it", {"backward_prefetch": "BACKWARD_POST"}),
                              ("never", {"backward_prefetch": None}), ("in_forward", {"forward_prefetch": True}),
                              ("without_limit", {"forward_prefetch": True, "limit_all_gathers": False}))]


def in_backward() -> list[Case]:
    adamw = ("optimizer", {"kind": "adamw", "lr": 1e-2, "in_backward": True})
    return [
        Case("A01", "optimizer_in_backward", stack(), [shard(*blocks_and_root()), adamw, *train()], ranks=(2, 3)),
        Case("A01", "optimizer_in_backward_kept", stack(), [shard(*blocks_and_root(reshard=False)), adamw, *train()]),
        Case("A01", "optimizer_in_backward_bfloat16", stack(), [shard(*blocks_and_root(precision=BF16)), adamw, *train()]),
        Case("A01", "optimizer_in_backward_frozen", stack(frozen=["blocks.1", "blocks.0.in_proj"]), [
            shard(*blocks_and_root()), adamw, *train()]),
        Case("A01", "optimizer_in_backward_used_twice", stack(order=[0, 1, 0, 2]), [
            shard(*blocks_and_root()), adamw, *train()]),
        Case("A01", "optimizer_in_backward_with_lists", stack(), [
            shard(*blocks_and_root()), adamw, prefetch("blocks.2", "backward", ["blocks.1", "blocks.0"]), *train()]),
        Case("A01", "optimizer_in_backward_hybrid", stack(), [
            shard(*blocks_and_root(), mesh=(2, 0)), adamw, *train()], ranks=(4,), long_ranks=()),
    ]


def next_rows() -> list[Case]:
    return [*checkpoints(), *sharding(), *gathered_ahead(), *in_backward()]
