// Trains random models in random ways, and compares all bits, where sums have one order, with
// training without sharding.
//
// FSDPRUN_SEEDS: how many; FSDPRUN_FIRST_SEED: from which on, to repeat one that has failed.

#include <ATen/Parallel.h>
#include <fsdp/grad_scaler.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/placed_model.h"
#include "tests/unit/fsdp_runtime/engine/random_training.h"

namespace fsdp::testing {
namespace {

void freeze(ToyModel& model, const std::set<std::string>& frozen) {
  for (auto& item : model.named_parameters()) {
    if (frozen.contains(item.key())) {
      item.value().set_requires_grad(false);
    }
  }
}

at::Tensor loss_of_micro_batch(const Unit<ToyModel>& model, const MicroBatch& micro_batch,
                               int64_t number, int64_t rank) {
  model->skipped = micro_batch.skipped;
  for (size_t i = 0; i < model->blocks.size(); ++i) {
    model->blocks[i]->use_spare = micro_batch.uses_spare[static_cast<size_t>(rank)][i];
  }
  return loss(model, number, rank);
}

/// Without sharding: gradients are computed by a copy in the dtype of the policy, one rank after
/// the other, and added up in float32.
class Reference {
 public:
  explicit Reference(const RandomTraining& training)
      : training_(training),
        plain_(training.config, training.ranks, options()),
        copy_(make_plain(training.config)) {
    freeze(*copy_, training.frozen);
    if (training.policy.param_dtype) {
      copy_->to(*training.policy.param_dtype);
    }
    plain_.options_of = [&training](const std::string& fqn) {
      return training.frozen.contains(fqn) ? std::nullopt : std::optional(options());
    };
  }
  static AdamWOptions options() { return {.lr = 1e-2}; }

  void step(int64_t number) {
    plain_.update(gradients(number));
    at::NoGradGuard no_grad;
    for (auto& [fqn, parameter] : plain_.unique_parameters()) {
      copy_->named_parameters()[fqn].copy_(parameter);
    }
  }
  at::Tensor parameter(const std::string& fqn) const { return plain_.parameter(fqn); }

 private:
  Gradients gradients(int64_t step) {
    Gradients sum;
    for (int64_t rank = 0; rank < training_.ranks; ++rank) {
      for (const auto& [fqn, gradient] : gradients_of(step, rank)) {
        // A rank that has none counts as zeros.
        sum[fqn] = sum.contains(fqn) ? sum[fqn] + gradient : gradient;
      }
    }
    for (auto& [fqn, gradient] : sum) {
      gradient.div_(training_.ranks);
    }
    return sum;
  }

  Gradients gradients_of(int64_t step, int64_t rank) {
    Gradients sum;
    const auto& micro_batches = training_.micro_batches[static_cast<size_t>(step)];
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      copy_->zero_grad();
      loss_of_micro_batch(copy_, micro_batches[i], 10 * step + static_cast<int64_t>(i), rank)
          .backward();
      for (const auto& [fqn, ignored] : plain_.unique_parameters()) {
        const at::Tensor gradient = copy_->named_parameters()[fqn].grad();
        if (gradient.defined()) {
          const at::Tensor whole = gradient.to(at::kFloat);
          sum[fqn] = sum.contains(fqn) ? sum[fqn] + whole : whole.clone();
        }
      }
    }
    return sum;
  }

