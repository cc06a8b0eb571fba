#pragma once

#include <fsdp/collectives.h>

#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace fsdp {

/// A work of this rank alone whose outcome is known when it is made.
class EndedWork : public Work {
 public:
  /// `launched`: what there is of it on the device although it has failed. wait() waits for that
  /// before it throws, because the memory in use may be given back then.
  explicit EndedWork(std::exception_ptr error = nullptr, WorkPtr launched = nullptr)
      : error_(std::move(error)), launched_(std::move(launched)) {}

  void wait() override { wait_by(&Work::wait); }
  void wait_on_host() override { wait_by(&Work::wait_on_host); }
  bool is_done() override { return !launched_ || launched_->is_done(); }

 private:
  void wait_by(void (Work::*how)()) {
    try {
      if (launched_) {
        (launched_.get()->*how)();
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): error_ came first, and is set
    }
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

  const std::exception_ptr error_;
  const WorkPtr launched_;
};

/// Collectives::run_on_lane where stages run at once: `launch` is given the stage to run, and
/// returns the work of what that has launched. What either throws is thrown by the work that is
/// returned.
template <typename Launch>
WorkPtr launch_stage(const std::function<void()>& stage, Launch launch) {
  std::exception_ptr error;
  WorkPtr launched;
  try {
    launched = launch([&stage, &error] {
      try {
        stage();
      } catch (...) {
        error = std::current_exception();
      }
    });
  } catch (...) {
    error = std::current_exception();
  }
  return error == nullptr ? launched : std::make_shared<EndedWork>(error, std::move(launched));
}

}  // namespace fsdp
