#pragma once

// A chain of units that says what happens when: the collectives that are issued, and which unit's
// forward runs.

#include <ATen/ATen.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/ranks.h"

namespace fsdp::testing {

struct Link : torch::nn::Module {
  /// `mark`: elements of a parameter that nothing uses, by which the unit is known.
  explicit Link(double value, int64_t mark = 0) {
    weight = register_parameter("weight", at::eye(6) * value + 0.01);
    if (mark > 0) {
      register_parameter("mark", at::zeros({mark}));
    }
  }
  /// Tied to another one.
  explicit Link(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) {
    if (on_run) {
      on_run();
    }
    return at::linear(x, weight);
  }
  at::Tensor weight;
  std::function<void()> on_run;
};

struct Chain : torch::nn::Module {
  explicit Chain(int64_t links) {
    for (int64_t i = 0; i < links; ++i) {
      this->links.emplace_back(
          std::make_shared<Link>(0.5 + 0.1 * static_cast<double>(i), 64 * (i + 1) * 4));
      register_module("link" + std::to_string(i), this->links.back().ptr());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const Unit<Link>& link : links) {
      x = link(x);
    }
    return x * gain;
  }
  at::Tensor gain = register_parameter("gain", at::ones({6}));
  std::vector<Unit<Link>> links;
};

/// Whether reading the parameter is refused.
inline bool is_sharded(const at::Tensor& parameter) {
  try {
    parameter.detach().sum();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

/// The chain, each link a unit, and what happens in it: "gather 0", "run 0", "reduce root".
struct ObservedChain {
  ObservedChain(const Rank& rank, int64_t links, FullyShardOptions options)
      : comm(rank.comm), model(std::make_shared<Chain>(links)) {
    options.mesh = rank.mesh;
    for (const Unit<Link>& link : model->links) {
      fully_shard(link.ptr(), options);
    }
    root = fully_shard(model.ptr(), options);
    comm->clear();
    for (const FSDPModule& unit : root.units()) {
      unit.unshard();
      const std::string name = names.empty() ? "root" : std::to_string(names.size() - 1);
      names[comm->records().back().numel] = name;
      unit.reshard();
    }
    comm->clear();
    for (size_t i = 0; i < model->links.size(); ++i) {
      model->links[i]->on_run = [this, i] { note("run " + std::to_string(i)); };
    }
  }

  /// Behind what has been issued until now.
  void note(const std::string& event) {
    flush();
    events.push_back(event);
  }
  void flush() {
    for (const CollectiveRecord& record : comm->records()) {
      if (record.operation == "all_gather" || record.operation == "reduce_scatter") {
        events.push_back((record.operation == "all_gather" ? "gather " : "reduce ") +
                         names[record.numel]);
      }
    }
    comm->clear();
  }
  /// What has happened since the last call.
  std::vector<std::string> take() {
    flush();
    return std::exchange(events, {});
  }
  at::Tensor forward() { return model(at::ones({2, 6})); }
  /// Of one step, with "head" where backward comes to the root's result.
  std::vector<std::string> step() {
    take();
    const at::Tensor result = forward();
    result.register_hook([this](const at::Tensor&) { note("head"); });
    result.sum().backward();
    return take();
  }

  std::shared_ptr<RecordingCollectives> comm;
  Unit<Chain> model;
  FSDPModule root;
  std::map<int64_t, std::string> names;  // by the elements of the unit
  std::vector<std::string> events;
};

using Events = std::vector<std::string>;

}  // namespace fsdp::testing
