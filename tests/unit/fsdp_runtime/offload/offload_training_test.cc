// Training with an offload policy has the bits of training without it. Where the group says that
// streams order its operations, everything is copied as between a device and its host; what orders
// the copies is in the tests of streams.

#include <fsdp/clip_grad.h>
#include <fsdp/custom_comm.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

struct Course {
  std::string name;
  FullyShardOptions options = {};
  int64_t ranks = 2;
  int64_t replicas = 1;
  int64_t micro_batches = 1;
  bool reduces_each = false;      // of the micro batches; else the last one alone
  bool reduces_in_rows = false;   // all but the last one
  bool puts_off_the_end = false;  // of each backward but the last
  bool has_torch_optimizer = false;
  bool is_scaled = false;
  bool steps_in_backward = false;
  bool skips_a_block = false;
  bool evaluates = false;  // ahead of each step
  bool has_custom_gather = false;
  bool is_on_a_device = false;
};

void PrintTo(const Course& course, std::ostream* out) { *out << course.name; }

void accumulate(const Course& course, const Rank& rank, Sharded& setup, GradScaler& scaler,
                int64_t step) {
  setup.model->skipped = course.skips_a_block && step % 2 == 1 ? 1 : -1;
  for (int64_t micro = 0; micro < course.micro_batches; ++micro) {
    const bool is_last = micro + 1 == course.micro_batches;
    setup.root.set_requires_gradient_sync(is_last || course.reduces_each);
    setup.root.set_requires_all_reduce(is_last || !course.reduces_in_rows);
    setup.root.set_is_last_backward(is_last || !course.puts_off_the_end);
    scaler.scale(loss(setup.model, step * course.micro_batches + micro, rank.rank)).backward();
  }
}

struct GatherInOwnMemory : AllGather {
  WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) override {
    return group.all_gather_into(output, input, std::move(issue));
  }
};

Sharded sharded_model_of(const Course& course, Rank& rank, const OffloadPolicy& policy) {
  FullyShardOptions options = course.options;
  options.offload_policy = policy;
  if (course.replicas == 1) {
    return make(rank, {}, options);
  }
  return course.is_on_a_device ? make_hybrid_on<AsOnADevice>(rank, course.replicas, options)
                               : make_hybrid(rank, course.replicas, options);
}

Sharded model_of(const Course& course, Rank& rank, const OffloadPolicy& policy) {
  Sharded setup = sharded_model_of(course, rank, policy);
  if (course.has_custom_gather) {
    for (const FSDPModule& unit : setup.root.units()) {
      unit.set_custom_all_gather(std::make_shared<GatherInOwnMemory>());
    }
  }
  return setup;
}

void add_parameters(const FSDPModule& root, Tensors& to) {
  for (const LocalShard& shard : root.sharded_parameters()) {
    to[shard.fqn] = root.full_parameter(shard.fqn);
  }
}

/// The loss, without a graph.
at::Tensor evaluation(const Rank& rank, Sharded& setup, int64_t step) {
  const at::NoGradGuard no_grad;
  setup.model->eval();
  at::Tensor result = loss(setup.model, step, rank.rank);
  setup.model->train();
  return result;
}

/// As train(), with the losses instead of the norms, which nobody knows.
Tensors train_in_backward(const Course& course, Rank& rank, const OffloadPolicy& policy) {
  Sharded setup = model_of(course, rank, policy);
  const auto adamw = std::make_shared<AdamW>(setup.root, AdamWOptions{.lr = 1e-2});
  apply_optimizer_in_backward(adamw);
  Tensors results;
  for (int64_t step = 0; step < 4; ++step) {
    const at::Tensor result = loss(setup.model, step, rank.rank);
    result.backward();
    results["norm" + std::to_string(step)] = result.detach();
  }
  EXPECT_EQ(adamw->step_count(), 4);
  add_parameters(setup.root, results);
  return results;
}

/// The whole parameters after some steps, and the norms of their gradients.
Tensors train(const Course& course, Rank& rank, const OffloadPolicy& policy) {
  if (course.steps_in_backward) {
    return train_in_backward(course, rank, policy);
  }
  Sharded setup = model_of(course, rank, policy);
  AdamW adamw(setup.root, {.lr = 1e-2});
  torch::optim::SGD sgd(setup.root.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2, .enabled = course.is_scaled});
  Tensors results;
  for (int64_t step = 0; step < 4; ++step) {
    if (course.evaluates) {
      results["evaluation" + std::to_string(step)] = evaluation(rank, setup, step);
    }
    accumulate(course, rank, setup, scaler, step);
    if (course.has_torch_optimizer) {
      scaler.unscale_(sgd);
      results["norm" + std::to_string(step)] = clip_grad_norm_(setup.root, 0.5);
      scaler.step(sgd);
    } else {
      scaler.unscale_(adamw);
      results["norm" + std::to_string(step)] = clip_grad_norm_(setup.root, 0.5);
      scaler.step(adamw);
    }
    if (course.is_scaled) {
      scaler.update();
    }
    adamw.zero_grad();
  }
  add_parameters(setup.root, results);
  return results;
}

