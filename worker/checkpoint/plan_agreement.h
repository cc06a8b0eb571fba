#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/save_plan.h"
#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

/// Who writes what, the same on all ranks.
struct SavePlan {
  /// By rank.
  std::vector<std::vector<SliceInfo>> slices;
  std::vector<std::vector<PlannedChunk>> chunks;
  /// Of the values of all chunks; what frames them is not counted.
  int64_t bytes = 0;
};

/// Agrees on plans, and keeps the last one: as long as no rank's slices change, saves exchange a
/// checksum of them and plan nothing.
class PlanAgreement {
 public:
  explicit PlanAgreement(int64_t chunk_bytes_max) : chunk_bytes_max_(chunk_bytes_max) {}

  /// What a rank tells the others first.
  static std::string ChecksumOf(const std::vector<SliceInfo>& mine);

  /// `checksums`: of every rank's slices, by rank. Collective. Errors: CheckpointError on all
  /// ranks, as PlanSave().
  std::shared_ptr<const SavePlan> Agree(const Group& group, const std::vector<SliceInfo>& mine,
                                        const std::vector<std::string>& checksums);

 private:
  const int64_t chunk_bytes_max_;
  std::vector<std::string> checksums_;
  std::shared_ptr<const SavePlan> plan_;
};

/// `.metadata` of what was planned; `written`: by rank, what each has written of it, after objects.
DcpMetadata ComposeMetadata(const SavePlan& plan, const std::vector<ManifestFile>& written);

}  // namespace fsdprun::checkpoint
