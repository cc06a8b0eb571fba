#pragma once

// A group of two on one device: what the engine does where ranks communicate, with the operations
// of a real backend.

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::gpu {

/// Rank 0 of two, whose peer is itself: it has what rank 0 has. Each operation is one or two of
/// `inner`, a group of one rank, of the sizes that the first of two ranks has. NCCL takes one rank
/// for each device, and units of a group of one communicate next to nothing; units over this one
/// gather, reduce and use slots as at two ranks. A model trains on the first half of each unit, of
/// which the second one is a copy: what it learns is of no use, but it is the same in each run.
/// Thread: as Collectives.
class MirroredCollectives : public Collectives {
 public:
  /// Errors: TORCH_CHECK unless `inner` has one rank.
  explicit MirroredCollectives(std::shared_ptr<Collectives> inner) : inner_(std::move(inner)) {
    TORCH_CHECK(inner_->size() == 1, "MirroredCollectives: a group of ", inner_->size(),
                " ranks; one rank expected");
  }

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 2; }
  std::vector<int64_t> world_ranks() const override { return {0, 1}; }
  std::string name() const override { return "mirrored(" + inner_->name() + ")"; }
  c10::Device device() const override { return inner_->device(); }
  bool is_stream_ordered() const override { return inner_->is_stream_ordered(); }

  /// Operations of a lane end in the order in which they are issued.
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    const int64_t numel = input.numel();
    const Issue second(issue.lane, issue.purpose);
    inner_->all_gather_into(output.narrow(0, 0, numel), input, std::move(issue));
    return inner_->all_gather_into(output.narrow(0, numel, numel), input, second);
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    const Issue behind(issue.lane, issue.purpose);
    const WorkPtr reduced = inner_->reduce_scatter_into(output, input.narrow(0, 0, output.numel()),
                                                        of_one(op), std::move(issue));
    return doubled(reduced, output, op, behind);
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    const Issue behind(issue.lane, issue.purpose);
    const WorkPtr reduced = inner_->all_reduce(tensor, of_one(op), std::move(issue));
    return doubled(reduced, tensor, op, behind);
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override {
    TORCH_CHECK(root == 0 || root == 1, "broadcast: root ", root, " of 2 ranks");
    return inner_->broadcast(std::move(tensor), 0, std::move(issue));
  }
  void barrier() override { inner_->barrier(); }
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    return inner_->run_on_lane(std::move(issue), std::move(stage));
  }
  void check_results(const std::string& operation) const override {
    inner_->check_results(operation);
  }
  WorkPtr mark(Issue issue) override { return inner_->mark(std::move(issue)); }
  AgreementPtr agree(uint64_t value, std::string purpose) override {
    return inner_->agree(value, std::move(purpose));
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
    return inner_->empty_for_comm(numel, dtype);
  }

 private:
  /// The average of two that are equal is one of them.
  static ReduceOp of_one(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

  WorkPtr doubled(const WorkPtr& reduced, const at::Tensor& tensor, ReduceOp op,
                  const Issue& behind) {
    if (op != ReduceOp::kSum) {
      return reduced;
    }
    return inner_->run_on_lane(behind, [tensor] { tensor.mul_(2); });
  }

  const std::shared_ptr<Collectives> inner_;
};

}  // namespace fsdp::gpu
