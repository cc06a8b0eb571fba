#pragma once

/// @file
/// Data parallel training with whole parameters on each rank: PyTorch's DistributedDataParallel.

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/ddp_comm_hooks.h>
#include <fsdp/export.h>
#include <fsdp/visit_tensors.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

class ReplicaState;

/// @addtogroup replicate
/// @{

/// Options of DistributedDataParallel, with the names and values of PyTorch's. The same on all
/// ranks.
struct FSDP_API DistributedDataParallelOptions {
  /// Whose ranks have copies of the module. Null: default_process_group().
  std::shared_ptr<Collectives> process_group = nullptr;
  /// Before each forward, buffers are made what they are on rank 0.
  bool broadcast_buffers = true;
  /// At construction, parameters and buffers are made what they are on rank 0.
  bool init_sync = true;
  /// A bucket is reduced when it has this many MiB; the first when it has 1 MiB, if that is less.
  double bucket_cap_mb = 25;
  /// Allows parameters that a backward does not reach. Those that no rank has used keep
  /// the gradient that they have, or none; where only some ranks have, the others count as zeros.
  bool find_unused_parameters = false;
  /// Each backward is like the first one: it uses the same parameters, each as often. Then
  /// parameters may be unused, and may get gradients several times in one backward, as from several
  /// activation_checkpoint() segments. Gradients of the first backward are reduced at its end.
  bool static_graph = false;
  /// Names of parameters and buffers that are left alone.
  std::vector<std::string> params_and_buffers_to_ignore = {};
};

/// Options of ReplicateModule::join(), with the names and values of PyTorch's.
struct FSDP_API JoinOptions {
  /// Gradients are divided by the number of all ranks, not of those that still have inputs. A comm
  /// hook divides by itself: those of ddp_comm_hooks.h by the number of all ranks, whatever this
  /// is.
  bool divide_by_initial_world_size = true;
  /// Off: the body is only called, for inputs that are known to be even.
  bool enable = true;
  /// When a rank has run out of inputs, all ranks throw a c10::Error.
  bool throw_on_early_termination = false;
};

/// While it lives, backwards do not reduce gradients, but add them up on this rank: PyTorch's
/// `with ddp.no_sync()`. Thread: the rank's.
class FSDP_API NoSync {
 public:
  /// For ReplicateModule::no_sync().
  explicit NoSync(std::shared_ptr<ReplicaState> state);
  ~NoSync();
  /// So that a std::optional can hold it.
  NoSync(NoSync&&) noexcept = default;

 private:
  std::shared_ptr<ReplicaState> state_;
  bool was_synced_;
};

/// Handle of a module that replicate() has copied to all ranks. Cheap to copy; gradients are
/// averaged as long as a handle is there. Thread: the rank's.
class FSDP_API ReplicateModule {
 public:
  /// For replicate().
  explicit ReplicateModule(std::shared_ptr<ReplicaState> state) : state_(std::move(state)) {}

  /// See NoSync. Local.
  [[nodiscard]] NoSync no_sync() const;
  /// The same, until it is called again: FSDPModule's name for it.
  void set_requires_gradient_sync(bool requires_gradient_sync) const;
  /// Replaces the mean of all ranks by what `hook` does, from the next backward on. Local; the same
  /// on all ranks. Errors: TORCH_CHECK on an empty hook, on a second one, and in a backward.
  void register_comm_hook(CommHook hook) const;
  /// Runs `body`, a loop over inputs of which ranks have different numbers, with each forward
  /// through DistributedDataParallel and its backward behind it. A rank whose body has returned
  /// takes part in the reductions of the others with zeros until they have, too; then all get
  /// parameters and buffers of one that has run longest. Collective; each forward exchanges a few
  /// numbers, and blocks the host for that.
  ///
  /// ```cpp
  /// ddp.join([&] {
  ///   for (const auto& batch : *loader) {
  ///     optimizer.zero_grad();
  ///     loss_of(ddp(batch.data), batch.target).backward();
  ///     optimizer.step();
  ///   }
  /// });
  /// ```
  ///
  /// Errors: what `body` throws, and then the others lose this rank; those of Work::wait();
  /// TORCH_CHECK on an empty body, inside another join(), and on a backward of a forward that was
  /// called in another way.
  void join(const std::function<void()>& body, const JoinOptions& options = {}) const;
  /// The names of the parameters by bucket, in the order in which buckets are reduced. It changes
  /// at the end of the first backward that is reduced, to the order in which gradients have come.
  std::vector<std::vector<std::string>> buckets() const;

  /// What DistributedDataParallel does before a forward: broadcasts buffers, unless the last
  /// forward was in no_sync() or without grad mode. Collective if there are buffers, and blocks the
  /// host. Errors: those of Work::wait().
  void prepare_forward() const;
  /// What it does after: lets `outputs` tell when backward begins, and then, with
  /// find_unused_parameters, which parameters it will not reach, so that their buckets need not
  /// wait for its end. Local. Undefined tensors and those without history are passed over.
  void prepare_backward(const std::vector<at::Tensor>& outputs) const;

