#pragma once

#include <fsdp/optim.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/contract/control_channel.h"
#include "worker/contract/worker_environment.h"
#include "worker/data/token_stream.h"
#include "worker/train/batches.h"
#include "worker/train/config.h"
#include "worker/train/data_record.h"
#include "worker/train/fault_notice.h"
#include "worker/train/job.h"
#include "worker/train/launch.h"
#include "worker/train/metrics.h"
#include "worker/train/progress.h"
#include "worker/train/stop_plan.h"
#include "worker/train/training_state.h"
#include "worker/train/vitals.h"

namespace fsdprun::worker {

/// One training run of this rank, from the configuration to the last checkpoint.
/// Thread: one. All calls are collective over the job's ranks.
class Trainer {
 public:
  /// Checks the input (data, model description, output paths), forms the job, initialises or loads
  /// the weights. Errors: ConfigError if a restart cannot help; otherwise c10::Error,
  /// CheckpointError, std::runtime_error. `channel` outlives this object.
  Trainer(const Json& resolved, const WorkerEnvironment& environment, ControlChannel& channel);

  /// Trains to train.steps, or until a stop is requested (a signal, or a stop record to any rank);
  /// then all ranks save a checkpoint and return: Note [Stopping in the middle]. After a save
  /// record to rank 0 they save one at the end of the step, and go on. Errors: as above;
  /// DivergedError for a loss or gradient norm that is not finite, naming the step, before the
  /// weights are updated.
  void Run();

 private:
  checkpoint::Group CheckpointGroup() const;
  void CheckInput(const WorkerEnvironment& environment);
  void MakeOptimizer();
  void Claim(const LaunchIdentity& identity, uint64_t generation);
  std::unique_ptr<checkpoint::ClaimPulse> KeepClaim(int rank, const std::string& job_id) const;
  void Resume(const LaunchIdentity& identity);
  std::optional<checkpoint::Candidate> FindCandidate(const LaunchIdentity& identity) const;
  void LoadState(const checkpoint::Candidate& candidate);
  DataCursor ResumedCursor(const TrainingState& training) const;
  /// Errors: ConfigError for another model, unless model.on_change allows it.
  void TellChanges(const TrainingState& training, const std::string& param_groups_json) const;
  void CheckSavedNames() const;
  // These three return whether some rank was asked to stop, the same on all ranks.
  bool Step();
  bool EvaluateNow();
  bool SaveNow(bool is_last = false);
  bool SaveOnRequest();
  /// Runs `forwards` micro batches; each contributes the gradient of its loss / forwards. Returns
  /// the mean loss over micro batches and ranks; nullopt if the step must be abandoned.
  std::optional<float> ForwardBackward(int64_t forwards, bool& is_stopping);
  at::Tensor Backward(int64_t forwards, bool is_last_forward);
  void Report(StepMetrics metrics);
  /// Unless it is open; then it tells itself whose it is.
  void OpenMetrics();
  /// Opens the metrics file if it is not open. An empty record is none.
  void Record(const std::string& record);
  /// On rank 0.
  void Warn(FaultNotice& notice, const std::string& text);
  checkpoint::State CaptureState();
  std::string LastSaveText() const;
  /// Of this rank.
  bool IsStopRequested();
  bool MustAbandonStep(int64_t done, int64_t forwards, double seconds);
  bool MustGiveUpSave();
  /// The same on all ranks.
  int64_t ForwardsPerPoll() const;

  TrainConfig config_;
  Json resolved_;
  ControlChannel& channel_;
  Vitals vitals_;
  LlamaConfig llama_;
  std::shared_ptr<const TokenStream> train_;
  std::shared_ptr<const TokenStream> valid_;
  DataRecord data_record_;
  RunRecord run_record_;
  std::optional<TrainBatches> batches_;
  Job job_;
  std::unique_ptr<fsdp::AdamW> optimizer_;
  std::shared_ptr<checkpoint::StepList> saved_steps_ = std::make_shared<checkpoint::StepList>();
  std::unique_ptr<checkpoint::Saver> saver_;
  bool may_be_restarted_ = false;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<Progress> progress_;

  /// Its checkpoints and metrics; see checkpoint::State.
  std::string run_;
  FaultNotice save_notice_;
  FaultNotice metrics_notice_;

  /// Completed steps.
  int64_t step_ = 0;
  int64_t tokens_ = 0;
  int64_t saved_step_ = -1;
  int64_t evaluated_step_ = -1;
  /// A stop has interrupted the evaluation that the checkpoint's step asks for.
  bool must_evaluate_first_ = false;
  /// Rank 0 was asked for a checkpoint of the last step; the same on all ranks.
  bool must_save_ = false;

  StopPlan stop_plan_;
  bool is_save_given_up_ = false;
  /// Of the forwards and backwards of the last step, mean over the ranks; 0: unknown.
  double step_seconds_ = 0;
};

}  // namespace fsdprun::worker
