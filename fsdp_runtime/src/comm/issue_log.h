#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/shm/descriptor.h"

namespace fsdp {

/// What one rank has issued since the last agreement: a digest of all of it, and the latest
/// operations of each lane themselves. Ranks that have issued equally many remember the same ones;
/// of one that is ahead of the others the earlier ones may be forgotten already.
class FSDP_API IssueLog {
 public:
  using Issued = std::vector<shm::Descriptor>;
  static constexpr size_t kRemembered = 4096;

  void add(Lane lane, const shm::Descriptor& issued);

  uint64_t digest() const { return digest_.digest(); }
  /// "all_gather #3 for unit block1 on lane 0 (48 x float32)"; "nothing".
  std::string last() const;
  /// What is remembered of a lane, to be sent to a rank of the same build.
  std::string bytes_of(Lane lane) const;
  /// The first operation of a lane, of those that all ranks remember, that not all have issued, by
  /// what bytes_of() has given on each; "" if there is none. Says so if an earlier one, which is
  /// forgotten, may differ too, and blames no operation if only some ranks remember those in
  /// question.
  static std::string first_difference(Lane lane, const std::vector<std::string>& by_rank);

 private:
  Fnv1a digest_;
  std::array<Issued, 2> lanes_;
  std::array<uint64_t, 2> forgotten_{};
  Lane last_lane_ = Lane::kGather;
};

}  // namespace fsdp
