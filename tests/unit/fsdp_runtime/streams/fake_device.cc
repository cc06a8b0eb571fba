#include "tests/unit/fsdp_runtime/streams/fake_device.h"

#include <ATen/core/function_schema.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "tests/unit/fsdp_runtime/streams/watched_memory.h"

namespace fsdp::testing {
namespace {

// Uses are looked up by page, so that a use need not be compared with those of all other memory.
constexpr uintptr_t kPage = 4096;

c10::Stream stream_of(int64_t number) {
  return c10::Stream(c10::Stream::UNSAFE, FakeDevice::device(), number);
}

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return FakeDevice::device(); }
  c10::Device getDevice() const override { return FakeDevice::device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override {
    return stream_of(FakeDevice::get().current());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(FakeDevice::get().exchange(stream.id()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream_of(FakeDevice::get().new_stream());
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    delete static_cast<FakeDevice::Event*>(*event);
    *event = new FakeDevice::Event(FakeDevice::get().record(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    FakeDevice::get().wait(stream.id(), *static_cast<FakeDevice::Event*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeDevice::Event*>(event);
  }
  bool queryEvent(void*) const override { return false; }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override {
    FakeDevice& device = FakeDevice::get();
    device.wait_on_host(device.record(stream.id()));
  }
  void synchronizeEvent(void* event) const override {
    FakeDevice::get().wait_on_host(*static_cast<FakeDevice::Event*>(event));
  }
  void synchronizeDevice(c10::DeviceIndex) const override { FakeDevice::get().count_host_wait(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* memory = new WatchedPinnedMemory;
    return memory;
  }
};

// What looks at a tensor but not at its memory, though it does not say so by an alias.
bool is_about_shape(const std::string& name) {
  static const std::set<std::string> all = {
      "aten::empty_like",     "aten::zeros_like",   "aten::ones_like",
      "aten::new_empty",      "aten::new_zeros",    "aten::set_",
      "aten::resize_",        "aten::is_same_size", "aten::view_as",
      "aten::detach_",        "aten::result_type",  "aten::size",
      "aten::stride",         "aten::sym_size",     "aten::new_empty_strided",
      "aten::requires_grad_", "aten::set_data",     "aten::_has_compatible_shallow_copy_type"};
  return all.contains(name);
}

using Access = FakeDevice::Access;

/// The memory of `tensor`, from its first element to its last; empty if it is not the device's.
std::pair<const char*, const char*> memory_of(const at::Tensor& tensor) {
  // LibTorch makes a tensor of a number in the call's arguments, which a kernel gets by value.
  const bool is_number = tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (!tensor.defined() || is_number || !tensor.device().is_cpu() || tensor.numel() == 0) {
    return {};
  }
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

/// Calls `use` for each tensor of an argument or a result.
template <class Use>
void for_tensors(const c10::IValue& value, Use use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      use(tensor);
    }
  }
}

std::string op_of(const std::string& name) { return name.substr(name.rfind(':') + 1); }

// What writes an argument without looking at what is there.
bool overwrites(const std::string& op, const c10::Argument& argument) {
  static const std::set<std::string> all = {"copy_",       "fill_",          "zero_",
                                            "index_fill_", "_foreach_copy_", "_foreach_zero_",
                                            "uniform_",    "normal_"};
  return argument.is_out() || all.contains(op);
}

// By name; an operator that has another one as its argument is about its device, too.
const c10::IValue* argument_of(const at::RecordFunction& function,
                               const c10::FunctionSchema& schema, const std::string& name) {
  const std::optional<int> index = schema.argumentIndexWithName(name);
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  return index && static_cast<size_t>(*index) < inputs.size() ? &inputs[static_cast<size_t>(*index)]
                                                              : nullptr;
}

// Between the device and the host, which on this device is none: the host waits for it.
bool is_host_copy(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  const c10::IValue* device = argument_of(function, schema, "device");
  const c10::IValue* non_blocking = argument_of(function, schema, "non_blocking");
  return schema.name() == "aten::to" && device != nullptr && device->isDevice() &&
         (non_blocking == nullptr || !non_blocking->toBool());
}

/// The same, which the host goes on beside.
bool is_unawaited_host_copy(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  const c10::IValue* device = argument_of(function, schema, "device");
  return schema.name() == "aten::to" && device != nullptr && device->isDevice() &&
         !is_host_copy(function, schema);
}

/// Allocates for whoever works on the first argument, though it does not look at that.
bool is_factory_beside(const std::string& name) {
  static const std::set<std::string> all = {"aten::empty_like", "aten::zeros_like",
                                            "aten::new_empty", "aten::new_zeros"};
  return all.contains(name);
}

void use_host_copy(const at::Tensor& tensor) {
  FakeDevice& device = FakeDevice::get();
  device.count_host_wait();
  const auto [begin, end] = memory_of(tensor);
  device.mark_written(begin, end);
  device.use(device.current(), "to", begin, end, Access::kRead);
}

/// Calls `use(tensor, access)` for each tensor of which the memory is used, and not only its shape,
/// or that of a view of it.
template <class Use>
void for_used_tensors(const at::RecordFunction& function, const c10::FunctionSchema& schema,
                      Use use) {
  const std::string name = schema.name();
  if (is_about_shape(name)) {
    return;
  }
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size() && i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::AliasInfo* alias = argument.alias_info();
    if (alias != nullptr && !alias->isWrite()) {
      continue;  // the result is a view of it
    }
    const Access access = alias == nullptr                    ? Access::kRead
                          : overwrites(op_of(name), argument) ? Access::kWrite
                                                              : Access::kReadAndWrite;
    for_tensors(inputs[i], [&](const at::Tensor& tensor) { use(tensor, access); });
  }
}

/// What an operation works on.
struct Operands {
  bool is_some_on_host = false;
  bool is_some_on_device = false;
};

Operands operands_of(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  Operands operands;
  if (is_factory_beside(schema.name())) {
    const at::Tensor& beside = function.inputs()[0].toTensor();
    // A parameter that is sharded has a shape, and no memory to be asked for.
    operands.is_some_on_host =
        beside.has_storage() &&
        FakeDevice::get().is_on_host(static_cast<const char*>(
            beside.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()));
    return operands;
  }
  for_used_tensors(function, schema, [&](const at::Tensor& tensor, Access) {
    if (const auto [begin, end] = memory_of(tensor); begin != end) {
      const bool is_on_host = FakeDevice::get().is_on_host(begin);
      (is_on_host ? operands.is_some_on_host : operands.is_some_on_device) = true;
    }
  });
  return operands;
}

bool is_copy(const c10::FunctionSchema& schema) {
  return schema.name() == "aten::copy_" || schema.name() == "aten::_foreach_copy_";
}

bool is_non_blocking(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  const c10::IValue* non_blocking = argument_of(function, schema, "non_blocking");
  return non_blocking != nullptr && non_blocking->toBool();
}

/// For an operation of the host: memory that nobody has used is the host's, too, and a single
/// element of the device's is fetched.
void take_operands_to_host(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  FakeDevice& device = FakeDevice::get();
  for_used_tensors(function, schema, [&](const at::Tensor& tensor, Access) {
    const auto [begin, end] = memory_of(tensor);
    if (begin == end) {
      return;
    }
    device.mark_on_host_if_unused(begin);
    if (!device.is_on_host(begin) && tensor.numel() == 1) {
      device.use(device.current(), "to", begin, end, Access::kRead);
      device.order_host_behind(device.current());
    }
  });
}

void use_arguments(const at::RecordFunction& function, const c10::FunctionSchema& schema,
                   int64_t stream) {
  const std::string op = op_of(schema.name());
  for_used_tensors(function, schema, [&](const at::Tensor& tensor, Access access) {
    const auto [begin, end] = memory_of(tensor);
    FakeDevice::get().use(stream, op, begin, end, access);
  });
}

/// Of the host, of a stream, or between both.
void run_operator(const at::RecordFunction& function, const c10::FunctionSchema& schema,
                  const Operands& operands) {
  FakeDevice& device = FakeDevice::get();
  const bool is_between = operands.is_some_on_device && is_copy(schema);
  if (operands.is_some_on_host && !is_between) {
    take_operands_to_host(function, schema);
    use_arguments(function, schema, FakeDevice::kHost);
    return;
  }
  use_arguments(function, schema, device.current());
  if (operands.is_some_on_host && !is_non_blocking(function, schema)) {
    device.count_host_wait();
    device.order_host_behind(device.current());
  }
}

std::vector<bool> running_operators;  // one calls the next; whether they are the host's

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  FakeDevice::get().count_operator(function.name());
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  const bool is_own_call = running_operators.empty();  // others convert tensors by to(), too
  running_operators.push_back(
      WatchedMemory::get().is_of_host);  // its end comes if this throws, too
  const Operands operands = schema ? operands_of(function, *schema) : Operands();
  if (operands.is_some_on_host && !operands.is_some_on_device) {
    running_operators.back() = WatchedMemory::get().is_of_host = true;
  }
  if (schema && is_own_call && is_host_copy(function, *schema)) {
    use_host_copy(function.inputs()[0].toTensor());
  } else if (schema && is_own_call && is_unawaited_host_copy(function, *schema)) {
    FakeDevice::get().count_operator("to without a wait");
  } else if (schema) {
    run_operator(function, *schema, operands);
  }
  return nullptr;
}

// What an operator returns it has allocated, on the current stream, and written, unless it is about
// the shape alone.
void on_result(const at::RecordFunction& function, at::ObserverContext*) {
  running_operators.pop_back();
  WatchedMemory::get().is_of_host = !running_operators.empty() && running_operators.back();
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  if (!schema || schema->name().find("empty") != std::string::npos) {
    return;
  }
  const std::vector<c10::IValue>& outputs = function.outputs();
  for (size_t i = 0; i < outputs.size() && i < schema->returns().size(); ++i) {
    if (schema->returns()[i].alias_info() == nullptr) {
      for_tensors(outputs[i], [](const at::Tensor& tensor) {
        const auto [begin, end] = memory_of(tensor);
        FakeDevice::get().mark_written(begin, end);
      });
    }
  }
}

std::string name_of(int64_t stream) {
  if (stream <= 0) {
    return stream == 0 ? " of compute" : " of the host";
  }
  return stream % 2 == 1 ? " on a gather lane" : " on a reduce lane";
}

/// Numbers of pages, as addresses.
const char* page_of(const char* at) {
  return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at) / kPage);
}

c10::Allocator* usual_memory = nullptr;

}  // namespace

FakeDevice& FakeDevice::get() {
  static auto* device = new FakeDevice;
  return *device;
}

void FakeDevice::start() {
  *this = FakeDevice();
  static FakeHooks hooks;
  if (!at::isPrivateUse1HooksRegistered()) {
    c10::register_privateuse1_backend("fake");  // or it would have no pinned memory
    at::RegisterPrivateUse1HooksInterface(&hooks);
  }
  usual_memory = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&WatchedMemory::get(), /*priority=*/255);
  is_watching_ = true;
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(on_operator, on_result)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
}

