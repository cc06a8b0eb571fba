#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/device_mesh.h>
#include <fsdp/export.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// Compute and reduction dtypes of a unit, FSDP2's MixedPrecisionPolicy. Unset means "as the
/// parameter".
struct FSDP_API MixedPrecisionPolicy {
  std::optional<at::ScalarType> param_dtype;
  std::optional<at::ScalarType> reduce_dtype;
  std::optional<at::ScalarType> output_dtype;
  bool cast_forward_inputs = true;
};

struct FSDP_API FullyShardOptions {
  std::shared_ptr<DeviceMesh> mesh;
  /// true: free after forward and gather again in backward (FULL_SHARD). false: keep until after
  /// backward. Unset: true for every unit but the root.
  std::optional<bool> reshard_after_forward;
  MixedPrecisionPolicy mp_policy;
};

/// This rank's piece of one parameter (or of a tensor laid out like it: gradient, optimizer state).
/// The piece is the element range [flat_begin, flat_end) of the row-major parameter; it may be
/// empty.
struct FSDP_API ShardedSlice {
  std::string fqn;
  std::vector<int64_t> global_shape;
  int64_t flat_begin = 0;
  int64_t flat_end = 0;
  at::Tensor local;  // [flat_end - flat_begin], a view of the group's flat shard: writes go through
};

class ModuleState;
class ParamGroup;

/// What fully_shard made of a module: FSDP2's FSDPModule methods. A cheap handle, shared ownership.
class FSDP_API FSDPModule {
 public:
  FSDPModule() = default;
  explicit FSDPModule(std::shared_ptr<ModuleState> state) : state_(std::move(state)) {}
  explicit operator bool() const { return state_ != nullptr; }

  /// Gathers this unit's parameters now (blocking until they can be used). No-op when unsharded.
  void unshard();
  /// Frees the unsharded parameters now. No collective. No-op when sharded.
  void reshard();
  /// false: backward accumulates unsharded gradients without reducing them (FSDP2's no_sync); the
  /// next backward with true reduces the sum. Applies to nested units when `recurse`.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true);
  void set_reshard_after_forward(bool reshard_after_forward, bool recurse = true);
  void set_reshard_after_backward(bool reshard_after_backward, bool recurse = true);
  /// Units gathered ahead when this one runs, instead of the next in the recorded order.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules);
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules);
  /// Sums are divided by `factor` instead of by the number of ranks. Holds from the next backward
  /// that starts a new sum on, so not between microbatches that are reduced together. The sum is
  /// formed in the reduction dtype and then divided; in float16, which overflows early, a part of
  /// the division comes first, as in FSDP2.
  void set_gradient_divide_factor(double factor);

  /// This rank's pieces of all parameters under this unit, nested units included, in registration
  /// order of the root.
  std::vector<ShardedSlice> sharded_parameters() const;
  /// Sharded gradients (same order); entries whose group has no gradient have an undefined `local`.
  std::vector<ShardedSlice> sharded_gradients() const;
  /// Calls `init(fqn, full)` once per parameter in registration order with a full-size scratch
  /// tensor and keeps this rank's piece. Peak memory: the shards plus one parameter. Every rank
  /// sees the same calls, so a generator seeded alike gives the same model at any world size.
  void init_parameters(const std::function<void(const std::string& fqn, at::Tensor full)>& init);
  /// The whole parameter on every rank (collective: all ranks must call). For sampling, export and
  /// tests.
  at::Tensor full_parameter(const std::string& fqn);
  /// All units from here down, this one first.
  std::vector<FSDPModule> units() const;
  const std::shared_ptr<ModuleState>& state() const { return state_; }

 private:
  std::shared_ptr<ModuleState> state_;
};

/// Shards the parameters of `module` that no earlier call has claimed, as one group: one
/// all-gather, one reduce-scatter. Parameters that differ in dtype or requires_grad form groups of
/// their own. Call it bottom-up (blocks, then the root): the topmost sharded module is the root.
/// Parameter names are unchanged; a parameter registered under several names stays one. Parameters
/// may be hollow (fsdp::hollow_parameter); then no full copy ever exists and init_parameters or a
/// checkpoint fills the shards. Otherwise each rank keeps its pieces of its own values. Afterwards
/// the module must be called through fsdp::Unit (or fsdp::call); a parameter on the CPU that is
/// touched while it is sharded stops the process, on CUDA a kernel then gets a null pointer and the
/// device reports an illegal access when it next synchronises. A unit whose backward runs must run
/// it on every rank, as each rank takes part in its reduction; parameters of it that only some
/// ranks use are reduced as zeros by the others. Gradients never show up in `.grad`; they are
/// reduced into sharded_gradients(). Errors: TORCH_CHECK on an already sharded module, a parameter
/// that is 0-dim, non-contiguous, no leaf or on another device than the mesh's group, and a
/// parameter shared with a unit that is sharded elsewhere (names both).
FSDP_API FSDPModule fully_shard(const std::shared_ptr<torch::nn::Module>& module,
                                const FullyShardOptions& options);

/// The handle of a module that was fully_shard'ed; an empty handle otherwise.
FSDP_API FSDPModule fsdp_module(const torch::nn::Module& module);

/// A parameter that has shape, dtype and device but no memory; reading it before fully_shard and
/// init is an error.
FSDP_API at::Tensor hollow_parameter(at::IntArrayRef sizes, at::ScalarType dtype,
                                     c10::Device device);

/// Global 2-norm of all sharded gradients under `root` (one all-reduce), and scaling by max_norm /
/// (norm + 1e-6) when the norm exceeds max_norm. max_norm <= 0: only measures. Returns the norm
/// before scaling, 0-dim float32 on the parameters' device, equal on all ranks. Source:
/// torch.nn.utils.clip_grad_norm_.
FSDP_API at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm);

}  // namespace fsdp
