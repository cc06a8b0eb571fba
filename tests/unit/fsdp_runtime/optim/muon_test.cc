#include <fsdp/muon.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/optim/muon_kernel.h"
#include "fsdp_runtime/src/optim/update_counts.h"
#include "tests/unit/fsdp_runtime/engine/placed_model.h"
#include "tests/unit/fsdp_runtime/optim/plain_momentum.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

/// Upward and downward matrices have options of their own; the rest is not trained.
MuonOptions options_for(const std::string& fqn) {
  return fqn.ends_with("up") ? MuonOptions{.lr = 0.02, .momentum = 0.9}
                             : MuonOptions{.lr = 0.01,
                                           .weight_decay = 0,
                                           .nesterov = false,
                                           .adjust_lr_fn = MuonRate::kMatchRmsAdamW};
}

bool is_trained(const std::string& fqn) {
  return fqn.ends_with("up") || fqn.ends_with("down") || fqn.ends_with("spare");
}

std::vector<MuonParamGroup> muon_groups(const FSDPModule& root) {
  std::vector<MuonParamGroup> groups(2);
  for (const LocalShard& shard : root.sharded_parameters()) {
    if (is_trained(shard.fqn)) {
      MuonParamGroup& group = groups[shard.fqn.ends_with("up") ? 0 : 1];
      group.params.push_back(shard.fqn);
      group.options = options_for(shard.fqn);
    }
  }
  return groups;
}

// What torch.optim.Muon does with whole matrices.
void torch_muon(const std::string& fqn, at::Tensor parameter, const at::Tensor& gradient,
                at::Tensor& momentum) {
  if (!is_trained(fqn)) {
    return;
  }
  const MuonOptions options = options_for(fqn);
  momentum = momentum.defined() ? momentum : at::zeros_like(gradient);
  momentum.lerp_(gradient, 1 - options.momentum);
  const at::Tensor update = orthogonalize(
      options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum, options);
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  const double ratio = options.adjust_lr_fn == MuonRate::kOriginal
                           ? std::sqrt(std::max(1.0, rows / columns))
                           : 0.2 * std::sqrt(std::max(rows, columns));
  parameter.mul_(1 - options.lr * options.weight_decay);
  parameter.add_(update, -options.lr * ratio);
}

void train_as_without_sharding(Sharded& setup, const Rank& rank, const ToyConfig& config) {
  Muon optimizer(setup.root, muon_groups(setup.root));
  PlainMomentum expected(rank.size, torch_muon, config);
  for (int64_t step = 0; step < 3; ++step) {
    expected.train(step);
    backward_in(setup, step, rank.rank);
    optimizer.step();
    optimizer.zero_grad();
    for (const LocalShard& gradient : setup.root.sharded_gradients()) {
      EXPECT_FALSE(gradient.local.defined() && is_trained(gradient.fqn)) << gradient.fqn;
    }
  }
  expect_parameters(setup.root, expected.plain);
  expect_momenta(optimizer.momentum_buffer(), expected.momentum);
}

class MuonTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(MuonTest, HasTheBitsOfWholeMatrices) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    train_as_without_sharding(setup, rank, {});
  });
}

TEST_P(MuonTest, HasThemWhereParametersAreDividedAlongDimensions) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank, placed_toy(), placed({}, inner_of_down()));
    train_as_without_sharding(setup, rank, placed_toy());
  });
}

TEST_P(MuonTest, HasThemWhereShardsAreOffloaded) {
  run_ranks(GetParam(), [](Rank& rank) {
    FullyShardOptions options;
    options.offload_policy = CPUOffloadPolicy{};
    Sharded setup = make(rank, {}, options);
    train_as_without_sharding(setup, rank, {});
  });
}

TEST_P(MuonTest, AStepExchangesUnitByUnit) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    Muon optimizer(setup.root, muon_groups(setup.root));
    backward_in(setup, 1, rank.rank);
    rank.comm->clear();
    optimizer.step();
    EXPECT_EQ(count(rank, "all_gather"), setup.model->config.blocks);
    EXPECT_EQ(count(rank, "reduce_scatter"), setup.model->config.blocks);
    for (const CollectiveRecord& record : rank.comm->records()) {
      EXPECT_EQ(record.dtype, "BFloat16") << record.operation;
    }
  });
}

