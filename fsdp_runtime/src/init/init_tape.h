#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp_runtime/src/init/random_streams.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// What a module's constructors have done with tensors that they have made: noted, and done later,
/// in the same order, with the memory of each tensor there from its first operation to its last.
///
/// Thread: the one that runs the constructors, then the rank's.
class InitTape {
 public:
  /// `device`: of tensors for which none is named.
  explicit InitTape(std::optional<c10::Device> device) : device_(device) {}

  std::optional<c10::Device> device() const { return device_; }

  // While constructors run. Nothing here is to be noted itself.

  /// A tensor of this geometry that the tape fills.
  at::Tensor make(const at::Tensor& meta, c10::Device device);
  /// Whether the tape fills it.
  bool fills(const at::Tensor& tensor) const;
  /// Notes `op` with `args`, some of which the tape fills. `outputs` get its results, if it does
  /// not write to its arguments. Errors: TORCH_CHECK on random numbers without a generator.
  void note(const c10::OperatorHandle& op, const torch::jit::Stack& args,
            const std::vector<at::Tensor>& outputs);
  /// Does now what `tensors` need to have their values. Returns false, and does nothing, if random
  /// numbers are among it, which have to be drawn in order.
  bool fill_now(const std::vector<at::Tensor>& tensors);
  /// The constructors have ended: what the parameters and buffers of `module` get later.
  void bind(const std::shared_ptr<torch::nn::Module>& module);

  // Later.

  /// A tensor of the module, and what it gets.
  struct Bound {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    at::Tensor values;  // in memory that this tape fills
  };
  const std::vector<Bound>& bound() const { return bound_; }
  /// Does all that was noted, once. `deliver` is called for each bound tensor when it has its
  /// values; then they may go. What an operation or `deliver` throws passes; the next play() goes
  /// on with that operation, and with the same random numbers.
  void play(const std::function<void(const Bound&)>& deliver);

 private:
  struct Value {
    c10::Storage storage;
    std::vector<size_t> steps;  // that read or write it
    std::vector<size_t> bound;
  };
  struct Step {
    c10::OperatorHandle op;
    torch::jit::Stack args;
    std::vector<at::Tensor> outputs;
    std::vector<size_t> values;           // each once
    std::optional<size_t> generator_arg;  // that is left to the tape
    size_t stream = 0;                    // for it
    bool is_random = false;
    bool is_done = false;
    std::optional<size_t> overwrites;  // a value of which it writes all, and reads nothing
  };

  void set_randomness(Step& step);
  void set_overwritten(Step& step) const;
  void run(Step& step);
  /// With a generator as it was before, if that throws.
  void call(Step& step, torch::jit::Stack& stack);
  /// `step` is the last one so far that has touched value `id`.
  void pass(size_t id, size_t step, const std::function<void(const Bound&)>& deliver);

  const std::optional<c10::Device> device_;
  std::unordered_map<const c10::StorageImpl*, size_t> ids_;  // looked up only, never iterated
  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::vector<Bound> bound_;
  size_t played_ = 0;  // steps
  RandomStreams streams_;
};

/// Calls `visit` with every tensor among the values.
void visit_stack(const torch::jit::Stack& stack,
                 const std::function<void(const at::Tensor&)>& visit);
/// The same values with `replace(tensor)` for each tensor.
torch::jit::Stack with_tensors(const torch::jit::Stack& stack,
                               const std::function<at::Tensor(const at::Tensor&)>& replace);

}  // namespace fsdp
