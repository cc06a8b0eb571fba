#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

struct CheckpointOptions;

namespace detail {

class CheckpointFrame;

/// The first run of a checkpointed segment: what it saves for backward is forgotten, and computed
/// again by `replay` with the same inputs when backward asks for it.
class FSDP_API CheckpointScope {
 public:
  using Replay = std::function<void(const std::vector<at::Tensor>& inputs)>;

  /// Without grad mode nothing is done. `inputs` are kept.
  CheckpointScope(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                  Replay replay);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace detail
}  // namespace fsdp
