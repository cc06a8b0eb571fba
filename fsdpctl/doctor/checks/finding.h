#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fsdprun::doctor {

enum class Severity {
  kOk,
  /// Nothing to do, but good to know when something fails.
  kNote,
  /// Will be slow, or will fail in some jobs.
  kWarning,
  /// Will not work.
  kProblem,
};
const char* SeverityName(Severity severity);

/// In the order in which they are shown.
enum class CheckGroup {
  kLimits,
  kMemory,
  kCpus,
  kSharedMemory,
  kFolders,
  kProcesses,
  kNetwork,
  kClock,
  kGpus,
  kNccl,
  kPython,
  kFsdprun,
  kPair,
};
inline constexpr CheckGroup kAllGroups[] = {
    CheckGroup::kLimits,  CheckGroup::kMemory,    CheckGroup::kCpus,    CheckGroup::kSharedMemory,
    CheckGroup::kFolders, CheckGroup::kProcesses, CheckGroup::kNetwork, CheckGroup::kClock,
    CheckGroup::kGpus,    CheckGroup::kNccl,      CheckGroup::kPython,  CheckGroup::kFsdprun,
    CheckGroup::kPair};
const char* GroupName(CheckGroup group);

/// What one check says.
struct Finding {
  CheckGroup group = CheckGroup::kLimits;
  /// Names the check for programs, such as `open_files`.
  std::string check;
  Severity severity = Severity::kOk;
  /// A clause, such as `/dev/shm has 64 MiB`.
  std::string found;
  /// Why it matters, and what to do, with the exact command where there is one; empty if it is ok.
  std::string why;
  std::string what_to_do;

  bool operator==(const Finding&) const = default;
};

/// What is to be said of something that is not as it should be.
struct Advice {
  std::string found;
  std::string why;
  std::string what_to_do;
};

/// Gathers what the checks of one group find.
class Findings {
 public:
  explicit Findings(CheckGroup group) : group_(group) {}

  void Ok(std::string check, std::string found) {
    Add(Severity::kOk, std::move(check), {std::move(found), "", ""});
  }
  void Note(std::string check, Advice advice) {
    Add(Severity::kNote, std::move(check), std::move(advice));
  }
  void Warn(std::string check, Advice advice) {
    Add(Severity::kWarning, std::move(check), std::move(advice));
  }
  void Problem(std::string check, Advice advice) {
    Add(Severity::kProblem, std::move(check), std::move(advice));
  }
  void Add(Severity severity, std::string check, Advice advice) {
    list_.push_back({group_, std::move(check), severity, std::move(advice.found),
                     std::move(advice.why), std::move(advice.what_to_do)});
  }

  std::vector<Finding> Take() { return std::move(list_); }

 private:
  const CheckGroup group_;
  std::vector<Finding> list_;
};

/// kOk of none.
Severity WorstOf(const std::vector<Finding>& findings);

}  // namespace fsdprun::doctor
