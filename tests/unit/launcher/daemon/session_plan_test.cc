#include "launcher/daemon/session_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/rpc/call_proof.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::SessionSpec Spec(const std::vector<std::string>& arguments) {
  v1::SessionSpec spec;
  spec.add_arguments("--agents=a,b");
  for (const std::string& argument : arguments) {
    spec.add_arguments(argument);
  }
  spec.set_run_id("run 1");
  spec.add_coordinators("10.0.0.1:4711");
  spec.add_coordinators("[fe80::1]:4711");
  spec.set_token("secret");
  spec.set_node_name("b");
  spec.set_node_rank(1);
  spec.set_min_nodes(2);
  spec.set_max_nodes(2);
  return spec;
}

std::string ErrorOf(const v1::SessionSpec& spec, const MachineFacts& machine = {}) {
  const auto plan = PlanOfSession(spec, {}, machine);
  return plan.ok() ? "" : std::string(plan.status().message());
}

TEST(SessionPlanTest, ASpecThatNoLauncherMakesIsRefused) {
  v1::SessionSpec without_coordinator = Spec({"train.py"});
  without_coordinator.clear_coordinators();
  EXPECT_THAT(ErrorOf(without_coordinator), HasSubstr("where its coordinator is"));
  v1::SessionSpec bad_address = Spec({"train.py"});
  bad_address.set_coordinators(0, "nowhere");
  EXPECT_THAT(ErrorOf(bad_address), HasSubstr("'nowhere'"));
  v1::SessionSpec no_nodes = Spec({"train.py"});
  no_nodes.set_min_nodes(0);
  EXPECT_THAT(ErrorOf(no_nodes), HasSubstr("not one of a job"));
  v1::SessionSpec help = Spec({"--help"});
  EXPECT_THAT(ErrorOf(help), HasSubstr("not one of a job"));
  v1::SessionSpec elsewhere = Spec({"train.py"});
  elsewhere.set_arguments(0, "--max-restarts=1");
  EXPECT_THAT(ErrorOf(elsewhere), HasSubstr("not one of a job"));
  EXPECT_THAT(ErrorOf(Spec({"--nproc-per-node=x", "train.py"})), HasSubstr("'x'"));
}

TEST(SessionPlanTest, TheNodeJoinsTheLaunchersCoordinator) {
  const LaunchPlan plan =
      PlanOfSession(Spec({"--nproc-per-node=3", "train.py", "--x"}), {}, {}).value();
  EXPECT_THAT(plan.coordinators,
              ElementsAre(HostPort{"10.0.0.1", 4711}, HostPort{"fe80::1", 4711}));
  EXPECT_FALSE(plan.HasAgents());
  EXPECT_EQ(plan.is_host, false);
  EXPECT_EQ(plan.rdzv_id, "run 1");
  EXPECT_EQ(plan.node_name, "b");
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.max_nodes, 2);
  EXPECT_EQ(plan.nproc_per_node, 3);
  EXPECT_TRUE(plan.shares_console);
  EXPECT_FALSE(plan.takes_anybody);
  EXPECT_THAT(plan.program, ElementsAre("train.py", "--x"));
}

TEST(SessionPlanTest, DevicesAreCountedAtTheNode) {
  const v1::SessionSpec spec = Spec({"--nproc-per-node=gpu", "train.py"});
  EXPECT_EQ(PlanOfSession(spec, {}, {.gpus = 4})->nproc_per_node, 4);
  EXPECT_THAT(ErrorOf(spec, {.gpus = 0}), HasSubstr("no such device"));
  v1::SessionSpec said = spec;
  said.set_workers(2);
  EXPECT_EQ(PlanOfSession(said, {}, {.gpus = 4})->nproc_per_node, 2);
}

TEST(SessionPlanTest, CoresAreDividedByTheWorkersOfTheHost) {
  v1::SessionSpec spec = Spec({"--omp-threads=auto", "--nproc-per-node=2", "train.py"});
  EXPECT_EQ(PlanOfSession(spec, {}, {.usable_cpus = 16})->omp_threads, 8);
  spec.set_workers(8);
  EXPECT_EQ(PlanOfSession(spec, {}, {.usable_cpus = 16})->omp_threads, 2);
  v1::SessionSpec told = Spec({"--omp-threads=3", "train.py"});
  told.set_workers(8);
  EXPECT_EQ(PlanOfSession(told, {}, {.usable_cpus = 16})->omp_threads, 3);
}

TEST(SessionPlanTest, ItsTokenAndCertificatesAreTheNodes) {
  v1::SessionSpec spec = Spec({"--token-file=/launchers", "--tls-ca=/launchers", "train.py"});
  EXPECT_EQ(PlanOfSession(spec, {}, {})->token_file, "");
  EXPECT_EQ(PlanOfSession(spec, {}, {})->tls_ca, "/launchers");
  spec.mutable_tls()->set_ca("/nodes");
  EXPECT_EQ(PlanOfSession(spec, {}, {})->tls_ca, "/nodes");
  spec.set_token(kNoToken);
  EXPECT_TRUE(PlanOfSession(spec, {}, {})->takes_anybody);
}

TEST(SessionPlanTest, VariablesOfTheCommandLineCountAtTheNodeToo) {
  v1::SessionSpec spec = Spec({"train.py"});
  v1::Variable& variable = *spec.add_environment();
  variable.set_name("PET_NPROC_PER_NODE");
  variable.set_value("5");
  EXPECT_EQ(PlanOfSession(spec, TraveledEnvironment(spec), {})->nproc_per_node, 5);
}

v1::SessionSpec HeadSpec(const std::vector<std::string>& arguments) {
  v1::SessionSpec spec = Spec(arguments);
  spec.clear_coordinators();
  spec.mutable_head()->add_agents()->set_daemon("a:1");
  v1::AgentAddress& second = *spec.mutable_head()->add_agents();
  second.set_daemon("[fe80::1]:2");
  second.set_workers(3);
  return spec;
}

TEST(SessionPlanTest, AHeadThatIsNoLaunchersIsRefused) {
  v1::SessionSpec bad_address = HeadSpec({"--detach", "train.py"});
  bad_address.mutable_head()->mutable_agents(1)->set_daemon("nowhere");
  EXPECT_THAT(std::string(PlanOfHead(bad_address, {}, {}).status().message()),
              HasSubstr("'nowhere'"));
  v1::SessionSpec too_few = HeadSpec({"--detach", "train.py"});
  too_few.mutable_head()->mutable_agents()->RemoveLast();
  EXPECT_THAT(std::string(PlanOfHead(too_few, {}, {}).status().message()),
              HasSubstr("less hosts than nodes"));
}

TEST(SessionPlanTest, AHeadHasTheHostsThatItsLauncherHasRead) {
  v1::SessionSpec spec = HeadSpec({"--detach", "train.py"});
  spec.set_arguments(0, "--hostfile=/not/here");
  const LaunchPlan plan = PlanOfHead(spec, {}, {}).value();
  EXPECT_THAT(plan.agents, ElementsAre(AgentHost{{"a", 1}, 0}, AgentHost{{"fe80::1", 2}, 3}));
  EXPECT_EQ(plan.host_file, "");
  EXPECT_FALSE(plan.detaches);
  EXPECT_EQ(plan.rdzv_id, "run 1");
  EXPECT_EQ(plan.min_nodes, 2);
}

}  // namespace
}  // namespace fsdprun