void FakeDevice::stop() {
  at::removeCallback(callback_);
  c10::SetCPUAllocator(usual_memory, /*priority=*/255);
  is_watching_ = false;
  leaves_ = nullptr;
  uses_.clear();
  unwritten_.clear();
  on_host_.clear();
  unused_.clear();
  WatchedMemory::get().free_retired();
}

int FakeDevice::count(const std::string& name) const {
  const auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

std::string FakeDevice::text_of_races() const {
  std::ostringstream text;
  for (const auto& [race, times] : races_) {
    text << race.later << " is not ordered behind " << race.earlier << " (" << times << " times)\n";
  }
  return text.str();
}

int64_t FakeDevice::exchange(int64_t stream) { return std::exchange(current_, stream); }

int64_t FakeDevice::new_stream() { return streams_++; }

FakeDevice::Clock& FakeDevice::clock_of(int64_t stream) {
  if (clocks_.size() <= place_of(streams_)) {
    clocks_.resize(place_of(streams_) + 1);  // so that no reference becomes invalid meanwhile
  }
  Clock& clock = clocks_[place_of(stream)];
  clock.resize(std::max(clock.size(), place_of(streams_)), 0);
  return clock;
}

void FakeDevice::join(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < other.size(); ++i) {
    clock[i] = std::max(clock[i], other[i]);
  }
}

