#include "agent/output/stream_plan.h"

namespace fsdprun {
namespace {

StreamFile FileOf(const OutputOptions& options, bool is_named, bool is_hidden) {
  if (is_named || !options.names_files) {
    return StreamFile::kLog;
  }
  return is_hidden ? StreamFile::kNone : StreamFile::kSpool;
}

StreamDisplay DisplayOf(bool is_redirected, bool is_tee, bool is_hidden) {
  if (is_hidden || (is_redirected && !is_tee)) {
    return StreamDisplay::kNone;
  }
  return is_tee ? StreamDisplay::kPrefixed : StreamDisplay::kPlain;
}

}  // namespace

StreamPlan PlanStream(const OutputOptions& options, int local_rank, StreamSet stream) {
  if (!options.has_directory) {  // As with torchrun, all other options are without effect.
    return {.file = StreamFile::kSpool, .opens_late = true};
  }
  const bool is_redirected = (options.redirects.Of(local_rank) & stream) != 0;
  const bool is_tee = (options.tee.Of(local_rank) & stream) != 0;
  const bool is_hidden =
      options.shown_local_ranks.has_value() && options.shown_local_ranks->count(local_rank) == 0;
  const StreamFile file = FileOf(options, is_redirected || is_tee, is_hidden);
  const bool is_asked_for = file != StreamFile::kSpool && HasWorkerFolders(options);
  return {.file = file,
          .display = DisplayOf(is_redirected, is_tee, is_hidden),
          .is_filtered = is_tee && !is_hidden && !FilterTexts(options, stream).empty(),
          .opens_late = !is_asked_for};
}

bool HasWorkerFolders(const OutputOptions& options) {
  return options.has_directory && (options.names_files || options.names_directory);
}

bool NeedsSpool(const OutputOptions& options, int local_world_size) {
  for (int local_rank = 0; local_rank < local_world_size; ++local_rank) {
    for (const StreamSet stream : {kOutStream, kErrorStream}) {
      if (PlanStream(options, local_rank, stream).file == StreamFile::kSpool) {
        return true;
      }
    }
  }
  return false;
}

const std::vector<std::string>& FilterTexts(const OutputOptions& options, StreamSet stream) {
  return stream == kOutStream ? options.stdout_filters : options.stderr_filters;
}

}  // namespace fsdprun
