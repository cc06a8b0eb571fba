#include "fsdpctl/slurm/job_environment.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

bool IsQuote(char c) { return c == '\'' || c == '"'; }

/// As sbatch: a comma inside of quotes separates nothing, and quotes around a part are no part of
/// it.
std::vector<std::string> PartsOf(absl::string_view exported) {
  std::vector<std::string> parts(1);
  char quote = 0;
  for (const char c : exported) {
    if (c == ',' && quote == 0) {
      parts.emplace_back();
      continue;
    }
    if (IsQuote(c) && (quote == 0 || quote == c)) {
      quote = quote == 0 ? c : 0;
    }
    parts.back().push_back(c);
  }
  for (std::string& part : parts) {
    if (part.size() > 1 && IsQuote(part.front()) && part.front() == part.back()) {
      part = part.substr(1, part.size() - 2);
    }
  }
  return parts;
}

}  // namespace

Environment ExportedEnvironment(const Environment& environment, absl::string_view exported) {
  Environment job;
  if (absl::EqualsIgnoreCase(exported, "NONE") || absl::EqualsIgnoreCase(exported, "NIL")) {
    return job;
  }
  for (const std::string& part : PartsOf(exported)) {
    if (absl::EqualsIgnoreCase(part, "ALL")) {
      job.insert(environment.begin(), environment.end());
    } else if (const size_t equals = part.find('='); equals != std::string::npos) {
      job[part.substr(0, equals)] = part.substr(equals + 1);
    } else if (const auto found = environment.find(part); found != environment.end()) {
      job[part] = found->second;
    }
  }
  return job;
}

Environment SbatchEnvironment(Environment environment) {
  for (const OptionSpec& option : OptionsOf(CliProgram::kSlurmSubmit)) {
    if (option.family == OptionFamily::kSbatch) {
      environment.erase(option.other_variable);
    }
  }
  if (!environment.contains("SLURM_JOB_ID")) {
    return environment;
  }
  const auto configuration = environment.find("SLURM_CONF");
  const std::optional<std::string> path =
      configuration == environment.end() ? std::nullopt : std::optional(configuration->second);
  environment = WithoutSlurm(std::move(environment));
  if (path.has_value()) {
    environment["SLURM_CONF"] = *path;
  }
  return environment;
}

}  // namespace fsdprun