void FakeDevice::wait_on_host(const Event& event) {
  count_host_wait();
  wait(kHost, event);
}

void FakeDevice::order_host_behind(int64_t stream) {
  const Clock awaited = clock_of(stream);
  join(clock_of(kHost), awaited);
}

FakeDevice::Event FakeDevice::record(int64_t stream) { return {stream, clock_of(stream)}; }

void FakeDevice::wait(int64_t stream, const Event& event) {
  Clock& clock = clock_of(stream);
  bool is_news = false;
  for (size_t i = 0; i < event.clock.size(); ++i) {
    is_news = is_news || event.clock[i] > clock[i];
  }
  const Wait wait{stream, event.stream, phase_};
  if (is_news) {
    waits_.insert(wait);
  }
  if (!leaves_ || !leaves_(wait)) {
    join(clock, event.clock);
  }
}

void FakeDevice::count_operator(const std::string& name) {
  ++counts_[op_of(name)];
  if (name == "aten::_local_scalar_dense" || name == "aten::nonzero") {
    ++host_waits_;
  }
}

bool FakeDevice::is_unwritten(const char* begin, const char* end) const {
  const auto behind = unwritten_.lower_bound(end);
  return behind != unwritten_.begin() && begin < std::prev(behind)->second;
}

void FakeDevice::mark_written(const char* begin, const char* end) {
  auto each = unwritten_.lower_bound(end);
  while (each != unwritten_.begin() && begin < std::prev(each)->second) {
    const auto [from, to] = *--each;
    each = unwritten_.erase(each);
    if (from < begin) {
      unwritten_[from] = begin;
    }
    if (end < to) {
      unwritten_[end] = to;
    }
    each = unwritten_.lower_bound(from);
  }
}

