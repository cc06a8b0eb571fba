#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fsdp/collectives.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "fsdp_runtime/src/comm/ended_work.h"
#include "fsdp_runtime/src/comm/stream_lanes.h"

namespace fsdp::testing {

/// Rank 0 of a group on a device, whose peers have what it has. It orders its operations by
/// StreamLanes, as NCCL's groups do, and what a reduction may overwrite it does overwrite.
class PeerlessCollectives : public Collectives {
 public:
  PeerlessCollectives(int64_t size, c10::Device device, c10::Device streams)
      : place_{.rank = 0, .size = size, .membership = std::make_shared<Membership>(0)},
        device_(device),
        lanes_(streams) {}

  /// Gets "all_gather for unit block0", with the lane's stream as the current one.
  std::function<void(const std::string&)> before_launch;
  std::function<void()> after_launch;
  /// What agree() answers.
  bool is_unanimous = true;

  int64_t rank() const override { return 0; }
  int64_t size() const override { return place_.size; }
  std::string name() const override { return "fake"; }
  c10::Device device() const override { return device_; }
  bool is_stream_ordered() const override { return true; }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    return run("all_gather", issue, [&] {
      for (int64_t rank = 0; rank < size(); ++rank) {
        at::Tensor part = output.narrow(0, rank * input.numel(), input.numel());
        if (part.const_data_ptr() != input.const_data_ptr()) {
          part.copy_(input);
        }
      }
    });
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp, Issue issue) override {
    return run("reduce_scatter", issue, [&] {
      output.copy_(input.narrow(0, 0, output.numel()));
      input.fill_(std::numeric_limits<double>::quiet_NaN());
    });
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp, Issue issue) override {
    return run("all_reduce", issue, [&] { tensor.mul_(1); });
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t, Issue issue) override {
    return run("broadcast", issue, [&] { tensor.mul_(1); });
  }
  void barrier() override {}
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    return launch_stage(stage, [&](const auto& launch) { return run("stage", issue, launch); });
  }
  AgreementPtr agree(uint64_t, std::string) override {
    return std::make_shared<Answer>(is_unanimous);
  }

 private:
  struct Answer : Agreement {
    explicit Answer(bool is_unanimous) : is_unanimous(is_unanimous) {}
    bool wait() override { return is_unanimous; }
    const bool is_unanimous;
  };

  WorkPtr run(const char* operation, const Issue& issue, const std::function<void()>& launch) {
    at::NoGradGuard no_grad;
    const EventPtr done = lanes_.run(issue, [&] {
      if (before_launch) {
        before_launch(operation + (" for " + issue.purpose));
      }
      launch();
    });
    if (after_launch) {
      after_launch();
    }
    return std::make_shared<StreamWork>(done, operation, place_);
  }

  const GroupPlace place_;
  const c10::Device device_;
  const StreamLanes lanes_;
};

}  // namespace fsdp::testing
