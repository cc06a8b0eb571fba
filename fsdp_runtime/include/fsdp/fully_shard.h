#pragma once

/// @file
/// Sharding a module: fully_shard(), and the handle that it returns.

#include <ATen/core/Tensor.h>
#include <fsdp/clip_grad.h>
#include <fsdp/export.h>
#include <fsdp/fully_shard_options.h>
#include <fsdp/shard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace c10 {
struct Event;
}  // namespace c10

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace fsdp {

/// @addtogroup shard
/// @{

/// This rank's shard of one parameter, or of a tensor that is divided like it (gradient, optimizer
/// state), with its data.
struct FSDP_API LocalShard : Shard {
  /// [elements of all boxes], contiguous: one box behind the other, in the parameter's own dtype.
  /// A view of what the rank keeps, so that writing it sets the parameter, gradient or state;
  /// except that a state dict with cpu_offload has copies, on the CPU. Undefined if there is no
  /// such tensor.
  at::Tensor local{};  // with `=`, Doxygen would take the name for a keyword
};

/// Copies this rank's part of `whole`, of shape `shard.global_shape` and on any device, to
/// `shard.local`, box by box, with a cast where dtypes differ and without memory of its own. Local.
/// CUDA: on the current stream. Errors: TORCH_CHECK on another shape, or if `local` is undefined.
FSDP_API void copy_part_of(const at::Tensor& whole, const LocalShard& shard);

class AllGather;
class ModuleState;
class ParamGroup;
class ReduceScatter;

/// An all-gather of a unit's parameters that FSDPModule::unshard_async() has issued: FSDP2's
/// UnshardHandle. Cheap to copy; dropping it cancels nothing.
class FSDP_API UnshardHandle {
 public:
  /// For libfsdp's own parts.
  explicit UnshardHandle(std::shared_ptr<ModuleState> state) : state_(std::move(state)) {}
  /// Waits until the parameters can be used. CPU: blocks the host; CUDA: the current stream waits.
  /// No-op if the unit has been resharded since, and if it has been called. Throws like
  /// Work::wait(). Thread: the rank's.
  void wait() const;

 private:
  std::shared_ptr<ModuleState> state_;
};

/// Takes back what has been registered: torch.utils.hooks.RemovableHandle. Cheap to copy; dropping
/// it removes nothing.
class FSDP_API RemovableHandle {
 public:
  /// Of nothing.
  RemovableHandle() = default;
  /// For libfsdp's own parts.
  explicit RemovableHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  /// From the next backward on. No-op if it has been removed, or its module is gone. Thread: the
  /// rank's, outside of backward.
  void remove() {
    if (const std::function<void()> remove = std::exchange(remove_, nullptr)) {
      remove();
    }
  }

 private:
  std::function<void()> remove_;
};

/// Handle of a sharded module, with the methods of FSDP2's FSDPModule. Cheap to copy. It keeps what
/// the unit knows alive, but not the module.
///
/// Thread: the rank's, outside of forward and backward. Settings are local; all ranks make the same
/// ones. Errors: TORCH_CHECK of every method on an empty handle, and of those that look for nested
/// units or parameters if the module is gone.
class FSDP_API FSDPModule {
 public:
  /// Empty: of no module.
  FSDPModule() = default;
  /// For libfsdp's own parts: a user's handle comes from fully_shard() or fsdp_module().
  explicit FSDPModule(std::shared_ptr<ModuleState> state) : state_(std::move(state)) {}
  /// Whether this is a handle of a module.
  explicit operator bool() const { return state_ != nullptr; }

  /// All-gathers this unit's parameters, not those of nested units, and waits until they can be
  /// used. No-op when unsharded. All ranks call it. CPU: blocks the host; CUDA: the current stream
  /// waits. Throws like Work::wait().
  void unshard() const;
  /// As unshard(), without waiting: to be overlapped with what the rank does next. The unit's
  /// forward waits, too. No forward need have run before. All ranks call it, in the same order
  /// relative to other gathers.
  UnshardHandle unshard_async() const;
  /// Frees this unit's unsharded parameters now. No collective. No-op when sharded.
  void reshard() const;
  /// false: backward accumulates unsharded gradients without reducing them (FSDP2's no_sync); the
  /// next backward with true reduces the sum. Applies to nested units when `recurse`.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true) const;
  /// With hybrid sharding, false: backward reduces in the row only, and keeps the sum, of the size
  /// of a shard, to itself; the next backward with true adds it to its own and all-reduces both
  /// over the copies, also for units that it does not pass through. So micro batches communicate
  /// between rows once, and the others exchange nothing between rows. Without copies it has no
  /// effect.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true) const;
  /// `hook(gradient)` is called once per reduction with this unit's reduced gradients (those of one
  /// dtype at a time), flat, [elements of this rank's shard with padding], in the reduction dtype,
  /// not yet divided by a divide factor: behind the reduce-scatter and, with hybrid sharding,
  /// behind the all-reduce, and not where that is put off. It may write them, for example
  /// all-reduce over a group of its own and wait for that, in which case all ranks of that group
  /// need such a hook, which does the same on all copies, or these drift apart. What it writes to
  /// padding is undone. Takes effect at the next backward that starts a new accumulation; an empty
  /// one removes it. If it throws, the unit's gradient stays what it was before this backward, less
  /// what its row has summed without all-reduce; backward goes on, so that no peer waits, and
  /// throws the first such exception at its end; the group can be used further. If it throws on
  /// some ranks only, the others have a new gradient of this unit, so nobody must step with it:
  /// zero_grad() on all ranks, and try again, or end. Without grad mode. Thread: CPU: that of the
  /// last collective's lane, of which units on different meshes have different ones, at the same
  /// time. CUDA: the caller's, with the lane's stream as the current one.
  void set_all_reduce_hook(std::function<void(at::Tensor gradient)> hook) const;
  /// PyTorch's Tensor.register_post_accumulate_grad_hook on all parameters of this unit, and of
  /// nested units when `recurse`: in a backward, `hook(fqn, parameter)` is called with each
  /// parameter that has a gradient, as soon as its unit has been reduced, while backward goes on
  /// with others. `parameter` is that of parameters(), with the reduced gradient in `.grad`; it may
  /// be written, as by an optimizer of its own:
  ///
  /// ```cpp
  /// std::map<std::string, torch::optim::AdamW> optimizers;
  /// for (const auto& [fqn, parameter] : sharded.named_parameters()) {
  ///   optimizers.emplace(fqn, torch::optim::AdamW({parameter}, options));
  /// }
  /// sharded.register_post_accumulate_grad_hook([&](const std::string& fqn, at::Tensor) {
  ///   optimizers.at(fqn).step();
  ///   optimizers.at(fqn).zero_grad();
  /// });
  /// ```
  ///
  /// Where all gradients of a unit have been set to None by its hooks, their memory goes to units
  /// that come later: never more than two units have gradients, if each has one dtype, nothing is
  /// offloaded and each backward is the last one. Kept gradients stay what they are. For
  /// fsdp::AdamW see apply_optimizer_in_backward().
  ///
  /// Micro batches: not called where nothing is reduced (set_requires_gradient_sync, and
  /// set_requires_all_reduce with copies), and for set_is_last_backward(false) behind the last,
  /// with the sum. Gradients are not there for what needs those of all units at the end of the
  /// backward, such as clip_grad_norm_() or GradScaler. A unit that backward comes to again after
  /// that is an error: its gradient was not complete.
  ///
  /// All ranks register the same hooks. The unit is resharded before they run, also after
  /// set_reshard_after_backward(false). Each unit costs one more exchange of a few bytes, for which
  /// the host waits in the backward; on CUDA that is a round trip to the job's store, whose rank
  /// answers all others, so that with many ranks it can be slower than a small unit's backward.
  /// What a hook throws is thrown at the end of the backward, whose other units are reduced all the
  /// same. Thread: the one that runs the backward; CUDA: on its current stream, behind the
  /// reduction. Without grad mode. The units keep the hook, which must not keep a handle of them.
  /// Errors: TORCH_CHECK in a backward, and on an empty hook.
  RemovableHandle register_post_accumulate_grad_hook(
      std::function<void(const std::string& fqn, at::Tensor parameter)> hook,
      bool recurse = true) const;
  /// As FullyShardOptions::reshard_after_forward, from the next forward on. With an integer that
  /// makes groups of neighbours, all ranks call it, and it blocks the host. Errors: TORCH_CHECK if
  /// an integer does not divide the number of ranks.
  void set_reshard_after_forward(ReshardAfterForward reshard_after_forward,
                                 bool recurse = true) const;
  /// false: this unit's parameters stay gathered after backward, until reshard() or the end of the
  /// next forward that reshards. Needed for second derivatives: a backward with create_graph makes
  /// a graph that reads the gathered parameters again, and reading what has been freed ends the
  /// process.
  void set_reshard_after_backward(bool reshard_after_backward, bool recurse = true) const;
  /// false: backward does not gather this unit's parameters, for one whose gradients do not need
  /// them, such as an embedding: nested units keep theirs. A backward that reads them all the same
  /// crashes the process, as reading freed parameters does. A recomputation gathers.
  void set_unshard_in_backward(bool unshard_in_backward) const;
  /// false: for all micro batches of a step but the last. Backward then ends without waiting for
  /// its reductions, which the next backward overlaps; gradients are complete, and shards may be
  /// written, after a backward with true only. For all units under the same root, until it is set
  /// again. As the other settings, the same on all ranks.
  void set_is_last_backward(bool is_last_backward) const;
  /// Units to prefetch when this one begins its forward, instead of the next in the recorded order;
  /// none: the recorded order again. The same on all ranks.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules) const;
  /// The same when this one begins its backward.
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules) const;
  /// This unit's gradient sums are divided by `factor` instead of by the number of ranks, replicas
  /// included; nested units keep theirs. Errors: TORCH_CHECK unless `factor` is positive. Takes
  /// effect at the next backward that starts a new accumulation; sums of rows that wait for their
  /// all-reduce are part of the old one. The sum is computed in the reduction dtype and then
  /// divided; in float16, which overflows easily, part of the division precedes the sum, as in
  /// FSDP2.
  void set_gradient_divide_factor(double factor) const;

  /// true: gradients are reduced as sums, and divided afterwards by themselves: for communicators
  /// that cannot average. This unit's, not those of nested units. float16, of which part of the
  /// division precedes the sum, is summed anyway. Takes effect like set_gradient_divide_factor().
  void set_force_sum_reduction_for_comms(bool enable) const;
  /// The next forward of the root, under which this unit is, waits with its first gathers for
  /// `event`, not for all that the current stream has been given: so what was issued behind the
  /// optimizer's step overlaps them. `event` is recorded behind the step, on the stream of the
  /// training, and is used once:
  ///
  /// ```cpp
  /// optimizer.step();
  /// auto event = std::make_shared<c10::Event>(c10::DeviceType::CUDA);
  /// event->record(c10::cuda::getCurrentCUDAStream());
  /// sharded.set_post_optim_event(std::move(event));
  /// ```
  ///
  /// It is forgotten, and the forward waits for all, if libfsdp writes shards or gathers or
  /// reshards a unit meanwhile: prepare_to_write(), AdamW::step(), init_parameters(), a load of a
  /// state dict, unshard(), reshard(), a call of a nested unit; or a use of memory that the root
  /// shares (share_comm_ctx()). Pass it as soon as it is recorded: what libfsdp does before that is
  /// not seen. Several roots may have the same event. What you do to shards or gathered
  /// parameters yourself belongs ahead of the event. Errors: TORCH_CHECK unless it has been
  /// recorded, on the device of the parameters. On the CPU the step has ended when the forward
  /// begins, and nothing waits.
  void set_post_optim_event(std::shared_ptr<c10::Event> event) const;
  /// How this unit's parameters, not those of nested units, are gathered from the next time on, by
  /// one rank alone that does not cast not at all; null: by the mesh's group again. Takes its own
  /// memory, also where the ranks of a host would read each other's shards in place.
  void set_custom_all_gather(std::shared_ptr<AllGather> comm) const;
  /// How its gradients are reduced over the ranks that divide its parameters, if there are several,
  /// from the next backward on that starts a new accumulation. An all-reduce over copies is not
  /// replaced. Null: by the mesh's group again.
  void set_custom_reduce_scatter(std::shared_ptr<ReduceScatter> comm) const;

  /// For any optimizer of torch::optim, or one of your own:
  ///
  /// ```cpp
  /// torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  /// ```
  ///
  /// This rank's parts of all parameters under this unit, nested units included, in registration
  /// order of the root, as leaves of autograd: flat, [elements that this rank holds], or, where a
  /// shard_placement_fn has divided them, in the shape of this rank's chunk. There may be none of
  /// them; in the parameters' own dtypes. After backward each has this rank's part of the gradient
  /// in `.grad`, reduced over all ranks, or none if no rank has used the parameter. step() updates
  /// the shards. Set to None by zero_grad(), gradients begin anew; zeroed in place, or kept, they
  /// are added to. So it is right for what computes element by element, and along dimensions that
  /// are not divided. What needs norms of whole tensors or gradients (LAMB, clip_grad_norm_ of
  /// torch::nn::utils) sees a part only: use fsdp::clip_grad_norm_. To be written between the end
  /// of a backward and the next forward, as sharded_parameters(); the same tensors each time.
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
  void prepare_to_write() const;
  /// This rank's parts of the gradients, reduced over all ranks, in the parameters' own dtypes and
  /// in the order of sharded_parameters(). Views, which clip_grad_norm_() and others write in
  /// place. Waits for reductions in flight; throws like Work::wait(). Entries of parameters that no
  /// rank has used since zero_grad() have an undefined `local`, as `.grad` is None in PyTorch.
  std::vector<LocalShard> sharded_gradients() const;
  /// Calls `init(fqn, full)` once per parameter in registration order with a full-size scratch
  /// tensor, uninitialised, in the parameter's own shape and dtype and on its device, and keeps
  /// this rank's shard. Without grad mode. Peak memory: the shards plus one parameter. Every rank
  /// sees the same calls, so equally seeded generators give the same model at any world size. All
  /// ranks call it, as prepare_to_write().
  void init_parameters(
      const std::function<void(const std::string& fqn, at::Tensor full)>& init) const;
  /// The full parameter on every rank (collective: all ranks must call), a copy in its own shape,
  /// dtype and device. For sampling, export and tests: it gathers, for a moment, all parameters of
  /// the same unit and dtype. `fqn`: as sharded_parameters() names it. Errors: TORCH_CHECK on an
  /// unknown name; those of Work::wait().
  at::Tensor full_parameter(const std::string& fqn) const;
  /// This unit and all units nested in it, this one first.
  std::vector<FSDPModule> units() const;
  /// For libfsdp's own parts: what it points to is not in the public headers. Null if empty.
  const std::shared_ptr<ModuleState>& state() const { return state_; }

 private:
  std::shared_ptr<ModuleState> state_;
};

