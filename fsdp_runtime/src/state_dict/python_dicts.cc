#include "fsdp_runtime/src/state_dict/python_dicts.h"

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <unordered_map>

#include "fsdp_runtime/src/state_dict/element_types.h"

namespace fsdp {
namespace {

using PythonDict = c10::impl::GenericDict;

PythonDict python_dict() { return PythonDict(c10::StringType::get(), c10::AnyType::get()); }

/// Tensors as they are written: on the CPU, and without flags that say how to read them.
class PlainTensors {
 public:
  at::Tensor of(const std::string& key, const StateValue& value) {
    const auto* whole = std::get_if<at::Tensor>(&value);
    TORCH_CHECK(whole != nullptr, key,
                " is a shard; get the dict with full_state_dict, or store shards with "
                "torch.distributed.checkpoint's layout");
    TORCH_CHECK(whole->defined() && can_be_saved(whole->scalar_type()), key, " is ",
                whole->defined() ? c10::toString(whole->scalar_type()) : "undefined",
                ", which is not written here; convert it");
    if (whole->is_cpu() && !whole->is_conj() && !whole->is_neg()) {
      return whole->detach();
    }
    at::Tensor& copy = copies_[whole->unsafeGetTensorImpl()];
    if (!copy.defined()) {
      copy = whole->detach().cpu().resolve_conj().resolve_neg();
    }
    return copy;
  }

 private:
  std::unordered_map<const c10::TensorImpl*, at::Tensor> copies_;  // looked up only, never iterated
};

c10::IValue python_value_of(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> c10::IValue {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return {};
        } else if constexpr (std::is_same_v<Held, std::vector<double>>) {
          return c10::ivalue::Tuple::create(std::vector<c10::IValue>(held.begin(), held.end()));
        } else {
          return held;
        }
      },
      value);
}

c10::IValue python_group_of(const OptimizerParamGroup& group) {
  PythonDict dict = python_dict();
  for (const auto& [name, value] : group.options) {
    dict.insert(name, python_value_of(value));
  }
  c10::impl::GenericList params(c10::AnyType::get());
  for (const std::string& fqn : group.params) {
    params.push_back(fqn);
  }
  dict.insert("params", params);
  return dict;
}

}  // namespace

c10::IValue python_dict_of(const ModelStateDict& dict) {
  PlainTensors tensors;
  PythonDict python = python_dict();
  for (const auto& entry : dict) {
    python.insert(entry.key(), tensors.of(entry.key(), entry.value()));
  }
  return python;
}

c10::IValue python_dict_of(const OptimizerStateDict& dict) {
  PlainTensors tensors;
  PythonDict state = python_dict();
  for (const auto& entry : dict.state) {
    PythonDict of_parameter = python_dict();
    for (const auto& state : entry.value()) {
      const auto* whole = std::get_if<at::Tensor>(&state.value());
      const bool is_none = whole != nullptr && !whole->defined();
      of_parameter.insert(
          state.key(),
          is_none ? c10::IValue()
                  : c10::IValue(tensors.of(entry.key() + "." + state.key(), state.value())));
    }
    state.insert(entry.key(), of_parameter);
  }
  c10::impl::GenericList groups(c10::AnyType::get());
  for (const OptimizerParamGroup& group : dict.param_groups) {
    groups.push_back(python_group_of(group));
  }
  PythonDict python = python_dict();
  python.insert("state", state);
  python.insert("param_groups", groups);
  return python;
}

}  // namespace fsdp
