#include "agent/process/keeper_protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdprun::keeper {
namespace {

std::vector<std::string> AllCommands() {
  std::vector<std::string> frames(10);
  SpawnCommand spawn{.local_rank = 3, .argv = {"python", "-m", "x"}, .environment = {"A=1", "B="}};
  spawn.stdout_path = "/tmp/out";
  spawn.opens_stderr_late = true;
  spawn.wants_control_fd = true;
  spawn.cpus = {0, 3, kMaxCpu};
  spawn.reads_stdin = false;
  spawn.life = uint64_t{1} << 40;
  AppendCommand(spawn, frames[0]);
  AppendCommand(SignalCommand{kAllRanks, 15, true, 7}, frames[1]);
  AppendCommand(ControlLineCommand{2, "{}", 7}, frames[2]);
  AppendCommand(KillAllCommand{7}, frames[3]);
  AppendCommand(ShutdownCommand{}, frames[4]);
  AppendCommand(LeaseCommand{35'000}, frames[5]);
  AppendCommand(SignalProcessCommand{.pid = 7, .start_time_ticks = 1u << 31, .signal = 9},
                frames[6]);
  AppendCommand(AttachCommand{}, frames[7]);
  AppendCommand(MemoCommand{std::string("a\0b", 3)}, frames[8]);
  AppendCommand(ShownCommand{2, Stream::kStderr, uint64_t{1} << 40, 7}, frames[9]);
  return frames;
}

std::vector<std::string> AllReports() {
  const std::vector<Report> reports = {HelloReport{.pid = 1},
                                       SpawnedReport{1, 2, 7},
                                       SpawnFailedReport{1, 2, "run", "/bin/x", 7},
                                       ExitedReport{.local_rank = 1,
                                                    .pid = 2,
                                                    .signal = 9,
                                                    .dumped_core = true,
                                                    .seen_ns = 6,
                                                    .stderr_tail = "x\n",
                                                    .stderr_is_cut = true,
                                                    .life = 7},
                                       LogGrewReport{1, Stream::kStderr, 99, 7},
                                       LogDataReport{1, Stream::kStdout, std::string("a\0b", 3), 7},
                                       LogDegradedReport{1, Stream::kStdout, 28, "/x", "full", 7},
                                       LogWriterReport{7},
                                       ControlRecordReport{1, "{}", 7},
                                       NoteReport{kAllRanks, "note"},
                                       AllGoneReport{7},
                                       MemoReport{std::string("a\0b", 3)},
                                       ShownReport{2, Stream::kStderr, uint64_t{1} << 40, 7}};
  std::vector<std::string> frames(reports.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    AppendReport(reports[i], frames[i]);
  }
  return frames;
}

std::string_view Content(const std::string& frame) {
  return std::string_view(frame).substr(kFrameHeaderBytes);
}

TEST(KeeperProtocolTest, CommandsSurviveTheRoundTrip) {
  for (const std::string& frame : AllCommands()) {
    const auto command = DecodeCommand(Content(frame));
    ASSERT_TRUE(command.has_value());
    std::string again;
    AppendCommand(*command, again);
    EXPECT_EQ(again, frame);
  }
}

TEST(KeeperProtocolTest, ReportsSurviveTheRoundTrip) {
  for (const std::string& frame : AllReports()) {
    const auto report = DecodeReport(Content(frame));
    ASSERT_TRUE(report.has_value());
    std::string again;
    AppendReport(*report, again);
    EXPECT_EQ(again, frame);
  }
}

/// A number of a life that is lost on the way would stand for any.
TEST(KeeperProtocolTest, EveryFrameAboutAWorkerNamesItsLife) {
  const auto life_of = [](const auto& frame) -> uint64_t {
    if constexpr (requires { frame.life; }) {
      return frame.life;
    }
    return 7;
  };
  for (const std::string& frame : AllCommands()) {
    const Command command = *DecodeCommand(Content(frame));
    EXPECT_EQ(std::visit(life_of, command),
              std::holds_alternative<SpawnCommand>(command) ? uint64_t{1} << 40 : 7);
  }
  for (const std::string& frame : AllReports()) {
    EXPECT_EQ(std::visit(life_of, *DecodeReport(Content(frame))), 7u);
  }
}

TEST(KeeperProtocolTest, EveryTruncationAndExtensionIsRefused) {
  for (const std::string& frame : AllCommands()) {
    for (size_t size = 0; size < Content(frame).size(); ++size) {
      EXPECT_FALSE(DecodeCommand(Content(frame).substr(0, size)).has_value());
    }
    EXPECT_FALSE(DecodeCommand(std::string(Content(frame)) + "x").has_value());
  }
  for (const std::string& frame : AllReports()) {
    for (size_t size = 0; size < Content(frame).size(); ++size) {
      EXPECT_FALSE(DecodeReport(Content(frame).substr(0, size)).has_value());
    }
    EXPECT_FALSE(DecodeReport(std::string(Content(frame)) + "x").has_value());
  }
}

TEST(KeeperProtocolTest, ValuesOutOfRangeAreRefused) {
  std::string frame;
  AppendCommand(SignalCommand{kAllRanks, 0, false}, frame);
  EXPECT_FALSE(DecodeCommand(Content(frame)).has_value());
  frame.clear();
  AppendCommand(SignalCommand{kMaxLocalRank + 1, 9, false}, frame);
  EXPECT_FALSE(DecodeCommand(Content(frame)).has_value());
  for (const auto& [pid, signal] : {std::pair(0, 9), {-1, 9}, {7, 0}, {7, 65}}) {
    frame.clear();
    AppendCommand(SignalProcessCommand{.pid = pid, .signal = signal}, frame);
    EXPECT_FALSE(DecodeCommand(Content(frame)).has_value()) << pid << " " << signal;
  }
  frame.clear();
  AppendCommand(SpawnCommand{.local_rank = 0}, frame);
  EXPECT_FALSE(DecodeCommand(Content(frame)).has_value());
  frame.clear();
  for (const int cpu : {-1, kMaxCpu + 1}) {
    SpawnCommand spawn{.local_rank = 0, .argv = {"a"}};
    spawn.cpus = {cpu};
    frame.clear();
    AppendCommand(spawn, frame);
    EXPECT_FALSE(DecodeCommand(Content(frame)).has_value());
  }
  frame.clear();
  AppendCommand(SpawnCommand{.local_rank = 0, .argv = {std::string("a\0b", 3)}}, frame);
  EXPECT_FALSE(DecodeCommand(Content(frame)).has_value());
}

TEST(KeeperProtocolTest, FramesAreFoundAndBadLengthsRefused) {
  const std::string frame = AllCommands()[1];
  std::string_view content;
  for (size_t size = 0; size < frame.size(); ++size) {
    EXPECT_EQ(NextFrame(std::string_view(frame).substr(0, size), kMaxCommandBytes, content),
              FrameState::kIncomplete);
  }
  EXPECT_EQ(NextFrame(frame + "rest", kMaxCommandBytes, content), FrameState::kComplete);
  EXPECT_EQ(content.size(), frame.size() - kFrameHeaderBytes);
  EXPECT_EQ(NextFrame(std::string(4, '\0'), kMaxCommandBytes, content), FrameState::kInvalid);
  EXPECT_EQ(NextFrame(std::string(4, '\xff'), kMaxCommandBytes, content), FrameState::kInvalid);
}

TEST(KeeperProtocolTest, MutatedFramesNeverCrashTheDecoder) {
  std::mt19937 random(20260101);
  std::vector<std::string> frames = AllCommands();
  const std::vector<std::string> reports = AllReports();
  frames.insert(frames.end(), reports.begin(), reports.end());
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string bytes(Content(frames[random() % frames.size()]));
    for (int i = static_cast<int>(random() % 4); i >= 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 7 == 0 ? 0xff : random());
    }
    accepted += DecodeCommand(bytes).has_value() + DecodeReport(bytes).has_value();
  }
  EXPECT_LT(accepted, 100'000);
}

}  // namespace
}  // namespace fsdprun::keeper
