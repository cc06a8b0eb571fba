#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/sample_order.h"
#include "worker/run/data_range.h"
#include "worker/run/data_record.h"
#include "worker/run/judged_steps.h"
#include "worker/run/run_description.h"
#include "worker/run/run_record.h"

namespace fsdprun::worker {

/// What a checkpoint says beside its tensors, so that a run resumes exactly: `train.state`. The
/// learning rate follows from the step.
struct TrainingState {
  int64_t step = 0;
  int64_t tokens = 0;
  DataCursor cursor;
  /// Windows of the training data when the state was written.
  int64_t windows = 0;
  /// State of torch's default CPU generator, hexadecimal; empty: unknown.
  std::string rng;
  /// The data that the cursor is a position in; absent in checkpoints of older versions.
  std::optional<DataRecord> data{};
  /// The last step after which the model was evaluated, -1: none; absent as above.
  std::optional<int64_t> evaluated_step{};
  /// What was trained and how, to be compared; absent as above.
  std::optional<RunRecord> run{};
  /// The same in full, to be built again; absent as above.
  std::optional<RunDescription> description{};
  /// As in RunState; none as above.
  std::vector<DataRange> bad_data = {};
  JudgedSteps judged = {};
};

/// What one step takes, by the configuration and the ranks of this start.
struct StepSize {
  int64_t samples = 1;  // of all ranks together
  int64_t seq_len = 1;
};

/// Of a checkpoint of another program, which has done `step` steps: as if these had been steps of
/// this size. Without `cursor`, which depends on the order of the data, `rng` and what else such a
/// checkpoint does not say. Pure. Errors: checkpoint::MismatchError for more steps than can be
/// counted.
TrainingState DeriveTrainingState(int64_t step, const StepSize& size, int64_t windows);

std::string FormatTrainingState(const TrainingState& state);
/// Errors: std::runtime_error naming what is missing or impossible.
TrainingState ParseTrainingState(const std::string& text);

}  // namespace fsdprun::worker
