#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

constexpr double kSlowLookupMs = 1000;
constexpr double kNoticedLookupMs = 100;
constexpr int kFewEphemeralPorts = 4000;
constexpr int kShortBacklog = 512;
constexpr int kDefaultKeepaliveS = 7200;

bool IsLoopbackText(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

bool IsOwn(const NetworkFacts& facts, const std::string& address) {
  return std::any_of(facts.interfaces.begin(), facts.interfaces.end(), [&](const auto& each) {
    return std::find(each.addresses.begin(), each.addresses.end(), address) != each.addresses.end();
  });
}

/// The interface that has this machine's address for others; empty if none has.
std::string RoutableInterface(const NetworkFacts& facts) {
  for (const InterfaceFacts& each : facts.interfaces) {
    if (std::find(each.addresses.begin(), each.addresses.end(), facts.routable) !=
        each.addresses.end()) {
      return each.name;
    }
  }
  return "";
}

/// What makes PyTorch's Gloo, which looks the host name up, tell an address that others reach.
std::string GlooAdvice(const NetworkFacts& facts) {
  if (facts.routable.empty()) {
    return "";
  }
  return absl::StrCat("`export GLOO_SOCKET_IFNAME=", RoutableInterface(facts), "`, or the line `",
                      facts.routable, " ", facts.host_name,
                      "` in /etc/hosts instead of the one that it has");
}

void CheckHostName(const NetworkFacts& facts, Findings* findings) {
  const char* name = "host_name";
  const std::string where = absl::StrCat("the host name ", facts.host_name);
  // A machine without a network has nobody who could be told a wrong address.
  const Severity severity = facts.routable.empty() ? Severity::kNote : Severity::kWarning;
  if (facts.resolved.empty()) {
    findings->Add(
        severity, name,
        {absl::StrCat(where, " cannot be looked up: ", facts.lookup_error),
         "fsdprun does without, but Gloo in PyTorch then listens on loopback, where other "
         "nodes cannot connect",
         GlooAdvice(facts)});
    return;
  }
  const std::string found = absl::StrCat(where, " is ", absl::StrJoin(facts.resolved, ", "));
  if (std::all_of(facts.resolved.begin(), facts.resolved.end(), IsLoopbackText)) {
    findings->Add(severity, name,
                  {absl::StrCat(found, ": loopback"),
                   absl::StrCat("fsdprun tells other nodes ",
                                facts.routable.empty() ? "nothing else" : facts.routable,
                                ", but Gloo in PyTorch tells them this one: 'Connection refused', "
                                "or a connection to themselves"),
                   GlooAdvice(facts)});
  } else if (std::none_of(facts.resolved.begin(), facts.resolved.end(),
                          [&](const std::string& each) { return IsOwn(facts, each); })) {
    findings->Warn(
        name, {absl::StrCat(found, ", and no interface of this machine has it"),
               "who asks for this host gets to another machine, or nowhere", GlooAdvice(facts)});
  } else {
    findings->Ok(name, found);
  }
}

void CheckLookups(const NetworkFacts& facts, Findings* findings) {
  const std::string found = absl::StrFormat("a lookup took %.0f ms", facts.lookup_ms);
  if (facts.lookup_ms >= kNoticedLookupMs) {
    findings->Add(facts.lookup_ms >= kSlowLookupMs ? Severity::kWarning : Severity::kNote,
                  "lookup_time",
                  {found, "each connection by name waits for it",
                   "look at the name servers of /etc/resolv.conf, or give numeric addresses"});
  } else {
    findings->Ok("lookup_time", found);
  }
  const bool is_broken =
      !facts.has_ipv6 && !facts.localhost.empty() && facts.localhost.front() == "::1";
  if (is_broken || facts.localhost.empty()) {
    findings->Warn(
        "localhost",
        {is_broken ? "localhost is ::1, and IPv6 is off" : "localhost is not known",
         "programs that connect to localhost fail", "`127.0.0.1 localhost` in /etc/hosts"});
  } else {
    findings->Ok("localhost", absl::StrCat("localhost is ", absl::StrJoin(facts.localhost, ", ")));
  }
}

std::string InterfaceText(const InterfaceFacts& each) {
  return absl::StrCat(each.name, " ", absl::StrJoin(each.addresses, " "), " mtu ", each.mtu,
                      each.speed > 0 ? absl::StrCat(" ", RateText(each.speed * 1e6)) : "");
}

void CheckInterfaces(const NetworkFacts& facts, Findings* findings) {
  std::vector<std::string> used;
  for (const InterfaceFacts& each : facts.interfaces) {
    if (each.is_up && !each.is_running && !each.is_loopback && !each.addresses.empty()) {
      findings->Note("carrier", {absl::StrCat(each.name,
                                              " is up and has an address, but no cable "
                                              "or its like"),
                                 "what is sent there is lost", ""});
    }
    if (each.is_running && !each.is_loopback && !each.addresses.empty()) {
      used.push_back(InterfaceText(each));
    }
  }
  if (facts.routable.empty()) {
    findings->Note("interfaces", {"this machine has no address that others can reach",
                                  "jobs of one node run; others do not", ""});
  } else {
    findings->Ok("interfaces",
                 absl::StrCat("address for others: ", facts.routable, "; ",
                              used.empty() ? "no interface runs" : absl::StrJoin(used, "; ")));
  }
  findings->Ok("ipv6", facts.has_ipv6 ? "IPv6 is there" : "IPv6 is off");
}

void CheckPort(const NetworkFacts& facts, Findings* findings) {
  if (facts.port_is_unknown) {
    return;
  }
  const std::string holder =
      facts.port_holder.empty() ? "" : absl::StrCat(" (held by ", facts.port_holder, ")");
  if (facts.port_error.empty()) {
    findings->Ok("port", absl::StrCat("port ", facts.port, " is free"));
  } else {
    findings->Add(facts.port_is_given ? Severity::kProblem : Severity::kNote, "port",
                  {absl::StrCat(facts.port_error, holder),
                   "a job whose rendezvous is at this port cannot be hosted here now",
                   "another port in --rdzv-endpoint, or end what holds it"});
  }
}

void CheckPortRange(const NetworkFacts& facts, Findings* findings) {
  const int count = facts.last_ephemeral - facts.first_ephemeral + 1;
  const std::string found =
      absl::StrCat("ephemeral ports: ", facts.first_ephemeral, " to ", facts.last_ephemeral);
  const char* todo = "`sysctl net.ipv4.ip_local_port_range='32768 60999'`";
  if (count < kFewEphemeralPorts) {
    findings->Warn("ephemeral_ports",
                   {found,
                    "ranks connect to each other from these: 'Cannot assign requested "
                    "address' with many",
                    todo});
  } else if (facts.port >= facts.first_ephemeral && facts.port <= facts.last_ephemeral) {
    findings->Note("ephemeral_ports",
                   {absl::StrCat(found, ", and the rendezvous at ", facts.port, " is one of them"),
                    "any connection may have got it first",
                    absl::StrCat("`sysctl net.ipv4.ip_local_reserved_ports=", facts.port,
                                 "`, or a port outside of the range")});
  } else {
    findings->Ok("ephemeral_ports", found);
  }
}

void CheckTcp(const NetworkFacts& facts, Findings* findings) {
  const std::string keepalive = absl::StrCat("net.ipv4.tcp_keepalive_time is ", facts.keepalive_s);
  if (facts.keepalive_s > kDefaultKeepaliveS) {
    findings->Note("keepalive", {keepalive,
                                 "firewalls forget connections that are silent for long; fsdprun's "
                                 "own are never",
                                 "`sysctl net.ipv4.tcp_keepalive_time=600`"});
  } else {
    findings->Ok("keepalive", keepalive);
  }
  const std::string backlog = absl::StrCat("net.core.somaxconn is ", facts.somaxconn);
  if (facts.somaxconn > 0 && facts.somaxconn < kShortBacklog) {
    findings->Note("backlog", {backlog, "where hundreds connect at once some wait a second or more",
                               "`sysctl net.core.somaxconn=4096`"});
  } else {
    findings->Ok("backlog", backlog);
  }
}

}  // namespace

bool NamesAnInterface(const std::string& names, const std::vector<InterfaceFacts>& interfaces) {
  absl::string_view text = names;
  const bool excludes = absl::ConsumePrefix(&text, "^");
  const bool is_exact = absl::ConsumePrefix(&text, "=");
  const std::vector<absl::string_view> wanted = absl::StrSplit(text, ',', absl::SkipEmpty());
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const InterfaceFacts& each) {
    const bool matches = std::any_of(wanted.begin(), wanted.end(), [&](absl::string_view name) {
      return is_exact ? each.name == name : absl::StartsWith(each.name, name);
    });
    return each.is_up && (excludes ? !matches && !each.is_loopback : matches);
  });
}

std::vector<Finding> CheckNetwork(const NetworkFacts& facts) {
  Findings findings(CheckGroup::kNetwork);
  CheckHostName(facts, &findings);
  CheckLookups(facts, &findings);
  CheckInterfaces(facts, &findings);
  CheckPort(facts, &findings);
  CheckPortRange(facts, &findings);
  CheckTcp(facts, &findings);
  return findings.Take();
}

}  // namespace fsdprun::doctor
