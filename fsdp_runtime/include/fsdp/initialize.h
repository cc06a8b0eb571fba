#pragma once

/// @file
/// How a model gets its first values: the same on all ranks, or drawn only when it is sharded.

#include <c10/core/Device.h>
#include <fsdp/device_mesh.h>
#include <fsdp/export.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace fsdp {

class InitTape;

/// @addtogroup shard
/// @{

/// Makes all parameters and buffers of `module` what they are on rank 0, which is the first on each
/// axis of `mesh`: FSDP1's `sync_module_states`, for models that not all ranks have read or drawn
/// alike. Call it before fully_shard(); then the other ranks may have any values, but need the
/// memory. To load a sharded model from rank 0 alone, see StateDictOptions::broadcast_from_rank0.
///
/// Of what is sharded already, each row keeps its own values, and with hybrid sharding the copies
/// get those of the first row; buffers, which are never sharded, get those of rank 0.
///
/// Each tensor is sent once, also if it has several names; `bucket_bytes` at a time, as FSDP1's 250
/// MiB, which is all that it takes beside the model. Null `mesh`: all ranks of
/// default_process_group(). Collective over the mesh, and blocks the host. Thread: the rank's,
/// outside of forward and backward. Without grad mode.
///
/// Errors: TORCH_CHECK, on all ranks, if one has it: another device than the mesh's, a parameter
/// without memory (unmaterialized_parameter()), or other names, shapes or dtypes than the others,
/// or another `bucket_bytes`.
/// TORCH_CHECK on a null module and on `bucket_bytes` < 1. Those of Work::wait().
FSDP_API void sync_module_states(const std::shared_ptr<torch::nn::Module>& module,
                                 const std::shared_ptr<DeviceMesh>& mesh = nullptr,
                                 int64_t bucket_bytes = int64_t{250} << 20);

/// The same of the module that a torch::nn::ModuleHolder has.
template <class M>
void sync_module_states(const torch::nn::ModuleHolder<M>& module,
                        const std::shared_ptr<DeviceMesh>& mesh = nullptr,
                        int64_t bucket_bytes = int64_t{250} << 20) {
  sync_module_states(std::shared_ptr<torch::nn::Module>(module.ptr()), mesh, bucket_bytes);
}

/// @cond
namespace detail {

/// From the constructor on this thread makes tensors without memory and notes how they are filled.
class FSDP_API DeferredInitScope {
 public:
  explicit DeferredInitScope(std::optional<c10::Device> device);
  ~DeferredInitScope();
  DeferredInitScope(const DeferredInitScope&) = delete;
  DeferredInitScope& operator=(const DeferredInitScope&) = delete;
  /// `module` is what has been made.
  void finish(const std::shared_ptr<torch::nn::Module>& module);

 private:
  struct Guards;
  std::shared_ptr<InitTape> tape_;
  std::unique_ptr<Guards> guards_;
};

template <class M>
std::shared_ptr<torch::nn::Module> made_module(const std::shared_ptr<M>& module) {
  return module;
}
template <class Holder>
std::shared_ptr<torch::nn::Module> made_module(const Holder& holder) {
  return holder.ptr();
}

}  // namespace detail
/// @endcond

/// Returns what `make()` returns, a module that has no memory yet, whatever it is made of (PyTorch:
/// `deferred_init` of torchdistX, and what `with torch.device("meta")` is for). So a model that is
/// larger than the memory can be made and sharded, and gets its values afterwards:
///
/// ```cpp
/// torch::manual_seed(0);
/// auto model = fsdp::deferred_init([&] { return Model(config); });
/// fsdp::fully_shard(model, policy, {.mesh = mesh});
/// fsdp::materialize_module(model);
/// ```
///
/// `make` returns a std::shared_ptr, a torch::nn::ModuleHolder or a fsdp::Unit. While it runs, on
/// this thread, tensors that it makes have addresses, but no pages behind them (CUDA: no memory),
/// and operations on them, such as those of torch::nn::init, are noted instead of done. Other
/// tensors are as usual. Random numbers are those that the generators would have given then: the
/// model gets the bits that `make()` alone gives, at any number of ranks, and however often the
/// generator is used between the two calls. The generators themselves stay where they were. `make`
/// must draw for its own tensors only: one from elsewhere that is filled between them gets other
/// numbers than by `make()` alone, and so do the model's own that come after it.
///
/// `device`: of tensors for which `make` names none; unset: the CPU. On a GPU values are drawn by
/// its generator.
///
/// Until materialize_module() the model's values are zeros, or those of a state dict that it has
/// been given by then, which that would overwrite.
///
/// Errors: TORCH_CHECK inside of another one, and inside `make`, with the name of the operation, on
/// what needs values that are not there (item(), equal(), shapes that depend on data), or random
/// numbers from elsewhere than a generator. c10::Error if `make` accesses the memory of such a
/// tensor on a GPU. Operations are seen by a dispatch key of LibTorch's that has room for one
/// library in a process: a second copy of libfsdp, or torchdistX, cannot be loaded beside it.
template <class Make>
auto deferred_init(Make&& make, std::optional<c10::Device> device = std::nullopt) {
  detail::DeferredInitScope scope(device);
  auto made = std::forward<Make>(make)();
  scope.finish(detail::made_module(made));
  return made;
}

/// Whether `module` comes from deferred_init() and waits for materialize_module(). Local.
FSDP_API bool is_deferred(const torch::nn::Module& module);

/// Gives a module that deferred_init() has made its values: does what was noted, in that order, and
/// keeps of each parameter of a sharded unit this rank's part, of others, and of buffers, all. What
/// has been moved by to() or copied meanwhile gets the values in its own dtype.
///
/// If it throws, `module` stays as is_deferred() says, and the next call goes on where this one has
/// ended, with the same values in the end.
///
/// Memory: beside the shards one parameter at a time, and what it is computed from; each tensor has
/// memory from the first operation that it needs to the last. All ranks that share the shards call
/// it, and it blocks the host; else it is local. Thread: the rank's, outside of forward and
/// backward. Without grad mode.
///
/// Errors: TORCH_CHECK unless is_deferred(module), in forward, backward and summon_full_params() of
/// one of its units; what the operations throw; those of
/// FSDPModule::prepare_to_write().
FSDP_API void materialize_module(const std::shared_ptr<torch::nn::Module>& module);

/// The same of the module that a torch::nn::ModuleHolder has.
template <class M>
void materialize_module(const torch::nn::ModuleHolder<M>& module) {
  materialize_module(std::shared_ptr<torch::nn::Module>(module.ptr()));
}

/// @}

}  // namespace fsdp
