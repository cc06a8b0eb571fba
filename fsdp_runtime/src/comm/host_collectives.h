#pragma once

#include <fsdp/collectives.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fsdp_runtime/shm/reduce.h"
#include "fsdp_runtime/src/comm/collective_board.h"
#include "fsdp_runtime/src/comm/formed_collectives.h"
#include "fsdp_runtime/src/comm/host_operation.h"
#include "fsdp_runtime/src/comm/lane_thread.h"
#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// Base of the CPU backends: checks the arguments and runs each operation on its lane's thread. A
/// backend implements the blocking operations.
class HostCollectives : public FormedCollectives, private Interruptible {
 public:
  explicit HostCollectives(GroupPlace place);

  int64_t rank() const override { return place_.rank; }
  int64_t size() const override { return place_.size; }
  std::vector<int64_t> world_ranks() const override {
    return place_.world_ranks.empty() ? Collectives::world_ranks() : place_.world_ranks;
  }
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override;
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override;
  WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override;
  bool has_reduce_scatter_onto(at::ScalarType dtype) const override {
    return dtype == at::kFloat || dtype == at::kDouble;
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override;
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override;
  void barrier() override;
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override;
  WorkPtr mark(Issue issue) override;
  AgreementPtr agree(uint64_t value, std::string purpose) override;
  void abort(const std::string& reason) override;

 protected:
  // Called on the lane's thread; throw on failure.
  virtual void do_all_gather(int lane, at::Tensor& output, at::Tensor& input) = 0;
  virtual void do_reduce_scatter(int lane, at::Tensor& output, at::Tensor& input, ReduceOp op,
                                 shm::Result result) = 0;
  virtual void do_all_reduce(int lane, at::Tensor& tensor, ReduceOp op) = 0;
  virtual void do_broadcast(int lane, at::Tensor& tensor, int64_t root) = 0;
  virtual void do_barrier(int lane) = 0;
  /// Before each operation.
  virtual void set_purpose(int lane, const std::string& purpose) = 0;
  /// Ends operations of this rank, running and to come, of its peers if the backend can. Any
  /// thread; does not block.
  void interrupt(const GroupFailure& failure) override = 0;

  const GroupPlace& place() const { return place_; }
  /// Runs an operation of the backend on the lane's thread: `operation(lane)`, which is copyable.
  /// `bytes`: of its larger tensor.
  template <class Operation>
  WorkPtr run(const char* kind, size_t bytes, Issue issue, Operation operation);
  /// What errors call a rank of this group.
  std::string called(int64_t rank) const {
    return "rank " + std::to_string(place_.world_rank(rank));
  }
  /// To be called last in a backend's constructor: from here on it can be interrupted.
  void start();

  /// To be called first in a backend's destructor, because operations must not outlive the members
  /// they use. Interrupts operations in flight and returns when the last has ended, at the latest
  /// at its deadline, which a user's hook does not have.
  void stop();

 private:
  WorkPtr reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, Issue issue,
                         shm::Result result);

  const GroupPlace place_;
  const std::string group_text_;
  std::array<std::unique_ptr<LaneThread>, 2> lanes_;
};

template <class Operation>
WorkPtr HostCollectives::run(const char* kind, size_t bytes, Issue issue, Operation operation) {
  LaneThread& lane = *lanes_[static_cast<size_t>(issue.lane)];
  return lane.run(
      [this, kind, bytes, issue = std::move(issue), operation = std::move(operation)]() mutable {
        wait_for_dependency(place_, issue);
        const OpenCollective open({kind, group_text_, issue.purpose, bytes});
        const int number = static_cast<int>(issue.lane);
        const auto name = [&] {
          return operation_name(kind, issue.purpose) + " on lane " + std::to_string(number);
        };
        run_operation(place_, name, [&] {
          set_purpose(number, issue.purpose);
          operation(number);
        });
      });
}

/// The transport's names for ATen's types; none for types that cannot be reduced.
std::optional<shm::DType> reducible_dtype(const at::Tensor& tensor);
/// Throws c10::Error for types that cannot be reduced.
shm::DType reduction_dtype(const at::Tensor& tensor);
shm::ReduceOp transport_op(ReduceOp op);

}  // namespace fsdp
