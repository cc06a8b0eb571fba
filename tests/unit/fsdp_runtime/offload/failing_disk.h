#pragma once

namespace fsdp::testing {

/// Calls of the C library, by all of this process, that fail until this is destroyed. One at a
/// time.
class FailingDisk {
 public:
  /// posix_fallocate() after so many calls that succeed, and sync_file_range() at once, both with
  /// this error; 0: not at all.
  struct Errors {
    int of_allocation = 0;
    int allocations_before = 0;
    int of_writing = 0;
  };
  explicit FailingDisk(const Errors& errors);
  ~FailingDisk();
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;
};

}  // namespace fsdp::testing
