#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fsdprun {

/// Some of a worker's two output streams: bit 1 is standard output, bit 2 standard error, as in
/// torchrun's --redirects and --tee.
using StreamSet = int;
inline constexpr StreamSet kNoStream = 0;
inline constexpr StreamSet kOutStream = 1;
inline constexpr StreamSet kErrorStream = 2;
inline constexpr StreamSet kBothStreams = kOutStream | kErrorStream;

/// A set of streams for each worker of a node: one for all, or one for each local rank that is
/// named, and none for the others.
struct StreamSets {
  StreamSet of_all = kNoStream;
  std::map<int, StreamSet> of_rank;

  StreamSet Of(int local_rank) const {
    const auto it = of_rank.find(local_rank);
    return it == of_rank.end() ? of_all : it->second;
  }
  bool operator==(const StreamSets&) const = default;
};

/// What becomes of the workers' standard output and error. Plain data.
struct OutputOptions {
  StreamSets redirects;
  StreamSets tee;
  /// One of the two was given: only the files that they name are kept.
  bool names_files = false;
  /// The console shows these local ranks only; unset: all.
  std::optional<std::set<int>> shown_local_ranks;
  /// Lines of tee'd streams that contain one of these go to the attempt's filtered file, too.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  /// --log-dir was given.
  bool names_directory = false;
  /// --log-dir=/dev/null: no directories and no files.
  bool has_directory = true;
  /// Of tee'd lines, with ${role_name}, ${rank} and ${local_rank}; empty: `[ROLE<local rank>]:`.
  std::string prefix_template;

  bool operator==(const OutputOptions&) const = default;
};

}  // namespace fsdprun
