#include "launcher/run/notices.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/report/failure_hint.h"

namespace fsdprun {
namespace {

constexpr Duration kShortGrace = std::chrono::seconds(3);
constexpr Duration kLeastLeft = std::chrono::seconds(1);
constexpr size_t kNamesMax = 8;

/// " (node-a: 2, node-b: 1)"; empty for one node.
std::string NamesOf(const std::vector<job::StopStatus::Node>& nodes) {
  std::string names;
  for (size_t i = 0; i < nodes.size() && i < kNamesMax; ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", nodes[i].name, ": ", nodes[i].workers);
  }
  return nodes.size() < 2 ? ""
                          : absl::StrCat(" (", names, nodes.size() > kNamesMax ? ", ..." : "", ")");
}

std::string WhoIsLeft(const job::StopStatus& stop) {
  int workers = 0;
  for (const job::StopStatus::Node& node : stop.left) {
    workers += node.workers;
  }
  if (workers == 0) {
    return absl::StrCat("what the workers have started is still running", NamesOf(stop.left));
  }
  return absl::StrCat(workers, workers == 1 ? " worker is" : " workers are", " still running",
                      NamesOf(stop.left));
}

}  // namespace

std::string DescribeWait(MonoTime deadline, Duration timeout, MonoTime now) {
  const Duration over = std::clamp(timeout - (deadline - now), Duration{}, timeout);
  return absl::StrCat(std::chrono::floor<std::chrono::seconds>(over).count(), " s of ",
                      ToSeconds(timeout), " s");
}

bool IsWorthTelling(const job::StopStatus& stop, MonoTime now) {
  return stop.grace > kShortGrace && stop.kill_at - now >= kLeastLeft;
}

std::string DescribeStop(const job::StopStatus& stop, MonoTime now) {
  const auto left = std::chrono::ceil<std::chrono::seconds>(stop.kill_at - now);
  const std::string end =
      absl::StrCat("killed in ", left.count(), " s (",
                   stop.is_after_failure ? "--abort-timeout" : "--shutdown-timeout", ")");
  if (stop.operator_signal != 0) {
    return absl::StrCat(WhoIsLeft(stop), " after ", SignalName(stop.operator_signal), "; to be ",
                        end, ", or at once at a second signal");
  }
  return absl::StrCat(std::string(stop.why), ": ", WhoIsLeft(stop), "; to be ", end);
}

}  // namespace fsdprun
