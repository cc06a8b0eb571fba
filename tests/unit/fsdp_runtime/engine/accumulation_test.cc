// Gradients of several backwards: with and without communication, in the dtype of the reduction.

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/fsdp_runtime/engine/line_chain.h"

namespace fsdp::testing {
namespace {

/// One batch of all micro batches of a rank.
at::Tensor concatenated_loss(const Unit<Chain>& model, int64_t rank, int64_t micro_batches) {
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; i < micro_batches; ++i) {
    inputs.push_back(chain_input(rank, i));
  }
  return model(at::cat(inputs)).square().mean();
}

struct Phase {
  bool syncs;
  int64_t micro_batches;
};

// As FSDP1's: contiguous runs of micro batches inside no_sync() and outside, the last one outside.
TEST(AccumulationTest, RunsWithAndWithoutSyncGiveTheGradientOfOneBatch) {
  for (const std::vector<Phase>& phases :
       std::vector<std::vector<Phase>>{{{false, 3}, {true, 3}, {false, 3}, {true, 1}},
                                       {{true, 3}, {false, 3}, {true, 3}},
                                       {{false, 1}, {true, 1}}}) {
    for (const bool keeps : {false, true}) {
      for (const int64_t ranks : {1, 2}) {
        run_ranks(ranks, [&, keeps](Rank& rank) {
          int64_t total = 0;
          for (const Phase& phase : phases) {
            total += phase.micro_batches;
          }
          const ShardedChain setup = shard_chain(rank, {.reshard_after_forward = !keeps});
          int64_t step = 0;
          for (const Phase& phase : phases) {
            setup.root.set_requires_gradient_sync(phase.syncs);
            setup.root.set_reshard_after_backward(phase.syncs || !keeps);
            for (int64_t i = 0; i < phase.micro_batches; ++i) {
              rank.comm->clear();
              (chain_loss(setup.model, rank.rank, step++) / total).backward();
              EXPECT_EQ(count(rank, "reduce_scatter"), phase.syncs && rank.size > 1 ? 3 : 0);
            }
          }
          expect_gradients(rank, setup.root,
                           chain_gradients(ranks,
                                           [total](const Unit<Chain>& model, int64_t r) {
                                             concatenated_loss(model, r, total).backward();
                                           }),
                           1e-6);
        });
      }
    }
  }
}

/// A unit's gradient in `compute` of each micro batch, added up in `reduce`, and averaged.
at::Tensor accumulated_in(at::ScalarType compute, at::ScalarType reduce, int64_t ranks,
                          int64_t micro_batches) {
  at::Tensor sum;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    at::Tensor own;
    for (int64_t i = 0; i < micro_batches; ++i) {
      const at::Tensor weight = ChainLine(0).weight.detach().to(compute).requires_grad_();
      const at::Tensor bias = ChainLine(0).bias.detach().to(compute);
      at::tanh(at::linear(chain_input(rank, i).to(compute), weight, bias))
          .square()
          .sum()
          .backward();
      const at::Tensor gradient = weight.grad().to(reduce);
      own = own.defined() ? own + gradient : gradient;
    }
    sum = sum.defined() ? sum + own : own;
  }
  return (sum / ranks).to(at::kFloat);
}

// Without communication the sums are kept as they will be reduced: bit by bit.
TEST(AccumulationTest, WithoutSyncIsInTheDtypeOfTheReduction) {
  for (const at::ScalarType compute : {at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType reduce : {at::kFloat, compute}) {
      for (const bool as_on_a_device : {false, true}) {
        run_ranks(
            2,
            [&](Rank& rank) {
              Unit<ChainLine> line(std::make_shared<ChainLine>(0));
              const FSDPModule root = fully_shard(
                  line.ptr(), {.mesh = rank.mesh,
                               .mp_policy = {.param_dtype = compute, .reduce_dtype = reduce}});
              for (int64_t i = 0; i < 4; ++i) {
                root.set_requires_gradient_sync(i == 3);
                line(chain_input(rank.rank, i)).square().sum().backward();
              }
              const LocalShard gradient = root.sharded_gradients().front();
              EXPECT_EQ(gradient.local.scalar_type(), at::kFloat);
              expect_piece(gradient, accumulated_in(compute, reduce, 2, 4), 0);
            },
            as_on_a_device);
      }
    }
  }
}

// A gradient of an earlier step with sync is in the parameters' dtype, and stays so.
TEST(AccumulationTest, WithSyncIsInTheDtypeOfTheParameters) {
  run_ranks(2, [](Rank& rank) {
    Unit<ChainLine> line(std::make_shared<ChainLine>(0));
    const FSDPModule root =
        fully_shard(line.ptr(), {.mesh = rank.mesh, .mp_policy = {.param_dtype = at::kBFloat16}});
    at::Tensor expected;
    for (int64_t i = 0; i < 3; ++i) {
      at::Tensor sum;
      for (int64_t r = 0; r < 2; ++r) {
        const at::Tensor weight = ChainLine(0).weight.detach().to(at::kBFloat16).requires_grad_();
        const at::Tensor bias = ChainLine(0).bias.detach().to(at::kBFloat16);
        at::tanh(at::linear(chain_input(r, i).to(at::kBFloat16), weight, bias))
            .square()
            .sum()
            .backward();
        sum = sum.defined() ? sum + weight.grad() : weight.grad();
      }
      const at::Tensor mean = (sum / 2).to(at::kFloat);
      expected = expected.defined() ? expected + mean : mean;
      line(chain_input(rank.rank, i)).square().sum().backward();
    }
    expect_piece(root.sharded_gradients().front(), expected, 0);
  });
}

}  // namespace
}  // namespace fsdp::testing
