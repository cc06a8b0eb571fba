#include "tests/unit/fsdp_runtime/streams/fake_device.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

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
  void synchronizeStream(const c10::Stream&) const override { FakeDevice::get().count_host_wait(); }
  void synchronizeEvent(void*) const override { FakeDevice::get().count_host_wait(); }
  void synchronizeDevice(c10::DeviceIndex) const override { FakeDevice::get().count_host_wait(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

/// Never gives an address twice while the device is watched, so that two uses of one are of the
/// same memory.
class WatchedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, kPage, std::max<size_t>(bytes, 1)) == 0, "out of memory");
    std::lock_guard lock(mu_);
    blocks_[data] = {bytes, FakeDevice::get().current()};
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static WatchedMemory& get() {
    static auto* memory = new WatchedMemory;
    return *memory;
  }
  void free_retired() {
    for (void* data : std::exchange(retired_, {})) {
      std::free(data);
    }
  }

 private:
  struct Block {
    size_t bytes = 0;
    int64_t stream = 0;
  };

  static void release(void* data) { get().retire(data); }
  void retire(void* data) {
    std::lock_guard lock(mu_);
    const Block block = blocks_.at(data);
    blocks_.erase(data);
    FakeDevice& device = FakeDevice::get();
    if (!device.is_watching()) {
      std::free(data);
      return;
    }
    const auto* begin = static_cast<const char*>(data);
    device.use(block.stream, "the next owner", begin, begin + block.bytes, /*writes=*/true);
    retired_.push_back(data);
  }

  std::mutex mu_;
  std::map<void*, Block> blocks_;  // guarded by mu_
  std::vector<void*> retired_;
};

// What looks at a tensor but not at its memory, though it does not say so by an alias.
bool is_about_shape(const std::string& name) {
  static const std::set<std::string> all = {"aten::empty_like",    "aten::zeros_like",
                                            "aten::ones_like",     "aten::new_empty",
                                            "aten::new_zeros",     "aten::set_",
                                            "aten::resize_",       "aten::is_same_size",
                                            "aten::detach_",       "aten::result_type",
                                            "aten::size",          "aten::stride",
                                            "aten::sym_size",      "aten::new_empty_strided",
                                            "aten::requires_grad_"};
  return all.contains(name);
}

void use_tensor(const at::Tensor& tensor, const std::string& name, bool writes) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.numel() == 0) {
    return;
  }
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  FakeDevice& device = FakeDevice::get();
  device.use(device.current(), name, begin,
             begin + (last + 1) * static_cast<int64_t>(tensor.element_size()), writes);
}

void use_arguments(const at::RecordFunction& function) {
  const std::optional<c10::FunctionSchema> schema = function.operator_schema();
  const std::string name = function.name();
  if (!schema || is_about_shape(name)) {
    return;
  }
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size() && i < schema->arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema->arguments()[i].alias_info();
    if (alias != nullptr && !alias->isWrite()) {
      continue;  // the result is a view of it
    }
    const std::string op = name.substr(name.rfind(':') + 1);
    if (inputs[i].isTensor()) {
      use_tensor(inputs[i].toTensor(), op, alias != nullptr);
    } else if (inputs[i].isTensorList()) {
      for (const at::Tensor& tensor : inputs[i].toTensorVector()) {
        use_tensor(tensor, op, alias != nullptr);
      }
    }
  }
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  FakeDevice::get().count_operator(function.name());
  use_arguments(function);
  return nullptr;
}

std::string name_of(int64_t stream) {
  if (stream == 0) {
    return " of compute";
  }
  return stream % 2 == 1 ? " on a gather lane" : " on a reduce lane";
}

c10::Allocator* usual_memory = nullptr;

}  // namespace

FakeDevice& FakeDevice::get() {
  static auto* device = new FakeDevice;
  return *device;
}

void FakeDevice::start() {
  *this = FakeDevice();
  usual_memory = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&WatchedMemory::get(), /*priority=*/255);
  is_watching_ = true;
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(on_operator)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
}

void FakeDevice::stop() {
  at::removeCallback(callback_);
  c10::SetCPUAllocator(usual_memory, /*priority=*/255);
  is_watching_ = false;
  leaves_ = nullptr;
  uses_.clear();
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
  const auto number = static_cast<size_t>(stream);
  if (clocks_.size() <= number) {
    clocks_.resize(number + 1);
  }
  Clock& clock = clocks_[number];
  clock.resize(std::max(clock.size(), static_cast<size_t>(streams_)), 0);
  return clock;
}

FakeDevice::Event FakeDevice::record(int64_t stream) { return {stream, clock_of(stream)}; }

void FakeDevice::wait(int64_t stream, const Event& event) {
  if (leaves_ && leaves_(stream, event.stream)) {
    return;
  }
  Clock& clock = clock_of(stream);
  for (size_t i = 0; i < event.clock.size(); ++i) {
    clock[i] = std::max(clock[i], event.clock[i]);
  }
}

void FakeDevice::count_operator(const std::string& name) {
  ++counts_[name.substr(name.rfind(':') + 1)];
  if (name == "aten::_local_scalar_dense" || name == "aten::nonzero") {
    ++host_waits_;
  }
}

void FakeDevice::use(int64_t stream, const std::string& name, const char* begin, const char* end,
                     bool writes) {
  Clock& clock = clock_of(stream);
  Use next{stream, ++clock[static_cast<size_t>(stream)], "", begin, end, writes};
  next.name = name + name_of(stream) + " in " + phase_;
  const auto page_of = [](const char* at) { return reinterpret_cast<uintptr_t>(at) / kPage; };
  for (uintptr_t page = page_of(begin); page <= page_of(end - 1); ++page) {
    std::vector<Use>& uses = uses_[reinterpret_cast<const char*>(page)];
    for (const Use& before : uses) {
      const bool overlaps = before.begin < end && begin < before.end;
      const bool is_ordered = before.tick <= clock[static_cast<size_t>(before.stream)];
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
