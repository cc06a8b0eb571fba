#pragma once

/// @file
/// Gradient scaling for float16: torch.amp.GradScaler, on all ranks together.

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/state_dict.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace fsdp {

class Collectives;

/// @addtogroup optim
/// @{

/// Those of torch.amp.GradScaler, with its defaults.
struct FSDP_API GradScalerOptions {
  double init_scale = 65536;       ///< The first scale, positive.
  double growth_factor = 2;        ///< Times the scale, after `growth_interval` steps; above 1.
  double backoff_factor = 0.5;     ///< Times the scale, after a step that overflowed; in (0, 1).
  int64_t growth_interval = 2000;  ///< Steps in a row without overflow; at least 1.
  /// false: scale() and unscale_() do nothing, and step() is the optimizer's.
  bool enabled = true;
  /// Whose ranks skip a step together, as ShardedGradScaler's: for ranks that share no parameters,
  /// such as the stages of a pipeline. Null: see GradScaler.
  std::shared_ptr<Collectives> process_group = nullptr;
};

/// What torch.amp.GradScaler does with FSDP2, and ShardedGradScaler with FSDP1: multiplies the loss
/// so that small gradients do not vanish in float16, divides the gradients before the step, and
/// leaves the step out if one of them has overflowed, on all ranks alike.
///
/// ```cpp
/// fsdp::GradScaler scaler;
/// for (...) {
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);            // only for whoever clips
///   fsdp::clip_grad_norm_(sharded, 1.0);
///   scaler.step(optimizer);
///   scaler.update();
///   optimizer.zero_grad();
/// }
/// ```
///
/// Optimizers are fsdp::AdamW, and any of torch::optim over FSDPModule::parameters(), over other
/// tensors as well: each with a state of its own, so that several can share a scaler. One may be
/// without gradients in some steps only if it is not stepped then.
///
/// Agreement: before a step, or in unscale_(), the ranks that share parameters of the optimizer, or
/// of a model that these belong to, tell each other whether they have found an overflow, and
/// whether they have a gradient: one all-reduce of two elements for each axis of the mesh of the
/// model's unit on most ranks, which must have all ranks of the others. Gradients of other tensors
/// are looked at, but not told to others, unless the optimizer has one of a model as well, or there
/// is a `process_group`.
///
/// Work: with AdamW, a step without unscale_() reads each gradient once more than one without a
/// scaler, and writes none: what it divides by is part of the update. CPU: float32 has the bits of
/// Python's GradScaler with torch.optim.AdamW. CUDA: the host waits for the device in get_scale()
/// and state_dict(), and in step() with an optimizer of torch::optim, as in Python, and on a
/// rank that has no gradient where others may have one; steps of AdamW that overflow are left out
/// on the device.
///
/// Gradients may have any floating-point dtype, float16 included, as with ShardedGradScaler; on
/// CUDA, bfloat16 only in step() with AdamW. Thread: the rank's. All ranks make the same calls.
/// Errors: TORCH_CHECK where torch.amp.GradScaler raises; of what is not finite nothing is an
/// error. Those of Work::wait().
class FSDP_API GradScaler {
 public:
  /// Errors: TORCH_CHECK on an option out of its range, if `enabled`.
  explicit GradScaler(GradScalerOptions options = {});

  /// `output` * scale, in the dtype that PyTorch gives the product with a 0-dim float32 tensor: a
  /// 0-dim float16 loss becomes float32. The scale lives on the device of the first one.
  at::Tensor scale(const at::Tensor& output);
  /// Each of them.
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the optimizer's gradients by the scale, in place, for whoever clips or looks at them
  /// before step(). Once for each optimizer between two update(), when all of its gradients are
  /// there. Collective. Errors: TORCH_CHECK a second time, after step(), before the first scale().
  void unscale_(AdamW& optimizer);
  /// The same.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// The same of all gradients under `module`, once, for optimizers that share them: a step() of
  /// one whose parameters are all under it then divides by nothing. Errors, besides: TORCH_CHECK on
  /// an empty handle, and if some of them have been unscaled with an optimizer or another module;
  /// and of the steps, on an optimizer of which only some units are under it.
  void unscale_(const FSDPModule& module);

