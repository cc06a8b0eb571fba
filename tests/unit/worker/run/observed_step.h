#pragma once

// What some code asks LibTorch to do, as a CUDA graph would keep it: operators, the numbers that
// they are given, and where memory is that was there before.

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace fsdprun::worker {

/// An operator, its arguments but for tensors, and the memory of those that were there before.
using ObservedCall = std::string;

namespace observed {

struct State {
  std::vector<ObservedCall> calls;
  std::set<const void*> before;  // memory that was there
  std::set<const void*> made;    // memory that is of this run
};
inline State* state = nullptr;

inline const void* MemoryOf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().data() : nullptr;
}

template <class Use>
void ForTensors(const c10::IValue& value, Use use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      use(tensor);
    }
  }
}

inline std::string TextOf(const c10::IValue& value, State& of) {
  std::ostringstream text;
  bool has_tensors = false;
  ForTensors(value, [&](const at::Tensor& tensor) {
    has_tensors = true;
    if (tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      text << " number " << tensor.item();
    } else if (const void* const memory = MemoryOf(tensor); of.made.contains(memory)) {
      text << " new";
    } else {
      of.before.insert(memory);
      text << ' ' << memory;
    }
  });
  if (!has_tensors && !value.isTensorList()) {
    text << ' ' << value;
  }
  return text.str();
}

inline std::unique_ptr<at::ObserverContext> OnCall(const at::RecordFunction& function) {
  State* const outer = std::exchange(state, nullptr);  // not of what it asks itself
  if (outer == nullptr) {
    return nullptr;
  }
  std::string call = function.name();
  for (const c10::IValue& input : function.inputs()) {
    call += TextOf(input, *outer);
  }
  outer->calls.push_back(std::move(call));
  state = outer;
  return nullptr;
}

inline void OnResult(const at::RecordFunction& function, at::ObserverContext*) {
  if (state == nullptr) {
    return;
  }
  for (const c10::IValue& output : function.outputs()) {
    ForTensors(output, [](const at::Tensor& tensor) {
      const void* const memory = MemoryOf(tensor);
      if (memory != nullptr && !state->before.contains(memory)) {  // no view, nor written in place
        state->made.insert(memory);
      }
    });
  }
}

}  // namespace observed

/// Of all operators below `work`, in the order of their calls. Thread: one at a time.
inline std::vector<ObservedCall> CallsOf(const std::function<void()>& work) {
  observed::State state;
  observed::state = &state;
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(observed::OnCall, observed::OnResult)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  observed::state = nullptr;
  return state.calls;
}

/// "" if there is none.
inline std::string FirstDifference(const std::vector<ObservedCall>& a,
                                   const std::vector<ObservedCall>& b) {
  const auto [one, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (one == a.end() && other == b.end()) {
    return "";
  }
  return "call " + std::to_string(one - a.begin()) + ": " + (one == a.end() ? "none" : *one) +
         "; then " + (other == b.end() ? "none" : *other);
}

}  // namespace fsdprun::worker
