#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/cli/command_line.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/cli/host_list.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<LaunchPlan> AgentsPlan(const std::vector<std::string>& args,
                                      const Environment& env = {},
                                      CliProgram program = CliProgram::kFsdprun) {
  return ParseCommandLine(program, args, env, MachineFacts{});
}

std::string AgentsError(const std::vector<std::string>& args, const Environment& env = {},
                        CliProgram program = CliProgram::kFsdprun) {
  const auto plan = AgentsPlan(args, env, program);
  return plan.ok() ? "" : std::string(plan.status().message());
}

std::string DaemonError(std::vector<std::string> args) {
  args.insert(args.begin(), "--daemon");
  return AgentsError(args, {}, CliProgram::kFsdpAgent);
}

TEST(AgentsOptionsTest, AHostThatIsNoneIsNamed) {
  EXPECT_THAT(AgentsError({"--agents=a,,b", "s"}), HasSubstr("--agents: '' is no HOST"));
  EXPECT_THAT(AgentsError({"--agents=a:x", "s"}), HasSubstr("'a:x'"));
  EXPECT_THAT(AgentsError({"--agents=a:0", "s"}), HasSubstr("'a:0'"));
  EXPECT_THAT(AgentsError({"--agents=a,b,a:29410", "s"}), HasSubstr("a:29410 is there twice"));
  EXPECT_THAT(AgentsError({"--agents=a b", "s"}), HasSubstr("'a b'"));
}

TEST(AgentsOptionsTest, WhatSaysWhereTheNodesMeetIsRefused) {
  for (const char* option : {"--standalone", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d",
                             "--master-addr=h", "--node-rank=0", "--hostfile=f"}) {
    EXPECT_THAT(AgentsError({"--agents=a", option, "s"}), HasSubstr("exclude each other"))
        << option;
  }
  EXPECT_THAT(AgentsError({"--hostfile=f", "s"}, {{"PET_NODE_RANK", "0"}}),
              HasSubstr("PET_NODE_RANK"));
}

TEST(AgentsOptionsTest, HostsOfSshHaveItsPort) {
  const LaunchPlan plan =
      AgentsPlan({"--agents=ada@b,a:7", "--ssh", "--ssh-command= my-ssh  -v ", "s"}).value();
  EXPECT_THAT(plan.agents, ElementsAre(AgentHost{{"ada@b", 22}, 0}, AgentHost{{"a", 7}, 0}));
  EXPECT_EQ(plan.ssh, (SshOptions{.command = {"my-ssh", "-v"}}));
  EXPECT_EQ(AgentsPlan({"--agents=a", "--ssh", "--ssh-program=/p q", "s"})->ssh,
            (SshOptions{.command = {"ssh"}, .program = "/p q"}));
  EXPECT_FALSE(AgentsPlan({"--agents=a", "s"})->ssh.has_value());
  EXPECT_EQ(ParseHostFile("f", "a slots=2\nb:7\n", kDefaultSshPort)->front(),
            (AgentHost{{"a", 22}, 2}));
}

TEST(AgentsOptionsTest, SshThatMeansNothingIsRefused) {
  EXPECT_THAT(AgentsError({"--ssh", "s"}), HasSubstr("--ssh needs the nodes"));
  EXPECT_THAT(AgentsError({"--agents=a", "--ssh-command=x", "s"}),
              HasSubstr("--ssh-command is for --ssh only"));
  EXPECT_THAT(AgentsError({"--agents=a", "s"}, {{"PET_SSH_PROGRAM", "x"}}),
              HasSubstr("PET_SSH_PROGRAM is for --ssh only"));
  EXPECT_THAT(AgentsError({"--agents=a", "--ssh", "--ssh-command= ", "s"}),
              HasSubstr("--ssh-command"));
  EXPECT_THAT(AgentsError({"--agents=a", "--ssh", "--detach", "s"}),
              HasSubstr("exclude each other"));
  EXPECT_THAT(AgentsError({"--agents=a,-oProxyCommand=x", "--ssh", "s"}), HasSubstr("is no HOST"));
  EXPECT_THAT(AgentsError({"--agents=a,a:22", "--ssh", "s"}), HasSubstr("a:22 is there twice"));
}

TEST(AgentsOptionsTest, HostsAreNodesInTheirOrder) {
  const LaunchPlan plan = AgentsPlan({"--agents=b, a:7 ,[fe80::1]:8", "s"}).value();
  EXPECT_THAT(plan.agents, ElementsAre(AgentHost{{"b", 29410}, 0}, AgentHost{{"a", 7}, 0},
                                       AgentHost{{"fe80::1", 8}, 0}));
  EXPECT_EQ(plan.min_nodes, 3);
  EXPECT_EQ(plan.max_nodes, 3);
  EXPECT_TRUE(plan.HasAgents());
  EXPECT_FALSE(AgentsPlan({"s"})->HasAgents());
}

