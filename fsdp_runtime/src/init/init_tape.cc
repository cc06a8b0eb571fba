#include "fsdp_runtime/src/init/init_tape.h"

#include <ATen/ATen.h>
#include <ATen/core/enum_tag.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/init/deferred_memory.h"

namespace fsdp {
namespace {

/// The same memory and geometry, whatever becomes of `tensor`.
at::Tensor fixed_alias(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() &&
         static_cast<size_t>(tensor.numel()) * tensor.element_size() == tensor.storage().nbytes();
}

/// In-place operations that do not look at what they write to.
bool writes_only(const std::string& name) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "aten::uniform_", "aten::normal_",      "aten::zero_",       "aten::fill_",  "aten::copy_",
      "aten::random_",  "aten::exponential_", "aten::log_normal_", "aten::cauchy_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace

void visit_stack(const torch::jit::Stack& stack,
                 const std::function<void(const at::Tensor&)>& visit) {
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        visit(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        visit(tensor.value_or(at::Tensor()));
      }
    }
  }
}

torch::jit::Stack with_tensors(const torch::jit::Stack& stack,
                               const std::function<at::Tensor(const at::Tensor&)>& replace) {
  torch::jit::Stack replaced = stack;
  for (c10::IValue& value : replaced) {
    if (value.isTensor()) {
      value = replace(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(replace(tensor));
      }
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::make_optional(replace(*tensor)) : std::nullopt);
      }
      value = list;
    }
  }
  return replaced;
}

at::Tensor InitTape::make(const at::Tensor& meta, c10::Device device) {
  at::Tensor tensor = deferred_tensor(meta.sizes(), meta.strides(), meta.options().device(device));
  ids_.emplace(tensor.storage().unsafeGetStorageImpl(), values_.size());
  values_.push_back({tensor.storage(), {}, {}});
  return tensor;
}

bool InitTape::fills(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() &&
         ids_.contains(tensor.storage().unsafeGetStorageImpl());
}

void InitTape::set_randomness(Step& step) {
  const auto& arguments = step.op.schema().arguments();
  bool has_generator = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator") {
      has_generator = true;
      if (step.args[i].isNone()) {
        step.generator_arg = i;
        step.stream = streams_.stream_now(values_[step.values.front()].storage.device());
      }
    }
  }
  step.is_random = has_generator || step.op.hasTag(at::Tag::nondeterministic_seeded);
  TORCH_CHECK(has_generator || !step.is_random, "deferred_init: ", step.op.operator_name(),
              " takes random numbers from elsewhere than a generator; do that after "
              "materialize_module(), by fsdp::apply()");
}

void InitTape::set_overwritten(Step& step) const {
  if (!writes_only(step.op.schema().name()) || !step.args.front().isTensor()) {
    return;
  }
  const at::Tensor& self = step.args.front().toTensor();
  bool is_read = false;
  for (size_t i = 1; i < step.args.size(); ++i) {
    is_read = is_read || (step.args[i].isTensor() && step.args[i].toTensor().defined() &&
                          step.args[i].toTensor().has_storage() &&
                          step.args[i].toTensor().storage().is_alias_of(self.storage()));
  }
  if (fills(self) && covers_storage(self) && !is_read) {
    step.overwrites = ids_.at(self.storage().unsafeGetStorageImpl());
  }
}

void InitTape::note(const c10::OperatorHandle& op, const torch::jit::Stack& args,
                    const std::vector<at::Tensor>& outputs) {
  Step step{op, {}, {}, {}, {}, 0, false, false, {}};
  std::transform(outputs.begin(), outputs.end(), std::back_inserter(step.outputs), fixed_alias);
  step.args = with_tensors(args, [this](const at::Tensor& tensor) {
    return fills(tensor) ? fixed_alias(tensor) : tensor;
  });
  std::set<size_t> values;
  const auto add = [&](const at::Tensor& tensor) {
    if (fills(tensor)) {
      values.insert(ids_.at(tensor.storage().unsafeGetStorageImpl()));
    }
  };
  visit_stack(args, add);
  std::for_each(outputs.begin(), outputs.end(), add);
  step.values.assign(values.begin(), values.end());
  set_randomness(step);
  set_overwritten(step);
  for (const size_t value : step.values) {
    values_[value].steps.push_back(steps_.size());
  }
  steps_.push_back(std::move(step));
}

