#include "launcher/cli/plan_rendezvous.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/rendezvous_conf.h"

namespace fsdprun {
namespace {

constexpr uint16_t kDefaultC10dPort = 29400;
constexpr uint16_t kDefaultEtcdPort = 2379;
constexpr char kJournalPrefix[] = "/fsdprun/journal";
/// torchrun's `timeout` of the handlers that have no join_timeout.
constexpr std::chrono::milliseconds kStaticJoinTimeout{900'000};
/// A file name contains the id with a prefix and a suffix.
constexpr size_t kMaxRunIdBytes = 200;
/// No name of a host is longer.
constexpr size_t kMaxNodeNameBytes = 255;

absl::Status ReadNodes(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("nnodes");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const NodeNumbers numbers, ToNodeNumbers(*value));
  plan->min_nodes = numbers.min;
  plan->max_nodes = numbers.max;
  return absl::OkStatus();
}

absl::Status ReadBackend(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("rdzv-backend");
  if (value == nullptr || value->text.empty()) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string name, ToWord(*value, {"c10d", "static", "etcd", "etcd-v2"}));
  plan->backend = name == "c10d"     ? RendezvousBackend::kC10d
                  : name == "static" ? RendezvousBackend::kStatic
                                     : RendezvousBackend::kEtcd;
  if (name == "etcd-v2") {
    plan->etcd.prefix = "/torch/elastic/rendezvous";
  }
  return absl::OkStatus();
}

/// `etcd://HOST[:PORT][,...][/PREFIX]`, or a folder.
absl::StatusOr<JournalPlace> ToJournalPlace(const RawValue& value) {
  JournalPlace place;
  absl::string_view rest = value.text;
  if (!absl::ConsumePrefix(&rest, "etcd://")) {
    if (value.text.empty() || absl::StrContains(value.text, "://")) {
      return InvalidValue(value, "a folder, or etcd://HOST:PORT[,HOST:PORT]/PREFIX");
    }
    place.folder = value.text;
    return place;
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  for (const absl::string_view member : absl::StrSplit(rest.substr(0, slash), ',')) {
    absl::StatusOr<HostPort> endpoint = ParseHostPort(member, kDefaultEtcdPort);
    if (!endpoint.ok()) {
      return InvalidValue(value, "etcd://HOST:PORT[,HOST:PORT]/PREFIX");
    }
    place.etcd.push_back(*std::move(endpoint));
  }
  const absl::string_view prefix = absl::StripSuffix(rest.substr(slash), "/");
  place.prefix = prefix.empty() ? kJournalPrefix : std::string(prefix);
  return place;
}

/// What is said about the coordinator alone.
absl::Status ReadCoordinator(const RawOptions& options, LaunchPlan* plan) {
  plan->is_coordinator = options.IsOn("coordinator");
  const RawValue* journal = options.Find("journal");
  if (!plan->is_coordinator) {
    return journal == nullptr ? absl::OkStatus()
                              : absl::OutOfRangeError(
                                    "--journal is for --coordinator only: a "
                                    "launcher with workers ends with its job");
  }
  if (options.IsOn("standalone")) {
    return absl::OutOfRangeError(
        "--coordinator cannot be combined with --standalone, whose workers are in this process");
  }
  const RawValue* backend = options.Find("rdzv-backend");
  const bool is_given = backend != nullptr && !backend->text.empty();
  if (is_given && plan->backend == RendezvousBackend::kStatic) {
    return InvalidValue(*backend, "c10d, etcd or etcd-v2, by which the nodes find a --coordinator");
  }
  plan->backend = is_given ? plan->backend : RendezvousBackend::kC10d;
  if (journal != nullptr) {
    ASSIGN_OR_RETURN(plan->journal, ToJournalPlace(*journal));
  }
  return absl::OkStatus();
}

/// Where it listens is told to the nodes, or to etcd, and nobody else may.
absl::Status CheckCoordinator(const RawOptions& options, LaunchPlan* plan) {
  if (plan->uses_file || plan->is_host == false) {
    return absl::OutOfRangeError(
        "--coordinator is the job's host itself: leave store_type=file and is_host=0 out of "
        "--rdzv-conf");
  }
  const RawValue* endpoint = options.Find("rdzv-endpoint");
  if (endpoint == nullptr || endpoint->text.empty() || plan->endpoint.port == 0) {
    return absl::OutOfRangeError(
        plan->backend == RendezvousBackend::kEtcd
            ? "--coordinator needs --rdzv-endpoint HOST:PORT: the etcd in which the nodes look for "
              "it"
            : "--coordinator needs --rdzv-endpoint HOST:PORT: where it listens, and the nodes find "
              "it");
  }
  if (options.Find("rdzv-id") == nullptr || options.Find("rdzv-id")->text.empty()) {
    return absl::OutOfRangeError("--coordinator needs --rdzv-id: the run id that the nodes give");
  }
  plan->is_host = true;
  return absl::OkStatus();
}

absl::Status ReadMaster(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("master-addr");
      value != nullptr && !value->text.empty()) {
    plan->master_addr = value->text;
    if (absl::StartsWith(plan->master_addr, "[") && absl::EndsWith(plan->master_addr, "]")) {
      plan->master_addr = plan->master_addr.substr(1, plan->master_addr.size() - 2);
    }
    const RawValue* endpoint = options.Find("rdzv-endpoint");
    if (plan->backend != RendezvousBackend::kStatic &&
        (endpoint == nullptr || endpoint->text.empty())) {
      plan->warnings.push_back(absl::StrCat(
          value->source, " is used with static rendezvous only; with ", BackendName(plan->backend),
          " give --rdzv-endpoint, which is now its default"));
    }
    if (!IsHost(plan->master_addr)) {
      return absl::OutOfRangeError(
          absl::StrCat(value->source, ": '", value->text, "' is not a host name or address"));
    }
  }
  if (const RawValue* value = options.Find("master-port")) {
    ASSIGN_OR_RETURN(plan->master_port, ToPort(*value));
    plan->master_port_is_explicit = true;
  }
  return absl::OkStatus();
}

uint16_t DefaultPort(const LaunchPlan& plan) {
  return plan.backend == RendezvousBackend::kEtcd ? kDefaultEtcdPort : kDefaultC10dPort;
}

absl::Status ReadEndpoint(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("rdzv-endpoint");
  const absl::string_view text =
      value == nullptr ? absl::string_view() : absl::StripAsciiWhitespace(value->text);
  if (plan->uses_file) {
    plan->rendezvous_file = std::string(text);
    plan->endpoint = {};
    return !text.empty() || plan->IsSingleNode()
               ? absl::OkStatus()
               : absl::OutOfRangeError(
                     "store_type=file: --rdzv-endpoint is the path of a file on a "
                     "file system that all nodes share; give one");
  }
  if (!text.empty()) {
    // fsdp-agent has no --rdzv-backend; the coordinators it connects to use c10d's default
    // port.
    const bool is_static = plan->backend == RendezvousBackend::kStatic && !plan->is_agent;
    absl::StatusOr<HostPort> endpoint =
        ParseHostPort(text, is_static ? plan->master_port : DefaultPort(*plan));
    if (!endpoint.ok()) {
      return InvalidValue(*value, "HOST, HOST:PORT or [IPV6]:PORT");
    }
    plan->endpoint = *std::move(endpoint);
    if (is_static) {
      plan->master_addr = plan->endpoint.host;
      plan->master_port = plan->endpoint.port;
      plan->master_port_is_explicit = true;
    }
    return absl::OkStatus();
  }
  if (plan->backend != RendezvousBackend::kStatic) {
    plan->endpoint = {"localhost", DefaultPort(*plan)};
  } else {
    plan->endpoint = {plan->master_addr, plan->master_port};
  }
  return absl::OkStatus();
}

/// Whatever the text is, it gets into MASTER_ADDR.
absl::StatusOr<std::string> ToNodeName(const RawValue& value) {
  const bool is_word = std::none_of(value.text.begin(), value.text.end(), [](char c) {
    return absl::ascii_isspace(static_cast<unsigned char>(c)) ||
           absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (value.text.size() > kMaxNodeNameBytes || !is_word) {
    return InvalidValue(value, absl::StrCat("a name or address of at most ", kMaxNodeNameBytes,
                                            " characters without blanks"));
  }
  return value.text;
}

absl::Status ReadIdentity(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("rdzv-id")) {
    plan->rdzv_id = value->text;
    plan->rdzv_id_is_random = value->text.empty();
    const bool is_printable =
        std::none_of(value->text.begin(), value->text.end(), absl::ascii_iscntrl);
    if (value->text.size() > kMaxRunIdBytes || !is_printable ||
        value->text.find('/') != std::string::npos) {
      return InvalidValue(*value, absl::StrCat("a run id of at most ", kMaxRunIdBytes,
                                               " printable characters without '/'"));
    }
  }
  if (const RawValue* value = options.Find("node-rank")) {
    ASSIGN_OR_RETURN(plan->node_rank, ToInt(*value, 0, "a rank of 0 or more"));
  }
  if (const RawValue* value = options.Find("role"); value != nullptr && !value->text.empty()) {
    plan->role = value->text;
  }
  if (const RawValue* value = options.Find("local-addr")) {
    ASSIGN_OR_RETURN(plan->local_addr, ToNodeName(*value));
  }
  return absl::OkStatus();
}

absl::Status ReadSecurity(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("token-file")) {
    plan->token_file = value->text;
  }
  plan->takes_anybody = options.IsOn("no-token");
  if (plan->takes_anybody && !plan->token_file.empty()) {
    return absl::OutOfRangeError("--no-token and --token-file exclude each other");
  }
  if (plan->takes_anybody && (plan->is_agent || plan->is_coordinator || !plan->IsSingleNode())) {
    plan->warnings.push_back(
        "--no-token: whoever can connect to the coordinator can join this job, as with torchrun");
  }
  for (const auto& [name, path] :
       {std::pair("tls-cert", &plan->tls_certificate), std::pair("tls-key", &plan->tls_key),
        std::pair("tls-ca", &plan->tls_ca)}) {
    if (const RawValue* value = options.Find(name)) {
      *path = value->text;
    }
  }
  if (plan->tls_certificate.empty() != plan->tls_key.empty()) {
    return absl::OutOfRangeError(
        "--tls-cert and --tls-key: a certificate and its key are given together or not at all");
  }
  return absl::OkStatus();
}

// c10d alone names no place: its default endpoint is this machine.
bool IsRendezvousGiven(const RawOptions& options) {
  const auto says = [&options](const char* name) {
    const RawValue* value = options.Find(name);
    return value != nullptr && !value->text.empty();
  };
  return options.IsOn("standalone") || says("rdzv-endpoint") || says("master-addr") ||
         says("node-rank") ||
         (says("rdzv-backend") && options.Find("rdzv-backend")->text != "c10d");
}

}  // namespace

absl::Status PlanRendezvous(const RawOptions& options, LaunchPlan* plan) {
  plan->nnodes_is_given = options.Find("nnodes") != nullptr;
  plan->rendezvous_is_given = IsRendezvousGiven(options);
  RETURN_IF_ERROR(ReadNodes(options, plan));
  RETURN_IF_ERROR(ReadBackend(options, plan));
  RETURN_IF_ERROR(ReadCoordinator(options, plan));
  if (plan->backend != RendezvousBackend::kC10d && !plan->is_agent) {
    plan->join_timeout = kStaticJoinTimeout;
  }
  if (const RawValue* conf = options.Find("rdzv-conf")) {
    RETURN_IF_ERROR(ReadRendezvousConf(*conf, plan));
  }
  RETURN_IF_ERROR(ReadMaster(options, plan));
  RETURN_IF_ERROR(ReadEndpoint(options, plan));
  if (plan->is_coordinator) {
    RETURN_IF_ERROR(CheckCoordinator(options, plan));
  }
  RETURN_IF_ERROR(ReadIdentity(options, plan));
  return ReadSecurity(options, plan);
}

}  // namespace fsdprun
