#include "fsdp_runtime/src/init/deferred_fallback.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/init/init_tape.h"

namespace fsdp {
namespace {

using c10::DispatchKey;
using torch::jit::Stack;

thread_local InitTape* recording_tape = nullptr;

/// What remains to be done with an operation.
enum class Next { kNothing, kGoOn, kDoNow };

/// How an operation reaches the tensors that a tape fills.
enum class Access { kComposed, kMetadata, kWrites, kComputes, kReads };

bool is_composed(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

/// Made of other operations that allocate: zeros, rand, ones_like.
bool is_made_of_others(const c10::OperatorHandle& op) {
  return is_composed(op) || op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

bool returns_views(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& value) {
    return value.alias_info() != nullptr && !value.alias_info()->isWrite();
  });
}

Access access_of(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::inplace_view)) {
    return Access::kMetadata;
  }
  if (op.schema().is_mutable()) {
    return is_composed(op) ? Access::kComposed : Access::kWrites;
  }
  if (is_composed(op)) {
    return Access::kComposed;
  }
  if (returns_views(op)) {
    return Access::kMetadata;
  }
  const auto& returns = op.schema().returns();
  const bool returns_tensor = std::any_of(returns.begin(), returns.end(), [](const auto& value) {
    return value.type()->isSubtypeOf(*c10::TensorType::get());
  });
  if (!returns_tensor) {
    return Access::kReads;
  }
  return is_made_of_others(op) ? Access::kComposed : Access::kComputes;
}

/// An operation that has been called, with its arguments on the stack. Nothing that is called here
/// comes to the tape.
class Call {
 public:
  Call(InitTape& tape, const c10::OperatorHandle& op, Stack* stack)
      : tape_(tape), op_(op), stack_(stack) {}

  Next handle() {
    const std::vector<at::Tensor> filled = filled_arguments();
    if (filled.empty()) {
      return handle_factory();
    }
    switch (access_of(op_)) {
      case Access::kComposed:
        return Next::kGoOn;
      case Access::kMetadata:
        return Next::kDoNow;
      case Access::kWrites:
        return writes_to_filled() ? note_write() : read_now(filled);
      case Access::kComputes:
        return note_result(filled.front().device(), /*is_factory=*/false) ? Next::kNothing
                                                                          : read_now(filled);
      case Access::kReads:
        break;
    }
    return read_now(filled);
  }

 private:
  size_t argument_count() const { return op_.schema().arguments().size(); }
  Stack arguments() const {
    return {stack_->end() - static_cast<std::ptrdiff_t>(argument_count()), stack_->end()};
  }
  std::optional<size_t> argument(const std::string& name) const {
    const auto index = op_.schema().argumentIndexWithName(name);
    return index ? std::make_optional(static_cast<size_t>(*index)) : std::nullopt;
  }
  c10::IValue& on_stack(size_t index) {
    return (*stack_)[stack_->size() - argument_count() + index];
  }

  std::vector<at::Tensor> filled_arguments() const {
    std::vector<at::Tensor> filled;
    visit_stack(arguments(), [&](const at::Tensor& tensor) {
      if (tape_.fills(tensor)) {
        filled.push_back(tensor);
      }
    });
    return filled;
  }

