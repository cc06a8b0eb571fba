#pragma once

/// @file
/// State dicts of sharded models and their optimizers: what torch.distributed.checkpoint.state_dict
/// is in Python, with its names.
///
/// ```cpp
/// // all ranks; rank 0 has the whole model, on the CPU, and writes it
/// const fsdp::StateDictOptions whole{.full_state_dict = true, .cpu_offload = true};
/// const fsdp::ModelStateDict model_state = fsdp::get_model_state_dict(model, whole);
/// if (rank == 0) fsdp::save(model_state, "model.pt");
///
/// // all ranks; only rank 0 reads
/// fsdp::ModelStateDict loaded;
/// if (rank == 0) loaded = fsdp::load("model.pt");
/// fsdp::set_model_state_dict(model, loaded,
///                            {.full_state_dict = true, .broadcast_from_rank0 = true});
/// ```
///
/// Rank 0 is the rank that is first on each axis of the model's mesh, which must have all ranks of
/// the meshes of nested units. Thread: the rank's, outside of forward and backward.

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/fully_shard.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

/// @addtogroup state_dict
/// @{

/// What the functions that get and those that set do. Each field says of which it is.
struct FSDP_API StateDictOptions {
  /// get: whole tensors, which all ranks gather together; else each rank's shards, without
  /// communication. set: takes tensors as they are, whole or shards; broadcast_from_rank0 needs it.
  bool full_state_dict = false;
  /// get: copies in the CPU's memory; with full_state_dict on rank 0 alone, and the others get
  /// empty dicts.
  bool cpu_offload = false;
  /// Of models. get: without parameters that have requires_grad == false. set: they may be missing.
  bool ignore_frozen_params = false;
  /// set: missing and unexpected keys are errors.
  bool strict = true;
  /// set: rank 0 passes whole tensors and sends them; what the others pass is not looked at.
  bool broadcast_from_rank0 = false;
};

/// A tensor of a state dict: whole, in its own shape, or this rank's part of it.
using StateValue = std::variant<at::Tensor, LocalShard>;

/// By name, in the order of Python's Module.state_dict(): of each module parameters, buffers,
/// submodules. The names are those of the module without sharding; what is registered under several
/// names (tied parameters, shared modules) is there under each of them. Buffers, which are not
/// sharded, are whole on each rank; LibTorch knows no non-persistent ones.
using ModelStateDict = torch::OrderedDict<std::string, StateValue>;

/// What `load_state_dict` of Python returns.
struct FSDP_API IncompatibleKeys {
  std::vector<std::string> missing_keys;     ///< The model has them, the dict has not.
  std::vector<std::string> unexpected_keys;  ///< The dict has them, the model has not.
  /// Member by member.
  bool operator==(const IncompatibleKeys&) const = default;
};

/// An option of an optimizer; none: None of Python. Vectors are tuples in Python (betas).
using OptionValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>>;

/// An entry of Python's `param_groups`.
struct FSDP_API OptimizerParamGroup {
  std::vector<std::string> params = {};             ///< Names, in the optimizer's order.
  std::map<std::string, OptionValue> options = {};  ///< "lr", "betas", ...
  /// Member by member.
  bool operator==(const OptimizerParamGroup&) const = default;
};

/// What Python's get_optimizer_state_dict returns: states by name of the parameter, then by
/// Python's name of the state. "step" is whole, 0-dim, float32, on the CPU; the others are divided
/// like the parameter and have its shape. A parameter that has never been updated has no state.
struct FSDP_API OptimizerStateDict {
  /// By name of the parameter, then of the state: "step", "exp_avg", ...
  torch::OrderedDict<std::string, torch::OrderedDict<std::string, StateValue>> state;
  std::vector<OptimizerParamGroup> param_groups;  ///< In the optimizer's order.
};

class AdamW;
class Muon;
class SGD;

/// An optimizer, for the length of a call; made where one is passed. Of one of these types:
/// fsdp::AdamW, fsdp::SGD, fsdp::Muon; SGD, Adam, AdamW, RMSprop and Adagrad of torch::optim, and
/// what is derived from them without a state of its own, over FSDPModule::parameters() of the same
/// model. Another one is an error with its type.
class FSDP_API OptimizerRef {
 public:
  /// Of libfsdp's own.
  // NOLINTNEXTLINE(google-explicit-constructor): a reference, as the functions below want it
  OptimizerRef(AdamW& optimizer) : ref_(&optimizer) {}
  /// The same.
  // NOLINTNEXTLINE(google-explicit-constructor)
  OptimizerRef(SGD& optimizer) : ref_(&optimizer) {}
  /// The same.
  // NOLINTNEXTLINE(google-explicit-constructor)
  OptimizerRef(Muon& optimizer) : ref_(&optimizer) {}
  /// Of torch::optim.
  // NOLINTNEXTLINE(google-explicit-constructor)
  OptimizerRef(torch::optim::Optimizer& optimizer) : ref_(&optimizer) {}
  /// For libfsdp's own parts.
  const std::variant<AdamW*, SGD*, Muon*, torch::optim::Optimizer*>& get() const { return ref_; }

 private:
  std::variant<AdamW*, SGD*, Muon*, torch::optim::Optimizer*> ref_;
};

