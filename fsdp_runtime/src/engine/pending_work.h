#pragma once

#include <fsdp/collectives.h>

#include <exception>
#include <utility>
#include <vector>

namespace fsdp {

/// Work in flight, in one stage or several, that reads or writes memory of whoever holds this: it
/// is waited for before the memory can go. Declare it behind the memory.
class PendingWork {
 public:
  PendingWork() = default;
  ~PendingWork() { wait_for_all(); }
  PendingWork(const PendingWork&) = delete;
  PendingWork& operator=(const PendingWork&) = delete;

  explicit operator bool() const { return !stages_.empty() || error_ != nullptr; }
  /// A further stage, which ends behind those before it if these succeed.
  void add(WorkPtr stage) { stages_.push_back(std::move(stage)); }
  /// The latest; null if there is none.
  WorkPtr last() const { return stages_.empty() ? nullptr : stages_.back(); }
  /// The next stage could not be issued: finish() throws `error`.
  void fail(std::exception_ptr error) { error_ = std::move(error); }
  /// Work::wait() for all. If that throws, they stay, so that later calls throw the same error.
  void finish() {
    try {
      if (error_ != nullptr) {
        std::rethrow_exception(error_);
      }
      stages_.back()->wait();
    } catch (...) {
      wait_for_all();
      throw;
    }
    stages_.clear();
  }
  /// Waits for all, whatever comes of them, and forgets them.
  void drop() noexcept {
    wait_for_all();
    stages_.clear();
    error_ = nullptr;
  }

 private:
  /// Does not throw: errors have been or will be reported elsewhere; here only the end matters.
  void wait_for_all() noexcept {
    for (const WorkPtr& stage : stages_) {
      try {
        stage->wait();
      } catch (...) {  // NOLINT(bugprone-empty-catch): see above
      }
    }
  }

  std::vector<WorkPtr> stages_;  // keeps its memory
  std::exception_ptr error_;
};

}  // namespace fsdp
