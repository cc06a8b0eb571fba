#include "fsdpctl/doctor/doctor_options.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun::doctor {
namespace {

constexpr uint16_t kRendezvousPort = 29400;
constexpr Duration kUsualPatience = std::chrono::seconds(60);

/// What makes no sense together.
absl::Status CheckUsage(const RawOptions& options) {
  if (!options.program.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", options.program.front(), "' is no option; another node is named by --with HOST"));
  }
  const bool has_endpoint = options.Find("rdzv-endpoint") != nullptr;
  const bool has_partner = options.Find("with") != nullptr;
  const bool listens = options.IsOn("listen");
  if (has_endpoint + has_partner + listens > 1) {
    return absl::InvalidArgumentError(
        "--rdzv-endpoint (the same line on all nodes), --listen (on one) and --with (on the "
        "others) "
        "exclude each other; give one of them");
  }
  return absl::OkStatus();
}

/// Text where a number belongs is an error of the usage; what else a number must be comes later.
absl::Status CheckAreNumbers(const RawOptions& options) {
  for (const OptionSpec& option : OptionsOf(CliProgram::kDoctor)) {
    const RawValue* value = options.Find(option.name);
    double number = 0;
    const bool is_numeric =
        option.value == ValueKind::kInteger || option.value == ValueKind::kNumber;
    if (value != nullptr && is_numeric && !absl::SimpleAtod(value->text, &number)) {
      return absl::InvalidArgumentError(
          absl::StrCat(value->source, ": '", value->text, "' is not a number"));
    }
  }
  return absl::OkStatus();
}

absl::Status TakeNumbers(const RawOptions& options, DoctorOptions* result) {
  if (const RawValue* value = options.Find("port")) {
    ASSIGN_OR_RETURN(result->port, ToPort(*value));
    if (result->port == 0) {
      return InvalidValue(*value, "a port from 1 to 65535");
    }
    result->port_is_given = true;
  }
  if (const RawValue* value = options.Find("nnodes")) {
    ASSIGN_OR_RETURN(result->nodes, ToInt(*value, 1, "a number of nodes, 1 or more"));
    result->place.nnodes_is_given = true;
    result->place.min_nodes = result->place.max_nodes = result->nodes;
  }
  if (const RawValue* value = options.Find("timeout")) {
    ASSIGN_OR_RETURN(result->patience, ToSeconds(*value, /*zero_allowed=*/false));
  }
  return absl::OkStatus();
}

/// --rdzv-endpoint and --with.
absl::Status TakeEndpoint(const RawOptions& options, const char* name, PairRole role,
                          DoctorOptions* result) {
  const RawValue* value = options.Find(name);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  const absl::StatusOr<HostPort> endpoint = ParseHostPort(value->text, result->port);
  if (!endpoint.ok() || endpoint->port == 0) {
    return InvalidValue(*value, "HOST or HOST:PORT, such as node0:29400");
  }
  result->role = role;
  result->place.endpoint = *endpoint;
  result->place.rendezvous_is_given = true;
  result->place.backend = RendezvousBackend::kC10d;
  result->port = endpoint->port;
  result->port_is_given = true;
  return absl::OkStatus();
}

/// In a step of Slurm with several nodes these meet where a job of fsdprun would.
absl::Status TakeSlurm(const Environment& environment, DoctorOptions* result) {
  const absl::StatusOr<std::optional<SlurmAllocation>> found = ReadAllocation(environment);
  const bool is_step =
      found.ok() && found->has_value() && (*found)->task.has_value() && (*found)->task->tasks > 1;
  if (!is_step || result->role == PairRole::kListen || result->role == PairRole::kGo) {
    return absl::OkStatus();
  }
  LaunchPlan& place = result->place;
  ASSIGN_OR_RETURN(const SlurmPlace in_slurm, FitToSlurm(environment, &place));
  if (in_slurm.role == SlurmRole::kTask) {
    result->role = PairRole::kMeet;
    result->nodes = place.max_nodes;
    if (!result->port_is_given) {
      result->port = place.endpoint.port;
    } else {
      place.endpoint.port = result->port;
    }
  }
  return absl::OkStatus();
}

void FillIn(DoctorOptions* result) {
  if (result->role == PairRole::kMeet && result->place.is_host.has_value()) {
    result->role = *result->place.is_host ? PairRole::kListen : PairRole::kGo;
    result->leaves_printing = !*result->place.is_host;
  } else {
    result->leaves_printing = result->role == PairRole::kMeet;
  }
  const bool has_no_end = result->role == PairRole::kListen && result->nodes == 0;
  if (result->role == PairRole::kMeet && result->nodes == 0) {
    result->nodes = 2;
  }
  if (!result->patience.has_value() && !has_no_end) {
    result->patience = kUsualPatience;
  }
  if (result->nodes == 1) {
    result->role = PairRole::kNone;
  }
}

}  // namespace

absl::StatusOr<DoctorOptions> ReadDoctorOptions(const std::vector<std::string>& args,
                                                const Environment& environment) {
  ASSIGN_OR_RETURN(const RawOptions options, OptionsOfArguments(CliProgram::kDoctor, args));
  DoctorOptions result{.request = TextRequest(options), .port = kRendezvousPort};
  if (result.request != Request::kRun) {
    return result;
  }
  RETURN_IF_ERROR(CheckUsage(options));
  RETURN_IF_ERROR(CheckAreNumbers(options));
  RETURN_IF_ERROR(TakeNumbers(options, &result));
  RETURN_IF_ERROR(TakeEndpoint(options, "rdzv-endpoint", PairRole::kMeet, &result));
  RETURN_IF_ERROR(TakeEndpoint(options, "with", PairRole::kGo, &result));
  if (options.IsOn("listen")) {
    result.role = PairRole::kListen;
  }
  RETURN_IF_ERROR(TakeSlurm(environment, &result));
  FillIn(&result);
  result.shows_all = options.IsOn("all");
  result.is_json = options.IsOn("json");
  result.log_dir = options.TextOf("log-dir");
  result.python = options.TextOf("python");
  if (const auto given = environment.find("PYTHON_EXEC");
      result.python.empty() && given != environment.end()) {
    result.python = given->second;
  }
  result.token_file = options.TextOf("token-file");
  result.takes_anybody = options.IsOn("no-token");
  return result;
}

}  // namespace fsdprun::doctor