/// The model's parameters and buffers. With full_state_dict all ranks call it, and it gathers the
/// parameters of a group of a unit together, 64 MiB at a time: no rank takes more beside its
/// result, however large a parameter is. Whole tensors and those of cpu_offload are copies; shards
/// and buffers are views, as FSDPModule::sharded_parameters(), which training goes on to write, and
/// which are not to be written. dtypes are the parameters' own. CUDA: cpu_offload blocks the host.
///
/// Errors: TORCH_CHECK on an empty handle or on broadcast_from_rank0; with full_state_dict, on all
/// ranks, also if the ranks have not the same parameters or options. Those of Work::wait().
FSDP_API ModelStateDict get_model_state_dict(const FSDPModule& model,
                                             const StateDictOptions& options = {});
/// Writes a dict into the model; returns the keys that did not fit, if not `strict`. All ranks call
/// it, and it blocks the host. Nothing is written, on any rank, unless every rank finds that it can
/// be. Parameters are resharded, as by FSDPModule::prepare_to_write(); gradients stay. Tensors of
/// any device are copied. broadcast_from_rank0 sends 64 MiB at a time, or one row of a tensor.
/// Shards must be what this rank holds of the tensor: those of another number of ranks, or of
/// another model, are refused.
///
/// Errors: TORCH_CHECK on all ranks, if one has it; the others name that rank. One message has all
/// problems of the rank: missing and unexpected keys (strict), another shape or dtype with the key
/// and both, a shard that is none of this rank's; parameters that the ranks do not have alike.
/// Throws like Work::wait(). If it does so in the middle, for a lost peer, the model is half
/// written. A rank that cannot go on in the middle, as for lack of memory, ends the world, as by
/// Collectives::abort().
FSDP_API IncompatibleKeys set_model_state_dict(const FSDPModule& model,
                                               const ModelStateDict& state_dict,
                                               const StateDictOptions& options = {});

/// The optimizer's states and options; as get_model_state_dict() otherwise. Errors, besides:
/// TORCH_CHECK on another type of optimizer, and on one that is not over this model's parameters.
FSDP_API OptimizerStateDict get_optimizer_state_dict(const FSDPModule& model,
                                                     OptimizerRef optimizer,
                                                     const StateDictOptions& options = {});
/// Writes a dict into the optimizer; as set_model_state_dict() otherwise. Options are those of the
/// group of the dict that names the parameters: all of a group of the
/// optimizer must be in one. A parameter that the dict names without a state loses its own, as if
/// it had never been updated. `strict`: a parameter that no group of the dict names, a state of one
/// that the optimizer has not, and an option that it has not are errors; else the first keeps what
/// it has, and the others are left out. What only says how Python computes (foreach, fused,
/// capturable, differentiable), or belongs to its schedulers (initial_lr), is left out in any case.
/// States that the optimizer does not know, or lacks, are errors.
FSDP_API void set_optimizer_state_dict(const FSDPModule& model, OptimizerRef optimizer,
                                       const OptimizerStateDict& state_dict,
                                       const StateDictOptions& options = {});

/// Both get_model_state_dict() and get_optimizer_state_dict().
FSDP_API std::pair<ModelStateDict, OptimizerStateDict> get_state_dict(
    const FSDPModule& model, OptimizerRef optimizer, const StateDictOptions& options = {});
/// Both set_model_state_dict() and set_optimizer_state_dict(); writes neither unless both can be
/// written.
FSDP_API IncompatibleKeys set_state_dict(const FSDPModule& model, OptimizerRef optimizer,
                                         const ModelStateDict& model_state_dict,
                                         const OptimizerStateDict& optimizer_state_dict,
                                         const StateDictOptions& options = {});

/// @}

/// @addtogroup files
/// @{

/// Writes what Python's `torch.load(path, weights_only=True)` reads: `{name: tensor}`. One rank
/// calls it, and blocks until the file is on the disk. The file is written beside `path` and
/// renamed when it is on the disk, so that whatever happens there is the old file, the new one or
/// none. Memory: none of the size of a tensor, unless that is on a device. A tensor that is a view
/// of a larger one takes the larger one with it, as in Python. Errors: TORCH_CHECK, with the path,
/// on shards, and on what the file system says.
FSDP_API void save(const ModelStateDict& state_dict, const std::string& path);
/// The same of `{"state": {name: {"step": ..., ...}}, "param_groups": [{"lr": ..., "params":
/// [names]}]}`, which Python's set_optimizer_state_dict takes.
FSDP_API void save(const OptimizerStateDict& state_dict, const std::string& path);

/// Reads what save() or Python's `torch.save(model.state_dict(), path)` has written, on the CPU.
/// Nothing that the file contains is executed, and it takes no more memory than a multiple of its
/// size. Errors: c10::Error, with the path, and the key where there is one, on anything else, such
/// as a dict of dicts, and on a file that is cut off or of which bytes have changed: each record is
/// compared with its CRC-32, unless torch.save was told not to compute one
/// (`torch.serialization.set_crc32_options`).
FSDP_API ModelStateDict load(const std::string& path);
/// The same of what save() or Python's `torch.save(get_optimizer_state_dict(...), path)` has
/// written.
FSDP_API OptimizerStateDict load_optimizer(const std::string& path);

/// @}

}  // namespace fsdp
