#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/pair_checks.h"

namespace fsdprun::doctor {
namespace {

constexpr double kLongTripUs = 5000;
constexpr double kNoticedTripUs = 1000;
constexpr double kLongTailUs = 20'000;
constexpr double kFarClockUs = 1e6;
constexpr double kNoticedClockUs = 100e3;
constexpr double kSlowRate = 500e6;
constexpr double kNoticedRate = 5e9;
/// Between the directions, and between one stream and many.
constexpr double kUneven = 3;
constexpr double kLossy = 0.01;
constexpr uint64_t kFewSegments = 1000;

void CheckReleases(const PairFacts& facts, Findings* findings) {
  const std::string found = absl::StrCat(facts.own_node, " has release ", facts.own_release,
                                         " (protocol ", facts.own_protocol, "), ", facts.node, " ",
                                         facts.release, " (protocol ", facts.protocol, ")");
  if (facts.own_protocol != facts.protocol) {
    findings->Problem("release", {found, "nodes of a job must speak the same protocol",
                                  "install the same release on all nodes"});
  } else if (facts.own_release != facts.release) {
    findings->Warn("release", {found, "they understand each other, but may behave differently",
                               "install the same release on all nodes"});
  } else {
    findings->Ok("release", absl::StrCat("both have release ", facts.release));
  }
}

/// Names of the ends of the connection that is tried back: from, to.
std::pair<std::string, std::string> EndsOfBack(const PairFacts& facts) {
  return facts.back_is_to_other ? std::pair(facts.own_node, facts.node)
                                : std::pair(facts.node, facts.own_node);
}

void CheckWayBack(const PairFacts& facts, Findings* findings) {
  if (facts.back.address.empty()) {
    return;
  }
  const auto [from, to] = EndsOfBack(facts);
  if (!facts.back.error.empty()) {
    findings->Problem(
        "way_back",
        {absl::StrCat(from, " cannot connect to ", to, " at ", facts.back.address, ": ",
                      facts.back.error),
         "workers connect from every node to every other, at ports of the kernel's choice (Gloo, "
         "NCCL): they will hang, or fail with 'Connection refused' or 'timed out'",
         "open all TCP ports between the nodes, both ways: a firewall (`iptables -S`, `nft list "
         "ruleset`, `ufw status`), a security group, or a Kubernetes NetworkPolicy"});
    return;
  }
  findings->Ok("way_back",
               absl::StrCat(from, " reaches ", to, " at a port of the kernel's choice"));
  if (!facts.back_by_name.address.empty() && !facts.back_by_name.error.empty()) {
    findings->Warn(
        "host_name",
        {absl::StrCat("the host name of ", to, " is ", facts.back_by_name.address, " there, where ",
                      from, " does not reach it: ", facts.back_by_name.error),
         "Gloo in PyTorch tells the other nodes this address",
         absl::StrCat("on ", to, ": `export GLOO_SOCKET_IFNAME=` the interface that has ",
                      facts.back.address.substr(0, facts.back.address.rfind(':')),
                      ", or mend its /etc/hosts")});
  }
}

void CheckRoundTrips(const PairFacts& facts, Findings* findings) {
  const RoundTrips& trips = facts.round_trips;
  if (trips.count == 0) {
    return;
  }
  const std::string found = absl::StrCat("round trip ", MicrosText(trips.median_us), ", 99 % in ",
                                         MicrosText(trips.p99_us));
  if (trips.median_us >= kNoticedTripUs) {
    findings->Add(trips.median_us >= kLongTripUs ? Severity::kWarning : Severity::kNote,
                  "round_trip",
                  {found, "small collectives take at least as long, for each step of the ring",
                   "choose nodes of one room (Slurm: --switches=1), and the fast interface "
                   "(NCCL_SOCKET_IFNAME, --local-addr)"});
  } else if (trips.p99_us >= kLongTailUs) {
    findings->Note("round_trip", {found,
                                  "collectives wait for the slowest: packets are lost or "
                                  "held up now and then, or a machine is overloaded",
                                  "look at `nstat -az TcpRetransSegs` and `ethtool -S`"});
  } else {
    findings->Ok("round_trip", found);
  }
  const std::string clocks =
      absl::StrCat("the clock of ", facts.node, " is ", MicrosText(std::abs(trips.clock_offset_us)),
                   trips.clock_offset_us < 0 ? " behind" : " ahead", " (+- ",
                   MicrosText(trips.clock_error_us), ")");
  const double least = std::abs(trips.clock_offset_us) - trips.clock_error_us;
  if (least > kNoticedClockUs) {
    findings->Add(
        least > kFarClockUs ? Severity::kWarning : Severity::kNote, "clock_offset",
        {clocks, "times in logs of the nodes cannot be compared, and certificates may be refused",
         "`timedatectl set-ntp true` on both, or chrony"});
  } else {
    findings->Ok("clock_offset", clocks);
  }
}

/// Small ones pass, and nothing tells that this one does not.
void TellOfStall(const PairFacts& facts, const LargeMessage& large, const std::string& from,
                 const std::string& to, Findings* findings) {
  findings->Problem(
      "large_message",
      {absl::StrCat("a message of 1 MiB from ", from, " to ", to, " stopped after ", large.arrived,
                    " bytes, while small ones pass (MTU of the interfaces: ", facts.own_mtu, " on ",
                    facts.own_node, ", ", facts.mtu, " on ", facts.node, ")"),
       "full packets are lost without a word: something on the way takes only smaller ones, and "
       "says nothing (an MTU black hole); workers connect, and then hang",
       absl::StrCat(
           "find what passes with `ping -M do -s 1472 ", facts.address,
           "` (8972 for jumbo frames), and set the same MTU on all interfaces and "
           "switches: `ip link set dev eth0 mtu 1500`; `sysctl net.ipv4.tcp_mtu_probing=1` "
           "helps meanwhile")});
}

/// True if it has arrived whole; else with a finding, if it was sent.
bool CheckLarge(const PairFacts& facts, const LargeMessage& large, const std::string& from,
                const std::string& to, Findings* findings) {
  if (!large.was_sent || large.arrived >= kLargeBytes) {
    return large.was_sent;
  }
  if (large.stalled) {
    TellOfStall(facts, large, from, to, findings);
    return false;
  }
  findings->Problem(
      "large_message",
      {absl::StrCat("a message of 1 MiB from ", from, " to ", to,
                    " broke off, or was not whole after 10 s: ", large.arrived, " of ", kLargeBytes,
                    " bytes arrived"),
       "workers exchange gigabytes: their connections break, or they seem to hang",
       "look for a firewall or proxy that resets connections, for errors of cards and cables "
       "(`ethtool -S`, `ip -s link`), and whether something else fills the network"});
  return false;
}

void CheckLargeMessages(const PairFacts& facts, Findings* findings) {
  const bool passes_to = CheckLarge(facts, facts.large_to, facts.own_node, facts.node, findings);
  const bool passes_from =
      CheckLarge(facts, facts.large_from, facts.node, facts.own_node, findings);
  if (!passes_to || !passes_from) {
    return;
  }
  if (facts.own_mtu != facts.mtu && facts.own_mtu > 0 && facts.mtu > 0) {
    findings->Note("mtu", {absl::StrCat("the MTU is ", facts.own_mtu, " on ", facts.own_node,
                                        " and ", facts.mtu, " on ", facts.node),
                           "TCP agrees on the smaller; other protocols (RoCE) may not",
                           "`ip link set dev eth0 mtu ...` to the same on all nodes"});
  } else {
    findings->Ok("large_message", "messages of 1 MiB pass both ways");
  }
}

void CheckRates(const PairFacts& facts, Findings* findings) {
  const double to = std::max(facts.to.one_stream, facts.to.many_streams);
  const double from = std::max(facts.from.one_stream, facts.from.many_streams);
  if (to == 0 || from == 0) {
    return;
  }
  const std::string found = absl::StrCat(
      "one TCP stream: ", RateText(facts.to.one_stream), " to ", facts.node, ", ",
      RateText(facts.from.one_stream), " from it; ", facts.streams,
      " streams: ", RateText(facts.to.many_streams), " and ", RateText(facts.from.many_streams));
  const double slower = std::min(to, from);
  if (std::max(to, from) > kUneven * slower) {
    findings->Warn("bandwidth", {found, "one direction is much slower, and sets the pace",
                                 "look for errors of cards and cables: `ethtool -S`, `ip -s link`; "
                                 "and whether something else uses the network"});
  } else if (slower < kNoticedRate) {
    findings->Add(slower < kSlowRate ? Severity::kWarning : Severity::kNote, "bandwidth",
                  {found, "sharded training sends all parameters several times in each step",
                   "use the fast interface: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, and fsdprun's "
                   "--local-addr"});
  } else {
    findings->Ok("bandwidth", found);
  }
  if (facts.to.many_streams > kUneven * facts.to.one_stream) {
    findings->Note("one_stream",
                   {"one stream gets much less than several together",
                    "the network limits each connection, or one core does",
                    "`export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4` where NCCL uses TCP"});
  }
}

void CheckLoss(const PairFacts& facts, Findings* findings) {
  const uint64_t segments = facts.to.segments + facts.from.segments;
  const uint64_t again = facts.to.retransmitted + facts.from.retransmitted;
  if (segments < kFewSegments) {
    return;
  }
  const std::string found = absl::StrCat(again, " of ", segments, " segments had to be sent again");
  if (static_cast<double>(again) > kLossy * static_cast<double>(segments)) {
    findings->Warn("loss", {found, "TCP slows down with each",
                            "look for errors of cards and cables: `ethtool -S`, `ip -s link`"});
  } else {
    findings->Ok("loss", found);
  }
}

}  // namespace

PairFacts Mirrored(const PairFacts& facts) {
  PairFacts other = facts;
  std::swap(other.own_node, other.node);
  std::swap(other.own_release, other.release);
  std::swap(other.own_protocol, other.protocol);
  std::swap(other.own_mtu, other.mtu);
  std::swap(other.large_to, other.large_from);
  std::swap(other.to, other.from);
  other.back_is_to_other = !facts.back_is_to_other;
  other.round_trips.clock_offset_us = -facts.round_trips.clock_offset_us;
  return other;
}

std::vector<Finding> CheckPair(const PairFacts& facts) {
  Findings findings(CheckGroup::kPair);
  CheckReleases(facts, &findings);
  CheckWayBack(facts, &findings);
  CheckRoundTrips(facts, &findings);
  CheckLargeMessages(facts, &findings);
  CheckRates(facts, &findings);
  CheckLoss(facts, &findings);
  if (!facts.broken.empty()) {
    findings.Problem("test",
                     {absl::StrCat("the test with ", facts.node, " ended early: ", facts.broken),
                      "what breaks a test breaks a job", "try again, and look at both ends"});
  }
  return findings.Take();
}

}  // namespace fsdprun::doctor
