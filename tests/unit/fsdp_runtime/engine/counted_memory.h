#pragma once

// What the ranks of a test, which are threads of this process, allocate: LibTorch on the CPU, and
// groups for communication.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fsdp/collectives.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp::testing {

/// Any thread.
class MemoryCount {
 public:
  void add(int64_t bytes) {
    const int64_t live = live_ += bytes;
    std::lock_guard lock(mu_);
    peak_ = std::max(peak_, live);
    if (is_noting_) {
      noted_.push_back(bytes);
    }
  }
  void subtract(int64_t bytes) { live_ -= bytes; }
  int64_t live() const { return live_; }

  /// The most that is live from here on.
  void begin_peak() {
    std::lock_guard lock(mu_);
    peak_ = live_;
  }
  int64_t peak() {
    std::lock_guard lock(mu_);
    return peak_;
  }

  /// From here to end_noting(), sizes are remembered.
  void begin_noting() {
    std::lock_guard lock(mu_);
    is_noting_ = true;
    noted_.clear();
  }
  /// The sizes of at least `least`, in ascending order.
  std::vector<int64_t> end_noting(int64_t least) {
    std::lock_guard lock(mu_);
    is_noting_ = false;
    std::erase_if(noted_, [least](int64_t bytes) { return bytes < least; });
    std::sort(noted_.begin(), noted_.end());
    return std::move(noted_);
  }

 private:
  std::atomic<int64_t> live_{0};
  std::mutex mu_;
  int64_t peak_ = 0;            // guarded by mu_
  bool is_noting_ = false;      // guarded by mu_
  std::vector<int64_t> noted_;  // guarded by mu_
};

/// Counts what LibTorch allocates on the CPU as long as it lives. It sees the end of that also
/// later.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(std::shared_ptr<MemoryCount> count)
      : inner_(c10::GetCPUAllocator()), count_(std::move(count)) {
    c10::SetCPUAllocator(this, kPriority);
  }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, kPriority); }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = inner_->allocate(bytes);
    void* data = memory.get();
    if (data != nullptr) {
      count_->add(static_cast<int64_t>(bytes));
      std::lock_guard lock(pieces().mu);
      pieces().by_address.emplace(data,
                                  Piece{std::move(memory), static_cast<int64_t>(bytes), count_});
    }
    return {data, data, &free_piece, c10::kCPU};
  }
  // oneDNN allocates with the address alone as context.
  c10::DeleterFnPtr raw_deleter() const override { return &free_piece; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr uint8_t kPriority = 1;
  struct Piece {
    c10::DataPtr memory;
    int64_t bytes = 0;
    std::shared_ptr<MemoryCount> count;
  };
  struct Pieces {
    std::mutex mu;
    std::unordered_map<void*, Piece> by_address;  // guarded by mu
  };
  /// Of all that have ever been; never destroyed.
  static Pieces& pieces() {
    static auto* all = new Pieces;
    return *all;
  }
  static void free_piece(void* data) {
    if (data != nullptr) {
      std::lock_guard lock(pieces().mu);
      const auto found = pieces().by_address.find(data);
      found->second.count->subtract(found->second.bytes);
      pieces().by_address.erase(found);
    }
  }

  c10::Allocator* const inner_;
  const std::shared_ptr<MemoryCount> count_;
};

/// Counts the memory that a group gives to its user, which the allocator above does not see. None
/// of it is given back before the test ends.
class CountedGroup : public RecordingCollectives {
 public:
  CountedGroup(std::shared_ptr<Collectives> inner, bool has_windows,
               std::shared_ptr<MemoryCount> count)
      : RecordingCollectives(std::move(inner)),
        has_windows_(has_windows),
        count_(std::move(count)) {}

  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
    if (size() > 1) {  // a rank alone has what LibTorch allocates
      count_->add(numel * static_cast<int64_t>(c10::elementSize(dtype)));
    }
    return RecordingCollectives::empty_for_comm(numel, dtype);
  }
  std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                   std::string purpose) override {
    count_->add(numel * static_cast<int64_t>(c10::elementSize(dtype)));
    return RecordingCollectives::make_gather_window(numel, dtype, std::move(purpose));
  }
  int64_t window_alignment() const override {
    return has_windows_ ? RecordingCollectives::window_alignment() : 0;
  }
  std::shared_ptr<Collectives> split(int64_t color) override {
    return std::make_shared<CountedGroup>(RecordingCollectives::split(color), has_windows_, count_);
  }

 private:
  const bool has_windows_;
  const std::shared_ptr<MemoryCount> count_;
};

}  // namespace fsdp::testing
