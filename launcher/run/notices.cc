#include "launcher/run/notices.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

std::string NodeCounts(const JobTerms& terms) {
  return terms.min_nodes == terms.max_nodes ? absl::StrCat(terms.max_nodes)
                                            : absl::StrCat(terms.min_nodes, ":", terms.max_nodes);
}

std::string InSeconds(Duration length) {
  return absl::StrCat(std::chrono::duration<double>(length).count(), " s");
}

}  // namespace

std::string DescribeWait(MonoTime deadline, Duration timeout, MonoTime now) {
  const Duration over = std::clamp(timeout - (deadline - now), Duration{}, timeout);
  return absl::StrCat(std::chrono::floor<std::chrono::seconds>(over).count(), " s of ",
                      ToSeconds(timeout), " s");
}

std::string DescribeOtherTerms(const AdmitAgent& own, const AdmitAgent& job,
                               const std::string& where) {
  if (!own.terms.has_value() || !job.terms.has_value()) {
    return "";
  }
  std::vector<std::string> differences;
  const auto compare = [&](const char* name, const std::string& here, const std::string& there) {
    if (here != there) {
      differences.push_back(absl::StrCat(name, " is ", here, " here, ", there, " there"));
    }
  };
  compare("--nnodes", NodeCounts(*own.terms), NodeCounts(*job.terms));
  compare("--max-restarts", absl::StrCat(own.terms->max_restarts),
          absl::StrCat(job.terms->max_restarts));
  compare("--rdzv-conf join_timeout", InSeconds(own.terms->join_timeout),
          InSeconds(job.terms->join_timeout));
  compare("--rdzv-conf last_call_timeout", InSeconds(own.terms->last_call),
          InSeconds(job.terms->last_call));
  compare("--rdzv-conf keep_alive_interval times keep_alive_max_attempt", InSeconds(own.node_lease),
          InSeconds(job.node_lease));
  return differences.empty()
             ? ""
             : absl::StrCat("the coordinator at ", where,
                            " was given other options than this launcher, and the coordinator's "
                            "values count: ",
                            absl::StrJoin(differences, "; "), "; give all nodes the same");
}

std::string DescribeQuarantine(const job::NodeQuarantined& quarantined, int min_nodes) {
  return absl::StrCat(quarantined.why, "; it is left out from now on, for ",
                      ToSeconds(quarantined.length), " s, as long as ", min_nodes,
                      min_nodes == 1 ? " other node is" : " other nodes are",
                      " there. Look at that machine (kernel log, devices, disks) and at its "
                      "workers' logs; --quarantine-after=0 leaves out nobody");
}

std::string DescribeLeftOut(const std::string& why) {
  return why.empty()
             ? "this node is left out no longer"
             : absl::StrCat("this node is left out as long as the job has enough others: ", why,
                            "; it waits as a spare, and ends with the job. Look at this "
                            "machine (kernel log, devices, disks)");
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
