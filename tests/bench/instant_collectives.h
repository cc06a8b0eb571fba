#pragma once

// A group whose collectives are over when they are issued, for what is to be known of the engine
// alone.

#include <ATen/ATen.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "fsdp_runtime/src/comm/ended_work.h"

namespace fsdp::bench {

inline const WorkPtr& instant_work() {
  static const WorkPtr work = std::make_shared<EndedWork>();
  return work;
}

class InstantWindow : public GatherWindow {
 public:
  InstantWindow(int64_t numel, int64_t ranks, at::ScalarType dtype)
      : whole_(at::zeros({ranks * numel}, dtype)), own_(whole_.narrow(0, 0, numel)) {}
  at::Tensor own() override { return own_; }
  at::Tensor whole() override { return whole_; }
  WorkPtr issue(Issue) override { return instant_work(); }
  void release() override {}
  void wait_for_readers() override {}

 private:
  const at::Tensor whole_, own_;
};

/// Rank 0, whose peers have the same data. Like PyTorch's FakeProcessGroup it copies what is
/// gathered, and nothing else.
class InstantCollectives : public Collectives {
 public:
  /// `window_alignment`: 0 for a group without windows.
  InstantCollectives(int64_t size, int64_t window_alignment)
      : size_(size), window_alignment_(window_alignment) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return size_; }
  std::string name() const override { return "instant"; }
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue) override {
    auto* to = static_cast<char*>(output.data_ptr());
    for (int64_t rank = 0; rank < size_; ++rank, to += input.nbytes()) {
      if (to != input.const_data_ptr()) {
        std::memcpy(to, input.const_data_ptr(), input.nbytes());
      }
    }
    return instant_work();
  }
  WorkPtr reduce_scatter_into(at::Tensor, at::Tensor, ReduceOp, Issue) override {
    return instant_work();
  }
  WorkPtr all_reduce(at::Tensor, ReduceOp, Issue) override { return instant_work(); }
  WorkPtr broadcast(at::Tensor, int64_t, Issue) override { return instant_work(); }
  void barrier() override {}
  WorkPtr mark(Issue) override { return instant_work(); }
  AgreementPtr agree(uint64_t, std::string) override {
    class All : public Agreement {
      bool wait() override { return true; }
    };
    return std::make_shared<All>();
  }
  std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                   std::string) override {
    return std::make_shared<InstantWindow>(numel, size_, dtype);
  }
  int64_t window_alignment() const override { return window_alignment_; }

 private:
  const int64_t size_;
  const int64_t window_alignment_;
};

}  // namespace fsdp::bench
