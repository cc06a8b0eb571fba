#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/device_mesh.h>
#include <fsdp/export.h>
#include <fsdp/shard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// FSDP2's MixedPrecisionPolicy: the dtypes in which a unit computes and reduces.
struct FSDP_API MixedPrecisionPolicy {
  /// Of the gathered parameters. Unset: the parameters' own.
  std::optional<at::ScalarType> param_dtype;
  /// Of the gradient reduction. Unset: param_dtype, or the parameters' own without that.
  std::optional<at::ScalarType> reduce_dtype;
  /// To which forward's floating-point results are cast. Unset: no cast.
  std::optional<at::ScalarType> output_dtype;
  /// Whether forward's floating-point arguments are cast to param_dtype, if that is set.
  bool cast_forward_inputs = true;
};

struct FSDP_API FullyShardOptions {
  /// One axis: its ranks divide the parameters. Two (hybrid sharding, HSDP): the ranks along the
  /// second divide them, those along the first hold copies.
  std::shared_ptr<DeviceMesh> mesh;
  /// true: free after forward and gather again in backward (FULL_SHARD). false: keep until after
  /// backward. Unset: true for every unit but the root.
  std::optional<bool> reshard_after_forward;
  MixedPrecisionPolicy mp_policy;
};

/// This rank's shard of one parameter, or of a tensor that is divided like it (gradient, optimizer
/// state), with its data.
struct FSDP_API LocalShard : Shard {
  /// [elements of all boxes], contiguous: one box behind the other. A view of the group's shard, so
  /// that writing it sets the parameter. Undefined if there is no such tensor.
  at::Tensor local;
};

/// Copies this rank's part of `whole`, of shape `shard.global_shape` and on any device, to
/// `shard.local`, box by box and without memory of its own. Errors: TORCH_CHECK on another shape,
/// or if `local` is undefined.
FSDP_API void copy_part_of(const at::Tensor& whole, const LocalShard& shard);

class ModuleState;
class ParamGroup;

/// Handle of a sharded module, with the methods of FSDP2's FSDPModule. Cheap to copy, shared
/// ownership.
class FSDP_API FSDPModule {
 public:
  FSDPModule() = default;
  explicit FSDPModule(std::shared_ptr<ModuleState> state) : state_(std::move(state)) {}
  explicit operator bool() const { return state_ != nullptr; }

  /// All-gathers this unit's parameters and waits until they can be used. No-op when unsharded.
  void unshard();
  /// Frees the unsharded parameters now. No collective. No-op when sharded.
  void reshard();
  /// false: backward accumulates unsharded gradients without reducing them (FSDP2's no_sync); the
  /// next backward with true reduces the sum. Applies to nested units when `recurse`.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true);
  /// With hybrid sharding, false: backward reduces in the row only, and keeps the sum, of the size
  /// of a shard, to itself; the next backward with true adds it to its own and all-reduces both
  /// over the copies, also for units that it does not pass through. So micro batches communicate
  /// between rows once, and the others exchange nothing between rows. Without copies it has no
  /// effect.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true);
  /// `hook(gradient)` is called once per reduction with this unit's reduced gradients, flat, in the
  /// reduction dtype, not yet divided by a divide factor: behind the reduce-scatter and, with
  /// hybrid sharding, behind the all-reduce, and not where that is put off. It may write them, for
  /// example all-reduce over a group of its own and wait for that, in which case all ranks of that
  /// group need such a hook, which does the same on all copies, or these drift apart. What it
  /// writes to padding is undone. Takes effect at the next backward that starts a new accumulation;
  /// an empty one removes it. If it throws, the unit's gradient stays what it was before this
  /// backward, less what its row has summed without all-reduce; backward goes on, so that no peer
  /// waits, and throws the first such exception at its end; the group can be used further. If it
  /// throws on some ranks only, the others have a new gradient of this unit, so nobody must step
  /// with it: zero_grad() on all ranks, and try again, or end. Without grad mode. Thread: CPU: that
  /// of the last collective's lane, of which units on different meshes have different ones, at the
  /// same time. CUDA: the caller's, with the lane's stream as the current one.
  void set_all_reduce_hook(std::function<void(at::Tensor gradient)> hook);
  void set_reshard_after_forward(bool reshard_after_forward, bool recurse = true);
  /// false: this unit's parameters stay gathered after backward, until reshard() or the end of the
  /// next forward that reshards. Needed for second derivatives: a backward with create_graph makes
  /// a graph that reads the gathered parameters again, and reading what has been freed ends the
  /// process.
  void set_reshard_after_backward(bool reshard_after_backward, bool recurse = true);
  /// Units to prefetch when this one runs, instead of the next in the recorded order.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules);
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules);
  /// Gradient sums are divided by `factor` instead of by the number of ranks, replicas included.
  /// Takes effect at the next backward that starts a new accumulation; sums of rows that wait for
  /// their all-reduce are part of the old one. The sum is computed in the reduction dtype and then
  /// divided; in float16, which overflows easily, part of the division precedes the sum, as in
  /// FSDP2.
  void set_gradient_divide_factor(double factor);

  /// For any optimizer of torch::optim, or one of your own:
  ///
  ///   torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  ///
  /// This rank's parts of all parameters under this unit, nested units included, in registration
  /// order of the root, as flat leaves of autograd: [elements that this rank holds], which may be
  /// none. After backward each has this rank's part of the gradient in `.grad`, reduced over all
  /// ranks, or none if no rank has used the parameter. step() updates the shards. Set to None by
  /// zero_grad(), gradients begin anew; zeroed in place, or kept, they are added to. So it is right
  /// for what computes element by element. What needs norms of whole tensors or gradients (LAMB,
  /// clip_grad_norm_ of torch::nn::utils) sees a part only: use fsdp::clip_grad_norm_.
  /// To be written between the end of a backward and the next forward, as sharded_parameters();
  /// the same tensors each time.
  std::vector<at::Tensor> parameters() const;
  /// The same with their names, for groups with options of their own.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  /// This rank's shards of all parameters under this unit, nested units included, in registration
  /// order of the root. May be read at any time, and written after prepare_to_write(), or between
  /// the end of a backward that reduces and reshards all units, or of a forward of the root without
  /// grad mode, and the next forward or unshard(); in mixed precision through tensors that this has
  /// returned since, or that are still held: whoever keeps only their addresses calls
  /// prepare_to_write() each time.
  std::vector<LocalShard> sharded_parameters() const;
  /// To be called before sharded_parameters() are written at another time, such as after a forward
  /// alone or in no_sync: reshards all units under this one and waits until no peer on this host
  /// reads the shards in place. AdamW::step() and init_parameters() do it. All ranks must call it;
  /// blocks the host. Throws like Work::wait().
  void prepare_to_write();
  /// Sharded gradients (same order); entries of parameters that no rank has used since zero_grad()
  /// have an undefined `local`, as `.grad` is None in PyTorch.
  std::vector<LocalShard> sharded_gradients() const;
  /// Calls `init(fqn, full)` once per parameter in registration order with a full-size scratch
  /// tensor and keeps this rank's shard. Peak memory: the shards plus one parameter. Every rank
  /// sees the same calls, so equally seeded generators give the same model at any world size.
  void init_parameters(const std::function<void(const std::string& fqn, at::Tensor full)>& init);
  /// The full parameter on every rank (collective: all ranks must call). For sampling, export and
  /// tests.
  at::Tensor full_parameter(const std::string& fqn);
  /// This unit and all units nested in it, this one first.
  std::vector<FSDPModule> units() const;
  const std::shared_ptr<ModuleState>& state() const { return state_; }

 private:
  std::shared_ptr<ModuleState> state_;
};

