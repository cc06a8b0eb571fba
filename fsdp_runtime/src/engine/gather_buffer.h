#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <fsdp/collectives.h>
#include <fsdp/custom_comm.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/pending_work.h"
#include "fsdp_runtime/src/engine/retargetable_storage.h"
#include "fsdp_runtime/src/engine/shard_store.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class RunContext;

/// The unsharded parameters of one group, in the dtype in which they compute.
///
///     kSharded --start()--> kInFlight --wait()--> kUnsharded
///        ^                      |                     |
///        +------ reshard() -----+---------------------+
///
/// All of them view one retargetable storage. While it is not sharded, that points to the window,
/// in which the shards of all ranks lie one behind the other and the all-gather copies nothing;
/// without one, to a slot of the arena, which is the output of the all-gather: nothing is copied
/// out. Sharded, it points nowhere, and access faults. One rank that does not cast needs neither
/// slot nor all-gather: its shard is the parameters. An offloaded shard is copied to the device
/// first, to where the all-gather takes it.
///
/// Where the output of the all-gather is not the parameters (GroupLayout::copies_out), wait()
/// copies them out of it, or out of the window, to a slot of their own, with the cast if it is a
/// window; the output's memory, or the use of the window, ends with that.
///
/// Where an all-gather takes memory, reshard_to_part() keeps a part of the parameters, which lasts
/// until reshard(): meanwhile all-gathers are of the parts, over fewer ranks.
///
/// Streams: the all-gather runs on the gather lane, after what the current stream has done before
/// start(). Thread: the rank's.
class GatherBuffer {
 public:
  /// `store` must outlive this.
  GatherBuffer(ShardStore& store, std::shared_ptr<Collectives> comm, at::ScalarType dtype);

  /// Parameter `index` of the store, in its shape. Valid to read while unsharded.
  at::Tensor view(size_t index) const;

  /// Issues the all-gather, which peers see as being for `purpose`. No-op unless sharded. If it
  /// throws, the parameters are sharded as before.
  void start(RunContext& context, const std::string& purpose);
  /// The parameters can be used afterwards: CPU: blocks; CUDA: by the current stream. No-op when
  /// sharded. Throws like Work::wait().
  void wait(RunContext& context);
  /// Ends the use of the parameters and gives the slot back, after an all-gather in flight has
  /// ended. No-op when sharded. Throws like Work::wait().
  void reshard();
  /// The same, but keeps this rank's part of `part_comm.size()`, unless it takes no memory to
  /// gather. Every rank of `part_comm` does the same.
  void reshard_to_part(RunContext& context, const std::shared_ptr<Collectives>& part_comm);
  bool is_sharded() const { return state_ == State::kSharded; }
  bool is_in_flight() const { return state_ == State::kInFlight; }
  /// Whether reshard_to_part() has left one.
  bool has_part() const { return part_ != nullptr; }
  /// Of its own, for the parameters that are gathered now.
  int64_t bytes_in_use() const;
  /// For the message of an access while sharded.
  void set_fqn(size_t index, const std::string& fqn);
  /// Null: the all-gather is that of the group. Takes effect at the next start().
  void set_custom(std::shared_ptr<AllGather> custom) { custom_ = std::move(custom); }

  at::ScalarType dtype() const { return dtype_; }
  /// One rank that does not cast.
  bool is_shard_itself() const;
  /// Where peers read each other's parts in place.
  bool gathers_in_window() const { return window_ != nullptr && custom_ == nullptr; }
  /// Whether they take none but that of the shards.
  bool takes_no_memory() const {
    return is_shard_itself() || (gathers_in_window() && !copies_out());
  }
  /// The same of the next all-gather, until wait().
  bool takes_no_memory_in_flight() const {
    return is_shard_itself() || (gathers_in_window() && !part_);
  }

 private:
  enum class State { kSharded, kInFlight, kUnsharded };

  void start_in_slot(RunContext& context, Issue issue);
  void start_in_custom_memory(RunContext& context, Issue issue);
  void start_in_window(RunContext& context, const Issue& issue);
  /// What this rank gives to an all-gather, of which `range` is its range of the output, and
  /// which is then behind what makes it.
  at::Tensor input_of_gather(const at::Tensor& range, Issue& issue);
  Collectives& gathering() const { return part_ ? *part_comm_ : *comm_; }
  bool copies_out() const { return store_.layout().copies_out(); }
  /// What the next all-gather writes is not the parameters. Parts are parts of these.
  bool copies_next() const { return copies_out() && !part_; }
  void end_gather();
  /// Behind the all-gather.
  void copy_out(RunContext& context);
  void free_gathered();
  void free_whole();
  void free_memory();
  void free_custom_memory();

  ShardStore& store_;
  const std::shared_ptr<Collectives> comm_;
  const at::ScalarType dtype_;
  const std::shared_ptr<GatherWindow> window_;  // null: it is not there, or has another dtype
  RetargetableStorage storage_;
  at::Tensor output_;     // the whole storage, flat
  at::Tensor own_range_;  // this rank's of output_, if that is gathered
  State state_ = State::kSharded;
  SlotLease slot_;
  std::vector<std::vector<at::Tensor>> pieces_;  // of the parameters, if they are copied out
  at::Tensor gathered_;                          // to be copied out, flat; undefined if nothing is
  SlotLease gather_slot_;                        // of that, unless it is other memory
  std::shared_ptr<AllGather> custom_;            // may be null
  at::Tensor custom_memory_;                     // of the last all-gather, if it is the user's
  std::optional<c10::Stream> custom_stream_;  // that it was asked for on, unless on that of compute
  std::shared_ptr<Collectives> part_comm_;
  SlotLease part_;  // of part_comm_, if there is one
  PendingWork gather_;
};

}  // namespace fsdp
