#pragma once

/// @file
/// Whole parameters of sharded modules for a while, to be read, written or initialised by code that
/// knows nothing of sharding: FSDP1's `summon_full_params` and `apply`.

#include <fsdp/export.h>
#include <fsdp/fully_shard.h>

#include <functional>

namespace fsdp {

/// @addtogroup shard
/// @{

/// What summon_full_params() does, with the names and values of FSDP1's arguments.
struct FSDP_API FullParamsOptions {
  /// Those of nested units, too; else the unit's own only.
  bool recurse = true;
  /// What has been written to the parameters, and gradients, is kept: of each rank its own shard.
  bool writeback = true;
  /// Only the first rank of the mesh has them; the others take part in gathering, and their
  /// parameters stay sharded. Not with writeback.
  bool rank0_only = false;
  /// The whole tensors are in the CPU's memory.
  bool offload_to_cpu = false;
  /// `.grad` of the parameters has the whole gradients, reduced over all ranks, where there are
  /// any.
  bool with_grads = false;
};

/// Runs `body` while the module's own parameters are whole, in their own shapes and dtypes:
///
/// ```cpp
/// fsdp::summon_full_params(sharded, [&] {
///   std::cout << model->head->weight.norm() << '\n';
/// }, {.writeback = false});
/// ```
///
/// Behind it they are sharded again, and units that were gathered before are gathered again.
/// Collective: all ranks of the units' meshes call it, with the same options, and with writeback
/// `body` writes the same on all of them, in place or by set_data() with tensors of the same shape.
/// Without grad mode, unless `body` sets it. Memory: the whole parameters (and gradients), and
/// 64 MiB beside them. CPU: blocks the host; CUDA: so does offload_to_cpu.
///
/// In `body` the units cannot run, nor be gathered: a c10::Error; steps of optimizers belong
/// outside. If it throws, all units are sharded again, also those that were gathered, with the
/// values that they had before. It has to throw on all ranks, or the others wait for this one.
///
/// Errors: TORCH_CHECK on an empty handle or body, on writeback with rank0_only, inside forward or
/// backward, inside another one of the same unit, and with writeback on a parameter of which `body`
/// has changed the shape, when nothing has been written; those of Work::wait().
FSDP_API void summon_full_params(const FSDPModule& unit, const std::function<void()>& body,
                                 const FullParamsOptions& options = {});

/// Calls `fn(module)` for every module at and below `unit`'s, children first, and keeps what it
/// writes: Python's Module.apply() of FSDP1. The parameters of a unit are whole while `fn` is
/// called for the modules in it, so LibTorch's own code initialises them, one unit after the other:
///
/// ```cpp
/// fsdp::apply(sharded, [](torch::nn::Module& module) {
///   if (auto* linear = module.as<torch::nn::Linear>()) {
///     torch::nn::init::normal_(linear->weight, 0.0, 0.02);
///   }
/// });
/// ```
///
/// Every rank draws all values, so ranks with equally seeded generators stay equal, and a seed
/// gives the same model at any world size. Memory: the units on one path from the root to a leaf.
/// Collective, and errors: as summon_full_params().
FSDP_API void apply(const FSDPModule& unit,
                    const std::function<void(torch::nn::Module& module)>& fn);

/// @}

}  // namespace fsdp
