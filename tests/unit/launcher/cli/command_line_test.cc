#include "launcher/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr MachineFacts kCpuBox{.usable_cpus = 6, .gpus = 0};

absl::StatusOr<LaunchPlan> Parse(const std::vector<std::string>& args, const Environment& env = {},
                                 const MachineFacts& machine = kCpuBox) {
  return ParseCommandLine(CliProgram::kFsdprun, args, env, machine);
}

std::string ErrorOf(const std::vector<std::string>& args, const Environment& env = {}) {
  const absl::StatusOr<LaunchPlan> plan = Parse(args, env);
  EXPECT_FALSE(plan.ok()) << "accepted: " << args.front();
  const std::string message(plan.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(CommandLineTest, NodeThatKeepsFailingIsLeftOutUnlessToldOtherwise) {
  EXPECT_THAT(ErrorOf({"--quarantine-after=-1", "s"}), HasSubstr("--quarantine-after: '-1'"));
  EXPECT_THAT(ErrorOf({"--quarantine-window=0", "s"}), HasSubstr("--quarantine-window: '0'"));
  LaunchPlan plan = Parse({"s"}).value();
  EXPECT_EQ(plan.quarantine_after, 3);
  EXPECT_EQ(plan.quarantine_window, std::chrono::minutes(10));
  plan = Parse({"--quarantine-after=0", "--quarantine-window=1.5", "s"}).value();
  EXPECT_EQ(plan.quarantine_after, 0);
  EXPECT_EQ(plan.quarantine_window, std::chrono::milliseconds(1500));
  EXPECT_EQ(Parse({"s"}, {{"PET_QUARANTINE_AFTER", "5"}}).value().quarantine_after, 5);
}

TEST(CommandLineTest, HowTheWorkersAreWatched) {
  EXPECT_THAT(ErrorOf({"--hang-timeout=0", "s"}), HasSubstr("--hang-timeout: '0'"));
  EXPECT_THAT(ErrorOf({"--hang-timeout=auto:", "s"}), HasSubstr("auto:SECONDS"));
  EXPECT_THAT(ErrorOf({"--straggler-ratio=-1", "s"}), HasSubstr("--straggler-ratio: '-1'"));
  EXPECT_FALSE(Parse({"--on-hang=kill", "s"}).ok());
  LaunchPlan plan = Parse({"s"}).value();
  EXPECT_EQ(plan.watch.on_hang, OnHang::kReport);
  EXPECT_TRUE(plan.watch.looks_for_hangs);
  EXPECT_FALSE(plan.watch.hang_timeout.has_value());
  EXPECT_EQ(plan.watch.straggler_ratio, 0.1);
  plan = Parse({"--on-hang", "abort", "--hang-timeout=2.5", "--straggler-ratio=0", "s"}).value();
  EXPECT_EQ(plan.watch.on_hang, OnHang::kAbort);
  EXPECT_EQ(plan.watch.hang_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(plan.watch.straggler_ratio, 0);
  plan = Parse({"--hang-timeout=auto:1200", "s"}, {{"PET_ON_HANG", "restart"}}).value();
  EXPECT_EQ(plan.watch.on_hang, OnHang::kRestart);
  EXPECT_EQ(plan.watch.warm_up, std::chrono::minutes(20));
  EXPECT_FALSE(Parse({"--hang-timeout=off", "s"}).value().watch.looks_for_hangs);
}

TEST(CommandLineTest, WithoutOptionsOneWorkerRunsOnThisNode) {
  const LaunchPlan plan = Parse({"train.py"}).value();
  EXPECT_EQ(plan.min_nodes, 1);
  EXPECT_EQ(plan.max_nodes, 1);
  EXPECT_EQ(plan.nproc_per_node, 1);
  EXPECT_EQ(plan.backend, RendezvousBackend::kStatic);
  EXPECT_EQ(plan.rdzv_id, "none");
  EXPECT_EQ(plan.master_addr, "127.0.0.1");
  EXPECT_EQ(plan.master_port, 29500);
  EXPECT_FALSE(plan.master_port_is_explicit);
  EXPECT_EQ(plan.max_restarts, 0);
  EXPECT_EQ(plan.shutdown_timeout, std::chrono::seconds(30));
  EXPECT_EQ(plan.abort_timeout, std::chrono::seconds(2));
  EXPECT_EQ(plan.program_kind, ProgramKind::kPythonScript);
  EXPECT_THAT(plan.program, ElementsAre("train.py"));
}

TEST(CommandLineTest, SpellingsAndPrefixes) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--nproc-per-node", "3", "s"},
                                             {"--nproc_per_node=3", "s"},
                                             {"--nproc-per=3", "s"},
                                             {"--nproc_p", "3", "s"},
                                             {"--nproc", "3", "s"}}) {
    EXPECT_EQ(Parse(args).value().nproc_per_node, 3) << args.front();
  }
  EXPECT_TRUE(Parse({"--stand", "s"}).value().rdzv_id_is_random);
  EXPECT_THAT(ErrorOf({"--no", "s"}), HasSubstr("ambiguous"));
}

