#include "fsdp_runtime/plan/reshard_plan.h"

#include <algorithm>
#include <cstddef>

namespace fsdp::plan {

int64_t most_gathered(const std::vector<int64_t>& bytes, const std::vector<bool>& kept) {
  const auto own = [&](size_t i) { return i < bytes.size() && !kept[i] ? bytes[i] : 0; };
  int64_t of_kept = 0;
  int64_t most = 0;
  // Forward: what was kept, the unit that computes, and the next one, kept or not.
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int64_t next = i + 1 < bytes.size() ? bytes[i + 1] : 0;
    most = std::max(most, of_kept + bytes[i] + next);
    of_kept += kept[i] ? bytes[i] : 0;
  }
  // Backward, from the last unit on: what is still kept, and these two.
  for (size_t i = bytes.size(); i-- > 0;) {
    most = std::max(most, of_kept + own(i) + (i > 0 ? own(i - 1) : 0));
    of_kept -= kept[i] ? bytes[i] : 0;
  }
  return most;
}

std::vector<bool> units_to_keep(const std::vector<int64_t>& bytes, int64_t budget) {
  std::vector<bool> kept(bytes.size(), false);
  for (size_t i = bytes.size(); i-- > 0;) {
    kept[i] = true;
    kept[i] = most_gathered(bytes, kept) <= budget;
  }
  return kept;
}

}  // namespace fsdp::plan
