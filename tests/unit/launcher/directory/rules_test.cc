#include "launcher/directory/rules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

using List = std::vector<std::string>;

HostFacts Facts(const std::string& host, const List& resolved) {
  return {.host = host,
          .own_name = "node0",
          .resolved = resolved,
          .own_addresses = {"127.0.0.1", "::1", "10.0.0.7", "fd00::7"},
          .routable = "10.0.0.7"};
}

TEST(ViewHostTest, LocalhostIsBothLoopbackAddressesWhateverTheResolverSays) {
  for (const char* name : {"localhost", "LOCALHOST", "localhost.localdomain", "ip6-localhost"}) {
    const HostView view = ViewHost(Facts(name, {"::1"}));
    EXPECT_TRUE(view.is_own && view.is_loopback && !view.is_hidden) << name;
    EXPECT_EQ(view.addresses, (List{"127.0.0.1", "::1"}));
    EXPECT_EQ(view.listen_on, view.addresses);
  }
}

TEST(ViewHostTest, LoopbackStaysLoopback) {
  for (const char* host : {"127.0.1.1", "alias"}) {
    const HostView view = ViewHost(Facts(host, {"127.0.1.1"}));
    EXPECT_TRUE(view.is_own && view.is_loopback) << host;
    EXPECT_EQ(view.listen_on, (List{"127.0.1.1"}));
  }
}

TEST(ViewHostTest, AnAddressOfThisMachineIsListenedForOnAll) {
  for (const char* host : {"node0", "alias", "10.0.0.7"}) {
    const HostView view = ViewHost(Facts(host, {"127.0.1.1", "10.0.0.8", "10.0.0.7", "fd00::7"}));
    EXPECT_TRUE(view.is_own && !view.is_loopback && !view.is_hidden) << host;
    EXPECT_EQ(view.addresses, (List{"10.0.0.8", "10.0.0.7", "fd00::7"}));
    EXPECT_EQ(view.listen_on, (List{"::"}));
  }
}

TEST(ViewHostTest, OtherMachines) {
  const HostView view = ViewHost(Facts("node1", {"10.0.0.9"}));
  EXPECT_FALSE(view.is_own || view.is_loopback || view.is_hidden);
  EXPECT_EQ(view.addresses, (List{"10.0.0.9"}));
}

TEST(ViewHostTest, TheOwnNameIsOursAlsoBehindAnotherAddress) {
  EXPECT_TRUE(ViewHost(Facts("NODE0", {"10.9.9.9"})).is_own);
  EXPECT_FALSE(ViewHost(Facts("node0.elsewhere", {"10.9.9.9"})).is_own);
}

TEST(ViewHostTest, OwnNameThatIsUnknownHereOrLoopbackIsReachedFromOutside) {
  for (const List& resolved : {List{}, List{"127.0.1.1"}}) {
    for (const char* host : {"node0", "Node0.site"}) {
      const HostView view = ViewHost(Facts(host, resolved));
      EXPECT_TRUE(view.is_own && view.is_hidden && !view.is_loopback) << host;
      EXPECT_EQ(view.addresses, (List{"10.0.0.7"}));
      EXPECT_EQ(view.listen_on, (List{"::"}));
    }
  }
}

TEST(ViewHostTest, WithoutANetworkTheOwnNameIsLoopback) {
  HostFacts facts = Facts("node0", {"127.0.1.1"});
  facts.routable = "";
  EXPECT_EQ(ViewHost(facts).listen_on, (List{"127.0.1.1"}));
  EXPECT_FALSE(ViewHost(facts).is_hidden);
  facts.resolved.clear();
  EXPECT_EQ(ViewHost(facts).addresses, (List{"127.0.0.1", "::1"}));
  EXPECT_TRUE(ViewHost(facts).is_hidden);
}

TEST(ViewHostTest, WildcardIsThisMachine) {
  const HostView view = ViewHost(Facts("0.0.0.0", {"0.0.0.0"}));
  EXPECT_TRUE(view.is_own && view.is_hidden);
  EXPECT_EQ(view.addresses, (List{"10.0.0.7"}));
  EXPECT_EQ(view.listen_on, (List{"0.0.0.0"}));
}

LaunchPlan Plan(RendezvousBackend backend, int node_rank) {
  LaunchPlan plan;
  plan.backend = backend;
  plan.node_rank = node_rank;
  return plan;
}