TEST(CommandLineTest, OptionsEndAtTheProgram) {
  const LaunchPlan plan =
      Parse({"--nnodes", "1", "s.sh", "--nproc-per-node", "3", "--", "x", "--tee=3", "-h"}).value();
  EXPECT_THAT(plan.program,
              ElementsAre("s.sh", "--nproc-per-node", "3", "--", "x", "--tee=3", "-h"));
  EXPECT_EQ(plan.nproc_per_node, 1);
  EXPECT_THAT(Parse({"--", "s.py", "a"}).value().program, ElementsAre("s.py", "a"));
  EXPECT_THAT(Parse({"s.py", "--nproc", "3"}).value().program, ElementsAre("s.py", "--nproc", "3"));
}

TEST(CommandLineTest, CommandLineWinsOverEnvironment) {
  const Environment env = {
      {"PET_NPROC_PER_NODE", "3"}, {"PET_STANDALONE", "1"}, {"PET_NO_PYTHON", "1"}};
  EXPECT_EQ(Parse({"s"}, env).value().nproc_per_node, 3);
  EXPECT_TRUE(Parse({"s"}, env).value().rdzv_id_is_random);
  EXPECT_EQ(Parse({"s"}, env).value().program_kind, ProgramKind::kExecutable);
  EXPECT_EQ(Parse({"--nproc-per-node=2", "s"}, env).value().nproc_per_node, 2);
  EXPECT_FALSE(Parse({"s"}, {{"PET_STANDALONE", "0"}}).value().rdzv_id_is_random);
  EXPECT_EQ(Parse({"s"}, {{"PET_NPROC_PER_NODE", ""}}).value().nproc_per_node, 1);
  EXPECT_THAT(ErrorOf({"s"}, {{"PET_MODULE", "yes"}}), HasSubstr("PET_MODULE: 'yes'"));
}

TEST(CommandLineTest, WorkersPerNodeWords) {
  EXPECT_EQ(Parse({"--nproc-per-node=cpu", "s"}).value().nproc_per_node, 6);
  EXPECT_EQ(Parse({"--nproc-per-node=auto", "s"}).value().nproc_per_node, 6);
  const MachineFacts gpu_box{.usable_cpus = 6, .gpus = 4};
  EXPECT_EQ(Parse({"--nproc-per-node=auto", "s"}, {}, gpu_box).value().nproc_per_node, 4);
  EXPECT_EQ(Parse({"--nproc-per-node=gpu", "s"}, {}, gpu_box).value().nproc_per_node, 4);
  EXPECT_EQ(Parse({"--nproc-per-node=cpu", "s"}, {}, gpu_box).value().nproc_per_node, 6);
  EXPECT_THAT(ErrorOf({"--nproc-per-node=gpu", "s"}), HasSubstr("no NVIDIA or AMD GPU is visible"));
  const MachineFacts laptop{.usable_cpus = 6, .gpus = 0, .intel_gpus = 1};
  EXPECT_EQ(Parse({"--nproc-per-node=xpu", "s"}, {}, laptop).value().nproc_per_node, 1);
  EXPECT_EQ(Parse({"--nproc-per-node=auto", "s"}, {}, laptop).value().nproc_per_node, 6);
  const MachineFacts server{.usable_cpus = 6, .gpus = 0, .intel_gpus = 3, .discrete_intel_gpus = 2};
  EXPECT_EQ(Parse({"--nproc-per-node=xpu", "s"}, {}, server).value().nproc_per_node, 3);
  EXPECT_EQ(Parse({"--nproc-per-node=auto", "s"}, {}, server).value().nproc_per_node, 2);
  EXPECT_THAT(ErrorOf({"--nproc-per-node=xpu", "s"}),
              HasSubstr("no Intel GPU is visible on this machine; give a number"));
}