  /// Unscales the gradients, unless unscale_() has, and steps, unless one of them, on any rank, is
  /// infinite or NaN. AdamW: gradients that overflowed stay as they are. Collective. Errors:
  /// TORCH_CHECK the second time since update(), before the first scale(), and if no rank has
  /// a gradient; those of AdamW::step().
  void step(AdamW& optimizer);
  /// The same. Returns what the optimizer returns; undefined if it has been left out. Errors,
  /// besides: TORCH_CHECK with a closure if scaling is enabled, as in Python: it would compute
  /// gradients that nobody unscales.
  at::Tensor step(torch::optim::Optimizer& optimizer,
                  const std::function<at::Tensor()>& closure = nullptr);
  /// The same with an update of your own, of FSDPModule::sharded_parameters() under `module` by
  /// FSDPModule::sharded_gradients(). CUDA: the host waits for the device.
  void step(const FSDPModule& module, const std::function<void()>& update);

  /// To be called after the step() of all optimizers: shrinks the scale if one has been left out,
  /// grows it after `growth_interval` times without. Errors: TORCH_CHECK if nothing has been
  /// unscaled or stepped since the last time.
  void update();
  /// The same, with this scale instead.
  void update(double new_scale);

  /// 1 if scaling is disabled. CUDA: blocks the host.
  double get_scale() const;
  /// As the options said.
  bool is_enabled() const { return options_.enabled; }
  /// As they are now.
  double get_growth_factor() const { return options_.growth_factor; }
  /// Errors: TORCH_CHECK unless it is above 1.
  void set_growth_factor(double new_factor);
  /// As they are now.
  double get_backoff_factor() const { return options_.backoff_factor; }
  /// Errors: TORCH_CHECK unless it is in (0, 1).
  void set_backoff_factor(double new_factor);
  /// As they are now.
  int64_t get_growth_interval() const { return options_.growth_interval; }
  /// Errors: TORCH_CHECK unless it is at least 1.
  void set_growth_interval(int64_t new_interval);

  /// Python's entries: "scale", "growth_factor", "backoff_factor" (0-dim, float64),
  /// "growth_interval" and "_growth_tracker" (0-dim, int64), on the CPU, as fsdp::save() takes
  /// them; none if scaling is disabled. Behind update(). CUDA: blocks the host.
  ModelStateDict state_dict() const;
  /// No-op if scaling is disabled. Errors: TORCH_CHECK on an empty dict, on a missing or unknown
  /// entry and on one that is not one number; nothing has changed then.
  void load_state_dict(const ModelStateDict& state_dict);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  /// Of an optimizer, or of a module, since the last update().
  struct State {
    Stage stage = Stage::kReady;
    bool is_module = false;
    at::Tensor found_inf = {};  // [1]; undefined: no gradient has been looked at
    std::vector<std::shared_ptr<ParamGroup>> groups = {};  // that have been unscaled
  };
  struct Target;

  static Target target_of(AdamW& optimizer);
  static Target target_of(torch::optim::Optimizer& optimizer);
  static Target target_of(const FSDPModule& module);
  void check_options() const;
  void check_started(const char* method) const;
  void start_on(c10::Device device);
  State& begin_unscale(const void* key);
  State& begin_step(const void* key);
  template <class Optimizer>
  void unscale_gradients_of(Optimizer& optimizer);
  void unscale(State& state, const Target& target);
  bool is_unscaled_with_module(State& state, const Target& target) const;
  void unscale_unless_done(State& state, const Target& target);
  /// Whether some rank has `found` one; undefined if none has a gradient. Collective, whether this
  /// rank has one or not.
  at::Tensor agreed(const at::Tensor& found, const Target& target) const;
  at::Tensor inverse_scale(c10::Device device) const;

  GradScalerOptions options_;
  at::Tensor scale_;           // 0-dim, float32; undefined until the first scale()
  at::Tensor growth_tracker_;  // 0-dim, int32, with it
  int64_t init_growth_tracker_ = 0;
  std::map<const void*, State> states_;  // by address of the optimizer or the module's state
};

/// @}

}  // namespace fsdp
