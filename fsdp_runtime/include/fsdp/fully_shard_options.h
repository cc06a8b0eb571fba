#pragma once

/// @file
/// How fully_shard() shards a module.

#include <ATen/core/Tensor.h>
#include <fsdp/device_mesh.h>
#include <fsdp/export.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// @addtogroup shard
/// @{

/// FSDP2's MixedPrecisionPolicy: the dtypes in which a unit computes and reduces.
struct FSDP_API MixedPrecisionPolicy {
  /// Of the gathered parameters. Unset: the parameters' own.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Of the gradient reduction. Unset: param_dtype, or the parameters' own without that.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// To which forward's floating-point results are cast. Unset: no cast.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Whether forward's floating-point arguments are cast to param_dtype, if that is set.
  bool cast_forward_inputs = true;
  /// Modules of the unit whose own parameters compute and are reduced in their own dtype, such as
  /// `module_types<torch::nn::BatchNorm2d>()`: FSDP1's _module_classes_to_ignore. They are gathered
  /// by themselves, and get their inputs as they are, which LibTorch's norms take in bfloat16 and
  /// float16 with parameters in float32. For a module that is a unit, its own policy says it.
  /// Null: none.
  std::function<bool(const torch::nn::Module& module)> keeps_dtype = nullptr;
  /// Of the floating-point buffers of the unit, which are cast in place when it runs, and stay so:
  /// FSDP1's MixedPrecision.buffer_dtype. State dicts have them in their own dtypes, with the
  /// values that the casts have left. Unset: no cast.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
  /// true: in eval mode (torch::nn::Module::eval() of the unit's module) forward computes in the
  /// parameters' own dtype, with buffers in theirs, and arguments are not cast: FSDP1's
  /// FSDP_USE_FULL_PREC_IN_EVAL. Gradients, where there are any, are reduced in reduce_dtype all
  /// the same. With grad mode, backward comes before the module runs in the other mode again. A
  /// gather then takes memory for the parameters in that dtype.
  bool full_precision_in_eval = false;
};

/// FSDP2's CPUOffloadPolicy: a unit's shards, their gradients and the optimizer's state are in the
/// host's memory, and the optimizer's step runs on the CPU. A gather copies this rank's shard to
/// the device first, on the gather lane's stream, and a reduction copies its result to the host
/// behind it, on the reduce lane's. Backward ends when all gradients have arrived, which the host
/// waits for. A gradient that is added to is added on the host, at the end of the backward; what
/// has arrived lies beside it until then, and that memory is kept for the next time: 12 bytes of
/// page-locked memory for each float32 of a shard, or 8 if each step reduces once. LibTorch rounds
/// each block of such memory, which the shard and the gradient of a unit are, up to a power of two.
/// The optimizer's state is not page-locked. After a backward that threw, ask the handle
/// (sharded_gradients(), zero_grad()) before `.grad` of its parameters is used: copies may be in
/// flight.
///
/// Parameters, or unmaterialized ones, are on the CPU when the module is sharded; its buffers are
/// moved to the mesh's device, where forward runs. Shards and gradients, as handles give them, are
/// on the CPU. On a mesh of the CPU there is nothing to copy, and the policy is without effect.
struct FSDP_API CPUOffloadPolicy {
  /// Page-locked memory, which the device copies without the host's help, beside compute. false:
  /// such memory is scarce here, and the host waits for copies: for those of gradients, which are
  /// added as they arrive, and in each gather for that of the shard, behind the gathers that have
  /// been issued before, so that gathers ahead block the host.
  bool pin_memory = true;
};

