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
};

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
  MixedPrecisionPolicy mp_policy = {};  ///< As it is: everything in the parameters' own dtypes.
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
