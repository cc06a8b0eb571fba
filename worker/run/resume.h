#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/run/batches.h"
#include "worker/run/launch.h"
#include "worker/run/run_context.h"
#include "worker/run/run_record.h"
#include "worker/run/run_state.h"
#include "worker/run/training_state.h"

namespace fsdprun::worker {

/// What checkpoint.resume says, of a launch that has saved nothing yet. Collective. Errors:
/// ConfigError for a path that is no checkpoint; checkpoint::CheckpointError.
std::optional<checkpoint::Candidate> FindToResume(const TrainConfig::Checkpoint& config,
                                                  const checkpoint::Group& group,
                                                  const checkpoint::Unloadable& unloadable = {});

/// Whether the checkpoint `path` is one of those in `dir`, by the names alone, so that all ranks
/// say the same. Pure.
bool IsCheckpointIn(const std::string& path, const std::string& dir);

/// What else a run may have that a checkpoint does not fit, by the reason that was found: begins
/// with "; ", or is empty. Pure.
std::string HintAt(std::string_view mismatch);

/// A ConfigError, because a restart would fail again.
[[noreturn]] void RefuseCheckpoint(const checkpoint::Candidate& candidate, const std::string& why);

/// What is wrong with adapters that differ, after how they do.
inline constexpr char kOtherAdapters[] =
    ", so the adapters would compute something else; set lora and model.weights back, or set "
    "model.on_change to warn to continue with them";

/// Brings a run to where it goes on: to a checkpoint, or to its beginning. Thread: one.
class Resumer {
 public:
  /// All references outlive this object. `state` has the model, the optimizer and the records of
  /// this start.
  Resumer(const RunContext& context, checkpoint::Group group, LaunchIdentity identity,
          const TrainBatches& batches, RunState& state);

  /// Loads what checkpoint.resume and the launch's own checkpoints say, or fills new weights.
  /// Collective; may be called again if there is something newer. Returns the step of what was
  /// loaded if that is in checkpoint.dir; nullopt for a new run and for one that goes on from
  /// elsewhere, which has saved nothing there yet. Errors: ConfigError if a restart would fail
  /// again, such as for another model; checkpoint::CheckpointError.
  std::optional<int64_t> Resume();

  /// What a run that has come further is back at.
  struct Place {
    /// Of the checkpoint, if that is in checkpoint.dir.
    std::optional<int64_t> saved_step;
  };
  /// Loads the newest of the run's own checkpoints in checkpoint.dir, which are of `steps`, up to
  /// `step_max`, or, if there is none yet, what Resume has loaded; whatever checkpoint.resume says.
  /// Collective. Returns nullopt if there is neither. Errors: as above.
  std::optional<Place> RollBack(const std::set<int64_t>& steps, int64_t step_max);

  /// Whether a stop has interrupted the evaluation that the loaded step asks for.
  bool owes_evaluation() const { return owes_evaluation_; }

 private:
  using Find =
      std::function<std::optional<checkpoint::Candidate>(const checkpoint::Unloadable& unloadable)>;

  /// Returns what was loaded of what `find` chooses.
  std::optional<checkpoint::Candidate> LoadChosen(const Find& find);
  /// The step that was loaded, if its checkpoint is in checkpoint.dir.
  std::optional<int64_t> StepOf(const checkpoint::Candidate& loaded) const;
  std::optional<checkpoint::Candidate> FindCandidate(
      const checkpoint::Unloadable& unloadable) const;
  void Load(const checkpoint::Candidate& candidate);
  /// Fills what checkpoints do not have of a model with adapters, once. Collective.
  void FillBase();
  /// The same before the candidate is loaded. Collective. Errors: ConfigError for adapters or a
  /// base that are others, unless model.on_change allows them, and for a base that cannot be read.
  void FillBaseFor(const checkpoint::Candidate& candidate);
  /// What the candidate says of its run; nullopt if another program has written it. Collective.
  std::optional<RunRecord> RecordOf(const checkpoint::Candidate& candidate) const;
  /// Errors: ConfigError for other adapters, unless model.on_change allows them.
  void CheckAdapters(const RunRecord& before, const RunRecord& now) const;
  TrainingState Derive(const at::Tensor& steps) const;
  /// Of all but the cursor, which depends on the data.
  void TakeOver(const TrainingState& training);
  void StartAnew();
  /// Errors: ConfigError for another model, unless model.on_change allows it.
  void TellChanges(const TrainingState& training, const std::string& param_groups_json) const;
  void TellDerived(const TrainingState& training) const;
  /// Also leaves no bad data in the state whose positions are lost.
  DataCursor ResumedCursor(const TrainingState& training);

  RunContext context_;
  checkpoint::Group group_;
  LaunchIdentity identity_;
  const TrainBatches& batches_;
  RunState& state_;
  std::optional<int64_t> loaded_step_;
  /// What Resume has loaded.
  std::optional<std::string> start_path_;
  bool owes_evaluation_ = false;
};

}  // namespace fsdprun::worker
