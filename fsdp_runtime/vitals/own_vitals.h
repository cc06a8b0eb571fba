#pragma once

#include <cstdint>
#include <ctime>

#include "proto/worker_vitals.h"

namespace fsdp {

/// The page at a path, claimed for this process and mapped for as long as this lives. There is none
/// if the path is null, names no regular file of the page's size, is of another version, or belongs
/// to another process that lives. Of one that has ended it is taken over, without its words. Never
/// throws.
class VitalsMapping {
 public:
  explicit VitalsMapping(const char* path);
  ~VitalsMapping();
  VitalsMapping(const VitalsMapping&) = delete;
  VitalsMapping& operator=(const VitalsMapping&) = delete;

  /// Null: there is none.
  fsdprun::contract::VitalsPage* page() const { return page_; }

 private:
  fsdprun::contract::VitalsPage* page_ = nullptr;
};

/// That of FSDPRUN_VITALS_FILE, mapped by the first call, for good; null: nobody reads. Thread:
/// any.
fsdprun::contract::VitalsPage* own_vitals();

/// The clock of the page, ns.
inline uint64_t vitals_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace fsdp
