#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/custom_comm.h>
#include <fsdp/export.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/plan/group_layout.h"
#include "fsdp_runtime/src/engine/gradient_buffer.h"
#include "fsdp_runtime/src/engine/pending_work.h"
#include "fsdp_runtime/src/engine/shard_store.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class RunContext;

/// How gradients are averaged: reduction op, and divisors before and after the reduction.
struct GradientDivision {
  ReduceOp op = ReduceOp::kAvg;
  double before = 1;
  double after = 1;
};

/// `factor`: divisor of the sum; unset: `ranks`. float16, whose sums overflow easily, is divided by
/// a power of two near the factor's square root before the reduction and by the rest afterwards, as
/// FSDP2 does. `forces_sum`: the op is a sum. Pure.
FSDP_API GradientDivision divide_gradients(std::optional<double> factor, int64_t ranks,
                                           at::ScalarType reduce_dtype, bool forces_sum = false);

struct ReductionOptions {
  std::string purpose;      // as peers see it
  bool all_reduces = true;  // over the replicas; false: keep the sum of the row for the next time
};

/// Makes the shard's gradient of a group out of the unsharded gradients of all ranks (FSDP2's
/// foreach_reduce), and keeps it until drop(). The gradients of further reductions are added.
///
/// A reduction is a pipeline of stages on the reduce lane, each there only if it is needed; a stage
/// runs if those before it have succeeded:
///
///     divide          input /= division.before           only in float16
///     reduce-scatter  input [ranks * n] -> output [n]    one rank: output is the input
///     add             output += sums of the row that were kept
///     all-reduce      output, over the replicas          only with HSDP
///     hook            the user's                         only if there is one
///     divide          output /= division.after           only with a divide factor, or in float16
///     write           gradient = output, or += output    with the cast; unless it is the output
///
/// An offloaded gradient is written by a copy to the host, which arrive() waits for, and adds to
/// the gradient what has been copied beside it. In memory that is not page-locked it has arrived
/// when the reduction has finished.
///
/// If addition is all that would follow the reduce-scatter, and the backend can, that adds to the
/// gradient at once, and there is neither output nor a write.
///
/// Without all-reduce, the last stage adds output to the sum of the row that is kept instead. The
/// input's memory is free behind the reduce-scatter, whatever follows.
///
/// An exception of the hook ends the reduction without a result, and is the only failure that does
/// not end the use of the group: no peer has missed anything.
///
/// One reduction at a time: begin(), start(), finish(). Thread: the rank's. Streams: none of it is
/// on the current stream, which only finish() and release_input() join; until then gradient() is
/// not to be read. One rank without replicas has no lane: it does all of it in the caller.
class GradientReducer {
 public:
  /// `store` must outlive this. `replicas`: the ranks that hold copies of the shard, or null.
  /// `dtype`: of the reduction.
  GradientReducer(const ShardStore& store, std::shared_ptr<Collectives> comm,
                  std::shared_ptr<Collectives> replicas, at::ScalarType dtype);

  at::ScalarType dtype() const { return dtype_; }
  /// Takes effect at the next begin(). Unset: the number of ranks, replicas included.
  void set_divide_factor(std::optional<double> factor) { divide_factor_ = factor; }
  /// Takes effect at the next begin().
  void set_force_sum(bool forces_sum) { forces_sum_ = forces_sum; }
  /// Null: the reduce-scatter is that of the group. Takes effect at the next begin().
  void set_custom(std::shared_ptr<ReduceScatter> custom) { next_custom_ = std::move(custom); }
  /// Called in the order of the lane with what the collectives have left, before it is divided and
  /// written; padding that it writes becomes zero again. Takes effect at the next begin().
  using AllReduceHook = std::function<void(at::Tensor gradient)>;
  void set_all_reduce_hook(AllReduceHook hook) { next_hook_ = std::move(hook); }

  /// A new sum of unsharded gradients begins, which start() will be given: fixes how it is divided,
  /// unless it will be added to a sum of the row, which has been divided. Only while nothing is
  /// reduced.
  void begin();
  /// Whether that sum needs no reduction: of one rank, without a cast or a division. It is then to
  /// be collected in memory() itself.
  bool is_local() const { return is_local_; }
  /// is_local() of the next sum, as the hook and the divide factor are set now.
  bool next_is_local() const;
  /// Whether it is added to earlier ones without memory for the reduce-scatter's output.
  bool next_reduces_onto_gradient() const;
  /// The gradient's memory, [shard_numel] in the parameters' own dtype; allocated once.
  const at::Tensor& memory();
  /// The same; if it is given back, out of the slots of `context`.
  const at::Tensor& memory(RunContext& context);
  /// true: what drop() or forget_gradient() has emptied goes back to where it came from, for the
  /// gradients of others. Not the memory of an offload policy. Only while nothing is reduced.
  void set_gives_memory_back(bool gives_back);