/// Shards the parameters of `module` that no earlier call has sharded, as one group: one
/// all-gather, one reduce-scatter. Call it bottom-up (blocks, then the root): the topmost sharded
/// module is the root.
///
/// ```cpp
/// for (const auto& block : *model->blocks) {
///   fsdp::fully_shard(block);  // over all ranks; {.mesh = mesh} names others
/// }
/// fsdp::FSDPModule sharded = fsdp::fully_shard(model);
/// ```
///
/// All ranks of the mesh call it, for the same modules in the same order; it may block the host for
/// that. Parameters that differ in dtype or requires_grad form separate groups. Parameter names are
/// unchanged; a parameter registered under several names stays one. Parameters may be
/// unmaterialized (unmaterialized_parameter()); then no full copy ever exists and
/// FSDPModule::init_parameters() or a state dict fills the shards, which are zeros until then.
/// Otherwise each rank keeps its shard of its own values, so the model must be the same on all
/// ranks before.
///
/// Afterwards the module must be called through a Unit (or call(), or as a Sharded). A parameter
/// whose unit is sharded has no data: whoever reads or writes it gets a c10::Error with its name,
/// as do a forward() that is called directly, to(), clone() and torch::save(). A view of it that
/// was made while it was whole does not know of this: accessing that crashes the process on the
/// CPU, and on CUDA the kernel gets a null pointer, which the device reports as an illegal access
/// at the next synchronisation.
///
/// If a unit's backward runs on one rank it must run on every rank, because each takes part in its
/// reduce-scatter; parameters that only some ranks use are reduced as zeros by the others, and
/// those that no rank used have no gradient, as in FSDP2. The module's own parameters never keep a
/// `.grad`: gradients are reduced into FSDPModule::sharded_gradients(), which are also the `.grad`
/// of FSDPModule::parameters().
///
/// Errors: TORCH_CHECK without a module, without a mesh where there is not one process group (see
/// default_process_group()), on a mesh with more than two axes, on an already
/// sharded module or one inside a module that was sharded before it, on one around units that have
/// a root outside it or have run already, on a parameter that is 0-dim, non-contiguous, not a leaf
/// or on another device than the mesh's group (with an offload_policy: than the CPU), on one whose
/// gradient would be reduced in a dtype that no group can, on a parameter shared with a unit that
/// is sharded separately (names both), on a container without forward (torch::nn::ModuleList,
/// ModuleDict), on a reshard_after_forward that does not divide the number of ranks, on a limit
/// below 1, and on what a shard_placement_fn should not give. Nothing has changed then.
FSDP_API FSDPModule fully_shard(const std::shared_ptr<torch::nn::Module>& module,
                                const FullyShardOptions& options = {});

