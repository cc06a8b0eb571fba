#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "formats/checkpoint/file_system.h"
#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

// Note [Out of memory]
// A rank that has no memory for a forward or a backward stands somewhere between two collectives,
// where the others wait for it: it cannot go on with less, and it cannot tell them. So with
// train.on_out_of_memory = "shrink" it writes into checkpoint.dir that half as many windows are the
// most, and ends, with the code that makes its launcher start all ranks again. They resume from the
// newest checkpoint and divide the same batches into smaller forwards (step_plan.h), so that losses
// differ by rounding alone. Ranks that fail together write the same. Whatever ends a rank while it
// writes, the file is the old one or the new one.
//
// The file counts for the run, and for the launch, that found it. A start without a checkpoint
// begins another run, so what was found out by one that has saved nothing counts for all. It counts
// only with the settings that it was found with, since who changes one of them means to have
// another try, and with as many ranks or fewer, which have no more memory.

/// How many windows a forward may have, as a run has found out.
struct MicroBatchLimit {
  int64_t windows = 0;
  /// The step that had no memory for more.
  int64_t step = 0;
  /// Who has found it: RunState::run, and the launch's job id, which may be empty.
  std::string run;
  std::string launch;
  /// MicroBatchSettings().
  Json settings = Json::object();
};

/// Of a configuration, the model that it names and the number of ranks, what decides how much fits
/// into memory.
Json MicroBatchSettings(const Json& resolved, const ModelConfig& model, int64_t ranks);

/// The file in checkpoint.dir, and far above the size that it has.
inline constexpr int64_t kMicroBatchLimitBytesMax = int64_t{1} << 20;
std::string MicroBatchLimitPath(const std::string& dir);

std::string EncodeMicroBatchLimit(const MicroBatchLimit& limit);
/// nullopt for a text that is none. Pure.
std::optional<MicroBatchLimit> DecodeMicroBatchLimit(const std::string& text);

/// A start that may have a limit.
struct LimitedStart {
  /// As in MicroBatchLimit.
  std::string run;
  std::string launch;
  Json settings = Json::object();
  /// The directory has a checkpoint of MicroBatchLimit::run.
  bool has_saved = false;
};

/// Why a limit does not count for a start: "train.freeze was [] then and is ["x"] now"; empty: it
/// counts. Pure.
std::string WhyNotFor(const MicroBatchLimit& limit, const LimitedStart& start);

/// Puts it in place of the one that is there, durably, or changes nothing. Several may do so at the
/// same time: `writer` is a name that no other of them has. Errors: checkpoint::CheckpointError.
void WriteMicroBatchLimit(checkpoint::FileSystem& file_system, const std::string& dir,
                          std::string writer, const MicroBatchLimit& limit);

/// What is next for forwards of `windows`; nullopt if there is nothing smaller. Pure.
std::optional<int64_t> SmallerMicroBatch(int64_t windows);

/// Divides the same batches into forwards of at most `windows`, and has each of them reduce its
/// gradients: whole ones kept from one to the next might take more than it saves. Pure.
void LimitMicroBatch(TrainConfig::Train& train, int64_t windows, int64_t ranks);

}  // namespace fsdprun::worker
