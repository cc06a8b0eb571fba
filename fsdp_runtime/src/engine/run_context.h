#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <fsdp/collectives.h>
#include <fsdp/counters.h>
#include <fsdp/fully_shard_options.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fsdp_runtime/plan/execution_order.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class GradientReducer;
class GradientUser;
class ModuleState;
class ParamGroup;

/// What is gathered ahead: the root's options.
struct PrefetchOptions {
  std::optional<BackwardPrefetch> backward = BackwardPrefetch::kBackwardPre;
  bool in_forward = true;
  std::optional<int64_t> limit;
};

/// State shared by all units under one root: the arenas, the execution order, the reductions in
/// flight and the state of the running backward. Owned by the units; refers to them weakly.
class RunContext : public std::enable_shared_from_this<RunContext> {
 public:
  /// `comm`: whose collectives read unsharded gradients.
  RunContext(std::shared_ptr<Collectives> comm, c10::Device device,
             const PrefetchOptions& prefetch_options);
  ~RunContext();

  /// All units under the root in registration order, root first; a unit's index is its position.
  void set_units(const std::vector<std::shared_ptr<ModuleState>>& units);

  /// Null if it is gone.
  std::shared_ptr<ModuleState> root() const {
    return units_.empty() ? nullptr : units_.front().lock();
  }

  /// The root's forward begins.
  void begin_forward();
  /// `unit` begins its forward; prefetches what is predicted to follow.
  void on_unit_forward(const ModuleState& unit);
  void on_unit_forward_end(const ModuleState& unit);
  /// The root's forward ends; without grad mode nothing of it will follow.
  void end_forward(bool has_backward);
  /// `unit` begins its backward; prefetches units whose forward ended before its own.
  void on_unit_backward(const ModuleState& unit);
  /// The gradients of `unit` have been computed, and it has been resharded.
  void on_unit_backward_end(const ModuleState& unit);
  /// Called by every unit whose backward begins: the first one queues finalize_backward(), after
  /// cleaning up an earlier failed backward.
  void enter_backward();
  /// A backward that queued finalize_backward() is running on this thread, so a forward now is an
  /// activation recomputation.
  bool in_backward() const;
  /// Whether the running backward accumulates gradients of some unit; not if it was restricted to
  /// other inputs.
  bool accumulates_gradients() const { return accumulates_gradients_; }
  /// Cleans up after a backward that threw and therefore never ran finalize_backward(): parameters
  /// are resharded; gradients stay.
  void reset_failed_backward();
  /// Outside a backward, cleans up after one that threw: else its reductions would still arrive in
  /// gradients that somebody is about to read, scale or drop.
  void settle_gradients();
  /// See FSDPModule.
  void set_is_last_backward(bool is_last) { is_last_backward_ = is_last; }
  /// See FSDPModule.
  void set_post_optim_event(std::shared_ptr<c10::Event> event);
  /// To be called when shards are written: what waits for the event alone would not be behind that.
  void forget_post_optim_event() { update_ = nullptr; }
  /// The same when memory for parameters is used otherwise than by a forward of the root. Roots
  /// that share it have events of their own.
  void on_parameter_memory_used() {
    forget_post_optim_event();
    ++slots_->uses;
  }
  /// Where gathers are to be issued that wait for the event and nothing else, if there is one,
  /// which is forgotten. The same stream each time, so that memory is given back where it is asked
  /// for.
  std::optional<c10::Stream> take_stream_behind_update();
  /// That stream, if it is the current one.
  std::optional<c10::Stream> current_stream_behind_update() const;
  /// The root's forward has failed: reshards all units, whatever has run of them.
  void abandon_forward();
  /// Reshards all units.
  void reshard_all();
  /// Counts forwards of the root; tells uses of a unit in one forward from uses in another.
  int64_t forward_id() const { return forward_id_; }
  /// Another one whenever shards may have been written without prepare_to_write(): at the end of a
  /// backward, or of a forward of the root without grad mode, and when a forward of it begins.
  int64_t write_epoch() const { return write_epoch_; }

