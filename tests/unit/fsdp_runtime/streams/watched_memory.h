#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/fake_device.h"

namespace fsdp::testing {

/// Never gives an address twice while the device is watched, so that two uses of one are of the
/// same memory.
class WatchedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, kAlignment, std::max<size_t>(bytes, 1)) == 0,
                "out of memory");
    std::lock_guard lock(mu_);
    FakeDevice& device = FakeDevice::get();
    blocks_[data] = {bytes, device.current()};
    if (device.is_watching() && bytes > 0) {
      const auto* begin = static_cast<const char*>(data);
      device.allocate(begin, begin + bytes);
      if (is_of_host) {
        device.mark_on_host(begin, begin + bytes, /*is_pinned=*/false);
      }
    }
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
  /// What is allocated is for a result of an operation on memory of the host.
  bool is_of_host = false;
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

  static constexpr size_t kAlignment = 4096;  // so that no two blocks have a page in common

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
    if (block.bytes > 0) {
      device.free(block.stream, begin, begin + block.bytes);
    }
    retired_.push_back(data);
  }

  std::mutex mu_;
  std::map<void*, Block> blocks_;  // guarded by mu_
  std::vector<void*> retired_;
};

/// The same, pinned.
class WatchedPinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = WatchedMemory::get().allocate(bytes);
    if (FakeDevice& device = FakeDevice::get(); device.is_watching() && bytes > 0) {
      const auto* begin = static_cast<const char*>(data.get());
      device.mark_on_host(begin, begin + bytes, /*is_pinned=*/true);
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return WatchedMemory::get().raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace fsdp::testing
