#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/ddp_comm_hooks.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/gradient_buckets.h"
#include "fsdp_runtime/src/engine/shard_store.h"
#include "fsdp_runtime/src/replicate/gradient_buckets.h"
#include "fsdp_runtime/src/replicate/replica_hooks.h"

namespace fsdp {

struct ReducerOptions {
  bool find_unused_parameters = false;
  bool static_graph = false;
  plan::BucketLimits limits;
};

/// Averages the gradients of whole parameters over ranks, in rounds:
///
///     idle --first gradient, or on_backward()--> open --end of backward--> idle
///
/// In an open round each gradient is moved to its bucket when autograd has accumulated it, and
/// complete buckets are reduced in order. The end of the backward waits for all. On a rank where
/// parameters have got no gradient it completes their buckets, so that ranks stay in step, and all
/// hear what is missing.
///
/// Thread: the rank's and those of autograd, which has one for each device: what both call locks.
/// Streams: the current one.
class BucketReducer : public std::enable_shared_from_this<BucketReducer> {
 public:
  /// `params`: require grad, each once.
  BucketReducer(std::vector<NamedParameter> params, std::shared_ptr<Collectives> comm,
                const ReducerOptions& options);
  /// Gives back memory that a failed round's reductions may be using.
  ~BucketReducer();
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;
  /// Behind the constructor, as hooks refer to this.
  void install_hooks();

  /// Autograd has accumulated a gradient of parameter `index`.
  void on_gradient(size_t index);
  /// A backward of the module's outputs begins, in the graph in which they are.
  void on_backward();
  /// Lets outputs call on_backward().
  void watch(const std::vector<at::Tensor>& outputs) { watch_outputs(outputs, weak_from_this()); }
  /// Before a forward: ends a round that the end of its backward could not end, because it was
  /// inside another one, and abandons that of a backward that has thrown.
  void settle();

  bool is_synced() const { return is_synced_; }
  /// Whether the next backward begins a round.
  void set_synced(bool is_synced) { is_synced_ = is_synced; }
  void set_hook(CommHook hook);
  std::vector<std::vector<std::string>> bucket_names() const;

  // For uneven inputs.
  /// From the next round on, gradients are divided by `divisor`, and rank `root` tells the order of
  /// new buckets.
  void set_ranks(int64_t divisor, int64_t root);
  /// Rounds begin only behind allow_round(), which allows one.
  void set_asks_for_rounds(bool asks) { asks_for_rounds_ = asks; }
  void allow_round() { is_round_allowed_ = true; }
  /// A round to which this rank adds nothing.
  void shadow_round();

 private:
  /// Owned by the callback at the end of the backward; if it goes before that, backward has thrown.
  struct BackwardMark {
    std::weak_ptr<BucketReducer> reducer;
    uint64_t round = 0;
    bool has_ended = false;
    ~BackwardMark();
  };
  struct Flight {
    WorkPtr work;       // null: not issued, or done
    at::Tensor result;  // of a hook, to be copied; else undefined
  };

  /// Opens a round, or finds that of the running backward. False if gradients stay on this rank.
  bool enter_backward();
  void begin_round();
  void on_backward_end(BackwardMark& mark);
  void end_round();
  /// Moves the gradient of parameter `index` to its bucket, divided unless a hook does that.
  void collect(size_t index);
  void collect_and_issue(const std::vector<size_t>& indices);
  void issue_complete_buckets();
  void issue(size_t bucket);
  void wait_for_buckets();
  /// `.grad` of parameters that only other ranks have used.
  void show_used(const std::vector<uint8_t>& used);
  void learn_uses();
  void rebuild_buckets();
  void set_members(const plan::BucketMembers& members);
  /// A backward of round `round` has thrown. Its mark may go late, on another thread of autograd:
  /// then the next forward has abandoned the round, and this does nothing.
  void drop_gradients_of(uint64_t round);
  /// Waits for what a round that has failed has issued.
  void reset_failed_round();
  /// `.grad` that are parts of what has been reduced are reset.
  void drop_gradients();
  bool allows_missing() const {
    return options_.find_unused_parameters || (options_.static_graph && !has_had_round_);
  }
  [[noreturn]] void throw_twice(size_t index) const;

  const std::vector<NamedParameter> params_;
  const std::shared_ptr<Collectives> comm_;
  const ReducerOptions options_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::optional<plan::BucketProgress> progress_;
  std::vector<Flight> flights_;  // by bucket
  std::recursive_mutex mu_;      // held by on_...() and settle(); hooks run inside
  CommHook hook_;
  at::Tensor reciprocal_;  // of the divisor, as the scalar of a multiplication
  int64_t divisor_ = 1;
  int64_t root_ = 0;

  bool is_synced_ = true;
  bool is_open_ = false;
  uint64_t round_ = 0;              // of the marks that count
  bool is_left_open_ = false;       // by the end of a backward inside another one
  bool has_had_round_ = false;      // the same on all ranks
  bool has_marked_unused_ = false;  // in this round
  bool has_rebuilt_ = false;
  bool asks_for_rounds_ = false;
  bool is_round_allowed_ = false;
  std::weak_ptr<BackwardMark> mark_;
  std::vector<uint8_t> used_;         // since the last round's end, with those that are not synced
  std::vector<size_t> arrived_;       // in this round, until buckets are rebuilt
  std::vector<int64_t> counts_;       // of gradients in this round, with a static graph
  std::vector<int64_t> expected_;     // the same of the first round; empty before
  std::vector<uint8_t> static_used_;  // by some rank in the first round
  std::unique_ptr<ReplicaHooks> hooks_;  // last: they call this
};

}  // namespace fsdp