TEST_P(MuonTest, AGradientThatIsNotFiniteChangesNothing) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    Muon optimizer(setup.root, muon_groups(setup.root));
    backward_in(setup, 0, rank.rank);
    const std::vector<int64_t> before = optimizer.parameter_steps();
    std::map<std::string, at::Tensor> weights;
    for (const LocalShard& part : setup.root.sharded_parameters()) {
      weights[part.fqn] = part.local.clone();
    }
    rank.comm->clear();
    optimizer.step(at::ones({}));
    EXPECT_TRUE(rank.comm->records().empty());
    EXPECT_EQ(optimizer.parameter_steps(), before);
    for (const LocalShard& part : setup.root.sharded_parameters()) {
      EXPECT_TRUE(part.local.equal(weights.at(part.fqn))) << part.fqn;
    }
    optimizer.step(at::zeros({}));
    EXPECT_NE(optimizer.parameter_steps(), before);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, MuonTest, ::testing::Values(1, 2, 3));

/// Has no memory for the second gather from arm() on, and counts who has waited for the first.
class ShortOfMemory : public RecordingCollectives {
 public:
  using RecordingCollectives::RecordingCollectives;
  void arm() { gathers_ = 0; }
  int waits() const { return *waits_; }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    if (gathers_ < 0) {
      return RecordingCollectives::all_gather_into(output, input, std::move(issue));
    }
    TORCH_CHECK(gathers_++ == 0, "out of memory");
    return std::make_shared<CountedWork>(
        RecordingCollectives::all_gather_into(output, input, std::move(issue)), waits_);
  }

 private:
  class CountedWork : public Work {
   public:
    CountedWork(WorkPtr inner, std::shared_ptr<int> waits)
        : inner_(std::move(inner)), waits_(std::move(waits)) {}
    void wait() override {
      ++*waits_;
      inner_->wait();
    }
    bool is_done() override { return inner_->is_done(); }

   private:
    const WorkPtr inner_;
    const std::shared_ptr<int> waits_;
  };

  int gathers_ = -1;
  const std::shared_ptr<int> waits_ = std::make_shared<int>(0);
};

// Or it would write to memory that somebody else has by then: a device's streams know nothing of
// the exception.
TEST(MuonExchangeTest, WhatIsInFlightIsWaitedForIfTheNextCannotBeIssued) {
  run_ranks(1, [](Rank& rank) {
    const auto comm = std::make_shared<ShortOfMemory>(rank.comm);
    Rank with{0, 1, comm, init_device_mesh(c10::kCPU, {1}, {"dp_shard"}, comm)};
    Sharded setup = make(with);
    Muon optimizer(setup.root, muon_groups(setup.root));
    backward_in(setup, 0, 0);
    comm->arm();
    EXPECT_THAT(refusal([&] { optimizer.step(); }), HasSubstr("out of memory"));
    EXPECT_EQ(comm->waits(), 1);
    EXPECT_EQ(optimizer.parameter_steps()[2], 0);  // nothing has begun
  });
}

TEST(MuonHybridTest, RowsWithCopiesStayEqual) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    Muon optimizer(setup.root, muon_groups(setup.root));
    for (int64_t step = 0; step < 3; ++step) {
      backward_in(setup, step, rank.rank);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const LocalShard& part : setup.root.sharded_parameters()) {
      const at::Tensor highest = part.local.clone();
      const at::Tensor lowest = -part.local;
      rank.mesh->group(0)->all_reduce(highest, ReduceOp::kMax)->wait();
      rank.mesh->group(0)->all_reduce(lowest, ReduceOp::kMax)->wait();
      EXPECT_TRUE(highest.equal(-lowest)) << part.fqn;
    }
    EXPECT_EQ(optimizer.parameter_steps()[2], 3);  // the first matrix of a block
  });
}