TEST(AgentsOptionsTest, FewerNodesThanHostsAreTheFirst) {
  const LaunchPlan plan = AgentsPlan({"--agents=a,b,c", "--nnodes=1:2", "s"}).value();
  EXPECT_THAT(plan.agents, ElementsAre(AgentHost{{"a", 29410}, 0}, AgentHost{{"b", 29410}, 0}));
  EXPECT_EQ(plan.min_nodes, 1);
  EXPECT_THAT(AgentsError({"--agents=a,b", "--nnodes=3", "s"}),
              HasSubstr("3 nodes are needed, but 2 hosts are given"));
}

TEST(AgentsOptionsTest, NodesWithSeveralDaemonsAreToldApart) {
  EXPECT_THAT(NodeNames({{{"a", 1}, 0}, {{"b", 1}, 0}, {{"a", 2}, 0}}),
              ElementsAre("a:1", "b", "a:2"));
}

TEST(AgentsOptionsTest, AHostFileHasAHostInALine) {
  const auto hosts = ParseHostFile("f", "# all\n a:7 slots=3 # first\n\n\tb\r\nc slots=1").value();
  EXPECT_THAT(hosts, ElementsAre(AgentHost{{"a", 7}, 3}, AgentHost{{"b", 29410}, 0},
                                 AgentHost{{"c", 29410}, 1}));
}

TEST(AgentsOptionsTest, AWrongLineOfAHostFileIsNamed) {
  const auto error = [](const char* text) {
    return std::string(ParseHostFile("f", text).status().message());
  };
  EXPECT_THAT(error("a\nb slots=x\n"), HasSubstr("f, line 2: 'slots=x'"));
  EXPECT_THAT(error("a slots=0"), HasSubstr("line 1: 'slots=0'"));
  EXPECT_THAT(error("a max-slots=2"), HasSubstr("'max-slots=2'"));
  EXPECT_THAT(error("a\n\n[b\n"), HasSubstr("line 3: '[b'"));
  EXPECT_THAT(error("# nobody\n"), HasSubstr("names no host"));
  EXPECT_THAT(error("a\na slots=2\n"), HasSubstr("twice"));
}

TEST(AgentsOptionsTest, EachNodeCountsItsOwnDevices) {
  EXPECT_EQ(AgentsPlan({"--agents=a", "--nproc-per-node=gpu", "s"})->nproc_per_node, 0);
  EXPECT_THAT(AgentsError({"--nproc-per-node=gpu", "s"}), HasSubstr("no NVIDIA or AMD GPU"));
}

TEST(AgentsOptionsTest, ADetachedJobHasDaemons) {
  EXPECT_THAT(AgentsError({"--detach", "s"}), HasSubstr("--detach is for --agents"));
  EXPECT_TRUE(AgentsPlan({"--agents=a", "--detach", "s"})->detaches);
}

TEST(AgentsOptionsTest, AJobIsAttachedByItsId) {
  for (const char* job : {"", "7", "/7", "h:x/7", "h:1/", "h:0/7"}) {
    EXPECT_THAT(AgentsError({std::string("--attach=") + job}), HasSubstr("a job's id")) << job;
  }
  EXPECT_THAT(AgentsError({"--attach=h:1/7", "--agents=a"}), HasSubstr("exclude each other"));
  EXPECT_THAT(AgentsError({"--attach=h:1/7", "s"}), HasSubstr("--attach runs no program"));
  const LaunchPlan plan = AgentsPlan({"--attach=[fe80::1]:1/7"}).value();
  EXPECT_EQ(plan.attached_daemon, (HostPort{"fe80::1", 1}));
  EXPECT_EQ(plan.attached_session, "7");
  EXPECT_EQ(AgentsPlan({"--attach=h/7"})->attached_daemon.port, 29410);
}

TEST(AgentsOptionsTest, ADaemonRunsNoProgramAndNeedsNoEndpoint) {
  EXPECT_THAT(DaemonError({"train.py"}), HasSubstr("--daemon runs no program"));
  const LaunchPlan plan = AgentsPlan({"--daemon"}, {}, CliProgram::kFsdpAgent).value();
  EXPECT_EQ(*plan.daemon, (DaemonOptions{.listen = {"::", 29410}}));
  EXPECT_THAT(AgentsError({"--daemon", "s"}), HasSubstr("--daemon"));
}