  const RandomTraining& training_;
  PlainTraining plain_;
  Unit<ToyModel> copy_;
};

Sharded make_random(const Rank& rank, const RandomTraining& training) {
  const auto mesh =
      training.replicas == 1
          ? rank.mesh
          : init_device_mesh(c10::kCPU, {training.replicas, training.ranks / training.replicas},
                             {"dp_replicate", "dp_shard"}, rank.comm);
  Sharded setup{Unit<ToyModel>(std::make_shared<ToyModel>(training.config)), {}};
  freeze(*setup.model, training.frozen);
  const auto& blocks = setup.model->blocks;
  const auto options = [&](size_t number) {
    FullyShardOptions chosen;
    chosen.mesh = mesh;
    chosen.mp_policy = training.policy;
    if (training.keeps_half[number]) {
      chosen.reshard_after_forward = 2;
    } else if (training.reshard[number]) {
      chosen.reshard_after_forward = *training.reshard[number];
    }
    const uint64_t division = (training.seed + number) % 6;
    if (division < 2) {
      chosen.shard_placement_fn =
          division == 0 ? shard_on_dim(0) : last_that_divides(training.ranks / training.replicas);
    }
    return chosen;
  };
  std::vector<FSDPModule> units(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (training.is_unit[i]) {
      units[i] = fully_shard(blocks[i].ptr(), options(i));
    }
  }
  setup.root = fully_shard(setup.model.ptr(), options(blocks.size()));
  setup.root.init_parameters(initialise);
  const auto units_of = [&units](const std::vector<size_t>& numbers) {
    std::vector<FSDPModule> chosen;
    for (const size_t number : numbers) {
      chosen.push_back(units[number]);
    }
    return chosen;
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (training.is_unit[i]) {
      units[i].set_modules_to_forward_prefetch(units_of(training.forward_lists[i]));
      units[i].set_modules_to_backward_prefetch(units_of(training.backward_lists[i]));
    }
  }
  return setup;
}

void expect_trained(const Rank& rank, const RandomTraining& training, const FSDPModule& root,
                    const Reference& expected) {
  // What AdamW makes of the last bits of a gradient is a part of a step of 1e-2.
  const double bound = training.is_exact() ? 0 : 2e-5;
  for (const LocalShard& shard : root.sharded_parameters()) {
    const at::Tensor actual = root.full_parameter(shard.fqn);
    const at::Tensor whole = expected.parameter(shard.fqn);
    ASSERT_EQ(actual.sizes(), whole.sizes()) << shard.fqn;
    EXPECT_LE((actual - whole).abs().max().item<double>(), bound)
        << shard.fqn << " on rank " << rank.rank;
  }
}

void run_training(Rank& rank, const RandomTraining& training, const Reference& expected) {
  Sharded setup = make_random(rank, training);
  const auto optimizer = std::make_shared<AdamW>(setup.root, Reference::options());
  if (training.steps_in_backward) {
    apply_optimizer_in_backward(optimizer);
  }
  // By a power of two: exact.
  GradScaler scaler({.init_scale = 1024, .enabled = training.is_scaled});
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    const auto& micro_batches = training.micro_batches[static_cast<size_t>(step)];
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      if (training.replicas > 1 && training.seed % 2 == 0) {
        setup.root.set_requires_all_reduce(micro_batches[i].reduces);
      } else {
        setup.root.set_requires_gradient_sync(micro_batches[i].reduces);
      }
      const at::Tensor result = loss_of_micro_batch(setup.model, micro_batches[i],
                                                    10 * step + static_cast<int64_t>(i), rank.rank);
      scaler.scale(result).backward();
    }
    if (!training.steps_in_backward) {
      scaler.step(*optimizer);
      scaler.update();
      optimizer->zero_grad();
    }
  }
  expect_trained(rank, training, setup.root, expected);
}

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

TEST(RandomTrainingTest, AnyModelOnAnyMeshWithAnyPolicyTrainsAsWithoutSharding) {
  at::set_num_threads(1);
  const uint64_t first = number_of("FSDPRUN_FIRST_SEED", 1);
  const uint64_t count = number_of("FSDPRUN_SEEDS", 100);
  int64_t exact = 0;
  int64_t in_parts = 0;
  int64_t in_backward = 0;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    const RandomTraining training = draw_training(seed);
    Reference expected(training);
    for (int64_t step = 0; step < kTrainingSteps; ++step) {
      expected.step(step);
    }
    try {
      run_ranks(
          training.ranks, [&](Rank& rank) { run_training(rank, training, expected); },
          training.as_on_a_device);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) {
      ADD_FAILURE() << training.describe();
    }
    exact += training.is_exact() ? 1 : 0;
    in_parts += std::ranges::count(training.keeps_half, true) > 0 ? 1 : 0;
    in_backward += training.steps_in_backward ? 1 : 0;
  }
  // Else the test compares less than it seems to.
  EXPECT_TRUE(HasFailure() || count < 100 || exact > static_cast<int64_t>(count) / 4)
      << exact << " of " << count << " compare bits";
  EXPECT_TRUE(HasFailure() || count < 100 || (in_parts > 0 && in_backward > 0))
      << in_parts << " keep parts, " << in_backward << " step in backward";
}

}  // namespace
}  // namespace fsdp::testing
