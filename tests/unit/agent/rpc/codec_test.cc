#include "agent/rpc/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

constexpr Incarnation kAgent(0xfedcba9876543210);
constexpr Generation kGeneration(12);

// Encodes, sends through the wire format, decodes.
absl::StatusOr<FromAgent> RoundTrip(AgentMessage message) {
  const std::string bytes =
      Encode(FromAgent{kAgent, kGeneration, std::move(message)}, "job").SerializeAsString();
  v1::AgentMessage wire;
  EXPECT_TRUE(wire.ParseFromString(bytes));
  EXPECT_EQ(wire.job_id(), "job");
  return Decode(wire);
}

absl::StatusOr<ToAgent> RoundTrip(CoordinatorMessage message) {
  const std::string bytes =
      Encode(ToAgent{kAgent, kGeneration, std::move(message)}, "job").SerializeAsString();
  v1::CoordinatorMessage wire;
  EXPECT_TRUE(wire.ParseFromString(bytes));
  return Decode(wire);
}

TEST(CodecTest, JoinedKeepsEveryField) {
  NodeInfo node{kAgent, "n\xff", "10.0.0.1", 8, "trainer", 3, true};
  const FromAgent back =
      RoundTrip(AgentMessage(AgentJoined{node, Generation(11), "no \xff", {7, "1.2.3"}})).value();
  EXPECT_EQ(back.incarnation, kAgent);
  EXPECT_EQ(back.generation, kGeneration);
  const auto& joined = std::get<AgentJoined>(back.message);
  EXPECT_EQ(joined.highest_seen, Generation(11));
  EXPECT_EQ(joined.cannot_run, "no \xff");
  EXPECT_EQ(joined.build.protocol, 7u);
  EXPECT_EQ(joined.build.release, "1.2.3");
  EXPECT_EQ(joined.node.incarnation, kAgent);
  EXPECT_EQ(joined.node.name, "n\xff");
  EXPECT_EQ(joined.node.address, "10.0.0.1");
  EXPECT_EQ(joined.node.local_world_size, 8);
  EXPECT_EQ(joined.node.role, "trainer");
  EXPECT_EQ(joined.node.requested_node_rank, 3);
  EXPECT_TRUE(joined.node.has_successor);
}

TEST(CodecTest, WhoNamesNoProtocolIsToldApart) {
  v1::AgentMessage joined =
      Encode(FromAgent{kAgent, kGeneration, AgentJoined{NodeInfo{kAgent, "n", "10.0.0.1"}, {}, ""}},
             "job");
  joined.mutable_joined()->clear_build();
  EXPECT_EQ(std::get<AgentJoined>(Decode(joined).value().message).build.protocol, 0u);
  v1::CoordinatorMessage admitted = Encode(ToAgent{kAgent, kGeneration, AdmitAgent{}}, "job");
  EXPECT_EQ(std::get<AdmitAgent>(Decode(admitted).value().message).build.protocol, kProtocol);
  admitted.mutable_admit()->clear_build();
  EXPECT_EQ(std::get<AdmitAgent>(Decode(admitted).value().message).build.protocol, 0u);
}

TEST(CodecTest, ExitKeepsEveryField) {
  WorkerExit exit;
  exit.local_rank = 1;
  exit.rank = 5;
  exit.pid = 77;
  exit.exit_code = 3;
  exit.signal = 0;
  exit.dumped_core = true;
  exit.after_stop = true;
  exit.killed_by_us = true;
  exit.failed_before_stop = true;
  exit.error_message = "E\xfe";
  exit.traceback = "t";
  exit.error_json = "{}";
  exit.stderr_tail = {"a", "b\x80"};
  exit.last_step = 99;
  exit.log_path = "/l";
  exit.exited_unix_ns = 123;
  exit.error_timestamp_s = -10;
  const FromAgent message = RoundTrip(AgentMessage(WorkerExited{exit, Duration(7)})).value();
  EXPECT_EQ(std::get<WorkerExited>(message.message).age, Duration(7));
  const WorkerExit& back = std::get<WorkerExited>(message.message).exit;
  EXPECT_EQ(std::tie(back.local_rank, back.rank, back.pid, back.exit_code, back.signal),
            std::tie(exit.local_rank, exit.rank, exit.pid, exit.exit_code, exit.signal));
  EXPECT_TRUE(back.dumped_core && back.after_stop && back.killed_by_us && back.failed_before_stop);
  EXPECT_EQ(std::tie(back.error_message, back.traceback, back.error_json, back.stderr_tail),
            std::tie(exit.error_message, exit.traceback, exit.error_json, exit.stderr_tail));
  EXPECT_EQ(std::tie(back.last_step, back.log_path, back.exited_unix_ns),
            std::tie(exit.last_step, exit.log_path, exit.exited_unix_ns));
  EXPECT_EQ(back.error_timestamp_s, exit.error_timestamp_s);
}

