#pragma once

#include <fsdp/export.h>
#include <fsdp/work.h>

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
  /// Which operations are compared.
  enum class Extent { kAll, kIssuedByAll };
  /// The first operation of a lane, of those that all ranks remember, that not all have issued, by
  /// what bytes_of() has given on each; "" if there is none. Says so if an earlier one, which is
  /// forgotten, may differ too, and blames no operation if only some ranks remember those in
  /// question. `names`: what the ranks are called; empty: by their numbers. kAll: no rank issues
  /// more; kIssuedByAll: who has issued fewer may still issue the rest.
  static std::string first_difference(Lane lane, const std::vector<std::string>& by_rank,
                                      const std::vector<int64_t>& names = {},
                                      Extent extent = Extent::kAll);
  /// How many operations each rank has issued on a lane, and the last of each; "" if all have
  /// issued as many.
  static std::string different_counts(Lane lane, const std::vector<std::string>& by_rank,
                                      const std::vector<int64_t>& names = {});

 private:
  Fnv1a digest_;
  std::array<Issued, 2> lanes_;
  std::array<uint64_t, 2> forgotten_{};
  Lane last_lane_ = Lane::kGather;
};

}  // namespace fsdp