/// Shards the parameters of `module` that no earlier call has sharded, as one group: one
/// all-gather, one reduce-scatter. Parameters that differ in dtype or requires_grad form separate
/// groups. Call it bottom-up (blocks, then the root): the topmost sharded module is the root.
/// Parameter names are unchanged; a parameter registered under several names stays one. Parameters
/// may be unmaterialized (fsdp::unmaterialized_parameter); then no full copy ever exists and
/// init_parameters or a checkpoint fills the shards. Otherwise each rank keeps its shard of its own
/// values. Afterwards the module must be called through fsdp::Unit (or fsdp::call, or as an
/// fsdp::Sharded). A parameter whose unit is sharded has no data: whoever reads or writes it gets a
/// c10::Error with its name, as do a forward() that is called directly, to(), clone() and
/// torch::save(). A view of it that was made while it was whole does not know of this: accessing
/// that crashes the process on the CPU, and on CUDA the kernel gets a null pointer, which the
/// device reports as an illegal access at the next synchronisation. If a unit's backward runs on
/// one rank it must run on every rank, because each takes part in its reduce-scatter; parameters
/// that only some ranks use are reduced as zeros by the others, and those that no rank used have no
/// gradient, as in FSDP2. Gradients are never left in `.grad`; they are reduced into
/// sharded_gradients(). Errors: TORCH_CHECK on an already sharded module or one inside a module
/// that was sharded before it, on one around units that have a root outside it, on a parameter that
/// is 0-dim, non-contiguous, not a leaf or on another device than the mesh's group, and on a
/// parameter shared with a unit that is sharded separately (names both).
FSDP_API FSDPModule fully_shard(const std::shared_ptr<torch::nn::Module>& module,
                                const FullyShardOptions& options);

/// The handle of a module that was fully_shard'ed; an empty handle otherwise.
FSDP_API FSDPModule fsdp_module(const torch::nn::Module& module);

/// A parameter with shape, dtype and device but without memory, for what FSDP2 uses the meta
/// device: the model is sharded before it is materialized. Reading it before fully_shard and
/// initialisation is an error.
FSDP_API at::Tensor unmaterialized_parameter(at::IntArrayRef sizes, at::ScalarType dtype,
                                             c10::Device device);

/// torch.nn.utils.clip_grad_norm_ for sharded gradients: computes the global 2-norm of all
/// gradients under `root` (one all-reduce) and scales them by max_norm / (norm + 1e-6) if the norm
/// exceeds max_norm. max_norm <= 0: no scaling. Returns the norm before scaling, 0-dim float32 on
/// the parameters' device, equal on all ranks of the largest communicator, which must have all
/// ranks of the others. The shards of units on smaller communicators, which only their own ranks
/// share, count once for each set of ranks, but copies of hybrid sharding once in all. Units on
/// several communicators of one size need an all-reduce for each, and the same ranks in all of
/// them.
FSDP_API at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm);

}  // namespace fsdp
