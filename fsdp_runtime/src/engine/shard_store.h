#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/group_layout.h"
#include "fsdp_runtime/src/engine/shard_memory.h"

namespace fsdp {

/// A parameter to be sharded.
struct NamedParameter {
  std::string fqn;
  at::Tensor tensor;
  bool keeps_dtype = false;  // whatever the policy's dtypes are
  /// Along which it is divided, in chunks; none, of all parameters of a group: these are divided as
  /// one range.
  std::optional<int64_t> shard_dim = std::nullopt;
};

struct ShardStoreOptions {
  std::vector<std::string> mesh_axes;         // along which the ranks of the group lie
  at::ScalarType compute_dtype = at::kFloat;  // in which the parameters are gathered
  /// Of which shards are multiples, if that is not too much: the same on all ranks that divide the
  /// parameters and on those that hold copies. 0: of none.
  int64_t page_bytes = 0;
  /// Of what lasts; null: where it computes.
  std::shared_ptr<const ShardMemory> memory = nullptr;
};

/// What a rank keeps of a group of parameters for good: its shard in the parameters' own dtype
/// (FSDP2: the sharded parameters), and where each of them lies. All-gathers read it; the optimizer
/// and checkpoints read and write it.
///
/// Where the backend has windows, peers read this rank's part of the unsharded parameters in place:
/// the shard itself, or beside it a copy in the dtype in which they compute. Not where an offload
/// policy keeps it elsewhere. Where parameters are copied out, they read the shard itself, and
/// cast.
///
/// Thread: the rank's. CUDA: the shard is ordered by the current stream, like any tensor; in memory
/// of the host by what the host waits for, see wait_for_copies().
class ShardStore {
 public:
  /// `params`: all of one dtype and device, contiguous, at least one-dimensional. Copies this
  /// rank's part of them; unmaterialized ones leave zeros. They are divided over the ranks of
  /// `comm`. Collective over `comm` where that has windows.
  ShardStore(const std::vector<NamedParameter>& params, Collectives& comm,
             const ShardStoreOptions& options);

  /// [layout().shard_numel]: the parts of all parameters end to end, with zeros between them.
  const at::Tensor& shard() const { return shard_; }
  at::ScalarType dtype() const { return shard_.scalar_type(); }
  /// On which it computes.
  c10::Device device() const { return device_; }
  /// Whether the shard is in memory of the host, and a device computes.
  bool is_offloaded() const { return is_offloaded_; }
  const plan::GroupLayout& layout() const { return layout_; }

  /// Returns what this rank gives to an all-gather in the dtype of `range`, which is its own range
  /// of the output, [shard_numel]: the shard if that has the dtype; else `range`, into which it has
  /// cast the shard, so that no memory but the output's is needed.
  at::Tensor prepare_gather(const at::Tensor& range) const;
  /// Of an offloaded one: copies the shard to `range`, [shard_numel] on the device, with a cast
  /// there, in the order of the gather lane. What is returned is not null.
  WorkPtr copy_to_device(Collectives& comm, const at::Tensor& range, const std::string& purpose);
  /// Of an offloaded one: blocks the host until the device has read it, so that it can be written.
  /// Throws like Work::wait(), once for each copy. No-op otherwise.
  void wait_for_copies();
  /// The memory of an offload policy; null: the shard is where it computes.
  const ShardMemory* memory() const { return memory_.get(); }
  /// Zeros that are kept where the shard is, of what no device copies: [numel] in its dtype, never
  /// page-locked. `content`: for errors.
  at::Tensor zeros_beside(int64_t numel, const std::string& content) const;
  /// Whether the shard, and what is kept as it is, are in files: see release_pages().
  bool is_on_disk() const { return memory_ && memory_->is_on_disk(); }

  /// In which peers read this rank's part of the parameters; null: an all-gather copies it.
  const std::shared_ptr<GatherWindow>& window() const { return window_; }
  /// What of the window is a copy of the shard in another dtype, to be written with it; undefined
  /// if the peers read the shard itself.
  FSDP_API at::Tensor copy_for_peers() const;
  /// To be called before a gather of the window, which is not in use by this rank. If it holds a
  /// copy of the shard, and the shard may have been written since, makes the copy anew when no peer
  /// reads it any more. It may have been after prepare_to_write() or handed_out(), and in another
  /// `write_epoch` if somebody had the shard when the copy was made.
  void publish(int64_t write_epoch);
  /// The shard, for whoever writes it by means that nobody here sees. Another tensor of the same
  /// memory, so that it can be told whether somebody has one.
  at::Tensor handed_out();
  /// To be called before the shard is written, while this rank does not use the window: blocks
  /// until no peer reads the shard. All ranks come to this, or have come to the end of a backward
  /// or an evaluation. Throws like Work::wait().
  void prepare_to_write();
  /// The same, for an optimizer that writes the same parts of shard() and copy_for_peers(), up to
  /// end_update().
  void begin_update();
  /// If it is not called, because the update has failed, the next gather makes the copy anew.
  void end_update(int64_t write_epoch);

  // By parameter, in the order of the group.
  size_t size() const { return held_.size(); }
  /// What this rank holds of the parameter.
  const Shard& held(size_t index) const { return held_[index]; }
  const std::string& fqn(size_t index) const { return held_[index].fqn; }
  void set_fqn(size_t index, std::string fqn) { held_[index].fqn = std::move(fqn); }
  const std::vector<int64_t>& shape(size_t index) const { return held_[index].global_shape; }
  /// Of this rank's part: that of its chunk, or [elements] of a part of a flat range.
  const std::vector<int64_t>& local_shape(size_t index) const { return local_shapes_[index]; }
  /// Where that is in the shard.
  const plan::ParamSlice& slice(size_t index) const { return slices_[index]; }
  /// The parameter's part of `flat`, which has the shard's layout; undefined if `flat` is.
  LocalShard part_of(const at::Tensor& flat, size_t index) const;

 private:
  bool is_window_a_copy() const { return window_->own().scalar_type() != dtype(); }
  bool is_published(int64_t write_epoch) const;
  void set_published(int64_t write_epoch);

  plan::GroupLayout layout_;
  std::vector<plan::ParamSlice> slices_;
  std::vector<Shard> held_;
  std::vector<std::vector<int64_t>> local_shapes_;
  const std::shared_ptr<const ShardMemory> memory_;
  const c10::Device device_;
  const bool is_offloaded_;
  std::shared_ptr<GatherWindow> window_;
  at::Tensor shard_;
  WorkPtr copy_;  // to the device, the last one; null if it has been waited for
  // Of the copy for peers.
  std::optional<int64_t> published_in_;    // the write epoch; none if it may differ from the shard
  bool is_held_ = false;                   // somebody had the shard then
  bool is_update_of_published_ = false;    // which has begun
  std::weak_ptr<const at::Tensor> given_;  // shard_, if somebody has handed_out()
};

}  // namespace fsdp
