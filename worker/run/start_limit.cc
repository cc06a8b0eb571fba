#include "worker/run/start_limit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/step_list.h"
#include "worker/batch/step_plan.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/patience.h"

namespace fsdprun::worker {
namespace {

/// Of a limit that is there; empty: there is none. `has_saved`: LimitedStart's.
struct LimitFile {
  std::string text;
  bool has_saved = false;
};

bool HasSaved(const std::string& dir, const std::string& run, checkpoint::StepList& steps) {
  const std::vector<checkpoint::StepEntry> saved = steps.List(dir);
  return std::any_of(saved.begin(), saved.end(),
                     [&](const auto& entry) { return entry.run == run; });
}

/// Rank 0's on every rank. Collective. Errors: checkpoint::CheckpointError.
LimitFile ReadLimitFile(const std::string& dir, const checkpoint::Group& group) {
  const auto read = [&] {
    const std::string path = MicroBatchLimitPath(dir);
    if (!checkpoint::FileExists(path)) {
      return std::string("-");
    }
    const std::string text = checkpoint::ReadWholeFile(path, kMicroBatchLimitBytesMax);
    const std::optional<MicroBatchLimit> limit = DecodeMicroBatchLimit(text);
    checkpoint::StepList own;
    const bool has_saved = limit && HasSaved(dir, limit->run, group.steps ? *group.steps : own);
    return (has_saved ? "S" : "-") + text;
  };
  const std::string found =
      checkpoint::ReadPatiently(group, [&] { return checkpoint::AttemptOnRank0(group, read); });
  return {found.substr(1), found.front() == 'S'};
}

}  // namespace

StartLimit FindStartLimit(const LimitSeeker& seeker, const checkpoint::Group& group) {
  const std::string& dir = seeker.config.checkpoint.dir;
  if (seeker.config.train.on_out_of_memory != "shrink") {
    return {};
  }
  const LimitFile file = ReadLimitFile(dir, group);
  if (file.text.empty()) {
    return {};
  }
  const std::string path = MicroBatchLimitPath(dir);
  std::optional<MicroBatchLimit> limit = DecodeMicroBatchLimit(file.text);
  if (!limit) {
    return {std::nullopt, path + " is not what a run writes there, and is left aside"};
  }
  const std::string why_not = WhyNotFor(
      *limit, {seeker.run, seeker.launch,
               MicroBatchSettings(seeker.resolved, seeker.model, seeker.ranks), file.has_saved});
  if (!why_not.empty()) {
    return {std::nullopt, path + " says that a forward takes at most " +
                              std::to_string(limit->windows) +
                              " windows, and is left aside: " + why_not};
  }
  return {std::move(limit), ""};
}

std::string ApplyStartLimit(const MicroBatchLimit& limit, int64_t ranks, TrainConfig& config) {
  TrainConfig::Train& train = config.train;
  const int64_t given = train.micro_batch_size;
  const bool kept_gradients = !train.sync_each_micro_batch;
  LimitMicroBatch(train, limit.windows, ranks);
  const std::string reduced =
      kept_gradients && train.sync_each_micro_batch
          ? ", each of which reduces its gradients (train.sync_each_micro_batch is false, which "
            "takes more memory)"
          : "";
  return "train.micro_batch_size is " + std::to_string(given) + ", and " +
         std::to_string(limit.windows) + " are used, because step " + std::to_string(limit.step) +
         " had no memory for more (" + MicroBatchLimitPath(config.checkpoint.dir) +
         "); a step has " + std::to_string(StepSamples(train, ranks)) +
         " windows as before, in more forwards" + reduced;
}

}  // namespace fsdprun::worker