// What a device does with a found_inf that the host does not read.
TEST(MuonKernelTest, ASkippedUpdateChangesNothing) {
  const auto filled = [](double value) { return at::full({5}, value); };
  for (const bool is_skipped : {true, false}) {
    const MuonPart part{filled(1), filled(NAN), filled(2), filled(3).to(at::kBFloat16), filled(1)};
    apply_update(part, {}, 0.1, at::scalar_tensor(is_skipped, at::kBool));
    EXPECT_EQ(part.param.eq(1).all().item<bool>(), is_skipped);
    EXPECT_EQ(part.buffer.eq(2).all().item<bool>(), is_skipped);
    EXPECT_TRUE(part.copy.equal(part.param));
  }
  const MuonPart blended{filled(1), filled(4), filled(2), filled(3).to(at::kBFloat16), {}};
  const MuonPart in_place{filled(1), filled(4), filled(2), filled(3).to(at::kBFloat16), {}};
  apply_update(blended, {}, 0.1, at::scalar_tensor(false, at::kBool));
  apply_update(in_place, {}, 0.1, {});
  EXPECT_TRUE(blended.param.equal(in_place.param));
  EXPECT_TRUE(blended.buffer.equal(in_place.buffer));
}

TEST(UpdateCountsTest, CountsWhatTakesPartAndIsKept) {
  UpdateCounts counts(3, c10::kCPU);
  counts.add({1, 0, 1}, {});
  counts.add({1, 1, 0}, at::ones({}));
  counts.add({1, 1, 0}, at::zeros({}));
  EXPECT_EQ(counts.read(), (std::vector<int64_t>{2, 1, 1}));
  counts.set({7, 0, 1});
  counts.add({1, 1, 0}, {});
  EXPECT_EQ(counts.read(), (std::vector<int64_t>{8, 1, 1}));
}

TEST(MuonOptionsTest, WhatCannotBeIsRefused) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto refusal_of = [&](const std::string& fqn, const MuonOptions& options) {
      return refusal([&] { Muon(setup.root, {{{fqn}, options}}); });
    };
    EXPECT_THAT(refusal_of("gain", {}), HasSubstr("Muon: gain has shape [15]; expected a matrix"));
    EXPECT_THAT(refusal_of("block0.up", {.lr = -1}), HasSubstr("lr of param group 0 is -1"));
    EXPECT_THAT(refusal_of("block0.up", {.ns_steps = 100}), HasSubstr("ns_steps"));
    EXPECT_THAT(refusal_of("block0.wait", {}), HasSubstr("\"block0.wait\""));
    EXPECT_THAT(refusal([&] { Muon(setup.root, {}); }), HasSubstr("Muon: no param groups"));
    EXPECT_THAT(refusal([] { orthogonalize(at::ones({3})); }), HasSubstr("expected a matrix"));
  });
}

TEST(OrthogonalizeTest, SingularValuesComeNearOne) {
  at::manual_seed(1);
  for (const auto& [rows, columns] : {std::pair(48, 12), std::pair(12, 48)}) {
    const at::Tensor matrix = at::randn({rows, columns});
    const at::Tensor result = orthogonalize(matrix);
    ASSERT_EQ(result.sizes(), matrix.sizes());
    EXPECT_EQ(result.scalar_type(), at::kBFloat16);
    const at::Tensor values = at::linalg_svdvals(result.to(at::kFloat));
    EXPECT_LT(values.max().item<float>(), 1.3F);
    EXPECT_GT(values.min().item<float>(), 0.5F);
  }
  EXPECT_TRUE(orthogonalize(at::zeros({3, 4})).eq(0).all().item<bool>());
}

// Of torch.optim._muon._zeropower_via_newtonschulz of PyTorch 2.11.
TEST(OrthogonalizeTest, HasTheValuesOfPython) {
  const at::Tensor result = orthogonalize(at::arange(1, 7, at::kFloat).view({3, 2}));
  const at::Tensor expected =
      at::tensor({-0.455078125, 0.5703125, 0.080078125, 0.3984375, 0.59375, 0.25}).view({3, 2});
  // The order of sums in a matrix product is the library's: 4 of the 8 bits are the same anywhere.
  EXPECT_TRUE(at::allclose(result.to(at::kDouble), expected.to(at::kDouble), 0, 1.0 / 16))
      << result;
}

}  // namespace
}  // namespace fsdp::testing