TEST(AgentsOptionsTest, WhatADaemonHas) {
  const LaunchPlan plan =
      AgentsPlan({"--daemon", "--listen=10.0.0.1:5", "--slots=4", "--devices=0, GPU-x",
                  "--runtime-dir=/r", "--launcher-grace=1.5"},
                 {}, CliProgram::kFsdpAgent)
          .value();
  EXPECT_EQ(*plan.daemon, (DaemonOptions{.listen = {"10.0.0.1", 5},
                                         .slots = 4,
                                         .devices = std::vector<std::string>{"0", "GPU-x"},
                                         .runtime_dir = "/r",
                                         .lost_grace = std::chrono::milliseconds(1500)}));
  EXPECT_THAT(
      *AgentsPlan({"--daemon", "--devices=none"}, {}, CliProgram::kFsdpAgent)->daemon->devices,
      IsEmpty());
  EXPECT_THAT(DaemonError({"--slots=0"}), HasSubstr("'0'"));
  EXPECT_THAT(DaemonError({"--devices=0,,1"}), HasSubstr("'0,,1'"));
  EXPECT_THAT(DaemonError({"--launcher-grace=0"}), HasSubstr("'0'"));
  EXPECT_THAT(DaemonError({"--listen=[x"}), HasSubstr("'[x'"));
  EXPECT_THAT(AgentsError({"--rdzv-endpoint=h:1", "--slots=2", "s"}, {}, CliProgram::kFsdpAgent),
              HasSubstr("--slots is for --daemon only"));
}

TEST(ForwardedEnvironmentTest, WhatCanBeNoVariableIsRefused) {
  for (const char* text : {"A,,B", "*", "A=1", "A B", "A*B"}) {
    EXPECT_THAT(AgentsError({"--agents=a", std::string("--forward-env=") + text, "s"}),
                HasSubstr("names of variables"))
        << text;
  }
  EXPECT_THAT(AgentsError({"--agents=a", "--forward-env=FSDPRUN_TOKEN", "s"}),
              HasSubstr("never sent"));
  EXPECT_THAT(AgentsError({"--forward-env=A", "s"}), HasSubstr("is for --agents"));
}

Environment Traveling(const std::string& which, const Environment& environment) {
  return TravelingEnvironment(environment, ParseForwardEnv({"--forward-env", which}).value());
}

TEST(ForwardedEnvironmentTest, AllButWhatIsAboutOnePlaceTravels) {
  const Environment all = {
      {"PATH", "/bin"},      {"NCCL_DEBUG", "INFO"}, {"HOME", "/h"},
      {"TMPDIR", "/t"},      {"SSH_AUTH_SOCK", "s"}, {"XDG_RUNTIME_DIR", "r"},
      {"SLURM_JOB_ID", "1"}, {"FSDPRUN_TOKEN", "x"}, {"CUDA_VISIBLE_DEVICES", "1"},
      {"PET_ROLE", "r"}};
  EXPECT_EQ(Traveling("all", all),
            (Environment{{"PATH", "/bin"}, {"NCCL_DEBUG", "INFO"}, {"PET_ROLE", "r"}}));
  EXPECT_EQ(Traveling("none", all), (Environment{{"PET_ROLE", "r"}}));
  EXPECT_EQ(Traveling("NCCL_*,HOME,MISSING", all),
            (Environment{{"NCCL_DEBUG", "INFO"}, {"HOME", "/h"}, {"PET_ROLE", "r"}}));
  EXPECT_FALSE(Traveling("FSDPRUN_*", all).contains("FSDPRUN_TOKEN"));
}

TEST(ForwardedEnvironmentTest, WhatAFileStandsForTravelsWhateverIsNamed) {
  const Environment of_file = {{"FSDP_VERSION", "2"}, {"CUDA_VISIBLE_DEVICES", "1"}};
  Environment all = of_file;
  all["NCCL_DEBUG"] = "INFO";
  ForwardedVariables which = ParseForwardEnv({"--forward-env", "none"}).value();
  AlsoForward(of_file, &which);
  EXPECT_EQ(TravelingEnvironment(all, which), (Environment{{"FSDP_VERSION", "2"}}));
  ForwardedVariables without_option;
  AlsoForward(of_file, &without_option);
  EXPECT_EQ(without_option, ForwardedVariables());
}

TEST(ForwardedEnvironmentTest, ADaemonsOwnVariablesGiveWay) {
  const Environment daemon = {{"HOME", "/d"},    {"PATH", "/d"},         {"FSDPRUN_TOKEN", "x"},
                              {"PET_ROLE", "d"}, {"NOTIFY_SOCKET", "n"}, {"LISTEN_FDS", "1"}};
  EXPECT_EQ(EnvironmentAtNode(daemon, {{"PATH", "/l"}, {"A", "1"}}),
            (Environment{{"HOME", "/d"}, {"PATH", "/l"}, {"A", "1"}}));
}

}  // namespace
}  // namespace fsdprun
