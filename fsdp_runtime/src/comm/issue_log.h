#pragma once

#include <fsdp/collectives.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/shm/descriptor.h"

namespace fsdp {

/// What one rank has issued since the last agreement: a digest of all of it, and the latest
/// operations of each lane themselves. All ranks forget at the same numbers of operations, so that
/// what they remember starts at the same operation.
class IssueLog {
 public:
  using Issued = std::vector<shm::Descriptor>;
  static constexpr size_t kRemembered = 4096;

  void add(Lane lane, const shm::Descriptor& issued);

  uint64_t digest() const { return digest_.digest(); }
  /// "all_gather #3 for unit block1 on lane 0 (48 x float32)"; "nothing".
  std::string last() const;
  /// What is remembered of a lane, to be sent to a rank of the same build.
  std::string bytes_of(Lane lane) const;
  /// The first operation of a lane that not all ranks have issued, by what bytes_of() has given on
  /// each; "" if there is none. `lane` and what it has forgotten are this log's.
  std::string first_difference(Lane lane, const std::vector<std::string>& by_rank) const;

 private:
  Fnv1a digest_;
  std::array<Issued, 2> lanes_;
  std::array<uint64_t, 2> forgotten_{};
  Lane last_lane_ = Lane::kGather;
};

}  // namespace fsdp
