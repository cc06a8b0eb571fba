#include "fsdpctl/jobs/job_choice.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdprun {
namespace {

constexpr size_t kNamesMax = 8;

std::string Listed(const std::vector<JobEntry>& jobs) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(jobs.size(), kNamesMax); ++i) {
    names.push_back(absl::StrCat("'", jobs[i].run_id, "' (pid ", jobs[i].pid, ")"));
  }
  return absl::StrCat(absl::StrJoin(names, ", "), jobs.size() > kNamesMax ? ", ..." : "");
}

}  // namespace

absl::StatusOr<JobEntry> ChooseJob(const std::vector<JobEntry>& jobs, const std::string& name) {
  if (jobs.empty()) {
    return absl::NotFoundError(
        "no job of this user has its coordinator on this machine; for one on another machine give "
        "--rdzv-endpoint and --job");
  }
  std::vector<JobEntry> matching;
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(matching), [&](const JobEntry& job) {
    return name.empty() || job.run_id == name || std::to_string(job.pid) == name;
  });
  if (matching.empty()) {
    return absl::NotFoundError(absl::StrCat("no job here is called '", name, "': there is ",
                                            Listed(jobs), "; fsdpctl ps lists all"));
  }
  if (matching.size() > 1) {
    return absl::NotFoundError(absl::StrCat("several jobs run here: ", Listed(matching),
                                            "; name one with --job ",
                                            name.empty() ? "ID" : "and its pid"));
  }
  return matching.front();
}

}  // namespace fsdprun
