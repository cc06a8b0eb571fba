#include "launcher/slurm/queue_listing.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

// Fields with tabulators between them, which only the last, a comment, mostly can have: it may have
// anything, also ends of lines.
constexpr char kFormat[] = "--format=%i\t%T\t%N\t%h\t%L\t%b\t%f\t%j\t%k";
constexpr size_t kFields = 9;

}  // namespace

// Without --jobs: squeue would call a job that is over an error, as it does a controller that does
// not answer.
std::vector<std::string> ListJobsCommand() {
  return {"squeue", "--noheader", "--me", "--array", kFormat};
}

Environment ListJobsEnvironment(Environment environment) {
  std::erase_if(environment,
                [](const auto& variable) { return absl::StartsWith(variable.first, "SQUEUE_"); });
  return environment;
}

std::vector<ListedJob> ReadListedJobs(absl::string_view text) {
  std::vector<ListedJob> jobs;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::MaxSplits('\t', kFields - 1));
    if (fields.size() != kFields) {
      continue;
    }
    // `12+1` is a component of job 12.
    jobs.push_back({.job = fields[0].substr(0, fields[0].find('+')),
                    .state = fields[1],
                    .nodes = fields[2],
                    .shares = fields[3],
                    .time_left = fields[4],
                    .resources = fields[5],
                    .features = fields[6],
                    .name = fields[7],
                    .comment = fields[8]});
  }
  return jobs;
}

}  // namespace fsdprun
