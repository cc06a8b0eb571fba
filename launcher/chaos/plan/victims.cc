#include "launcher/chaos/plan/victims.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun::chaos {

std::string TextOf(const JobProcess& process) {
  return absl::StrCat(NameOf(process.role),
                      process.number >= 0 ? absl::StrCat(" ", process.number) : "", " (pid ",
                      process.pid, ")");
}

std::optional<JobProcess> ChooseVictim(const std::vector<JobProcess>& processes,
                                       const PlannedFault& fault) {
  std::vector<JobProcess> candidates;
  std::copy_if(processes.begin(), processes.end(), std::back_inserter(candidates),
               [&fault](const JobProcess& process) {
                 return process.role == fault.target &&
                        (!fault.number.has_value() || process.number == *fault.number);
               });
  if (candidates.empty()) {
    return std::nullopt;
  }
  std::sort(candidates.begin(), candidates.end(), [](const JobProcess& a, const JobProcess& b) {
    return std::pair(a.number, a.pid) < std::pair(b.number, b.pid);
  });
  return candidates[fault.pick % candidates.size()];
}

std::optional<int> ChooseNumber(int count, const PlannedFault& fault) {
  if (fault.number.has_value()) {
    return *fault.number < count ? fault.number : std::nullopt;
  }
  return count > 0 ? std::optional(static_cast<int>(fault.pick % static_cast<uint64_t>(count)))
                   : std::nullopt;
}

}  // namespace fsdprun::chaos