 protected:
  /// The same of what visit_tensors has found.
  void prepare_backward(const std::vector<at::Tensor*>& outputs) const;

 private:
  std::shared_ptr<ReplicaState> state_;
};

/// Makes `module` the same on all ranks, and lets each backward average its gradients: Python's
/// `replicate(module)`. The module is called as before; parameters stay whole.
///
/// Gradients are put into buckets as soon as backward has them. A bucket that is complete is
/// divided by the number of ranks and summed up over them, while backward goes on, and `.grad` of
/// its parameters becomes a part of it (PyTorch: gradient_as_bucket_view). At the end of backward
/// all have arrived. All ranks run backward for the same parameters, once for each sum.
///
/// A direct call `module->forward(x)` is fine. What it skips are prepare_forward(), so buffers are
/// not broadcast and join() refuses its backward, and prepare_backward(): buckets with unused
/// parameters wait for the end of backward. Where activation_checkpoint() hides all of the model's
/// output, and a parameter is unused, that end is not seen: gradients are reduced by the next
/// forward through DistributedDataParallel, too late for the optimizer's step. Call such a model
/// through that.
///
/// Collective, and blocks the host. Memory: the gradients once, of which `.grad` are parts. On the
/// CPU with ranks on one host it is what they share, so that nothing is copied for the sum.
///
/// Errors: TORCH_CHECK on a null module, on one without parameters that require grad, if
/// parameters or buffers of a rank have other names, shapes or dtypes than on rank 0, naming the
/// first and the rank, are not on the group's device, or have been sharded, and on options that are
/// wrong on some rank; those of Work::wait().
///
/// Errors of backward, on all ranks: a c10::Error with names and ranks if a parameter got no
/// gradient, unless find_unused_parameters or static_graph allow that; PeerError if a rank died or
/// left. On one rank: a sparse gradient, and one that comes twice, with the parameter's name. A
/// backward that throws drops the gradients that it has put into buckets. If it throws on all ranks
/// at the same place, the next one begins anew. Else ranks have reduced different buckets, and must
/// not go on with this group: make another one.
///
/// Source: `torch/nn/parallel/distributed.py`, `torch/csrc/distributed/c10d/reducer.cpp`.
[[nodiscard]] FSDP_API ReplicateModule
replicate(const std::shared_ptr<torch::nn::Module>& module,
          const DistributedDataParallelOptions& options = {});

/// A module with the same parameters on all ranks, called through this:
///
/// ```cpp
/// auto model = std::make_shared<Net>();
/// fsdp::DistributedDataParallel ddp(model);
/// torch::optim::SGD optimizer(ddp->parameters(), 0.1);
/// for (const auto& [x, y] : batches) {
///   optimizer.zero_grad();
///   torch::mse_loss(ddp(x), y).backward();
///   optimizer.step();
/// }
/// ```
///
/// Of a holder, such as one of TORCH_MODULE, it takes the module. M::forward may return what
/// `fsdp/visit_tensors.h` names. Errors: those of replicate().
template <class M>
class DistributedDataParallel : public ReplicateModule {
 public:
  /// See replicate().
  explicit DistributedDataParallel(std::shared_ptr<M> module,
                                   const DistributedDataParallelOptions& options = {})
      : ReplicateModule(replicate(module, options)), module_(std::move(module)) {}
  /// Of a torch::nn::ModuleHolder.
  template <class Holder,
            class = std::enable_if_t<std::is_same_v<typename Holder::ContainedType, M>>>
  explicit DistributedDataParallel(const Holder& holder,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(std::shared_ptr<M>(holder.ptr()), options) {}

  /// Runs M::forward between prepare_forward() and prepare_backward(), and returns what it returns,
  /// by value.
  template <class... Args>
  auto operator()(Args&&... args) const {
    prepare_forward();
    using Result = decltype(module_->forward(std::forward<Args>(args)...));
    if constexpr (std::is_void_v<Result>) {
      module_->forward(std::forward<Args>(args)...);
      prepare_backward(std::vector<at::Tensor*>());
    } else {
      std::decay_t<Result> result = module_->forward(std::forward<Args>(args)...);
      std::vector<at::Tensor*> outputs;
      using detail::visit_tensors;
      visit_tensors(result, outputs);
      prepare_backward(outputs);
      return result;
    }
  }

  /// The module's members; not for calling forward.
  M* operator->() const { return module_.get(); }
  /// The module.
  const std::shared_ptr<M>& module() const { return module_; }

 private:
  std::shared_ptr<M> module_;
};

/// Finds the type of the module that a torch::nn::ModuleHolder has.
template <class Holder>
DistributedDataParallel(const Holder&) -> DistributedDataParallel<typename Holder::ContainedType>;
/// The same with options.
template <class Holder>
DistributedDataParallel(const Holder&, DistributedDataParallelOptions)
    -> DistributedDataParallel<typename Holder::ContainedType>;

/// @}

}  // namespace fsdp