bool InitTape::fill_now(const std::vector<at::Tensor>& tensors) {
  std::vector<size_t> open;
  for (const at::Tensor& tensor : tensors) {
    open.push_back(ids_.at(tensor.storage().unsafeGetStorageImpl()));
  }
  // Whatever touches one of the values: readers too, which must not find what comes later.
  std::set<size_t> values(open.begin(), open.end());
  std::set<size_t> steps;
  while (!open.empty()) {
    const Value& value = values_[open.back()];
    open.pop_back();
    for (const size_t step : value.steps) {
      if (steps_[step].is_done || !steps.insert(step).second) {
        continue;
      }
      if (steps_[step].is_random) {
        return false;
      }
      for (const size_t other : steps_[step].values) {
        if (values.insert(other).second) {
          open.push_back(other);
        }
      }
    }
  }
  for (const size_t value : values) {
    ensure_memory(values_[value].storage);
  }
  for (const size_t step : steps) {
    run(steps_[step]);
  }
  return true;
}

void InitTape::bind(const std::shared_ptr<torch::nn::Module>& module) {
  streams_.finish();
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    if (fills(tensor) && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      const size_t value = ids_.at(tensor.storage().unsafeGetStorageImpl());
      values_[value].bound.push_back(bound_.size());
      bound_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                        fixed_alias(tensor)});
    }
  };
  walk_modules(module, "", [&](const std::string&, const auto& visited) {
    for (const at::Tensor& param : visited->parameters(/*recurse=*/false)) {
      add(param);
    }
    for (const at::Tensor& buffer : visited->buffers(/*recurse=*/false)) {
      add(buffer);
    }
    return true;
  });
}

void InitTape::call(Step& step, torch::jit::Stack& stack) {
  if (!step.generator_arg) {
    step.op.callBoxed(stack);
    return;
  }
  at::Generator generator = streams_.generator(step.stream);
  const at::Tensor before = state_of(generator);
  stack[*step.generator_arg] = generator;
  try {
    step.op.callBoxed(stack);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(before);
    throw;
  }
}

void InitTape::run(Step& step) {
  torch::jit::Stack stack = step.args;
  call(step, stack);
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    if (step.outputs[i].defined()) {
      step.outputs[i].copy_(stack[i].toTensor());
    }
  }
  step.args.clear();
  step.outputs.clear();
  step.is_done = true;
}

void InitTape::pass(size_t id, size_t step, const std::function<void(const Bound&)>& deliver) {
  Value& value = values_[id];
  if (!value.storage) {
    return;  // it has been delivered, before something else threw
  }
  const auto next = std::upper_bound(value.steps.begin(), value.steps.end(), step);
  if (next == value.steps.end()) {
    for (const size_t bound : value.bound) {
      if (bound_[bound].values.defined()) {
        deliver(bound_[bound]);
        bound_[bound].values.reset();
      }
    }
    value.storage = {};
  } else if (steps_[*next].overwrites == id) {
    discard_memory(value.storage);
  }
}

void InitTape::play(const std::function<void(const Bound&)>& deliver) {
  for (size_t id = 0; id < values_.size(); ++id) {
    if (values_[id].steps.empty() && values_[id].storage) {
      ensure_memory(values_[id].storage);
      pass(id, 0, deliver);
    }
  }
  for (; played_ < steps_.size(); ++played_) {
    Step& step = steps_[played_];
    for (const size_t id : step.values) {
      if (values_[id].storage) {
        ensure_memory(values_[id].storage);
      }
    }
    if (!step.is_done) {
      run(step);
    }
    for (const size_t id : step.values) {
      pass(id, played_, deliver);
    }
  }
}

}  // namespace fsdp
