#pragma once

#include "agent/output/output_options.h"

namespace fsdprun {

/// Where a worker's stream is kept.
enum class StreamFile {
  kLog,    ///< In the attempt's directory, under torchrun's name.
  kSpool,  ///< In a private directory, only until the console has shown it.
  kNone,   ///< Nowhere: nobody wants it.
};

/// How the console shows it.
enum class StreamDisplay { kNone, kPlain, kPrefixed };

struct StreamPlan {
  StreamFile file = StreamFile::kLog;
  StreamDisplay display = StreamDisplay::kPlain;
  /// Lines with one of the user's texts go to the attempt's filtered file.
  bool is_filtered = false;
  /// Nobody asked for the file: it is made with the first byte.
  bool opens_late = false;

  bool operator==(const StreamPlan&) const = default;
};

/// What becomes of one stream of the worker with this local rank: what torchrun's
/// DefaultLogsSpecs.reify() says, but without --redirects and --tee both streams are kept, too.
/// `stream` is kOutStream or kErrorStream. Pure.
StreamPlan PlanStream(const OutputOptions& options, int local_rank, StreamSet stream);

/// Each worker has a folder from its start on, because the user asked for logs; otherwise one is
/// made with the first byte of output: to make and remove 64 folders takes longer than to start and
/// reap 64 processes. Pure.
bool HasWorkerFolders(const OutputOptions& options);

/// Some stream of a node with so many workers is spooled. Pure.
bool NeedsSpool(const OutputOptions& options, int local_world_size);

/// The texts of --duplicate-stdout-filters or --duplicate-stderr-filters; the attempt has a
/// filtered file if there are any. Pure.
const std::vector<std::string>& FilterTexts(const OutputOptions& options, StreamSet stream);

}  // namespace fsdprun
