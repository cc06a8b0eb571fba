#pragma once

// Trainings on the fake device that use what the engine has.

#include <fsdp/custom_comm.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"
#include "tests/unit/fsdp_runtime/streams/fake_collectives.h"
#include "tests/unit/fsdp_runtime/streams/fake_device.h"

namespace fsdp::testing {

struct Case {
  std::string name;
  ToyConfig config = {};
  FullyShardOptions options = {};
  bool is_hybrid = false;
  int microbatches = 1;
  bool reduces_each_in_its_row = false;  // of the micro batches; else all with the last one
  bool has_hook = false;
  bool has_custom_comm = false;
  bool uses_differ = false;  // so that ranks exchange them
  bool evaluates = false;    // before each step, without grad mode
  bool prefetches_by_list = false;
  bool has_two_optimizers = false;  // each of which has every second parameter
  bool reshards_after_backward = true;
  bool steps_in_backward = false;  // then nobody clips
};

using Optimizers = std::vector<std::shared_ptr<AdamW>>;

inline void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }

inline bool is_offloaded(const Case& test_case) {
  return std::holds_alternative<CPUOffloadPolicy>(test_case.options.offload_policy);
}

/// Makes a group of two ranks.
using GroupMaker = std::function<std::shared_ptr<FakeCollectives>()>;

inline std::shared_ptr<DeviceMesh> mesh_for(
    const Case& test_case,
    const GroupMaker& make_group = [] { return std::make_shared<FakeCollectives>(2); }) {
  const auto group = [&] {
    auto made = make_group();
    made->is_unanimous = !test_case.uses_differ;
    return made;
  };
  const std::shared_ptr<Collectives> row = group();
  if (!test_case.is_hybrid) {
    return std::make_shared<DeviceMesh>(c10::kCPU, std::vector<int64_t>{2},
                                        std::vector<std::string>{"dp_shard"},
                                        std::vector<std::shared_ptr<Collectives>>{row});
  }
  return std::make_shared<DeviceMesh>(c10::kCPU, std::vector<int64_t>{2, 2},
                                      std::vector<std::string>{"dp_replicate", "dp_shard"},
                                      std::vector<std::shared_ptr<Collectives>>{group(), row});
}

/// The group's collectives, in memory of their own.
struct OwnMemoryGather : AllGather {
  WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) override {
    return group.all_gather_into(output, input, std::move(issue));
  }
};
struct OwnMemoryReduction : ReduceScatter {
  WorkPtr run(at::Tensor output, at::Tensor input, ReduceOp op, Collectives& group,
              Issue issue) override {
    return group.reduce_scatter_into(output, input, op, std::move(issue));
  }
};

inline Sharded sharded_for(const Case& test_case, const std::shared_ptr<DeviceMesh>& mesh) {
  Rank rank;
  rank.mesh = mesh;
  Sharded setup = make(rank, test_case.config, test_case.options);
  setup.root.set_reshard_after_backward(test_case.reshards_after_backward);
  const std::vector<FSDPModule> units = setup.root.units();
  for (size_t i = 0; i < units.size(); ++i) {
    FSDPModule unit = units[i];
    if (test_case.has_hook) {
      // Through memory of the hook's own, which is the lane's.
      unit.set_all_reduce_hook([](at::Tensor gradient) { gradient.copy_(gradient.mul(0.5)); });
    }
    if (test_case.has_custom_comm) {
      unit.set_custom_all_gather(std::make_shared<OwnMemoryGather>());
      unit.set_custom_reduce_scatter(std::make_shared<OwnMemoryReduction>());
    }
    if (test_case.prefetches_by_list && i + 2 < units.size()) {
      unit.set_modules_to_forward_prefetch({units[i + 1], units[i + 2]});
    }
  }
  return setup;
}

inline Sharded sharded_for(const Case& test_case) {
  return sharded_for(test_case, mesh_for(test_case));
}

inline void forward_and_backward(const Case& test_case, Sharded& setup, int64_t step) {
  FakeDevice& device = FakeDevice::get();
  for (int batch = 0; batch < test_case.microbatches; ++batch) {
    const bool is_last = batch + 1 == test_case.microbatches;
    setup.root.set_requires_gradient_sync(is_last || test_case.reduces_each_in_its_row);
    setup.root.set_requires_all_reduce(is_last);
    device.set_phase("forward");
    const at::Tensor result = loss(setup.model, step, batch);
    device.set_phase("backward");
    result.backward();
  }
}

inline Optimizers optimizers_for(const Case& test_case, const FSDPModule& root) {
  std::vector<AdamWParamGroup> parts(test_case.has_two_optimizers ? 2 : 1);
  size_t next = 0;
  for (const LocalShard& shard : root.sharded_parameters()) {
    parts[next++ % parts.size()].params.push_back(shard.fqn);
  }
  Optimizers optimizers;
  for (const AdamWParamGroup& part : parts) {
    optimizers.push_back(
        std::make_shared<AdamW>(root, std::vector<AdamWParamGroup>{part}, AdamWOptions{}));
    if (test_case.steps_in_backward) {
      apply_optimizer_in_backward(optimizers.back());
    }
  }
  return optimizers;
}

inline void train_step(const Case& test_case, Sharded& setup, Optimizers& optimizers,
                       int64_t step) {
  FakeDevice& device = FakeDevice::get();
  if (test_case.evaluates) {
    const at::NoGradGuard no_grad;
    device.set_phase("evaluation");
    setup.model->eval();
    loss(setup.model, step, 0);
    setup.model->train();
  }
  const int host_waits = device.host_waits();
  forward_and_backward(test_case, setup, step);
  // A step of the CPU's, which this device is, reads the step count.
  if (!test_case.uses_differ && !is_offloaded(test_case) && !test_case.steps_in_backward) {
    EXPECT_EQ(device.host_waits(), host_waits) << "in forward or backward";
  }
  if (test_case.steps_in_backward) {
    return;
  }
  device.set_phase("clipping");
  clip_grad_norm_(setup.root, 0.01);
  device.set_phase("the optimizer");
  for (const std::shared_ptr<AdamW>& optimizer : optimizers) {
    optimizer->step();
    optimizer->zero_grad();
  }
}