/// Several modules as one unit: their parameters are one group, which is gathered when the first of
/// them runs and resharded when all have run, in forward as in backward. For small modules that run
/// together, such as the last norm and the head:
///
/// ```cpp
/// fsdp::fully_shard({model->norm.ptr(), model->head.ptr()}, {.mesh = mesh});
/// fsdp::FSDPModule sharded = fsdp::fully_shard(model, {.mesh = mesh});
/// ```
///
/// The handle is that of all of them, and names their parameters by their places in the list:
/// "0.weight", "1.weight"; the root's handle names them as ever. A unit of several modules is no
/// root: a module around all of them is to be sharded as well, before the first forward. If some
/// have not run when the root's forward or the next backward begins or ends, the unit is resharded
/// then, and the first time a warning names them. Errors: as above, of each of them, and
/// TORCH_CHECK on an empty list and on a module that is in it twice. Nothing has changed then.
FSDP_API FSDPModule fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                const FullyShardOptions& options = {});

/// The same of the module that a torch::nn::ModuleHolder has, such as one of TORCH_MODULE. Errors:
/// as there; c10::Error if it is empty.
template <class M>
FSDPModule fully_shard(const torch::nn::ModuleHolder<M>& module,
                       const FullyShardOptions& options = {}) {
  return fully_shard(std::shared_ptr<torch::nn::Module>(module.ptr()), options);
}

