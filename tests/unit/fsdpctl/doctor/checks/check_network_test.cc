#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdpctl/doctor/checks/checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

InterfaceFacts Interface(const std::string& name, const std::string& address) {
  return {.name = name,
          .is_up = true,
          .is_running = true,
          .is_loopback = name == "lo",
          .mtu = 1500,
          .addresses = {address}};
}

NetworkFacts UsualNetwork() {
  return {.host_name = "node0",
          .resolved = {"10.0.0.5"},
          .localhost = {"127.0.0.1"},
          .interfaces = {Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.5")},
          .routable = "10.0.0.5",
          .keepalive_s = 7200,
          .somaxconn = 4096,
          .has_ipv6 = true};
}

TEST(CheckNetworkTest, UsualOneIsFine) {
  EXPECT_EQ(WorstOf(CheckNetwork(UsualNetwork())), Severity::kOk);
}

TEST(CheckNetworkTest, HostNameOnLoopbackOnly) {
  NetworkFacts facts = UsualNetwork();
  facts.resolved = {"127.0.1.1"};
  const Finding name = FindingOf(CheckNetwork(facts), "host_name");
  EXPECT_EQ(name.severity, Severity::kWarning);
  EXPECT_THAT(name.found, HasSubstr("127.0.1.1"));
  EXPECT_THAT(name.what_to_do, HasSubstr("export GLOO_SOCKET_IFNAME=eth0"));
  facts.routable.clear();  // Nobody else is there to be told.
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "host_name"), Severity::kNote);
}

TEST(CheckNetworkTest, HostNameUnknownOrElsewhere) {
  NetworkFacts facts = UsualNetwork();
  facts.resolved.clear();
  facts.lookup_error = "no such name";
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "host_name"), Severity::kWarning);
  facts.resolved = {"10.9.9.9"};
  EXPECT_THAT(FindingOf(CheckNetwork(facts), "host_name").found, HasSubstr("no interface"));
  facts.resolved = {"10.9.9.9", "10.0.0.5"};
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "host_name"), Severity::kOk);
}

TEST(CheckNetworkTest, SlowLookups) {
  NetworkFacts facts = UsualNetwork();
  facts.lookup_ms = 300;
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "lookup_time"), Severity::kNote);
  facts.lookup_ms = 5000;
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "lookup_time"), Severity::kWarning);
}

TEST(CheckNetworkTest, LocalhostOfIPv6WithoutIPv6) {
  NetworkFacts facts = UsualNetwork();
  facts.localhost = {"::1", "127.0.0.1"};
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "localhost"), Severity::kOk);
  facts.has_ipv6 = false;
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "localhost"), Severity::kWarning);
}

TEST(CheckNetworkTest, PortThatIsTakenIsAProblemIfItWasNamed) {
  NetworkFacts facts = UsualNetwork();
  facts.port_error = "cannot listen on port 29400 of all addresses: Address already in use";
  facts.port_holder = "process 12 (python3)";
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "port"), Severity::kNote);
  facts.port_is_given = true;
  const Finding port = FindingOf(CheckNetwork(facts), "port");
  EXPECT_EQ(port.severity, Severity::kProblem);
  EXPECT_THAT(port.found, HasSubstr("held by process 12 (python3)"));
  facts.port_is_unknown = true;
  for (const Finding& finding : CheckNetwork(facts)) {
    EXPECT_NE(finding.check, "port");
  }
}

TEST(CheckNetworkTest, EphemeralPorts) {
  NetworkFacts facts = UsualNetwork();
  facts.first_ephemeral = 20000;
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "ephemeral_ports"), Severity::kNote);
  facts.last_ephemeral = 21000;
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "ephemeral_ports"), Severity::kWarning);
}

TEST(CheckNetworkTest, QueuesAndIdleConnections) {
  NetworkFacts facts = UsualNetwork();
  facts.somaxconn = 128;
  facts.keepalive_s = 100'000;
  facts.interfaces.push_back(Interface("eth1", "10.1.0.5"));
  facts.interfaces.back().is_running = false;
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "backlog"), Severity::kNote);
  EXPECT_EQ(SeverityOf(CheckNetwork(facts), "keepalive"), Severity::kNote);
  EXPECT_THAT(FindingOf(CheckNetwork(facts), "carrier").found, HasSubstr("eth1"));
}

TEST(NamesAnInterfaceTest, AsNcclReadsIt) {
  const std::vector<InterfaceFacts> here = {Interface("lo", "127.0.0.1"),
                                            Interface("eth0", "10.0.0.5")};
  EXPECT_TRUE(NamesAnInterface("eth", here));
  EXPECT_TRUE(NamesAnInterface("ib,eth0", here));
  EXPECT_FALSE(NamesAnInterface("ib", here));
  EXPECT_FALSE(NamesAnInterface("=eth", here));
  EXPECT_TRUE(NamesAnInterface("=eth0", here));
  EXPECT_TRUE(NamesAnInterface("^docker", here));
  EXPECT_FALSE(NamesAnInterface("^eth", here));
}

TEST(CheckClockTest, SynchronisedOrNot) {
  const int64_t now = 1'800'000'000;
  EXPECT_EQ(WorstOf(CheckClock({.unix_seconds = now, .source = "tsc"})), Severity::kOk);
  EXPECT_EQ(SeverityOf(CheckClock({.is_synchronised = false, .unix_seconds = now}), "synchronised"),
            Severity::kWarning);
  EXPECT_EQ(SeverityOf(CheckClock({.max_error_ms = 5000, .unix_seconds = now}), "synchronised"),
            Severity::kWarning);
  EXPECT_EQ(SeverityOf(CheckClock({.unix_seconds = 1000}), "time"), Severity::kProblem);
  EXPECT_EQ(SeverityOf(CheckClock({.unix_seconds = now, .source = "hpet"}), "clock_source"),
            Severity::kWarning);
}

}  // namespace
}  // namespace fsdprun::doctor