TEST(RulesTest, RoleFollowsBackendRankAndIsHost) {
  EXPECT_EQ(RoleOf(Plan(RendezvousBackend::kStatic, 0)), HostRole::kMust);
  EXPECT_EQ(RoleOf(Plan(RendezvousBackend::kStatic, 1)), HostRole::kNever);
  LaunchPlan plan = Plan(RendezvousBackend::kC10d, 1);
  EXPECT_EQ(RoleOf(plan), HostRole::kMay);
  plan.is_host = true;
  EXPECT_EQ(RoleOf(plan), HostRole::kMust);
  plan.is_host = false;
  EXPECT_EQ(RoleOf(plan), HostRole::kNever);
  plan.is_host = true;
  plan.is_agent = true;
  EXPECT_EQ(RoleOf(plan), HostRole::kNever);
}

TEST(RulesTest, WhoBindsTheEndpoint) {
  const auto c10d = RendezvousBackend::kC10d;
  const auto fixed = RendezvousBackend::kStatic;
  EXPECT_EQ(FirstMoveOf(HostRole::kMay, c10d, true), FirstMove::kBind);
  EXPECT_EQ(FirstMoveOf(HostRole::kMay, c10d, false), FirstMove::kJoin);
  EXPECT_EQ(FirstMoveOf(HostRole::kNever, c10d, true), FirstMove::kJoin);
  EXPECT_EQ(FirstMoveOf(HostRole::kMust, c10d, false), FirstMove::kBind);
  EXPECT_EQ(FirstMoveOf(HostRole::kMust, fixed, true), FirstMove::kBind);
  EXPECT_EQ(FirstMoveOf(HostRole::kMust, fixed, false), FirstMove::kRefuse);
}

TEST(RulesTest, WhatFollowsBinding) {
  EXPECT_EQ(AfterBinding(HostRole::kMay, absl::OkStatus()), NextMove::kHost);
  EXPECT_EQ(AfterBinding(HostRole::kMay, absl::AlreadyExistsError("")), NextMove::kCheckHolder);
  EXPECT_EQ(AfterBinding(HostRole::kMust, absl::AlreadyExistsError("")), NextMove::kNameHolder);
  EXPECT_EQ(AfterBinding(HostRole::kMay, absl::UnavailableError("")), NextMove::kFail);
}

TEST(RulesTest, MasterAddressIsAsWrittenWhereThatNamesTheNode) {
  LaunchPlan plan = Plan(RendezvousBackend::kStatic, 0);
  plan.endpoint = {"node0", 29500};
  StoreNaming naming{.hosts = true,
                     .endpoint = ViewHost(Facts("node0", {"10.0.0.7"})),
                     .host_address = "10.0.0.7",
                     .node_address = "10.0.0.7"};
  EXPECT_EQ(StoreAddress(plan, naming), "node0");
  naming.endpoint.is_hidden = true;
  EXPECT_EQ(StoreAddress(plan, naming), "10.0.0.7");
  naming.hosts = false;
  EXPECT_EQ(StoreAddress(plan, naming), "10.0.0.7");
  plan.backend = RendezvousBackend::kC10d;
  naming.hosts = true;
  naming.endpoint.is_hidden = false;
  EXPECT_EQ(StoreAddress(plan, naming), "10.0.0.7");
}

TEST(RulesTest, LocalAddressIsAsWrittenUnlessTheStoreDoesNotListenThere) {
  LaunchPlan plan = Plan(RendezvousBackend::kC10d, -1);
  plan.endpoint = {"localhost", 29400};
  plan.local_addr = "node0-ib";
  StoreNaming naming{.hosts = true,
                     .endpoint = ViewHost(Facts("node0", {"10.0.0.7"})),
                     .host_address = "10.0.0.7",
                     .local = ViewHost(Facts("node0-ib", {"10.1.0.7"})),
                     .node_address = "10.1.0.7"};
  EXPECT_EQ(StoreAddress(plan, naming), "node0-ib");
  naming.local.is_hidden = true;
  EXPECT_EQ(StoreAddress(plan, naming), "10.1.0.7");
  naming.endpoint = ViewHost(Facts("localhost", {"127.0.0.1"}));
  naming.host_address = "127.0.0.1";
  EXPECT_EQ(StoreAddress(plan, naming), "127.0.0.1");
  // Where it leads to is not known here: the user does.
  naming.local = ViewForeignName("10.0.0.7");
  EXPECT_EQ(StoreAddress(plan, naming), "node0-ib");
}

TEST(RulesTest, AForeignNameLeavesTheAddressThatThisMachineKnows) {
  EXPECT_EQ(ViewForeignName("10.0.0.7").addresses, std::vector<std::string>{"10.0.0.7"});
  EXPECT_EQ(ViewForeignName("").addresses, std::vector<std::string>{"127.0.0.1"});
  EXPECT_FALSE(ViewForeignName("").is_own);
}

}  // namespace
}  // namespace fsdprun
