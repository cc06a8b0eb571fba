#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/activation/replay_state.h"

namespace c10 {
class OperatorHandle;
}

namespace fsdp::detail {

/// The results of some operators of a checkpointed segment, which are kept, so that the replay need
/// not compute them again: Python's selective checkpointing by operator.
///
/// Operators are seen below autograd, by a dispatch key that LibTorch itself does not use, so that
/// autograd saves the same tensors in both runs.
class OperatorResults {
 public:
  /// Of `keeps`, which is asked once for each operator, by its name: "aten::mm". `generators`:
  /// those that the replay sets, in which an operator that draws random numbers and is kept leaves
  /// the states that it left in the first run; null: they are left alone. Outlives this.
  OperatorResults(std::function<bool(const std::string& op)> keeps,
                  const GeneratorStates* generators)
      : keeps_(std::move(keeps)), generators_(generators) {}

  /// While it lives, operators on this thread are seen by `results`.
  class Watch {
   public:
    enum class Run { kFirst, kReplay };
    Watch(OperatorResults& results, Run run);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    c10::impl::IncludeDispatchKeyGuard includes_;
    OperatorResults* const outer_;
    const Run outer_run_;
  };

  /// Called by the dispatcher: runs the operator, or takes what it gave in the first run.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
           Watch::Run run);
  /// The next replay begins with the first calls again.
  void rewind();

 private:
  struct Result {
    at::Tensor tensor;  // undefined: the operator gave none
    int64_t version = 0;
  };
  struct Call {
    std::vector<Result> results;
    std::optional<GeneratorStates> generators_after;  // if it draws
  };
  struct Operator {
    bool is_kept = false;
    bool draws = false;
    std::vector<Call> calls = {};  // in order
    size_t next = 0;               // in a replay
  };

  Operator& known(const c10::OperatorHandle& op);
  void keep(Operator& of, const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  static void replace(Operator& of, const c10::OperatorHandle& op, torch::jit::Stack* stack);

  const std::function<bool(const std::string&)> keeps_;
  const GeneratorStates* const generators_;
  std::map<std::string, Operator> operators_;
};

}  // namespace fsdp::detail
