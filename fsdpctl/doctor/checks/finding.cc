#include "fsdpctl/doctor/checks/finding.h"

#include <algorithm>

namespace fsdprun::doctor {

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kOk:
      return "ok";
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kProblem:
      return "problem";
  }
  return "";
}

const char* GroupName(CheckGroup group) {
  switch (group) {
    case CheckGroup::kLimits:
      return "limits";
    case CheckGroup::kMemory:
      return "memory";
    case CheckGroup::kCpus:
      return "cpus";
    case CheckGroup::kSharedMemory:
      return "shared-memory";
    case CheckGroup::kFolders:
      return "folders";
    case CheckGroup::kProcesses:
      return "processes";
    case CheckGroup::kNetwork:
      return "network";
    case CheckGroup::kClock:
      return "clock";
    case CheckGroup::kGpus:
      return "gpus";
    case CheckGroup::kNccl:
      return "nccl";
    case CheckGroup::kPython:
      return "python";
    case CheckGroup::kFsdprun:
      return "fsdprun";
    case CheckGroup::kPair:
      return "pair";
  }
  return "";
}

Severity WorstOf(const std::vector<Finding>& findings) {
  Severity worst = Severity::kOk;
  for (const Finding& finding : findings) {
    worst = std::max(worst, finding.severity);
  }
  return worst;
}

}  // namespace fsdprun::doctor