/// As CPUOffloadPolicy, but in files that are mapped into memory, so that a model can be larger
/// than the memory that a rank may use: shards, gradients and the state of fsdp::AdamW, which
/// updates them in portions. After each use (a gather, a reduction, a portion of the optimizer's
/// step, a copy for a state dict) what has changed is written out and the pages are given back. In
/// memory are the units that are gathered, and their gradients until these are reduced. Optimizers
/// of torch::optim keep their own state in memory.
///
/// The space is allocated when the module is sharded (for gradients of what is frozen then, with
/// the first of them), and when AdamW is made. On ext4 and xfs it is the process's from then on. A
/// file system or volume that writes elsewhere what has been written before (btrfs, ZFS, NFS, thin
/// or compressed volumes) may have no room for that later, and the kernel ends the process with
/// SIGBUS; so it does on any if the disk cannot be read. Files have no name once they are open, so
/// that nothing is left behind however the process ends. Ranks do not read each other's shards in
/// place: they gather by copies. On a device copies block the host. A fork of the process can read
/// the shards, but not train. What optimizers of torch::optim and the program itself write is
/// written out behind the next use.
///
/// Errors, of fully_shard() and AdamW: c10::Error with what the file was for, the folder, and the
/// bytes that were wanted and are free, if there is no room, or the process's limit of file sizes
/// is below that; and if a file cannot be made there. Of every use: c10::Error if the disk has
/// failed to write, from then on; parameters may have been lost, and the job is to be resumed from
/// a checkpoint.
struct FSDP_API DiskOffloadPolicy {
  /// An existing folder of a local disk, which ranks may share. One in memory (tmpfs) saves none.
  std::string folder;
};

/// FSDP2's OffloadPolicy, `{}`: none; CPUOffloadPolicy{} or DiskOffloadPolicy{folder}.
using OffloadPolicy = std::variant<std::monostate, CPUOffloadPolicy, DiskOffloadPolicy>;

/// What becomes of a unit's gathered parameters between its forward and its backward: FSDP2's
/// `reshard_after_forward: bool | int`. Made from a bool or from an integer:
///
/// ```cpp
/// fsdp::fully_shard(block, {.mesh = mesh, .reshard_after_forward = 8});
/// ```
class FSDP_API ReshardAfterForward {
 public:
  /// A bool. true: they are freed, and gathered again in backward. false: they are kept.
  ///
  /// An integer: each rank keeps one part of so many, and backward gathers over sets of so many
  /// neighbours only, for example those of one host: less traffic than with true, less memory than
  /// with false. It must divide the number of ranks that divide the parameters; that number itself
  /// is true, and 1 is false, with a warning. The part is a copy beside the rank's shard, in the
  /// dtype in which the parameters compute.
  ///
  /// Where ranks of one host read each other's shards in place, and a gather neither copies nor
  /// takes memory (shared memory, large units), an integer is taken as true: nothing is better than
  /// that.
  template <std::integral T>
  // NOLINTNEXTLINE(google-explicit-constructor): as in FSDP2, a bool or an integer is one
  constexpr ReshardAfterForward(T asked) {
    if constexpr (std::same_as<T, bool>) {
      reshards_ = asked;
    } else {
      ranks_ = static_cast<int64_t>(asked);
    }
  }

  /// false: parameters are kept.
  constexpr bool reshards() const { return reshards_; }
  /// The integer, as it was given; none if it was a bool.
  constexpr std::optional<int64_t> ranks() const { return ranks_; }

 private:
  bool reshards_ = true;
  std::optional<int64_t> ranks_;
};

/// DTensor's `Shard(dim)`: a parameter is divided along one of its dimensions, as torch.chunk does.
/// Each rank has ceil(n / ranks) of the n indices, later ranks fewer or none.
struct FSDP_API ShardPlacement {
  int64_t dim = 0;  ///< From -d to d - 1 for a parameter of d dimensions; negative: from the last.
};

/// FSDP2's shard_placement_fn: how a parameter is to be divided. `fqn`: its name below the module,
/// with the place in the list before it if several modules are one unit. `parameter` may be
/// unmaterialized: of use are its shape and dtype. None, as FSDP2's None: `Shard(0)`.
using ShardPlacementFn = std::function<std::optional<ShardPlacement>(const std::string& fqn,
                                                                     const at::Tensor& parameter)>;

/// `Shard(dim)` for every parameter. Errors: as of the function that it returns, by fully_shard().
inline ShardPlacementFn shard_on_dim(int64_t dim) {
  return [dim](const std::string&, const at::Tensor&) { return ShardPlacement{dim}; };
}