TEST(CodecTest, AgentMessagesKeepEveryField) {
  const auto heartbeat = RoundTrip(AgentMessage(AgentHeartbeat{{7, 100, "loss 2\xff"}})).value();
  const Progress& progress = std::get<AgentHeartbeat>(heartbeat.message).progress;
  EXPECT_EQ(progress.step, 7);
  EXPECT_EQ(progress.total, 100);
  EXPECT_EQ(progress.text, "loss 2\xff");
  for (const bool asks : {false, true}) {
    const auto beat = RoundTrip(AgentMessage(AgentHeartbeat{{}, asks})).value();
    EXPECT_EQ(std::get<AgentHeartbeat>(beat.message).asks, asks);
  }
  const auto silent = RoundTrip(AgentMessage(AgentHeartbeat{})).value();
  EXPECT_EQ(std::get<AgentHeartbeat>(silent.message).progress.step, -1);
  EXPECT_EQ(std::get<AgentHeartbeat>(silent.message).progress.total, -1);

  EXPECT_TRUE(
      std::holds_alternative<AgentStarted>(RoundTrip(AgentMessage(AgentStarted{}))->message));
  EXPECT_TRUE(
      std::holds_alternative<WorkersStopped>(RoundTrip(AgentMessage(WorkersStopped{}))->message));

  EXPECT_FALSE(std::get<AgentPrepared>(RoundTrip(AgentMessage(AgentPrepared{}))->message).store);
  const auto prepared = RoundTrip(AgentMessage(AgentPrepared{StoreEndpoint{"::1", 9}})).value();
  EXPECT_EQ(std::get<AgentPrepared>(prepared.message).store->address, "::1");
  EXPECT_EQ(std::get<AgentPrepared>(prepared.message).store->port, 9);

  for (const bool workers_running : {false, true}) {
    const auto left = RoundTrip(AgentMessage(AgentLeft{15, workers_running})).value();
    EXPECT_EQ(std::get<AgentLeft>(left.message).signal, 15);
    EXPECT_EQ(std::get<AgentLeft>(left.message).workers_running, workers_running);
  }
}

TEST(CodecTest, NodesReportOnlyFaultsOfTheirOwn) {
  for (const CauseKind kind : {CauseKind::kKeeperDied, CauseKind::kPrepareFailed,
                               CauseKind::kSpawnFailed, CauseKind::kNodeWedged}) {
    const auto back = RoundTrip(AgentMessage(NodeFaulted{kind, "w", Duration(7)})).value();
    EXPECT_EQ(std::get<NodeFaulted>(back.message).age, Duration(7));
    EXPECT_EQ(std::get<NodeFaulted>(back.message).kind, kind);
    EXPECT_EQ(std::get<NodeFaulted>(back.message).what, "w");
  }
  for (const CauseKind kind :
       {CauseKind::kWorkerFailed, CauseKind::kNodeLost, CauseKind::kNodeStuck,
        CauseKind::kJoinTimeout, CauseKind::kCannotStart, CauseKind::kWorkerHung}) {
    EXPECT_THAT(std::string(RoundTrip(AgentMessage(NodeFaulted{kind, "w"})).status().message()),
                HasSubstr("fault kind"));
  }
}

TEST(CodecTest, NegativeAndHugeAgesAreRefused) {
  for (const int64_t age_ns : {int64_t{-1}, int64_t{1} << 57}) {
    const Duration age(age_ns);
    EXPECT_THAT(std::string(RoundTrip(AgentMessage(WorkerExited{{}, age})).status().message()),
                HasSubstr("age_ns"));
    EXPECT_THAT(std::string(RoundTrip(AgentMessage(NodeFaulted{CauseKind::kKeeperDied, "w", age}))
                                .status()
                                .message()),
                HasSubstr("age_ns"));
  }
}

