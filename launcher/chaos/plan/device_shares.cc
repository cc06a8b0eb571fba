#include "launcher/chaos/plan/device_shares.h"

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace fsdprun::chaos {
namespace {

constexpr char kList[] = "CUDA_VISIBLE_DEVICES";
/// Counts before the other one with ROCm.
constexpr char kRocmList[] = "HIP_VISIBLE_DEVICES";

/// The first `gpus` names of each list that makes GPUs visible.
std::map<std::string, std::vector<std::string>> VisibleNames(int gpus,
                                                             const Environment& environment) {
  std::map<std::string, std::vector<std::string>> lists;
  for (const char* variable : {kList, kRocmList}) {
    const auto list = environment.find(variable);
    if (list == environment.end()) {
      continue;
    }
    std::vector<std::string>& names = lists[variable];
    for (const absl::string_view name : absl::StrSplit(list->second, ',')) {
      if (names.size() < static_cast<size_t>(gpus)) {
        names.emplace_back(absl::StripAsciiWhitespace(name));
      }
    }
  }
  if (lists.empty()) {
    for (int i = 0; i < gpus; ++i) {
      lists[kList].push_back(absl::StrCat(i));
    }
  }
  return lists;
}

absl::Status TooFew(const WrappedJob& job, int gpus) {
  return absl::OutOfRangeError(absl::StrCat(
      job.nodes, " nodes would share ", gpus, gpus == 1 ? " GPU" : " GPUs",
      " on this machine: have fewer nodes started (--nodes, --nnodes), start them on their "
      "machines and attach with --job, or hide the GPUs from a program that needs none (",
      kList, "= fsdprun chaos ...)"));
}

}  // namespace

absl::StatusOr<std::vector<Environment>> ShareDevices(const WrappedJob& job, int gpus,
                                                      const Environment& environment) {
  const auto nodes = static_cast<size_t>(job.nodes);
  std::vector<Environment> shares(nodes);
  const RawValue* workers = job.said.Find("nproc-per-node");
  if (gpus == 0 || (workers != nullptr && workers->text == "cpu")) {
    return shares;
  }
  if (gpus < job.nodes) {
    return TooFew(job, gpus);
  }
  for (const auto& [variable, names] : VisibleNames(gpus, environment)) {
    const size_t each = names.size() / nodes;
    for (size_t i = 0; i < nodes && each > 0; ++i) {
      const auto first = names.begin() + static_cast<ptrdiff_t>(i * each);
      shares[i][variable] = absl::StrJoin(first, first + static_cast<ptrdiff_t>(each), ",");
    }
  }
  return shares;
}

}  // namespace fsdprun::chaos
