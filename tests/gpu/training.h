#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "formats/json/strict_json.h"
#include "tests/gpu/train_case.h"

namespace fsdp::gpu {

/// A model that is trained as a case says. Thread: one. On a GPU nothing but the constructor,
/// write() and what() blocks the host.
class Training {
 public:
  virtual ~Training() = default;
  /// Gradients of the mean cross entropy over `tokens`, int64 [batch, length + 1], divided by the
  /// number of micro batches; `is_last` of a step. Returns the loss: float32 [], undivided.
  virtual at::Tensor backward(const at::Tensor& tokens, bool is_last) = 0;
  /// Clips, if the case says so, and updates. Returns the norm of the gradients before that;
  /// undefined if they are not clipped.
  virtual at::Tensor update() = 0;
  /// From the next update on. Errors: c10::Error if the case's optimizer has one rate for good.
  virtual void set_lr(double lr) = 0;
  /// Of model and optimizer: model.pt and optimizer.pt in `folder`.
  virtual void write(const std::string& folder) = 0;
  virtual void read(const std::string& folder) = 0;
  /// What there is to say of it: collectives by name since the last call, counters.
  virtual fsdprun::Json what() = 0;
};

/// Units over a group, or the module alone, as `given` says. `given` outlives the result.
std::unique_ptr<Training> make_training(const TrainCase& given);

/// Values of the parameter that is number `index` in the model's order: float32, of `full`'s shape.
/// The same in fsdp2_train_gpu.py.
void fill_by_formula(int64_t index, const std::string& fqn, at::Tensor full);

}  // namespace fsdp::gpu