TEST(CodecTest, TermsKeepEveryFieldAndAreChecked) {
  const auto admitted = [](JobTerms terms) {
    return RoundTrip(CoordinatorMessage(AdmitAgent{Duration(7), terms}));
  };
  const JobTerms back =
      std::get<AdmitAgent>(admitted({2, 4, 3, Duration(8), Duration(9)})->message).terms.value();
  EXPECT_EQ(std::tie(back.min_nodes, back.max_nodes, back.max_restarts), std::tuple(2, 4, 3));
  EXPECT_EQ(std::tie(back.join_timeout, back.last_call), std::tuple(Duration(8), Duration(9)));
  const std::pair<JobTerms, const char*> wrong[] = {
      {{0, 4, 3}, "terms.min_nodes"},
      {{5, 4, 3}, "terms.min_nodes"},
      {{2, 4, -1}, "terms.max_restarts"},
      {{2, 4, 3, Duration(-1)}, "terms.join_timeout_ns"},
      {{2, 4, 3, Duration(8), Duration::max()}, "terms.last_call_ns"}};
  for (const auto& [terms, field] : wrong) {
    EXPECT_THAT(std::string(admitted(terms).status().message()), HasSubstr(field));
  }
}

TEST(CodecTest, OrdersKeepEveryField) {
  const auto admit = RoundTrip(CoordinatorMessage(AdmitAgent{Duration(7)})).value();
  EXPECT_EQ(std::get<AdmitAgent>(admit.message).node_lease, Duration(7));
  EXPECT_THAT(
      std::string(RoundTrip(CoordinatorMessage(AdmitAgent{Duration(-1)})).status().message()),
      HasSubstr("admit.node_lease_ns"));
  EXPECT_FALSE(std::get<AdmitAgent>(admit.message).terms.has_value());
  EXPECT_FALSE(std::get<AdmitAgent>(admit.message).may_be_taken_over);
  const auto taken = RoundTrip(CoordinatorMessage(AdmitAgent{.may_be_taken_over = true})).value();
  EXPECT_TRUE(std::get<AdmitAgent>(taken.message).may_be_taken_over);
  for (const bool rejoin : {false, true}) {
    const auto reject = RoundTrip(CoordinatorMessage(RejectAgent{"no", rejoin})).value();
    EXPECT_EQ(reject.incarnation, kAgent);
    EXPECT_EQ(reject.generation, kGeneration);
    EXPECT_EQ(std::get<RejectAgent>(reject.message).reason, "no");
    EXPECT_EQ(std::get<RejectAgent>(reject.message).rejoin, rejoin);
  }
  const auto commit = RoundTrip(CoordinatorMessage(CommitGeneration{{"10.1.1.1", 80}})).value();
  EXPECT_EQ(std::get<CommitGeneration>(commit.message).store.address, "10.1.1.1");
  EXPECT_EQ(std::get<CommitGeneration>(commit.message).store.port, 80);
  const auto stop = RoundTrip(CoordinatorMessage(StopWorkers{9, Duration(5), "why"})).value();
  EXPECT_EQ(std::get<StopWorkers>(stop.message).signal, 9);
  EXPECT_EQ(std::get<StopWorkers>(stop.message).grace, Duration(5));
  EXPECT_EQ(std::get<StopWorkers>(stop.message).reason, "why");
  const auto left_out = RoundTrip(CoordinatorMessage(LeftOut{"it keeps failing"})).value();
  EXPECT_EQ(std::get<LeftOut>(left_out.message).why, "it keeps failing");
  for (const bool cut_off : {false, true}) {
    const auto release =
        RoundTrip(CoordinatorMessage(ReleaseAgent{1, "r", cut_off, !cut_off})).value();
    EXPECT_EQ(std::get<ReleaseAgent>(release.message).exit_code, 1);
    EXPECT_EQ(std::get<ReleaseAgent>(release.message).reason, "r");
    EXPECT_EQ(std::get<ReleaseAgent>(release.message).cut_off, cut_off);
    EXPECT_EQ(std::get<ReleaseAgent>(release.message).job_goes_on, !cut_off);
  }
}

TEST(CodecTest, PassedSignalIsOneThatThereIs) {
  const auto pass = RoundTrip(CoordinatorMessage(PassSignal{12})).value();
  EXPECT_EQ(pass.generation, kGeneration);
  EXPECT_EQ(std::get<PassSignal>(pass.message).signal, 12);
  for (const int signal : {0, -1, 65}) {
    EXPECT_THAT(std::string(RoundTrip(CoordinatorMessage(PassSignal{signal})).status().message()),
                HasSubstr("pass_signal.signal"));
  }
}

