#pragma once

#include <ATen/ATen.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>

namespace fsdp::testing {

/// Two units in a row; `between` is called in backward when the second has been reduced and the
/// first has not.
struct InARow : torch::nn::Module {
  struct Line : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
    at::Tensor weight = register_parameter("weight", at::eye(6) * 0.5);
  };
  InARow() {
    register_module("first", first.ptr());
    register_module("second", second.ptr());
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first(x);
    y.register_hook([this](const at::Tensor&) {
      if (between) {
        between();
      }
    });
    return second(y);
  }
  Unit<Line> first{std::make_shared<Line>()};
  Unit<Line> second{std::make_shared<Line>()};
  std::function<void()> between;
};

struct ShardedInARow {
  Unit<InARow> model{std::make_shared<InARow>()};
  FSDPModule root;
};

inline ShardedInARow shard_in_a_row(const std::shared_ptr<Collectives>& comm) {
  FullyShardOptions options;
  options.mesh = init_device_mesh(c10::kCPU, {comm->size()}, {"dp_shard"}, comm);
  ShardedInARow setup;
  fully_shard(setup.model->first.ptr(), options);
  fully_shard(setup.model->second.ptr(), options);
  setup.root = fully_shard(setup.model.ptr(), options);
  return setup;
}

}  // namespace fsdp::testing
