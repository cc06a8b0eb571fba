#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace fsdprun::worker {

/// A few numbers on their way to the host, which goes on meanwhile. Thread: one.
class LateValues {
 public:
  /// `values`: what the current stream makes them. Without a wait of the host.
  explicit LateValues(const at::Tensor& values);
  /// Blocks the host until the device has got there: on the CPU.
  const at::Tensor& Get();

 private:
  at::Tensor on_host_;
  std::optional<c10::Event> is_there_;  // none on the CPU
};

}  // namespace fsdprun::worker
