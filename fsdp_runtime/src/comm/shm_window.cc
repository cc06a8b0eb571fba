#include "fsdp_runtime/src/comm/shm_window.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/src/comm/collective_board.h"
#include "fsdp_runtime/src/comm/ended_work.h"
#include "fsdp_runtime/src/comm/group_error.h"
#include "fsdp_runtime/src/comm/host_operation.h"

namespace fsdp {
namespace {

constexpr char kOfWindow[] = " through a window";

/// Of an operation.
struct Kind {
  const char* name;
  size_t bytes;
};

/// What has been issued on the window lane. Its caller does the waiting: there is nothing else.
class WindowWork : public Work {
 public:
  WindowWork(std::shared_ptr<shm::WindowLane> lane, std::shared_ptr<const GroupPlace> place,
             const Kind& kind, std::string purpose, const shm::Gather& gather)
      : lane_(std::move(lane)),
        place_(std::move(place)),
        kind_(kind.name),
        purpose_(std::move(purpose)),
        gather_(gather),
        open_({kind.name, group_text(place_->world_ranks), purpose_, kind.bytes}) {}

  void wait() override {
    const HostWait waiting;
    try {
      run_operation(
          *place_, [this] { return operation_name(kind_, purpose_) + kOfWindow; },
          [this] { lane_->wait(gather_); });
    } catch (...) {
      open_.end();
      throw;
    }
    open_.end();
  }
  bool is_done() override {
    const bool is_done = lane_->is_done(gather_) || place_->membership->failure().has_value();
    if (is_done) {
      open_.end();
    }
    return is_done;
  }

 private:
  const std::shared_ptr<shm::WindowLane> lane_;
  const std::shared_ptr<const GroupPlace> place_;
  const char* const kind_;
  const std::string purpose_;
  const shm::Gather gather_;
  OpenCollective open_;  // or until nobody has this any more
};

/// Issues with `post`. Errors come from the work, as with all operations.
template <class Post>
WorkPtr issue_on(const std::shared_ptr<shm::WindowLane>& lane,
                 const std::shared_ptr<const GroupPlace>& place, const Kind& kind, Issue issue,
                 const Post& post) {
  try {
    shm::Gather gather;
    wait_for_dependency(*place, issue);
    run_operation(
        *place, [&] { return operation_name(kind.name, issue.purpose) + kOfWindow; },
        [&] { gather = post(); });
    return std::make_shared<WindowWork>(lane, place, kind, std::move(issue.purpose), gather);
  } catch (...) {
    return std::make_shared<EndedWork>(std::current_exception());
  }
}

class ShmWindow : public GatherWindow {
 public:
  ShmWindow(std::shared_ptr<shm::Window> window, std::shared_ptr<shm::WindowLane> lane,
            std::shared_ptr<const GroupPlace> place, int64_t numel, at::ScalarType dtype)
      : window_(std::move(window)),
        lane_(std::move(lane)),
        place_(std::move(place)),
        own_(tensor_at(window_->own(), numel, dtype)),
        whole_(tensor_at(window_->whole(), numel * place_->size, dtype)) {}

  // Tensors may keep the memory; nobody is to wait for them.
  ~ShmWindow() override {
    try {
      end_use();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): copies are left; so what
    }
  }

  at::Tensor own() override { return own_; }
  at::Tensor whole() override { return whole_; }

  WorkPtr issue(Issue issue) override {
    TORCH_CHECK(!window_->is_held(), operation_name("all_gather", issue.purpose), kOfWindow,
                ": this rank holds what it has gathered before; end that use (release) first");
    const std::string purpose = issue.purpose;
    return issue_on(lane_, place_, {"all_gather", whole_.nbytes()}, std::move(issue),
                    [&] { return lane_->issue(*window_, purpose); });
  }

  void release() override {
    try {
      end_use();
    } catch (...) {
      fail_to_end();
    }
  }

  void wait_for_readers() override {
    TORCH_CHECK(!window_->is_held(), "the shard of ", window_->purpose(),
                " cannot be written while this rank holds what it has gathered of it: a peer could "
                "wait for that; end the use (release) first");
    const HostWait waiting;
    run_operation(
        *place_, [this] { return "wait for the readers of the shard of " + window_->purpose(); },
        [this] { lane_->wait_for_readers(*window_); });
  }

 private:
  void end_use() {
    if (window_->is_held()) {
      lane_->release(*window_);
    }
  }
  /// The peers would wait for the end of this use, so the groups fail.
  [[noreturn]] void fail_to_end() {
    const int64_t rank = place_->world_rank(place_->rank);
    const std::string what = "the use of the window of " + window_->purpose();
    throw_failure(
        place_->membership->revoke({"rank " + std::to_string(rank) + " cannot end " + what + ": " +
                                        failure_of_current_exception().reason,
                                    rank}),
        "the end of " + what, rank, {});
  }
  at::Tensor tensor_at(char* data, int64_t numel, at::ScalarType dtype) const {
    return at::from_blob(
        data, {numel}, [window = window_](void*) mutable { window.reset(); },
        at::TensorOptions().dtype(dtype));
  }

  const std::shared_ptr<shm::Window> window_;
  const std::shared_ptr<shm::WindowLane> lane_;
  const std::shared_ptr<const GroupPlace> place_;
  const at::Tensor own_, whole_;
};

}  // namespace

std::shared_ptr<GatherWindow> make_shm_window(std::shared_ptr<shm::Window> window,
                                              std::shared_ptr<shm::WindowLane> lane,
                                              std::shared_ptr<const GroupPlace> place,
                                              int64_t numel, at::ScalarType dtype) {
  return std::make_shared<ShmWindow>(std::move(window), std::move(lane), std::move(place), numel,
                                     dtype);
}

WorkPtr mark_on_window_lane(const std::shared_ptr<shm::WindowLane>& lane,
                            const std::shared_ptr<const GroupPlace>& place,
                            const std::string& purpose) {
  return issue_on(lane, place, {"barrier", 0}, {Lane::kGather, purpose},
                  [&] { return lane->mark(purpose); });
}

}  // namespace fsdp