RankAssignment SomeAssignment() {
  RankAssignment a{kGeneration, 1, 3, 4, 20, 6, "r", 2, 9, 5, 7};
  a.launch_id = "12ab34cd";
  a.world_of_attempt = 2;
  a.earlier_restarts = 3;
  return a;
}

TEST(CodecTest, AssignmentKeepsEveryField) {
  const RankAssignment a = SomeAssignment();
  const auto message = RoundTrip(CoordinatorMessage(PrepareGeneration{a})).value();
  const RankAssignment& b = std::get<PrepareGeneration>(message.message).assignment;
  EXPECT_EQ(b.generation, a.generation);
  EXPECT_EQ(
      std::tie(b.group_rank, b.group_world_size, b.rank_offset, b.world_size, b.local_world_size),
      std::tie(a.group_rank, a.group_world_size, a.rank_offset, a.world_size, a.local_world_size));
  EXPECT_EQ(
      std::tie(b.role, b.role_rank_offset, b.role_world_size, b.restart_count, b.max_restarts),
      std::tie(a.role, a.role_rank_offset, a.role_world_size, a.restart_count, a.max_restarts));
  EXPECT_EQ(b.launch_id, a.launch_id);
  EXPECT_EQ(b.world_of_attempt, a.world_of_attempt);
  EXPECT_EQ(b.earlier_restarts, a.earlier_restarts);
}

TEST(CodecTest, InconsistentAssignmentsAreRefusedNamingTheField) {
  constexpr int kLowest = std::numeric_limits<int>::min();
  constexpr int kHighest = std::numeric_limits<int>::max();
  const auto refusal = [](auto change) {
    v1::CoordinatorMessage wire =
        Encode(ToAgent{kAgent, kGeneration, PrepareGeneration{SomeAssignment()}}, "job");
    change(wire.mutable_prepare()->mutable_assignment());
    return std::string(Decode(wire).status().message());
  };
  EXPECT_THAT(refusal([](auto* a) { a->set_generation(~uint64_t{0}); }), HasSubstr("generation"));
  EXPECT_THAT(refusal([](auto* a) { a->set_rank_offset(15); }), HasSubstr("rank_offset"));
  EXPECT_THAT(refusal([](auto* a) { a->set_group_world_size(kLowest); }),
              HasSubstr("group_world_size"));
  EXPECT_THAT(refusal([](auto* a) { a->set_group_world_size(21); }), HasSubstr("group_world_size"));
  EXPECT_THAT(refusal([](auto* a) { a->set_group_rank(3); }), HasSubstr("group_rank"));
  EXPECT_THAT(refusal([](auto* a) { a->set_role_world_size(kLowest); }),
              HasSubstr("role_world_size"));
  EXPECT_THAT(refusal([](auto* a) { a->set_role_rank_offset(4); }), HasSubstr("role_rank_offset"));
  EXPECT_THAT(refusal([](auto* a) { a->set_role_rank_offset(kHighest); }),
              HasSubstr("role_rank_offset"));
  EXPECT_THAT(refusal([](auto* a) { a->set_restart_count(8); }), HasSubstr("restart_count"));
  EXPECT_THAT(refusal([](auto* a) { a->set_max_restarts(-1); }), HasSubstr("max_restarts"));
  EXPECT_THAT(refusal([](auto* a) { a->set_earlier_restarts(-1); }), HasSubstr("earlier_restarts"));
  EXPECT_THAT(refusal([](auto* a) { a->set_world_of_attempt(-1); }), HasSubstr("world_of_attempt"));
  EXPECT_THAT(refusal([](auto* a) { a->set_launch_id(std::string(2000, 'x')); }),
              HasSubstr("launch_id"));
  EXPECT_EQ(refusal([](auto*) {}), "");
}