  bool writes_to_filled() const {
    const Stack args = arguments();
    bool writes_elsewhere = false;
    for (size_t i = 0; i < args.size(); ++i) {
      const c10::AliasInfo* alias = op_.schema().arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) {
        visit_stack({args[i]}, [&](const at::Tensor& tensor) {
          writes_elsewhere = writes_elsewhere || !tape_.fills(tensor);
        });
      }
    }
    return !writes_elsewhere;
  }

  /// No argument is the tape's.
  Next handle_factory() {
    if (const auto device = argument("device");
        device && tape_.device() && on_stack(*device).isNone() && !has_tensors()) {
      on_stack(*device) = *tape_.device();
    }
    if (is_allocation()) {
      const auto device = argument("device");
      const c10::Device on = device && !on_stack(*device).isNone() ? on_stack(*device).toDevice()
                                                                   : c10::Device(c10::kCPU);
      if ((on.is_cpu() || on.is_cuda()) && is_plain_memory() &&
          note_result(on, /*is_factory=*/true)) {
        return Next::kNothing;
      }
    }
    return is_made_of_others(op_) ? Next::kGoOn : Next::kDoNow;
  }

  bool is_allocation() const {
    const c10::OperatorName& name = op_.operator_name();
    return (name.name == "aten::empty" && name.overload_name == "memory_format") ||
           (name.name == "aten::empty_strided" && name.overload_name.empty());
  }

  bool has_tensors() const {
    bool has = false;
    visit_stack(arguments(), [&](const at::Tensor& tensor) { has = has || tensor.defined(); });
    return has;
  }

  bool is_plain_memory() {
    const auto pin = argument("pin_memory");
    const auto layout = argument("layout");
    const bool is_pinned = pin && on_stack(*pin).isBool() && on_stack(*pin).toBool();
    const bool is_strided =
        !layout || on_stack(*layout).isNone() || on_stack(*layout).toLayout() == c10::kStrided;
    return !is_pinned && is_strided;
  }

  Next note_write() {
    const Stack args = arguments();
    tape_.note(op_, args, {});
    const auto& schema = op_.schema();
    Stack results;
    for (const c10::Argument& value : schema.returns()) {
      for (size_t i = 0; i < args.size(); ++i) {
        const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && value.alias_info() != nullptr &&
            alias->beforeSets() == value.alias_info()->beforeSets()) {
          results.push_back(args[i]);
        }
      }
    }
    TORCH_CHECK(results.size() == schema.returns().size(), "deferred_init: ", op_.operator_name(),
                " writes to a tensor that has no memory yet, and returns something else");
    replace_arguments(std::move(results));
    return Next::kNothing;
  }

  /// Runs the operation on tensors without data to learn what it returns. Returns false if that
  /// depends on data, or is empty.
  bool note_result(c10::Device device, bool is_factory) {
    Stack results;
    try {
      results = on_meta(device);
    } catch (const c10::Error& error) {
      reason_ = error.what_without_backtrace();  // mostly that shapes depend on data
      return false;
    }
    std::vector<at::Tensor> outputs;
    for (c10::IValue& result : results) {
      if (!result.isTensor() || result.toTensor().numel() == 0) {
        return false;
      }
      outputs.push_back(tape_.make(result.toTensor(), device));
      result = outputs.back();
    }
    if (!is_factory) {
      tape_.note(op_, arguments(), outputs);
    }
    replace_arguments(std::move(results));
    return true;
  }

  Stack on_meta(c10::Device& device) {
    Stack args = with_tensors(arguments(), [](const at::Tensor& tensor) {
      if (!tensor.defined()) {
        return tensor;
      }
      at::Tensor meta =
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {  // a C++ number does not promote
        meta.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      return meta;
    });
    if (const auto given = argument("device")) {
      if (!args[*given].isNone()) {
        device = args[*given].toDevice();
      }
      args[*given] = c10::Device(c10::kMeta);
    }
    for (const char* name : {"generator", "pin_memory"}) {
      if (const auto given = argument(name)) {
        args[*given] = c10::IValue();
      }
    }
    op_.callBoxed(args);
    return args;
  }

  Next read_now(const std::vector<at::Tensor>& filled) {
    TORCH_CHECK(tape_.fill_now(filled), "deferred_init: ", op_.operator_name(),
                " needs the values of a tensor of shape ", filled.front().sizes(),
                ", which are random and drawn by materialize_module(); do what depends on them "
                "after that, by fsdp::apply()",
                reason_.empty() ? "" : ". Why it cannot be noted: ", reason_);
    return Next::kDoNow;
  }

  void replace_arguments(Stack results) {
    torch::jit::drop(*stack_, argument_count());
    std::move(results.begin(), results.end(), std::back_inserter(*stack_));
  }

  InitTape& tape_;
  const c10::OperatorHandle& op_;
  Stack* const stack_;
  std::string reason_;
};

void deferred_init_operation(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             Stack* stack) {
  TORCH_INTERNAL_ASSERT(recording_tape != nullptr);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> as_usual;
  as_usual.emplace(DispatchKey::DeferredInit);
  Next next = Next::kNothing;
  {
    const at::NoGradGuard no_grad;
    next = Call(*recording_tape, op, stack).handle();
  }
  if (next == Next::kGoOn) {
    as_usual.reset();  // what it calls comes here
  }
  if (next != Next::kNothing) {
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, DispatchKey::DeferredInit),
        stack);
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&deferred_init_operation>());
}

}  // namespace

DeferredOperations::DeferredOperations(InitTape& tape)
    : intercepts_(c10::DispatchKeySet(DispatchKey::DeferredInit)) {
  TORCH_CHECK(recording_tape == nullptr, "deferred_init: inside of another one");
  recording_tape = &tape;
}

DeferredOperations::~DeferredOperations() { recording_tape = nullptr; }

}  // namespace fsdp
