#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "fsdpctl/top/view.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// What is wrong with a worker; the worse, the greater.
enum class Trouble {
  kNone,
  /// Further behind the first than it can have come since it was looked at.
  kBehind,
  /// The watch finds it slow.
  kSlow,
  /// Its node has not told of it for long, although it should.
  kSilent,
  /// Stopped, traced, or dead and not collected.
  kStopped,
  /// The watch finds that the job hangs because of it.
  kHang
};

/// How a state has come to be seen.
struct Sight {
  /// How long ago it was told; its ages have that in them.
  int64_t told_ns = 0;
  /// For how long its world is known to run.
  int64_t running_ns = std::numeric_limits<int64_t>::max();
};

/// A rank of the present world.
struct RankRow {
  int rank = 0;
  /// Of its node, as it may be shown.
  std::string node;
  /// Both may be null: nothing is known. Of the JobStatus.
  const v1::WorkerStatus* worker = nullptr;
  const v1::OwnVitals* own = nullptr;
  Trouble trouble = Trouble::kNone;
  /// Its node has not told of it for long.
  bool is_old = false;

  bool HasEnded() const { return worker != nullptr && worker->has_ended(); }
  /// Null: nothing is known.
  const v1::WorkerVitals* vitals() const {
    return worker != nullptr && worker->has_vitals() ? &worker->vitals() : nullptr;
  }
};

/// All ranks, in order; they point into `status`. Pure.
std::vector<RankRow> RowsOf(const v1::JobStatus& status, const Sight& sight = {});

/// By value, the lower first; what has none comes last, even reversed. Pure.
bool ComesBefore(const std::optional<double>& a, const std::optional<double>& b, bool is_reversed);

/// Sorted as `view` says, and without those that it does not show. Rows that say nothing of what is
/// sorted by come last. Pure.
std::vector<RankRow> Arranged(std::vector<RankRow> rows, const View& view);

/// "in all_gather of layers.3 for 4.2s", for people. Pure.
std::string DoingOf(const RankRow& row);

}  // namespace fsdprun::top