  /// Issues the reduction of `whole`. If there is no memory for it, or a stage cannot be issued, it
  /// throws and the reduction has failed: this rank has no part in what its peers reduce.
  void start(RunContext& context, UnshardedGradients whole, const ReductionOptions& options);
  bool is_reducing() const { return static_cast<bool>(work_); }
  /// Whether the last start() has put off the all-reduce.
  bool puts_off_all_reduce() const { return keeps_row_; }
  /// Whether there is, or is going to be, a sum of the row that waits for an all-reduce.
  bool has_row_sum() const { return is_reducing() ? keeps_row_ && !is_dropped_ : has_row_sum_; }
  /// Whether the reduction in flight has the memory that it was given.
  bool holds_input() const { return input_slot_ != nullptr; }
  int64_t input_bytes() const { return input_slot_ ? input_slot_->bytes : 0; }
  /// Waits until it is not needed, and gives it back. Throws like Work::wait(), each time.
  void release_input();
  /// Afterwards gradient() has what was given to start(), unless that has been dropped, or the hook
  /// has thrown. Throws like Work::wait(), each time.
  void finish();
  /// Behind finish(): blocks the host until the gradient of an offloaded shard has arrived, so that
  /// it can be read. Throws like Work::wait(), once: there is no gradient then. No-op otherwise.
  void arrive();
  /// What the hook has thrown in the reduction that finish() has ended; null if nothing.
  std::exception_ptr hook_error() const { return hook_result_ ? hook_result_->error : nullptr; }

  /// [shard_numel] in the parameters' own dtype, zeros for parameters without gradient; undefined
  /// until a reduction has finished. An offloaded one may be read behind arrive().
  at::Tensor gradient() const { return has_gradient_ ? gradient_ : at::Tensor(); }
  /// Forgets the gradient, but not the sum of the row. Only while nothing is reduced.
  void forget_gradient();
  /// Forgets the gradient and what start() has been given, whether it has arrived or not.
  void drop();
  /// Zeros these parameters' parts of the gradient and of the sum of the row. Only while nothing is
  /// reduced.
  void zero(const std::vector<size_t>& params);

 private:
  /// A stage without communication, one pass: tensor /= divisor, target = tensor or += tensor.
  struct LocalStage {
    at::Tensor tensor;
    double divisor = 1;
    at::Tensor target;  // may be undefined
    bool adds = false;
    bool is_non_blocking = false;  // of a copy between device and host
    bool is_empty() const { return divisor == 1 && !target.defined(); }
    void run() const;
  };
  /// Written by the hook's stage, read by those behind it and after them.
  struct HookResult {
    std::exception_ptr error;
  };

  int64_t ranks() const;
  void give_memory_back();
  GradientDivision next_division() const;
  bool can_reduce_onto_gradient() const;
  /// Memory for the output of the reduce-scatter, [shard_numel].
  at::Tensor memory_for_output(RunContext& context);
  bool reduces_onto_gradient() const;
  /// Of a shard's gradient, by an offload policy.
  at::Tensor memory_of_policy() const;
  /// On the host: the gradient's, or other memory if there is one that will be added to.
  at::Tensor memory_to_arrive_in();
  /// What follows the collectives, whose output is its tensor.
  LocalStage last_stage(RunContext& context, const at::Tensor& input);
  /// Issues the pipeline.
  void issue(const at::Tensor& input, const LocalStage& last, const std::string& purpose);
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, Issue issue);
  void issue_hook(Collectives& comm, Issue issue, const at::Tensor& reduced);

  const ShardStore& store_;
  const std::shared_ptr<Collectives> comm_;
  const std::shared_ptr<Collectives> replicas_;  // may be null
  const at::ScalarType dtype_;
  const std::vector<plan::Range> padding_;  // of the shard
  std::optional<double> divide_factor_;
  bool forces_sum_ = false;
  std::shared_ptr<ReduceScatter> next_custom_;  // may be null
  AllReduceHook next_hook_;
  GradientDivision division_;  // fixed by begin(), as are is_local_, custom_ and hook_
  std::shared_ptr<ReduceScatter> custom_;
  AllReduceHook hook_;
  bool is_local_ = false;
  at::Tensor gradient_;
  bool has_gradient_ = false;
  bool gives_memory_back_ = false;
  SlotLease gradient_slot_;  // of gradient_, if it is given back
  at::Tensor added_;  // to the gradient, when it has arrived; undefined if that is written at once
  WorkPtr arrival_;   // of an offloaded gradient; null if it has been waited for
  at::Tensor row_sum_;  // reduced in the row only, in the dtype of the reduction; [shard_numel]
  bool has_row_sum_ = false;
  bool keeps_row_ = false;                   // what is being reduced goes to row_sum_
  bool is_dropped_ = false;                  // what is being reduced
  std::shared_ptr<HookResult> hook_result_;  // of what is being reduced; null without hook
  SlotLease input_slot_;
  SlotLease output_slot_;  // unless the output is gradient_, the input itself, or the user's
  at::Tensor custom_output_;
  WorkPtr input_end_;  // the work in work_ behind which the input is not used
  PendingWork work_;
};

}  // namespace fsdp