TEST(CodecTest, ValuesOutOfRangeAreRefusedNamingTheField) {
  v1::AgentMessage wire;
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("incarnation"));
  wire.set_incarnation(7);
  EXPECT_FALSE(Decode(wire).ok());
  wire.mutable_joined()->mutable_node()->set_incarnation(7);
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("local_world_size is 0"));
  wire.mutable_joined()->mutable_node()->set_local_world_size(2);
  EXPECT_TRUE(Decode(wire).ok());
  wire.mutable_joined()->mutable_node()->set_incarnation(8);
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("differs"));
  wire.mutable_faulted()->set_kind(v1::CAUSE_KIND_UNSPECIFIED);
  EXPECT_FALSE(Decode(wire).ok());
  wire.mutable_prepared()->mutable_store()->set_port(70000);
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("70000"));
  wire.mutable_prepared()->mutable_store()->set_port(7000);
  wire.mutable_prepared()->mutable_store()->set_address("node-1");
  EXPECT_TRUE(Decode(wire).ok());
  wire.mutable_prepared()->mutable_store()->set_address("node 1");
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("'node 1'"));
  wire.mutable_joined()->mutable_node()->set_incarnation(7);
  wire.mutable_joined()->mutable_node()->set_local_world_size(2);
  wire.mutable_joined()->set_highest_seen(~uint64_t{0});
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("highest_seen"));
  wire.set_generation(~uint64_t{0});
  EXPECT_THAT(std::string(Decode(wire).status().message()), HasSubstr("generation"));
  wire.set_generation(1);
  wire.mutable_worker_exited()->mutable_exit()->set_local_rank(-1);
  EXPECT_FALSE(Decode(wire).ok());
  v1::CoordinatorMessage order;
  order.mutable_stop()->set_signal(99);
  EXPECT_THAT(std::string(Decode(order).status().message()), HasSubstr("signal is 99"));
  order.mutable_prepare()->mutable_assignment()->set_world_size(2);
  EXPECT_FALSE(Decode(order).ok());
}

TEST(CodecTest, TextsForTheEnvironmentAreCheckedWhole) {
  const auto refusal = [](const std::string& address) {
    v1::CoordinatorMessage wire =
        Encode(ToAgent{kAgent, kGeneration, CommitGeneration{{address, 80}}}, "job");
    return std::string(Decode(wire).status().message());
  };
  EXPECT_EQ(refusal("fe80::1%eth0"), "");
  EXPECT_THAT(refusal(std::string("10.0.0.1\0x", 10)), HasSubstr("'10.0.0.1\\x00x'"));
  EXPECT_THAT(refusal("fe80::1%e\nth0"), HasSubstr("'fe80::1%e\\nth0'"));
  const std::string zero("a\0b", 3);
  RankAssignment assignment = SomeAssignment();
  assignment.role = zero;
  EXPECT_THAT(
      std::string(RoundTrip(CoordinatorMessage(PrepareGeneration{assignment})).status().message()),
      HasSubstr("assignment.role has a zero byte"));
  assignment = SomeAssignment();
  assignment.launch_id = zero;
  EXPECT_THAT(
      std::string(RoundTrip(CoordinatorMessage(PrepareGeneration{assignment})).status().message()),
      HasSubstr("assignment.launch_id has a zero byte"));
  const AgentMessage joined =
      AgentJoined{NodeInfo{kAgent, "n", "10.0.0.1", 8, zero}, Generation(1), {}};
  EXPECT_THAT(std::string(RoundTrip(joined).status().message()),
              HasSubstr("node.role has a zero byte"));
}

TEST(CodecTest, EncodedMessagesFitTheSizeLimit) {
  WorkerExit exit;
  exit.error_message.assign(10 << 20, 'm');
  exit.traceback.assign(10 << 20, 't');
  exit.error_json.assign(10 << 20, 'j');
  exit.stderr_tail.assign(5000, std::string(100000, 'l'));
  const auto wire = Encode(FromAgent{kAgent, kGeneration, WorkerExited{exit}}, "job");
  EXPECT_LT(wire.ByteSizeLong(), static_cast<size_t>(kMaxMessageBytes));
  const FromAgent back = Decode(wire).value();
  EXPECT_EQ(std::get<WorkerExited>(back.message).exit.error_json, "")
      << "half a JSON text is useless";
}

TEST(CodecTest, RandomBytesNeverCrashTheDecoder) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    v1::AgentMessage message;
    if (message.ParseFromString(bytes)) {
      Decode(message).status().IgnoreError();
    }
    v1::CoordinatorMessage order;
    if (order.ParseFromString(bytes)) {
      Decode(order).status().IgnoreError();
    }
  }
}

}  // namespace
}  // namespace fsdprun