TEST(CommandLineTest, HabitsOfTheOldLauncher) {
  EXPECT_FALSE(Parse({"s"}).value().passes_local_rank);
  EXPECT_FALSE(Parse({"--use-env", "s"}).value().passes_local_rank);
  EXPECT_TRUE(Parse({"--compat=launch", "s"}).value().passes_local_rank);
  EXPECT_FALSE(Parse({"--compat=launch", "--use_env", "s"}).value().passes_local_rank);
  const absl::Status refused = Parse({"--compat=launch", "--no-python", "s"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--use-env"));
  EXPECT_TRUE(Parse({"--compat=launch", "--no-python", "--use-env", "s"}).ok());
  EXPECT_EQ(Parse({"--compat=lunch", "s"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CommandLineTest, HowWorkersRun) {
  EXPECT_EQ(Parse({"s"}).value().numa_binding, NumaBinding::kNone);
  EXPECT_EQ(Parse({"--numa-binding=core-complex", "s"}).value().numa_binding,
            NumaBinding::kCoreComplex);
  EXPECT_EQ(Parse({"s"}, {{"PET_NUMA_BINDING", "node"}}).value().numa_binding, NumaBinding::kNone);
  EXPECT_EQ(Parse({"--numa-binding=core", "s"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Parse({"--omp-threads=3", "s"}).value().omp_threads, 3);
  EXPECT_EQ(Parse({"--omp-threads=auto", "--nproc-per-node=4", "s"}).value().omp_threads, 1);
  EXPECT_EQ(Parse({"--omp-threads=auto", "--nproc-per-node=2", "s"}).value().omp_threads, 3);
  EXPECT_THAT(ErrorOf({"--omp-threads=0", "s"}), HasSubstr("--omp-threads: '0'"));
  EXPECT_EQ(Parse({"--stdin=rank0", "s"}).value().stdin_source, StdinSource::kRankZero);
  EXPECT_EQ(Parse({"--stdin", "none", "s"}).value().stdin_source, StdinSource::kNone);
  EXPECT_EQ(Parse({"--stop-signal-to=leader", "s"}).value().stop_signal_to, StopSignalTo::kLeader);
}

TEST(CommandLineTest, ForwardedSignalsCannotEndTheJobToo) {
  EXPECT_THAT(Parse({"--forward-signals=SIGUSR1,SIGUSR2", "s"}).value().forwarded_signals,
              ElementsAre(SIGUSR1, SIGUSR2));
  EXPECT_THAT(ErrorOf({"--forward-signals=SIGTERM", "s"}), HasSubstr("only be in one of the two"));
  EXPECT_THAT(ErrorOf({"--forward-signals=TERM", "s"}), HasSubstr("only be in one of the two"));
  EXPECT_EQ(Parse({"--forward-signals=SIGKILL", "s"}).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(CommandLineTest, WrongValuesNameOptionValueAndExpectation) {
  EXPECT_THAT(ErrorOf({"--nnodes=1:2:3", "s"}), HasSubstr("--nnodes: '1:2:3' is not N or MIN:MAX"));
  EXPECT_THAT(ErrorOf({"--nnodes=3:2", "s"}), HasSubstr("--nnodes: '3:2'"));
  EXPECT_THAT(ErrorOf({"--nproc-per-node=0", "s"}), HasSubstr("--nproc-per-node: '0'"));
  EXPECT_THAT(ErrorOf({"--nproc-per-node=foo", "s"}), HasSubstr("--nproc-per-node: 'foo'"));
  EXPECT_THAT(ErrorOf({"--max-restarts=-1", "s"}), HasSubstr("--max-restarts: '-1'"));
  EXPECT_THAT(ErrorOf({"--monitor-interval=0", "s"}), HasSubstr("--monitor-interval: '0'"));
  EXPECT_THAT(ErrorOf({"--rdzv-backend=etcd9", "s"}), HasSubstr("did you mean etcd?"));
  EXPECT_THAT(ErrorOf({"--rdzv-conf=a", "s"}), HasSubstr("key=value"));
  EXPECT_THAT(ErrorOf({"--rdzv-conf=a=1,", "s"}), HasSubstr("key=value"));
  EXPECT_THAT(ErrorOf({"--rdzv-conf=join_timeout=0", "s"}), HasSubstr("join_timeout: '0'"));
  EXPECT_THAT(ErrorOf({"--rdzv-endpoint=localhost:1:2x", "s"}), HasSubstr("'localhost:1:2x'"));
  EXPECT_THAT(ErrorOf({"--master-addr=node:0", "s"}), HasSubstr("'node:0'"));
  EXPECT_TRUE(Parse({"--rdzv-endpoint=fe80::1%eth0", "s"}).ok());
  EXPECT_THAT(ErrorOf({"--rdzv-backend=c10d", "--rdzv-endpoint=h:70000", "s"}),
              HasSubstr("h:70000"));
  EXPECT_THAT(ErrorOf({"--master-port=x", "s"}), HasSubstr("--master-port: 'x'"));
  EXPECT_THAT(ErrorOf({"--shutdown-timeout=-1", "s"}), HasSubstr("--shutdown-timeout: '-1'"));
  EXPECT_THAT(ErrorOf({"--abort-timeout=soon", "s"}), HasSubstr("--abort-timeout: 'soon'"));
  EXPECT_EQ(Parse({"--abort-timeout=0.5", "s"}).value().abort_timeout,
            std::chrono::milliseconds(500));
  EXPECT_THAT(ErrorOf({"--module", "--no-python", "s"}), HasSubstr("exclude each other"));
  EXPECT_THAT(ErrorOf({"--standalone", "--nnodes=2", "s"}), HasSubstr("--standalone"));
  EXPECT_THAT(ErrorOf({"--nnodes=2", "--node-rank=2", "s"}), HasSubstr("--node-rank: 2"));
  EXPECT_THAT(ErrorOf({"--standalone=1", "s"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"--nnodes"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--nnodes", "--standalone", "s"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--standalone"}), HasSubstr("no program"));
  EXPECT_THAT(ErrorOf({"-z", "s"}), HasSubstr("unknown option -z"));
}

TEST(CommandLineTest, KeysOfTheRendezvousConfAreCheckedAsTorchrunDoes) {
  const auto conf = [](const char* text) { return absl::StrCat("--rdzv-conf=", text); };
  EXPECT_EQ(Parse({"--nnodes=2", "s"}).value().join_timeout, std::chrono::seconds(900));
  EXPECT_EQ(Parse({"--nnodes=2", conf("timeout=5"), "s"}).value().join_timeout,
            std::chrono::seconds(5));
  const auto c10d = [&conf](const char* text) {
    return Parse({"--rdzv-backend=c10d", conf(text), "s"});
  };
  EXPECT_EQ(c10d("timeout=5").value().join_timeout, std::chrono::seconds(600));
  EXPECT_EQ(c10d("keep_alive_interval=2").value().node_lease, std::chrono::seconds(6));
  EXPECT_EQ(c10d("keep_alive_max_attempt=2").value().node_lease, std::chrono::seconds(10));
  EXPECT_FALSE(c10d("join_timeout=1").value().node_lease.has_value());
  EXPECT_EQ(c10d("read_timeout=7").value().read_timeout, std::chrono::seconds(7));
  EXPECT_EQ(c10d("is_host=YES").value().is_host, true);
  EXPECT_EQ(c10d("is_host=f").value().is_host, false);
  EXPECT_TRUE(c10d("store_type=File").value().uses_file);
  EXPECT_FALSE(c10d("store_type=tcp").value().uses_file);
  for (const char* wrong : {"is_host=maybe", "read_timeout=0", "join_timeout=0", "store_type=zz",
                            "keep_alive_max_attempt=0", "close_timeout=soon"}) {
    EXPECT_EQ(c10d(wrong).status().code(), absl::StatusCode::kOutOfRange) << wrong;
  }
  // Keys of c10d, which static rendezvous does not read.
  EXPECT_TRUE(Parse({conf("is_host=maybe,store_type=zz"), "s"}).ok());
}

TEST(OptionValuesTest, StreamSets) {
  const auto sets = [](const char* text) { return ToStreamSets({"--tee", text}); };
  EXPECT_EQ(sets("3").value().Of(7), kBothStreams);
  const StreamSets of_ranks = sets("0:1,12:2,0:3").value();
  EXPECT_EQ(of_ranks.Of(0), kBothStreams);
  EXPECT_EQ(of_ranks.Of(12), kErrorStream);
  EXPECT_EQ(of_ranks.Of(1), kNoStream);
  for (const char* wrong : {"", "4", "11", "0:1,", "1,0:1", "0:1,1", "0:4", "-1:3", "a:1", "0:1:2",
                            ":1", "99999999999:1", "0: 1"}) {
    EXPECT_FALSE(sets(wrong).ok()) << wrong;
  }
}

TEST(OptionValuesTest, ListsOfTextsAndRanks) {
  EXPECT_THAT(ToTexts("foo,,bar,baz"), ElementsAre("foo,bar", "baz"));
  EXPECT_THAT(ToTexts(",,,a,"), ElementsAre(",", "a"));
  EXPECT_TRUE(ToTexts("").empty());
  EXPECT_FALSE(ToLocalRanks({"--x", ""}).value().has_value());
  EXPECT_THAT(*ToLocalRanks({"--x", "2,0,2"}).value(), ElementsAre(0, 2));
  EXPECT_FALSE(ToLocalRanks({"--x", "a,b"}).ok());
  EXPECT_FALSE(ToLocalRanks({"--x", "1,"}).ok());
}

TEST(OptionValuesTest, WrongWordsAreAnsweredWithTheNearest) {
  EXPECT_THAT(ErrorOf({"--rdzv-backend=c10", "s"}),
              HasSubstr("'c10' is not c10d, static, etcd or etcd-v2; did you mean c10d?"));
  EXPECT_THAT(ErrorOf({"--start-method=frok", "s"}), HasSubstr("did you mean fork?"));
  EXPECT_THAT(ErrorOf({"--start-method=x", "s"}), Not(HasSubstr("did you mean")));
}

TEST(CommandLineTest, ForwardedSignalsMayBeNamedAsKillNamesThem) {
  EXPECT_THAT(Parse({"--forward-signals=USR1, SIGUSR2", "s"}).value().forwarded_signals,
              ElementsAre(SIGUSR1, SIGUSR2));
  EXPECT_THAT(ErrorOf({"--forward-signals=USR3", "s"}), HasSubstr("'SIGUSR3' is no signal"));
}

TEST(CommandLineTest, AMasterAddressThatNothingReadsIsWarnedOf) {
  const auto warnings = [](const std::vector<std::string>& args) {
    return Parse(args).value().warnings;
  };
  EXPECT_THAT(warnings({"--nnodes=2", "--rdzv-backend=c10d", "--master-addr=h", "s"}),
              ElementsAre(HasSubstr("give --rdzv-endpoint")));
  EXPECT_THAT(warnings({"--nnodes=2", "--master-addr=h", "s"}), ElementsAre());
  EXPECT_THAT(
      warnings({"--nnodes=2", "--rdzv-backend=c10d", "--master-addr=h", "--rdzv-endpoint=h", "s"}),
      ElementsAre());
}

TEST(CommandLineTest, TimeoutsOfTheEnvironmentThatTorchElasticReads) {
  const Environment env = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "4"}};
  EXPECT_EQ(Parse({"s"}, env).value().shutdown_timeout, std::chrono::seconds(4));
  EXPECT_EQ(Parse({"--shutdown-timeout=2", "s"}, env).value().shutdown_timeout,
            std::chrono::seconds(2));
  EXPECT_EQ(Parse({"s"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "4"}, {"PET_SHUTDOWN_TIMEOUT", "5"}})
                .value()
                .shutdown_timeout,
            std::chrono::seconds(5));
}

absl::StatusCode CodeOf(const std::vector<std::string>& args, const Environment& env = {}) {
  return Parse(args, env).status().code();
}

TEST(CommandLineTest, UsageErrorsAreToldBeforeValuesThatMeanNothing) {
  constexpr auto kUsage = absl::StatusCode::kInvalidArgument;
  constexpr auto kValue = absl::StatusCode::kOutOfRange;
  EXPECT_EQ(CodeOf({"--bogus", "s"}), kUsage);
  EXPECT_EQ(CodeOf({"--nnodes"}), kUsage);
  EXPECT_EQ(CodeOf({"--max-restarts=x", "s"}), kUsage);
  EXPECT_EQ(CodeOf({"--monitor-interval=x", "s"}), kUsage);
  EXPECT_EQ(CodeOf({"--start-method=thread", "s"}), kUsage);
  EXPECT_EQ(CodeOf({"s"}, {{"PET_MASTER_PORT", "x"}}), kUsage);
  EXPECT_EQ(CodeOf({}), kUsage);
  EXPECT_EQ(CodeOf({"--nnodes=0"}), kUsage);
  EXPECT_EQ(CodeOf({"--nnodes=0", "--max-restarts=x", "s"}), kUsage);
  EXPECT_EQ(CodeOf({"--standalone", "--master-port=x", "s"}), kUsage);
  EXPECT_EQ(CodeOf({"--nnodes=0", "s"}), kValue);
  EXPECT_EQ(CodeOf({"--max-restarts", "-1", "s"}), kValue);
  EXPECT_EQ(CodeOf({"--master-port=70000", "s"}), kValue);
  EXPECT_EQ(CodeOf({"--logs-specs=mine", "s"}), kValue);
  EXPECT_EQ(CodeOf({"s"}, {{"PET_STANDALONE", "yes"}}), kValue);
  // argparse does not look at the choices of a default, which a variable is.
  EXPECT_EQ(CodeOf({"s"}, {{"PET_START_METHOD", "thread"}}), absl::StatusCode::kOk);
}

TEST(CommandLineTest, RunPathIsAScriptWhateverElseIsGiven) {
  for (const char* other : {"--module", "--no-python", "--run-path"}) {
    EXPECT_EQ(Parse({"--run-path", other, "s"}).value().program_kind, ProgramKind::kPythonScript);
  }
  EXPECT_EQ(CodeOf({"--run-path", "--module", "--no-python", "s"}), absl::StatusCode::kOk);
}

TEST(CommandLineTest, SignalsAreNamedAsPythonNamesThem) {
  EXPECT_THAT(Parse({"s"}).value().signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  const LaunchPlan plan =
      Parse({"--signals-to-handle", "SIGUSR1, SIGTERM,FOO,SIGKILL,USR2,SIG", "s"}).value();
  EXPECT_THAT(plan.signals, ElementsAre(SIGUSR1, SIGTERM));
  EXPECT_THAT(plan.unknown_signals, ElementsAre("FOO", "SIGKILL", "USR2", "SIG"));
  EXPECT_EQ(plan.signals_text, "SIGUSR1, SIGTERM,FOO,SIGKILL,USR2,SIG");
  EXPECT_THAT(Parse({"--signals-to-handle=SIGIO,SIGCLD,SIGRTMIN", "s"}).value().signals,
              ElementsAre(SIGIO, SIGCHLD, SIGRTMIN));
  EXPECT_EQ(Parse({"s"}, {{"PET_SIGNALS_TO_HANDLE", "SIGUSR2"}}).value().signals_text, "SIGUSR2");
}

TEST(CommandLineTest, OptionsThatChooseNothingHereAreTaken) {
  EXPECT_EQ(CodeOf({"--start-method=fork", "--logs-specs", "default", "--monitor-interval=5", "s"}),
            absl::StatusCode::kOk);
}

TEST(CommandLineTest, EtcdOfBothNamesHasItsPortAndPrefix) {
  const LaunchPlan etcd = Parse({"--rdzv-backend=etcd", "--rdzv-endpoint=h", "s"}).value();
  EXPECT_EQ(etcd.endpoint, (HostPort{"h", 2379}));
  EXPECT_EQ(etcd.etcd.prefix, "/torchelastic/p2p");
  const LaunchPlan v2 =
      Parse({"--rdzv-backend=etcd-v2", "--rdzv-conf=protocol=https", "s"}).value();
  EXPECT_EQ(v2.etcd.prefix, "/torch/elastic/rendezvous");
  EXPECT_TRUE(v2.etcd.uses_tls);
}

TEST(CommandLineTest, OptionsOfTheOutput) {
  for (const char* tee : {"--tee=3", "--t=3", "-t3", "-t=3"}) {
    EXPECT_EQ(Parse({tee, "-r", "0:1,1:2", "s"}).value().output.tee.Of(5), kBothStreams) << tee;
  }
  const OutputOptions output =
      Parse({"-r", "0:1,1:2", "--local_ranks_filter=1", "--duplicate-stdout-filters=a,,b,c",
             "--log-dir=/dev/null", "s"},
            {{"PET_TEE", "1"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "$rank "}})
          .value()
          .output;
  EXPECT_EQ(output.redirects.Of(1), kErrorStream);
  EXPECT_EQ(output.redirects.Of(2), kNoStream);
  EXPECT_EQ(output.tee.Of(1), kOutStream);
  EXPECT_EQ(output.shown_local_ranks, std::set<int>{1});
  EXPECT_THAT(output.stdout_filters, ElementsAre("a,b", "c"));
  EXPECT_TRUE(output.names_files);
  EXPECT_TRUE(output.names_directory);
  EXPECT_FALSE(output.has_directory);
  EXPECT_EQ(output.prefix_template, "$rank ");
  EXPECT_FALSE(Parse({"-r0", "s"}).value().output.names_files);
  EXPECT_FALSE(Parse({"-r0", "s"}).value().output.names_directory);
}

TEST(CommandLineTest, StandaloneIgnoresTheRendezvousOfTheEnvironment) {
  const Environment env = {{"PET_RDZV_BACKEND", "zookeeper"},
                           {"PET_RDZV_ENDPOINT", "::"},
                           {"PET_RDZV_ID", "a/b"},
                           {"PET_NODE_RANK", "1"},
                           {"PET_MASTER_PORT", "70000"},
                           {"PET_MASTER_ADDR", "10.0.0.1"}};
  const LaunchPlan plan = Parse({"--standalone", "--node-rank=7", "s"}, env).value();
  EXPECT_EQ(plan.node_rank, -1);
  EXPECT_TRUE(plan.rdzv_id_is_random);
  EXPECT_EQ(plan.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(plan.master_addr, "127.0.0.1");
}

TEST(CommandLineTest, NodeRankIsBoundedInStaticModeOnly) {
  EXPECT_THAT(ErrorOf({"s"}, {{"PET_NODE_RANK", "1"}}), HasSubstr("--node-rank: 1 is not below"));
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv-backend=c10d", "--node-rank=2", "s"}).value().node_rank,
            2);
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv-backend=c10d", "s"}).value().node_rank, -1);
}

TEST(CommandLineTest, SizesAreBounded) {
  EXPECT_THAT(ErrorOf({"--nnodes=1:2147483647", "s"}), HasSubstr("MAX <= 65536"));
  EXPECT_EQ(Parse({"--nproc-per-node=4096", "s"}).value().nproc_per_node, 4096);
  EXPECT_THAT(ErrorOf({"--nproc-per-node=4097", "s"}),
              HasSubstr("--nproc-per-node: '4097' means 4097 workers, at most 4096"));
  EXPECT_THAT(ErrorOf({"--rdzv-id", std::string(201, 'a'), "s"}), HasSubstr("at most 200"));
  EXPECT_THAT(ErrorOf({"--rdzv-id=a\tb", "s"}), HasSubstr("printable"));
}

TEST(CommandLineTest, UnknownOptionNamesTheNearest) {
  EXPECT_THAT(ErrorOf({"--nproc-pre-node=2", "s"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(ErrorOf({"--max-restart-s=2", "s"}), HasSubstr("did you mean --max-restarts?"));
  EXPECT_THAT(ErrorOf({"--zzzzzzzzzz", "s"}), HasSubstr("see fsdprun --help"));
}

TEST(CommandLineTest, RendezvousConf) {
  const LaunchPlan plan =
      Parse(
          {"--rdzv-conf", " join_timeout = 5 ,last_call_timeout=0.5,is_host=1,join_timeout=7", "s"})
          .value();
  EXPECT_EQ(plan.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(plan.last_call_timeout, std::chrono::milliseconds(500));
  // Quotes that no shell took away make keys and values that nobody reads.
  EXPECT_TRUE(Parse({"--rdzv-backend=c10d", "--rdzv-conf='join_timeout=5,timeout=5'", "s"}).ok());
}

TEST(CommandLineTest, EndpointsOfEachBackend) {
  const LaunchPlan c10d =
      Parse({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]", "s"}).value();
  EXPECT_EQ(c10d.endpoint, (HostPort{"::1", 29400}));
  EXPECT_EQ(ToString(c10d.endpoint), "[::1]:29400");
  EXPECT_EQ(Parse({"--nnodes=2", "--rdzv-backend=c10d", "s"}).value().endpoint,
            (HostPort{"localhost", 29400}));
  const LaunchPlan fixed =
      Parse({"--nnodes=2", "--master-addr=10.0.0.1", "--master-port=1234", "s"}).value();
  EXPECT_EQ(fixed.endpoint, (HostPort{"10.0.0.1", 1234}));
  EXPECT_EQ(fixed.node_rank, 0);
  const LaunchPlan by_endpoint = Parse({"--nnodes=2", "--rdzv-endpoint=10.0.0.2:77", "s"}).value();
  EXPECT_EQ(by_endpoint.master_addr, "10.0.0.2");
  EXPECT_EQ(by_endpoint.master_port, 77);
}

TEST(CommandLineTest, CoordinatorAlone) {
  const LaunchPlan plan =
      Parse({"--coordinator", "--nnodes=1:2", "--rdzv-endpoint=h:7", "--rdzv-id=a", "--journal=/j"})
          .value();
  EXPECT_TRUE(plan.is_coordinator);
  EXPECT_EQ(plan.journal, (JournalPlace{.folder = "/j"}));
  EXPECT_EQ(plan.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(plan.is_host, true);
  EXPECT_THAT(DescribePlan(plan), HasSubstr("mode: coordinator only\njournal: /j\n"));
  EXPECT_FALSE(Parse({"s"}).value().is_coordinator);
}

TEST(CommandLineTest, JournalInEtcd) {
  const auto parse = [](const char* journal, const char* conf = "--rdzv-conf=") {
    return Parse({"--coordinator", "--rdzv-endpoint=h:7", "--rdzv-id=a", journal, conf}).value();
  };
  EXPECT_EQ(
      parse("--journal=etcd://a:1,[::1]:2,b/p/q/").journal,
      (JournalPlace{.folder = {}, .etcd = {{"a", 1}, {"::1", 2}, {"b", 2379}}, .prefix = "/p/q"}));
  EXPECT_EQ(parse("--journal=etcd://a").journal.prefix, "/fsdprun/journal");
  EXPECT_THAT(DescribePlan(parse("--journal=etcd://a:1,[::1]:2/p")),
              HasSubstr("journal: etcd://a:1,[::1]:2/p\n"));
  const LaunchPlan secure = parse("--journal=etcd://a/p", "--rdzv-conf=protocol=https,cacert=/ca");
  EXPECT_TRUE(secure.etcd.uses_tls);
  EXPECT_EQ(secure.etcd.ca_file, "/ca");
  EXPECT_EQ(secure.backend, RendezvousBackend::kC10d);
  EXPECT_FALSE(parse("--journal=/folder", "--rdzv-conf=protocol=https").etcd.uses_tls);
}

TEST(CommandLineTest, CoordinatorThatIsFoundThroughEtcd) {
  for (const char* backend : {"--rdzv-backend=etcd", "--rdzv-backend=etcd-v2"}) {
    const LaunchPlan plan =
        Parse({"--coordinator", backend, "--rdzv-endpoint=h", "--rdzv-id=a"}).value();
    EXPECT_EQ(plan.backend, RendezvousBackend::kEtcd);
    EXPECT_EQ(plan.endpoint, (HostPort{"h", 2379}));
    EXPECT_EQ(plan.is_host, true);
  }
  EXPECT_EQ(Parse({"--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-conf=is_host=0", "s"})
                .value()
                .is_host,
            false);
  // As with torchrun, it says nothing more.
  EXPECT_EQ(Parse({"--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-conf=is_host=1", "s"})
                .value()
                .is_host,
            std::nullopt);
}

TEST(CommandLineTest, CoordinatorIsToldWhatItNeedsAndNothingElse) {
  const auto error = [](std::vector<std::string> more, bool is_complete = true) {
    std::vector<std::string> all{"--coordinator"};
    if (is_complete) {
      all.insert(all.end(), {"--rdzv-endpoint=h:7", "--rdzv-id=a"});
    }
    all.insert(all.end(), more.begin(), more.end());
    return ErrorOf(all);
  };
  EXPECT_THAT(error({"s"}), HasSubstr("--coordinator runs no program, but 's'"));
  EXPECT_THAT(error({"--rdzv-id=a"}, false), HasSubstr("needs --rdzv-endpoint HOST:PORT"));
  EXPECT_THAT(error({"--rdzv-endpoint=h:0", "--rdzv-id=a"}, false), HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(error({"--rdzv-endpoint=h:7"}, false), HasSubstr("needs --rdzv-id"));
  EXPECT_THAT(error({"--rdzv-id="}), HasSubstr("needs --rdzv-id"));
  EXPECT_THAT(error({"--standalone"}), HasSubstr("--standalone"));
  EXPECT_THAT(error({"--rdzv-backend=static"}), HasSubstr("--rdzv-backend: 'static' is not c10d"));
  EXPECT_THAT(error({"--rdzv-conf=is_host=0"}), HasSubstr("is_host=0"));
  EXPECT_THAT(error({"--rdzv-conf=store_type=file"}), HasSubstr("store_type=file"));
  EXPECT_THAT(error({"--journal="}), HasSubstr("--journal: '' is not a folder"));
  for (const char* url :
       {"http://h:1/p", "etcd://", "etcd:///p", "etcd://h:1,/p", "etcd://h:x/p"}) {
    EXPECT_THAT(error({absl::StrCat("--journal=", url)}),
                HasSubstr(absl::StrCat("--journal: '", url, "' is not ")));
  }
  EXPECT_THAT(error({"--rdzv-backend=etcd", "--rdzv-endpoint="}), HasSubstr("the etcd in which"));
  EXPECT_THAT(ErrorOf({"--journal=/j", "s"}), HasSubstr("--journal is for --coordinator only"));
}

TEST(CommandLineTest, HostsWithUnmatchedBracketsAreRefused) {
  for (const char* host : {"[x", "x]", "[]", "[[::1]]"}) {
    EXPECT_THAT(ErrorOf({absl::StrCat("--master-addr=", host), "s"}), HasSubstr("--master-addr: '"))
        << host;
    EXPECT_FALSE(ParseHostPort(host, 1).ok()) << host;
  }
  EXPECT_EQ(ParseHostPort("h:00001", 7).value(), (HostPort{"h", 1}));
  for (const char* port :
       {"000000", "000001", "+1", " 1", "\t1", "-1", "", "65536", "0x1", "1_0"}) {
    EXPECT_FALSE(ParseHostPort(absl::StrCat("h:", port), 7).ok()) << port;
    EXPECT_FALSE(ParseHostPort(absl::StrCat("[::1]:", port), 7).ok()) << port;
  }
  EXPECT_EQ(Parse({"--master-addr=[::1]", "s"}).value().master_addr, "::1");
}

TEST(CommandLineTest, AgentNeedsAnEndpointAndOffersNoLauncherOptions) {
  EXPECT_THAT(
      std::string(ParseCommandLine(CliProgram::kFsdpAgent, {"s"}, {}, kCpuBox).status().message()),
      HasSubstr("--rdzv-endpoint"));
  EXPECT_TRUE(ParseCommandLine(CliProgram::kFsdpAgent, {"--rdzv-endpoint=h:1", "--rdzv-id=a", "s"},
                               {}, kCpuBox)
                  .ok());
  EXPECT_FALSE(ParseCommandLine(CliProgram::kFsdpAgent, {"--standalone", "s"}, {}, kCpuBox).ok());
  const LaunchPlan plan = ParseCommandLine(CliProgram::kFsdpAgent, {"--rdzv-endpoint=h", "s"},
                                           {{"PET_STANDALONE", "1"}, {"PET_NNODES", "x"}}, kCpuBox)
                              .value();
  EXPECT_EQ(plan.endpoint, (HostPort{"h", 29400}));
  EXPECT_THAT(DescribePlan(plan), HasSubstr("coordinator: h:29400\n"));
  EXPECT_THAT(DescribePlan(plan), ::testing::Not(HasSubstr("nodes: ")));
  EXPECT_THAT(HelpText(CliProgram::kFsdpAgent), ::testing::Not(HasSubstr("--standalone")));
}

TEST(CommandLineTest, HelpHasEveryOptionSignalsAndExitCodes) {
  const std::string help = HelpText(CliProgram::kFsdprun);
  for (const OptionSpec& option : OptionTable()) {
    if (!option.agent_only) {
      EXPECT_THAT(help, HasSubstr(std::string("--") + option.name));
    }
  }
  EXPECT_THAT(help, HasSubstr("Signals:"));
  EXPECT_THAT(help, HasSubstr("Exit codes:"));
  EXPECT_THAT(help, HasSubstr("PET_NPROC_PER_NODE"));
  EXPECT_EQ(Parse({"-h"}).value().request, Request::kHelp);
  EXPECT_EQ(Parse({"--nnodes", "1", "--version"}).value().request, Request::kVersion);
  EXPECT_EQ(Parse({"--dry-run", "s"}).value().request, Request::kDryRun);
}

}  // namespace
}  // namespace fsdprun
