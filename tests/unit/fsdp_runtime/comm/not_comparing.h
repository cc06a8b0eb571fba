#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/comm/watched_window.h"

namespace fsdp::testing {

/// As NCCL, compares nothing: to its transport all operations of a kind are alike.
class NotComparing : public RecordingCollectives {
 public:
  using RecordingCollectives::RecordingCollectives;
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    return RecordingCollectives::all_gather_into(output, input, unnamed(std::move(issue)));
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    return RecordingCollectives::reduce_scatter_into(output, input, op, unnamed(std::move(issue)));
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    return RecordingCollectives::all_reduce(tensor, op, unnamed(std::move(issue)));
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override {
    return RecordingCollectives::broadcast(tensor, root, unnamed(std::move(issue)));
  }
  std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                   std::string purpose) override {
    auto window = RecordingCollectives::make_gather_window(numel, dtype, std::move(purpose));
    return window == nullptr ? nullptr
                             : std::make_shared<WatchedWindow>(
                                   std::move(window), [this](GatherWindow& inner, Issue issue) {
                                     return inner.issue(unnamed(std::move(issue)));
                                   });
  }

  /// What operations were for, in the order of issue.
  const std::vector<std::string>& purposes() const { return purposes_; }

 private:
  Issue unnamed(Issue issue) {
    purposes_.push_back(std::exchange(issue.purpose, {}));
    return issue;
  }

  std::vector<std::string> purposes_;
};

}  // namespace fsdp::testing
