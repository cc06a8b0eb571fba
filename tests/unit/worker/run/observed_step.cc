#include "tests/unit/worker/run/observed_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <iomanip>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

namespace fsdprun::worker {
namespace {

struct State {
  std::vector<ObservedCall> calls;
  std::set<const void*> before;  // memory that was there
  std::set<const void*> made;    // memory that is of this run
  int depth = 0;                 // operators that have begun
};
State* state = nullptr;

const void* MemoryOf(const at::Tensor& tensor) {
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

std::string TextOf(const c10::IValue& value, State& of) {
  std::ostringstream text;
  bool has_tensors = false;
  ForTensors(value, [&](const at::Tensor& tensor) {
    has_tensors = true;
    if (tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      text << " number " << std::setprecision(17) << tensor.item<double>();
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

std::unique_ptr<at::ObserverContext> OnCall(const at::RecordFunction& function) {
  State* const outer = std::exchange(state, nullptr);  // not of what it asks itself
  if (outer == nullptr) {
    return nullptr;
  }
  if (outer->depth++ == 0) {  // what operators do themselves follows from what they are given
    std::string call = function.name();
    for (const c10::IValue& input : function.inputs()) {
      call += TextOf(input, *outer);
    }
    outer->calls.push_back(std::move(call));
  }
  state = outer;
  return nullptr;
}

void OnResult(const at::RecordFunction& function, at::ObserverContext*) {
  if (state == nullptr || --state->depth > 0) {
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

}  // namespace

std::vector<ObservedCall> CallsOf(const std::function<void()>& work) {
  State observed;
  state = &observed;
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(OnCall, OnResult)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  state = nullptr;
  return observed.calls;
}

std::string FirstDifference(const std::vector<ObservedCall>& a,
                            const std::vector<ObservedCall>& b) {
  const auto [one, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (one == a.end() && other == b.end()) {
    return "";
  }
  return "call " + std::to_string(one - a.begin()) + ": " + (one == a.end() ? "none" : *one) +
         "; then " + (other == b.end() ? "none" : *other);
}

}  // namespace fsdprun::worker
