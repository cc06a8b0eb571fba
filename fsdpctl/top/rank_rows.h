#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdpctl/top/view.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// What is wrong with a worker; the worse, the greater.
enum class Trouble {
  kNone,
  /// More than one step behind the first.
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

/// A rank of the present world.
struct RankRow {
  int rank = 0;
  /// Of its node, as it may be shown.
  std::string node;
  /// Both may be null: nothing is known. Of the JobStatus.
  const v1::WorkerStatus* worker = nullptr;
  const v1::OwnVitals* own = nullptr;
  Trouble trouble = Trouble::kNone;

  bool HasEnded() const { return worker != nullptr && worker->has_ended(); }
  /// Null: nothing is known.
  const v1::WorkerVitals* vitals() const {
    return worker != nullptr && worker->has_vitals() ? &worker->vitals() : nullptr;
  }
};

/// All ranks, in order; they point into `status`. Pure.
std::vector<RankRow> RowsOf(const v1::JobStatus& status);

/// Sorted as `view` says, and without those that it does not show. Rows that say nothing of what is
/// sorted by come last. Pure.
std::vector<RankRow> Arranged(std::vector<RankRow> rows, const View& view);

/// "in all_gather of layers.3 for 4.2s", for people. Pure.
std::string DoingOf(const RankRow& row);

}  // namespace fsdprun::top
