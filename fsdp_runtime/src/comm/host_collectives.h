#pragma once

#include <fsdp/collectives.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fsdp_runtime/shm/reduce.h"
#include "fsdp_runtime/src/comm/lane_thread.h"

namespace fsdp {

/// Base of the CPU backends: checks the arguments and runs each operation on its lane's thread. A
/// backend implements the blocking operations.
class HostCollectives : public Collectives {
 public:
  HostCollectives(int64_t rank, int64_t size);

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Lane lane) override;
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op, Lane lane) override;
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Lane lane) override;
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Lane lane) override;
  void barrier() override;
  void name_next(std::string purpose) override { purpose_ = std::move(purpose); }
  WorkPtr mark(Lane lane) override;
  AgreementPtr agree(uint64_t value) override;

 protected:
  // Called on the lane's thread; throw on failure.
  virtual void do_all_gather(int lane, at::Tensor& output, at::Tensor& input) = 0;
  virtual void do_reduce_scatter(int lane, at::Tensor& output, at::Tensor& input, ReduceOp op) = 0;
  virtual void do_all_reduce(int lane, at::Tensor& tensor, ReduceOp op) = 0;
  virtual void do_broadcast(int lane, at::Tensor& tensor, int64_t root) = 0;
  virtual void do_barrier(int lane) = 0;
  /// Before each operation.
  virtual void set_purpose(int lane, const std::string& purpose) = 0;
  /// Aborts running operations on all ranks, if the backend can; any thread.
  virtual void interrupt() = 0;

  /// To be called first in a backend's destructor, because operations must not outlive the members
  /// they use. Interrupts operations in flight and returns when the last has ended, at the latest
  /// at its deadline.
  void stop_lanes();

 private:
  WorkPtr run(Lane lane, std::function<void()> operation);

  const int64_t rank_;
  const int64_t size_;
  std::string purpose_;  // of the next operation
  std::array<std::unique_ptr<LaneThread>, 2> lanes_;
};

/// The transport's names for ATen's types; none for types that cannot be reduced.
std::optional<shm::DType> reducible_dtype(const at::Tensor& tensor);
/// Throws c10::Error for types that cannot be reduced.
shm::DType reduction_dtype(const at::Tensor& tensor);
shm::ReduceOp transport_op(ReduceOp op);

}  // namespace fsdp
