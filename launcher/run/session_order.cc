#include "launcher/run/session_order.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/user_secret.h"

namespace fsdprun {
namespace {

constexpr size_t kIdBytes = 16;

std::string VariableOr(const Environment& environment, const char* name, const std::string& other) {
  const auto found = environment.find(name);
  return found == environment.end() ? other : found->second;
}

// What others are told whose job has no room beside this one.
std::string TitleOf(const LaunchPlan& plan, const Environment& environment) {
  const std::string user = VariableOr(
      environment, "USER", VariableOr(environment, "LOGNAME", absl::StrCat(::geteuid())));
  return absl::StrCat("job '", plan.rdzv_id, "' of ", user, "@", HostName(), " (",
                      std::filesystem::path(plan.program.front()).filename().string(), ")");
}

}  // namespace

absl::StatusOr<std::string> DaemonToken(const LaunchPlan& plan, const Environment& environment) {
  ASSIGN_OR_RETURN(std::string token, TokenOf(plan, environment));
  if (!token.empty()) {
    return token;
  }
  const absl::StatusOr<UserSecret> secret = LoadUserSecret(environment);
  if (!secret.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        secret.status().message(),
        "; the nodes' daemons want a token: give the one that they have with --token-file or "
        "FSDPRUN_TOKEN"));
  }
  return secret->value;
}

v1::SessionSpec OrderOf(const LaunchPlan& plan, const Environment& environment,
                        const std::vector<std::string>& arguments) {
  v1::SessionSpec spec;
  std::error_code error;
  spec.set_id(RandomHex(kIdBytes));
  spec.set_title(TitleOf(plan, environment));
  spec.set_folder(std::filesystem::current_path(error).string());
  for (const std::string& argument : arguments) {
    spec.add_arguments(argument);
  }
  for (const auto& [name, value] : TravelingEnvironment(environment, plan.forwarded_variables)) {
    v1::Variable& variable = *spec.add_environment();
    variable.set_name(name);
    variable.set_value(value);
  }
  spec.set_run_id(plan.rdzv_id);
  spec.set_node_rank(-1);
  spec.set_min_nodes(plan.min_nodes);
  spec.set_max_nodes(plan.max_nodes);
  return spec;
}

}  // namespace fsdprun