void FakeDevice::allocate(const char* begin, const char* end) {
  use(current_, "the last owner", begin, end, Access::kWrite);
  unwritten_[begin] = end;
  unused_[begin] = end;
}

bool FakeDevice::is_on_host(const char* begin) const {
  const auto behind = on_host_.upper_bound(begin);
  return behind != on_host_.begin() && begin < std::prev(behind)->second.end;
}

bool FakeDevice::is_pinned(const char* begin) const {
  return is_on_host(begin) && std::prev(on_host_.upper_bound(begin))->second.is_pinned;
}

void FakeDevice::mark_on_host(const char* begin, const char* end, bool is_pinned) {
  on_host_[begin] = {end, is_pinned};
  unused_.erase(begin);
  // Whoever had it before has been waited for.
  uses_.erase(uses_.lower_bound(page_of(begin)), uses_.upper_bound(page_of(end - 1)));
}

void FakeDevice::mark_on_host_if_unused(const char* begin) {
  const auto behind = unused_.upper_bound(begin);
  if (behind == unused_.begin()) {
    return;
  }
  if (const auto [first, end] = *std::prev(behind); begin < end) {
    mark_on_host(first, end, /*is_pinned=*/false);
  }
}

void FakeDevice::free(int64_t stream, const char* begin, const char* end) {
  unused_.erase(begin);
  const auto host = on_host_.find(begin);
  if (host == on_host_.end() || !host->second.is_pinned) {
    use(host == on_host_.end() ? stream : kHost, "the next owner", begin, end, Access::kWrite);
  }
  if (host != on_host_.end()) {
    on_host_.erase(host);
  }
}

void FakeDevice::use(int64_t stream, const std::string& name, const char* begin, const char* end,
                     Access access) {
  if (begin == end) {
    return;
  }
  Clock& clock = clock_of(stream);
  join(clock, Clock(clock_of(kHost)));
  if (const auto behind = unused_.upper_bound(begin);
      behind != unused_.begin() && begin < std::prev(behind)->second) {
    unused_.erase(std::prev(behind));
  }
  const bool writes = access != Access::kRead;
  Use next{stream, ++clock[place_of(stream)], "", begin, end, writes};
  next.name = name + name_of(stream) + " in " + phase_;
  if (access != Access::kWrite && is_unwritten(begin, end)) {
    ++races_[{"any write", next.name}];
  }
  if (writes) {
    mark_written(begin, end);
  }
  for (const char* page = page_of(begin); page <= page_of(end - 1); ++page) {
    std::vector<Use>& uses = uses_[page];
    for (const Use& before : uses) {
      const bool overlaps = before.begin < end && begin < before.end;
      const bool is_ordered = before.tick <= clock[place_of(before.stream)];
      if (overlaps && (writes || before.writes) && !is_ordered) {
        ++races_[{before.name, next.name}];
      }
    }
    // Of what one stream does with the same memory, the last use is behind the others.
    std::erase_if(uses, [&](const Use& before) {
      return before.stream == stream && before.writes == writes && begin <= before.begin &&
             before.end <= end;
    });
    uses.push_back(next);
  }
}

}  // namespace fsdp::testing
