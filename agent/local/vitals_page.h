#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "fsdprun/v1/aside.pb.h"
#include "proto/worker_vitals.h"

namespace fsdprun {

/// Copies memory of this process that is mapped from a file which others may cut: where a load
/// would end the process, the copy fails. Thread: one at a time.
class CarefulCopy {
 public:
  static constexpr size_t kMaxBytes = contract::VitalsPage::kBytes;

  CarefulCopy();
  ~CarefulCopy();
  CarefulCopy(const CarefulCopy&) = delete;
  CarefulCopy& operator=(const CarefulCopy&) = delete;

  /// At most kMaxBytes. False: it cannot be read, or this object has no memory of its own.
  bool Copy(const volatile void* from, size_t bytes, void* to) const;

 private:
  UniqueFd scratch_;
  void* data_ = nullptr;
};

/// A worker's page (proto/worker_vitals.h), mapped for reading. Whatever the worker does to it, or
/// to its file, harms nobody. Thread: one at a time.
class VitalsView {
 public:
  /// Makes the page's file, in place of one that is there. All its bytes have room on the disk.
  /// Errors: INTERNAL with path and reason; the file is not there then.
  static absl::StatusOr<VitalsView> Make(const std::string& path);
  /// Of one that another agent has made. Errors: the same, also for what is no such file.
  static absl::StatusOr<VitalsView> Open(const std::string& path);
  VitalsView(VitalsView&& other) noexcept;
  VitalsView& operator=(VitalsView&& other) noexcept;
  ~VitalsView();

  /// What the worker says; none: nothing yet, or in a language of another version. `now_ns`: by the
  /// machine's monotonic clock. What cannot be is left out.
  std::optional<v1::OwnVitals> Read(const CarefulCopy& copy, uint64_t now_ns) const;
  /// The process that says it writes there; 0: none does.
  pid_t Writer(const CarefulCopy& copy) const;

 private:
  explicit VitalsView(const contract::VitalsPage* page) : page_(page) {}
  static absl::StatusOr<VitalsView> Map(int fd, const std::string& path);

  const contract::VitalsPage* page_ = nullptr;
};

}  // namespace fsdprun
