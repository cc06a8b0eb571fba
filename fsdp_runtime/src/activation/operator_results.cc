#include "fsdp_runtime/src/activation/operator_results.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <utility>

namespace fsdp::detail {
namespace {

constexpr c10::DispatchKey kSeen = c10::DispatchKey::Fake;

thread_local OperatorResults* watched_results = nullptr;
thread_local OperatorResults::Watch::Run watched_run = OperatorResults::Watch::Run::kFirst;

void run_watched(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard as_usual(kSeen);
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kSeen);
  if (watched_results == nullptr) {
    op.redispatchBoxed(below, stack);
  } else {
    watched_results->run(op, below, stack, watched_run);
  }
}

/// Only tensors that nobody else has are kept: no views, and nothing that is written in place.
bool gives_new_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr) {
      return false;
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr || !result.type()->isSubtypeOf(*c10::TensorType::get())) {
      return false;
    }
  }
  return !schema.returns().empty();
}

/// The same memory and version, without what autograd will add to `tensor`.
at::Tensor same_memory(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      tensor.unsafeGetTensorImpl()->version_counter(), /*allow_tensor_metadata_change=*/false));
}

}  // namespace

OperatorResults::Watch::Watch(OperatorResults& results, Run run)
    : includes_(kSeen), outer_(watched_results), outer_run_(watched_run) {
  watched_results = &results;
  watched_run = run;
}

OperatorResults::Watch::~Watch() {
  watched_results = outer_;
  watched_run = outer_run_;
}

void OperatorResults::rewind() {
  for (auto& [name, known] : operators_) {
    known.next = 0;
  }
}

OperatorResults::Operator& OperatorResults::known(const c10::OperatorHandle& op) {
  std::string name = toString(op.operator_name());
  const auto found = operators_.find(name);
  if (found != operators_.end()) {
    return found->second;
  }
  Operator added;
  added.is_kept = gives_new_tensors(op.schema()) && keeps_(op.operator_name().name);
  added.draws = op.hasTag(at::Tag::nondeterministic_seeded);
  return operators_.emplace(std::move(name), std::move(added)).first->second;
}

void OperatorResults::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack, Watch::Run run) {
  Operator& called = known(op);
  if (!called.is_kept) {
    op.redispatchBoxed(keys, stack);
  } else if (run == Watch::Run::kReplay) {
    replace(called, op, stack);
  } else {
    op.redispatchBoxed(keys, stack);
    keep(called, op, *stack);
  }
}

void OperatorResults::keep(Operator& of, const c10::OperatorHandle& op,
                           const torch::jit::Stack& stack) const {
  Call call;
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().returns().size())) {
    const at::Tensor& tensor = value.toTensor();
    call.results.push_back(tensor.defined() ? Result{same_memory(tensor), tensor._version()}
                                            : Result{});
  }
  if (of.draws && generators_ != nullptr) {
    call.generators_after = generators_->now();
  }
  of.calls.push_back(std::move(call));
}

void OperatorResults::replace(Operator& of, const c10::OperatorHandle& op,
                              torch::jit::Stack* stack) {
  TORCH_CHECK(of.next < of.calls.size(), "activation_checkpoint: the segment called ",
              op.operator_name(),
              " more often when it was run again for backward; it has to do the "
              "same in both runs");
  torch::jit::drop(*stack, op.schema().arguments().size());
  const Call& call = of.calls[of.next++];
  for (const Result& result : call.results) {
    TORCH_CHECK(!result.tensor.defined() || result.tensor._version() == result.version,
                "activation_checkpoint: a result of ", op.operator_name(),
                ", which the policy keeps, was modified in place after it was computed; leave that "
                "operator out of the policy, or work on a copy");
    torch::jit::push(*stack, result.tensor.defined() ? same_memory(result.tensor) : at::Tensor());
  }
  if (call.generators_after) {
    call.generators_after->restore();
  }
}

}  // namespace fsdp::detail

TORCH_LIBRARY_IMPL(_, Fake, fallbacks) {
  fallbacks.fallback(torch::CppFunction::makeFromBoxedFunction<&fsdp::detail::run_watched>());
}