void expect_equal(const Tensors& results, const Tensors& expected) {
  ASSERT_EQ(results.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::equal(results.at(name), tensor)) << name;
  }
}

class OffloadTest : public ::testing::TestWithParam<Course> {
 protected:
  static void expect_same_bits(const OffloadPolicy& policy, bool is_on_a_device) {
    Course course = GetParam();
    course.is_on_a_device = is_on_a_device;
    std::vector<Tensors> expected(static_cast<size_t>(course.ranks));
    const auto expected_of = [&expected](const Rank& rank) -> Tensors& {
      return expected[static_cast<size_t>(rank.rank)];
    };
    run_ranks(
        course.ranks, [&](Rank& rank) { expected_of(rank) = train(course, rank, {}); },
        is_on_a_device);
    EXPECT_GT(expected.front().at("norm0").item<float>(), 0);
    run_ranks(
        course.ranks,
        [&](Rank& rank) { expect_equal(train(course, rank, policy), expected_of(rank)); },
        is_on_a_device);
  }
};

TEST_P(OffloadTest, ToTheHostTrainsToTheSameBits) {
  expect_same_bits(CPUOffloadPolicy{.pin_memory = false}, /*is_on_a_device=*/true);
}

TEST_P(OffloadTest, ToDiskOfADeviceTrainsToTheSameBits) {
  expect_same_bits(DiskOffloadPolicy{::testing::TempDir()}, /*is_on_a_device=*/true);
}

TEST_P(OffloadTest, ToDiskOfTheCpuTrainsToTheSameBits) {
  expect_same_bits(DiskOffloadPolicy{::testing::TempDir()}, /*is_on_a_device=*/false);
}

std::vector<Course> courses() {
  std::vector<Course> all = {{.name = "two_ranks"}, {.name = "one_rank", .ranks = 1}};
  all.push_back({.name = "bfloat16"});
  all.back().options.mp_policy = {at::kBFloat16, at::kFloat, std::nullopt};
  all.push_back({.name = "bfloat16_sums_of_one_rank", .ranks = 1});
  all.back().options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  all.push_back({.name = "float16_scaled", .is_scaled = true});
  all.back().options.mp_policy = {at::kHalf, at::kHalf, std::nullopt};
  all.push_back({.name = "no_sync", .micro_batches = 3});
  all.push_back({.name = "reduces_each", .micro_batches = 3, .reduces_each = true});
  all.push_back({.name = "unused_parameters", .skips_a_block = true});
  all.push_back({.name = "torch_optimizer",
                 .micro_batches = 2,
                 .reduces_each = true,
                 .has_torch_optimizer = true});
  all.push_back({.name = "torch_optimizer_scaled", .has_torch_optimizer = true, .is_scaled = true});
  all.push_back({.name = "hybrid", .ranks = 4, .replicas = 2});
  all.push_back({.name = "hybrid_sums_of_rows",
                 .ranks = 4,
                 .replicas = 2,
                 .micro_batches = 2,
                 .reduces_each = true,
                 .reduces_in_rows = true});
  all.push_back({.name = "replicas_alone", .replicas = 2});
  all.push_back({.name = "part_of_parameters_is_kept", .ranks = 4});
  all.back().options.reshard_after_forward = 2;
  all.push_back({.name = "put_off_reductions",
                 .micro_batches = 3,
                 .reduces_each = true,
                 .puts_off_the_end = true});
  all.push_back({.name = "steps_in_backward", .steps_in_backward = true});
  all.push_back({.name = "rows_of_parameters", .micro_batches = 2, .reduces_each = true});
  all.back().options.shard_placement_fn = shard_on_dim(0);
  all.push_back({.name = "rows_in_bfloat16_gathered_by_the_user", .has_custom_gather = true});
  all.back().options.shard_placement_fn = shard_on_dim(0);
  all.back().options.mp_policy = {at::kBFloat16, at::kFloat, std::nullopt};
  all.push_back({.name = "gathered_by_the_user", .has_custom_gather = true});
  all.push_back({.name = "evaluates_in_full_precision", .evaluates = true});
  all.back().options.mp_policy = {.param_dtype = at::kBFloat16, .full_precision_in_eval = true};
  return all;
}

INSTANTIATE_TEST_SUITE_P(Courses, OffloadTest, ::testing::ValuesIn(courses()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