/// FSDP2's share_comm_ctx, for several roots that take turns on one stream, such as the stages of a
/// pipeline on this rank: they gather and reduce in the same memory, which one uses while the
/// others rest. The lanes, or streams, of a group are shared anyway. Until a module around a root
/// is sharded, which makes that the root. runtime_counters() of each then counts the memory of all.
/// Thread: the rank's. Local.
///
/// Errors: TORCH_CHECK on a handle that is empty or of no root, while a unit is gathered or has
/// gradients that have not been reduced, and unless all are on one device and group.
FSDP_API void share_comm_ctx(const std::vector<FSDPModule>& roots);

/// The handle of a module that fully_shard() was called with; an empty handle otherwise. Local.
FSDP_API FSDPModule fsdp_module(const torch::nn::Module& module);

/// A parameter with shape, dtype and device but without memory, for what FSDP2 uses the meta
/// device: the model is sharded before it is materialized. It must not be read or written before
/// fully_shard(): LibTorch does not always notice, and then the process crashes. Local. Errors:
/// TORCH_CHECK on a negative size.
///
/// It is for modules of your own. Those of torch::nn, which allocate their parameters and draw them
/// in their constructors, are made by deferred_init().
FSDP_API at::Tensor unmaterialized_parameter(at::IntArrayRef sizes, at::ScalarType dtype,
                                             c10::Device device);

/// @}

}  // namespace fsdp