  /// From now on out of the memory of `other`, too. TORCH_CHECK if some of either's is in use, or
  /// if its units are on another device or group.
  void share_slots(const RunContext& other);
  SlotLease acquire_parameter_slot(int64_t bytes) { return slots_->parameters.acquire(bytes); }
  /// A slot for unsharded gradients. If plan::kGradientSlotsPerSize of this size are in use, waits
  /// until a reduction does not need its own any more instead of growing the arena.
  SlotLease acquire_gradient_slot(int64_t bytes);
  /// A slot for what a reduce-scatter gives. If plan::kReducedSlotsPerSize are in use, waits for
  /// the oldest reduction.
  SlotLease acquire_reduced_slot(int64_t bytes);

  void add_reduction(GradientReducer* reducer) { reducing_.push_back(reducer); }
  /// Waits for the reductions up to and including that of `reducer`; no-op if it has none.
  void finish_reductions_through(const GradientReducer& reducer);
  void finish_all_reductions();
  /// `group` takes part in the exchange of uses at the end of this backward.
  void add_reduced(ParamGroup* group);
  /// `group` is being reduced, and has users of its gradient.
  void add_to_use(ParamGroup* group);
  /// Lets them use the gradients of all of these that are complete. Not in a backward that is not
  /// the last: then all stay.
  void use_gradients();
  /// Hears of the end of this backward.
  void add_user_of_backward(const std::shared_ptr<GradientUser>& user);
  /// Thrown by this backward at its end, unless it is not the first.
  void keep_hook_error(std::exception_ptr error);
  /// Another one in each backward.
  int64_t backward_id() const { return backward_id_; }
  /// `group` is being destroyed.
  void forget(ParamGroup* group);

  RuntimeCounters counters() const;
  RuntimeCounters& counters_in_place() { return counters_; }

 private:
  struct BackwardMark {};

  void finalize_backward();
  void for_groups(void (ParamGroup::*call)()) const;
  /// To those who have asked for leaves.
  void show_gradients();
  /// The host may read gradients and write shards afterwards, also where a device has copied them.
  void settle_offload();
  void finish_oldest_reduction();
  /// Returns false if no reduction has its input.
  bool release_oldest_input();
  void wait_for_marks();
  enum class Pass { kForward, kBackward };
  using Units = std::vector<std::weak_ptr<ModuleState>>;
  /// The next unit, and those behind it whose parameters take no memory unsharded. The same on all
  /// ranks.
  void prefetch(const plan::Upcoming& units, Pass pass);
  void prefetch_listed(const Units& listed, Pass pass);
  /// Unless `limit` units are gathered ahead.
  void start_ahead(const std::shared_ptr<ModuleState>& unit, size_t limit);
  /// What `unit` has been gathered for has come.
  void begin_use(const ModuleState& unit);
  /// Ends the forward of units of which some modules have not run.
  void end_open_forwards();
  void end_gradients();
  void end_uses();

  std::shared_ptr<SlotArenas> slots_;
  const PrefetchOptions prefetch_options_;
  plan::ExecutionOrder order_;
  Units units_;
  Units lists_;  // those of several modules
  Units ahead_;  // gathered ahead; some may be in use by now
  std::deque<GradientReducer*> reducing_;
  std::vector<std::shared_ptr<Collectives>> comms_;  // that gather the units, each once
  std::vector<WorkPtr> marks_;                       // of the last forward's end
  std::vector<ParamGroup*> reduced_;  // since the last exchange, each once, in this order
  std::vector<ParamGroup*> to_use_;   // in the order of reductions; behind null: of this backward
  std::vector<std::shared_ptr<GradientUser>> users_;  // that this backward has called
  int64_t backward_id_ = 0;
  std::exception_ptr hook_error_;  // the first of this backward, which throws it at its end
  RuntimeCounters counters_;
  int64_t forward_id_ = 0;
  int64_t write_epoch_ = 0;
  bool is_last_backward_ = true;
  std::shared_ptr<c10::Event> update_;        // after the optimizer; may be null
  int64_t uses_at_update_ = 0;                // SlotArenas::uses, when it was set
  std::optional<c10::Stream> behind_update_;  // once there has been one
  bool backward_queued_ = false;
  bool accumulates_gradients_ = false;
  // Owned by the queued callback, so it expires with its backward even if that throws.
  std::weak_ptr<BackwardMark> backward_mark_;
};

}  // namespace fsdp
