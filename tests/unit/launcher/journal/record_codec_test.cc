#include "launcher/journal/record_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "google/protobuf/util/message_differencer.h"
#include "tests/unit/launcher/journal/record_sample.h"

namespace fsdprun {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

/// All fields are written, read and written again.
void ExpectRoundTrip(const job::Record& record) {
  const v1::JobRecord written = Encode(record, SampleJob());
  const absl::StatusOr<v1::JobRecord> read = ReadFileText(FileText(written));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(JobOf(*read), SampleJob());
  const absl::StatusOr<job::Record> decoded = Decode(*read);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(MessageDifferencer::Equals(Encode(*decoded, SampleJob()), written));
}

TEST(RecordCodec, KeepsAll) {
  ExpectRoundTrip(SampleRecord());
  const job::Record decoded = *Decode(Encode(SampleRecord(), SampleJob()));
  EXPECT_EQ(decoded.generation_floor, Generation(6));
  EXPECT_EQ(decoded.operator_signal, 10);
  EXPECT_EQ(decoded.pause, std::chrono::seconds(7));
  EXPECT_EQ(decoded.world.stop_kind, job::StopKind::kOperator);
  EXPECT_EQ(decoded.world.stop_why, "stopped \xff");
  EXPECT_EQ(decoded.world.members.back().assignment.rank_offset, 2);
  EXPECT_EQ(decoded.nodes.back().info.requested_node_rank, 1);
  EXPECT_EQ(decoded.nodes.back().sequence, 9u);
  EXPECT_FALSE(decoded.is_over);
  EXPECT_EQ(decoded.quarantine.front().node, (job::NodeKey{"n \xfd", "10.0.0.3"}));
  EXPECT_EQ(decoded.quarantine.front().breaks, 3);
  EXPECT_EQ(decoded.quarantine.front().worker->signal, 6);
  EXPECT_EQ(decoded.quarantine.front().what, "it \xfc died");
  EXPECT_EQ(decoded.quarantine.front().times, 2);
  EXPECT_FALSE(decoded.quarantine.back().worker.has_value());
  EXPECT_EQ(decoded.scaled, (job::NodeLimits{3, 9}));
  EXPECT_EQ(decoded.drained, SampleRecord().drained);
}

TEST(RecordCodec, KeepsTheEnd) {
  job::Record record = SampleRecord();
  record.outcome = SampleOutcome();
  record.is_over = true;
  record.world.phase = job::WorldRecord::Phase::kNone;
  record.world.members.clear();
  ExpectRoundTrip(record);
  const job::Record decoded = *Decode(Encode(record, SampleJob()));
  ASSERT_TRUE(decoded.is_over);
  EXPECT_EQ(decoded.outcome->exit_code, 7);
  EXPECT_EQ(decoded.outcome->ends, SampleOutcome().ends);
  EXPECT_EQ(decoded.outcome->left_out, SampleOutcome().left_out);
  EXPECT_EQ(decoded.outcome->failure->root.worker->stderr_tail.front(), "last \xff words");
  EXPECT_EQ(decoded.outcome->failure->others.front().what, "stuck");
}

TEST(RecordCodec, KeepsAJobThatHasNotBegun) { ExpectRoundTrip(job::Record()); }

struct Hostile {
  const char* name;
  std::function<void(v1::JobRecord&)> spoil;
  const char* what;
};

class RecordCodecHostile : public ::testing::TestWithParam<Hostile> {};

TEST_P(RecordCodecHostile, IsRefused) {
  job::Record record = SampleRecord();
  record.outcome = SampleOutcome();
  v1::JobRecord encoded = Encode(record, SampleJob());
  GetParam().spoil(encoded);
  EXPECT_THAT(std::string(Decode(encoded).status().message()), HasSubstr(GetParam().what));
}

using P = v1::JobRecord;

INSTANTIATE_TEST_SUITE_P(
    All, RecordCodecHostile,
    ::testing::Values(
        Hostile{"generation", [](P& p) { p.set_generation(uint64_t{1} << 60); }, "generation is"},
        Hostile{"count", [](P& p) { p.set_restarts_used(-1); }, "restarts_used is -1"},
        Hostile{"pause", [](P& p) { p.set_pause_ns(-1); }, "pause_ns is -1"},
        Hostile{"signal", [](P& p) { p.set_operator_signal(65); }, "operator_signal is 65"},
        Hostile{"phase",
                [](P& p) { p.mutable_world()->set_phase(static_cast<v1::WorldRecord::Phase>(9)); },
                "world.phase is 9"},
        Hostile{"stop_kind",
                [](P& p) {
                  p.mutable_world()->set_stop_kind(static_cast<v1::WorldRecord::StopKind>(-1));
                },
                "world.stop_kind is -1"},
        Hostile{"breaks", [](P& p) { p.mutable_quarantine(0)->set_breaks(0); },
                "quarantine.breaks is 0"},
        Hostile{"times", [](P& p) { p.mutable_quarantine(0)->set_times(-1); },
                "quarantine.times is -1"},
        Hostile{"quarantine",
                [](P& p) { p.mutable_quarantine(0)->mutable_worker()->set_signal(65); },
                "quarantine.signal is 65"},
        Hostile{"limits", [](P& p) { p.mutable_scaled()->set_max_nodes(2); },
                "scaled.min_nodes is 3"},
        Hostile{"no_nodes", [](P& p) { p.mutable_scaled()->clear_min_nodes(); },
                "scaled.min_nodes is 0"},
        Hostile{"stop_signal", [](P& p) { p.mutable_world()->set_stop_signal(0); },
                "world.stop_signal is 0"},
        Hostile{"grace", [](P& p) { p.mutable_world()->set_stop_grace_ns(-1); },
                "world.stop_grace_ns is -1"},
        Hostile{"store", [](P& p) { p.mutable_world()->mutable_store()->set_port(0); },
                "store.port is 0"},
        Hostile{"member",
                [](P& p) {
                  p.mutable_world()->mutable_members(0)->mutable_assignment()->set_group_rank(7);
                },
                "assignment.group_rank is 7"},
        Hostile{"node", [](P& p) { p.mutable_nodes(0)->mutable_node()->set_local_world_size(0); },
                "node.local_world_size is 0"},
        Hostile{"nobody", [](P& p) { p.mutable_nodes(0)->mutable_node()->set_incarnation(0); },
                "incarnation is 0"},
        Hostile{"exit_code", [](P& p) { p.mutable_outcome()->set_exit_code(256); },
                "outcome.exit_code is 256"},
        Hostile{
            "outcome",
            [](P& p) { p.mutable_outcome()->set_kind(static_cast<v1::OutcomeRecord::Kind>(3)); },
            "outcome.kind is 3"},
        Hostile{"cause",
                [](P& p) {
                  p.mutable_outcome()->mutable_failures(1)->set_kind(v1::CAUSE_KIND_UNSPECIFIED);
                },
                "failure.kind is 0"},
        Hostile{"worker",
                [](P& p) {
                  p.mutable_outcome()->mutable_failures(0)->mutable_worker()->set_signal(99);
                },
                "exit.signal is 99"}),
    [](const auto& info) { return info.param.name; });

TEST(RecordFile, CutOffOrChangedIsNotRead) {
  const std::string text = FileText(Encode(SampleRecord(), SampleJob()));
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ReadFileText(text.substr(0, length)).ok()) << length;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(ReadFileText(changed).ok()) << i;
  }
}

TEST(RecordFile, OfAnotherVersionSaysSo) {
  EXPECT_THAT(std::string(ReadFileText("fsdprun journal 2\nwhatever").status().message()),
              HasSubstr("another version"));
}

}  // namespace
}  // namespace fsdprun