/// Trains for some steps, looks at the result and destroys everything.
inline void train(const Case& test_case, int64_t steps) {
  Sharded setup = sharded_for(test_case);
  Optimizers optimizers = optimizers_for(test_case, setup.root);
  for (int64_t step = 0; step < steps; ++step) {
    train_step(test_case, setup, optimizers, step);
  }
  FakeDevice::get().set_phase("the end");
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    EXPECT_TRUE(shard.local.isfinite().all().item<bool>()) << shard.fqn;
    setup.root.full_parameter(shard.fqn);
  }
}

/// Cases with more blocks than there are slots.
class CaseList {
 public:
  Case& add(const std::string& name) {
    all_.push_back({.name = name});
    all_.back().config.blocks = 5;
    return all_.back();
  }
  Case& add_hybrid(const std::string& name) {
    Case& added = add(name);
    added.is_hybrid = true;
    return added;
  }
  /// That of this name, with the parameters in the host's memory.
  void add_offloaded(const std::string& like) {
    Case copy = *std::find_if(all_.begin(), all_.end(),
                              [&like](const Case& one) { return one.name == like; });
    copy.name = "offload_" + like;
    copy.options.offload_policy = CPUOffloadPolicy{};
    all_.push_back(std::move(copy));
  }
  std::vector<Case> take() { return std::move(all_); }

 private:
  std::vector<Case> all_ = {{.name = "default"}};
};

inline void add_sharded_cases(CaseList& all) {
  all.add("many_blocks");
  all.add("keeps_parameters").options.reshard_after_forward = false;
  all.add("keeps_parameters_after_backward").reshards_after_backward = false;
  all.add("bfloat16").options.mp_policy = {at::kBFloat16, at::kFloat, std::nullopt};
  all.add("bfloat16_sums").options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  all.add("float16_sums").options.mp_policy = {std::nullopt, at::kHalf, std::nullopt};
  all.add("microbatches").microbatches = 3;
  Case& reduced = all.add("reduced_microbatches");
  reduced.microbatches = 3;
  reduced.reduces_each_in_its_row = true;
  all.add("checkpoint_around").config.checkpointing = ToyConfig::Checkpointing::kAroundUnit;
  all.add("checkpoint_inside").config.checkpointing = ToyConfig::Checkpointing::kInsideUnit;
  all.add("block_used_twice").config.use_block_twice = true;
  all.add("hook").has_hook = true;
  all.add("custom_comm").has_custom_comm = true;
  all.add("uses_differ").uses_differ = true;
  all.add("evaluation").evaluates = true;
  all.add("prefetch_by_list").prefetches_by_list = true;
  all.add("two_optimizers").has_two_optimizers = true;
}

inline void add_cases_of_options(CaseList& all) {
  Case& evaluation = all.add("evaluation_in_full_precision");
  evaluation.evaluates = true;
  evaluation.options.mp_policy = {at::kBFloat16, at::kFloat, std::nullopt};
  evaluation.options.mp_policy.full_precision_in_eval = true;
  all.add("steps_in_backward").steps_in_backward = true;
  Case& steps = all.add("steps_in_backward_rows_bfloat16_sums");
  steps.steps_in_backward = true;
  steps.options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  steps.options.shard_placement_fn = shard_on_dim(0);
  all.add("rows").options.shard_placement_fn = shard_on_dim(0);
  Case& columns = all.add("columns_bfloat16_sums");
  columns.config.hidden = 36;
  columns.microbatches = 2;
  columns.reduces_each_in_its_row = true;
  columns.options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  columns.options.shard_placement_fn = [](const std::string& fqn, const at::Tensor&) {
    return ShardPlacement{fqn.ends_with("down") ? 1 : 0};
  };
}

inline void add_hybrid_cases(CaseList& all) {
  all.add_hybrid("hybrid");
  // Reduced in slots of their own.
  all.add_hybrid("hybrid_bfloat16_sums").options.mp_policy = {at::kBFloat16, std::nullopt,
                                                              std::nullopt};
  Case& microbatches = all.add_hybrid("hybrid_bfloat16_microbatches");
  microbatches.microbatches = 2;
  microbatches.options.mp_policy = {at::kBFloat16, at::kFloat, std::nullopt};
  Case& rows = all.add_hybrid("hybrid_sums_of_rows");
  rows.microbatches = 3;
  rows.reduces_each_in_its_row = true;
  all.add_hybrid("hybrid_hook").has_hook = true;
  all.add_hybrid("hybrid_custom_comm").has_custom_comm = true;
  all.add_hybrid("hybrid_uses_differ").uses_differ = true;
  all.add_hybrid("hybrid_steps_in_backward").steps_in_backward = true;
}

inline std::vector<Case> training_cases() {
  CaseList all;
  add_sharded_cases(all);
  add_cases_of_options(all);
  add_hybrid_cases(all);
  for (const char* like :
       {"many_blocks", "bfloat16", "bfloat16_sums", "reduced_microbatches", "hook", "uses_differ",
        "evaluation", "evaluation_in_full_precision", "steps_in_backward", "two_optimizers", "rows",
        "hybrid_bfloat16_microbatches", "hybrid_sums_of_rows"}) {
    all.add_offloaded(like);
  }
  return all.take();
}

}  // namespace fsdp::testing
