#include "launcher/cli/host_list.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

constexpr char kSlots[] = "slots=";

// A name that begins with a dash would be an option of ssh.
absl::StatusOr<AgentHost> ToHost(const RawValue& value, absl::string_view text, uint16_t port) {
  const absl::StatusOr<HostPort> daemon = ParseHostPort(text, port);
  const bool has_blanks = std::any_of(text.begin(), text.end(), absl::ascii_isspace);
  if (!daemon.ok() || daemon->port == 0 || has_blanks || absl::StartsWith(daemon->host, "-")) {
    return absl::OutOfRangeError(absl::StrCat(value.source, ": '", std::string(text),
                                              "' is no HOST or HOST:PORT of a node"));
  }
  return AgentHost{*daemon, 0};
}

absl::Status CheckTwice(const std::vector<AgentHost>& hosts, const std::string& source) {
  std::set<std::string> seen;
  for (const AgentHost& host : hosts) {
    if (!seen.insert(ToString(host.daemon)).second) {
      return absl::OutOfRangeError(
          absl::StrCat(source, ": ", ToString(host.daemon),
                       " is there twice; name it once, and give --nproc-per-node for more workers "
                       "there, or slots=N in a host file"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<AgentHost> ParseLine(const RawValue& line, uint16_t port) {
  const std::vector<std::string> words =
      absl::StrSplit(line.text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  ASSIGN_OR_RETURN(AgentHost host, ToHost(line, words.front(), port));
  for (size_t i = 1; i < words.size(); ++i) {
    absl::string_view count = words[i];
    const bool is_count = absl::ConsumePrefix(&count, kSlots) &&
                          absl::SimpleAtoi(count, &host.workers) && host.workers >= 1;
    if (!is_count) {
      return absl::OutOfRangeError(absl::StrCat(
          line.source, ": '", words[i], "' is not slots=N, the number of workers on that host"));
    }
  }
  return host;
}

}  // namespace

absl::StatusOr<std::vector<AgentHost>> ParseAgents(const RawValue& value, uint16_t port) {
  std::vector<AgentHost> hosts;
  for (const absl::string_view text : absl::StrSplit(value.text, ',')) {
    ASSIGN_OR_RETURN(AgentHost host, ToHost(value, absl::StripAsciiWhitespace(text), port));
    hosts.push_back(std::move(host));
  }
  RETURN_IF_ERROR(CheckTwice(hosts, value.source));
  return hosts;
}

absl::StatusOr<std::vector<AgentHost>> ParseHostFile(absl::string_view path, absl::string_view text,
                                                     uint16_t port) {
  std::vector<AgentHost> hosts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) {
      continue;
    }
    ASSIGN_OR_RETURN(AgentHost host,
                     ParseLine({absl::StrCat("--hostfile: ", std::string(path), ", line ", number),
                                std::string(line)},
                               port));
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) {
    return absl::OutOfRangeError(absl::StrCat("--hostfile: ", std::string(path),
                                              " names no host; it has one HOST[:PORT] in a line"));
  }
  RETURN_IF_ERROR(CheckTwice(hosts, absl::StrCat("--hostfile: ", std::string(path))));
  return hosts;
}

std::vector<std::string> NodeNames(const std::vector<AgentHost>& hosts) {
  std::map<std::string, int> daemons;
  for (const AgentHost& host : hosts) {
    ++daemons[host.daemon.host];
  }
  std::vector<std::string> names;
  names.reserve(hosts.size());
  for (const AgentHost& host : hosts) {
    names.push_back(daemons[host.daemon.host] == 1 ? host.daemon.host : ToString(host.daemon));
  }
  return names;
}

absl::Status TakeHosts(std::vector<AgentHost> hosts, LaunchPlan* plan) {
  const int count = static_cast<int>(hosts.size());
  if (!plan->nnodes_is_given) {
    plan->min_nodes = plan->max_nodes = count;
  }
  if (plan->min_nodes > count) {
    return absl::OutOfRangeError(absl::StrCat(
        "--nnodes: ", plan->min_nodes, " nodes are needed, but ", count,
        count == 1 ? " host is" : " hosts are", " given; name more, or leave --nnodes out"));
  }
  hosts.resize(static_cast<size_t>(std::min(count, plan->max_nodes)));
  plan->agents = std::move(hosts);
  return absl::OkStatus();
}

}  // namespace fsdprun