/// When backward issues the all-gather of the unit that it will come to next: FSDP1's
/// BackwardPrefetch.
enum class BackwardPrefetch {
  /// Before the gradients of the current unit are computed, so that both overlap: two units are
  /// gathered at a time.
  kBackwardPre,
  /// When they have been computed and the current unit is freed, before its gradients are reduced:
  /// less overlap, and one unit at a time.
  kBackwardPost
};

/// How fully_shard() shards a module. Fields are named, in this order:
///
/// ```cpp
/// fsdp::fully_shard(module, {.mesh = mesh, .reshard_after_forward = false, .mp_policy = policy});
/// ```
struct FSDP_API FullyShardOptions {
  /// One axis: its ranks divide the parameters. Two (hybrid sharding, HSDP): the ranks along the
  /// second divide them, those along the first hold copies. Null, as FSDP2's None: all ranks of
  /// default_process_group() divide them, on its device; the axis is called "dp_shard".
  std::shared_ptr<DeviceMesh> mesh = nullptr;
  /// true: free after forward and gather again in backward (FULL_SHARD). false: keep until after
  /// backward. An integer: see ReshardAfterForward. Unset: true for every unit but the root.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  /// Null: the unit's parameters are one flat range, and each rank has an equal part of it, of some
  /// parameters, and of parts of rows; what is gathered is the parameters, without a copy. Not
  /// null: each parameter is divided along a dimension, as FSDP2 and DTensor do, for optimizers
  /// that need whole rows or a rank's part of each matrix (Muon, Shampoo):
  ///
  /// ```cpp
  /// fsdp::fully_shard(block, {.mesh = mesh, .shard_placement_fn = fsdp::shard_on_dim(0)});
  /// ```
  ///
  /// FSDPModule::parameters() then have the shapes of DTensor's local tensors, [rows, ...]. A
  /// gather copies the parameters out of what the ranks have sent, which takes memory of its own
  /// meanwhile, and gradients are copied in before they are reduced, with a kernel for each
  /// parameter; a unit of one parameter along dimension 0 needs neither. Where ranks read each
  /// other's shards in place, they copy from there, and cast (that one parameter is read there only
  /// if its chunks are whole pages, and gathered by a copy else); an integer reshard_after_forward
  /// keeps parts there as well. Shards are padded to the same size on all ranks.
  ///
  /// Called once for each parameter by fully_shard(), with the same result on all ranks, of those
  /// that hold copies too, which fully_shard() compares: one round trip for each unit. Errors,
  /// before anything has changed: as FSDP2's, TORCH_CHECK on a dimension that the parameter does
  /// not have, and on one other than the first that does not divide evenly; and, on all ranks, if
  /// they do not have the same result.
  ShardPlacementFn shard_placement_fn = nullptr;
  MixedPrecisionPolicy mp_policy = {};  ///< As it is: everything in the parameters' own dtypes.
  OffloadPolicy offload_policy = {};    ///< As it is: everything is on the mesh's device.
  /// Parameters of the module or of modules below it that stay what they are: they are not divided,
  /// a unit's handle does not list them, and their gradients are this rank's own, in `.grad`. It is
  /// the caller's to keep them equal on all ranks. Those that are not there are ignored, too.
  std::vector<at::Tensor> ignored_params = {};
  /// Of the root alone, for all units below it, here and in what follows: FSDP1's options of the
  /// same name. Unset: backward gathers a unit when it comes to it. Units that are listed by
  /// set_modules_to_backward_prefetch() are gathered before, whatever this is.
  std::optional<BackwardPrefetch> backward_prefetch = BackwardPrefetch::kBackwardPre;
  /// Whether a forward gathers ahead the unit that followed in the last one.
  bool forward_prefetch = true;
  /// So many units at most are gathered ahead at a time, without being in use yet; a further one is
  /// gathered when it runs. At least 1. Unset: 2 that are predicted, and all that are listed. What
  /// takes no memory does not count.
  std::optional<int64_t> limit_all_gathers = std::nullopt;
};

/// @}

}  // namespace fsdp
