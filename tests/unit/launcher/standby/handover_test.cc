#include "launcher/standby/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "tests/unit/launcher/journal/record_sample.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    launcher = UniqueFd(ends[0]);
    standby = UniqueFd(ends[1]);
  }
  UniqueFd launcher;
  UniqueFd standby;
};

Handover SampleHandover() {
  return {.run_id = "run \xff",
          .token = "secret",
          .endpoints = {{"10.0.0.1", 29400}, {"::1", 65535}},
          .pid = 77,
          .agent = Incarnation(9),
          .claim = "claimed"};
}

std::vector<UniqueFd> SomeDescriptors() {
  std::vector<UniqueFd> some;
  some.emplace_back(::dup(STDERR_FILENO));
  return some;
}

absl::Status SendText(const UniqueFd& socket, const std::string& text) {
  const bool is_sent =
      ::send(socket.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  return is_sent ? absl::OkStatus() : absl::UnknownError("send");
}

TEST(Handover, ArrivesWithItsSocketsAndTheLatestRecord) {
  Pair pair;
  ASSERT_TRUE(SendHandover(pair.launcher.get(), SampleHandover(), SomeDescriptors()).ok());
  job::Record record = SampleRecord();
  record.launch_id = "an older state";
  ASSERT_TRUE(SendRecord(pair.launcher.get(), record, SampleJob()).ok());
  ASSERT_TRUE(SendRecord(pair.launcher.get(), SampleRecord(), SampleJob()).ok());
  // Sockets that are added later.
  ASSERT_TRUE(SendHandover(pair.launcher.get(), SampleHandover(), SomeDescriptors()).ok());
  pair.launcher.reset();
  const absl::StatusOr<Inheritance> read = ReadInheritance(pair.standby.get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->handover.run_id, "run \xff");
  EXPECT_EQ(read->handover.token, "secret");
  EXPECT_EQ(read->handover.endpoints, SampleHandover().endpoints);
  EXPECT_EQ(read->handover.pid, 77);
  EXPECT_EQ(read->handover.agent, Incarnation(9));
  EXPECT_EQ(read->handover.claim, "claimed");
  EXPECT_EQ(read->listeners.size(), 2u);
  ASSERT_TRUE(read->record.has_value());
  EXPECT_EQ(read->record->launch_id, SampleRecord().launch_id);
}

TEST(Handover, RecordThatIsCutOffDoesNotCount) {
  Pair pair;
  ASSERT_TRUE(SendHandover(pair.launcher.get(), SampleHandover(), {}).ok());
  ASSERT_TRUE(SendRecord(pair.launcher.get(), SampleRecord(), SampleJob()).ok());
  const uint32_t length = 1000;
  std::string start(reinterpret_cast<const char*>(&length), sizeof(length));
  ASSERT_TRUE(SendText(pair.launcher, start + "cut off").ok());
  pair.launcher.reset();
  const absl::StatusOr<Inheritance> read = ReadInheritance(pair.standby.get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->record.has_value());
}

TEST(Handover, WithoutARecordThereIsNone) {
  Pair pair;
  pair.launcher.reset();
  const absl::StatusOr<Inheritance> read = ReadInheritance(pair.standby.get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->record.has_value());
}

// More than the kernel keeps for a reader at once.
TEST(Handover, LargeRecordArrivesWhileItIsRead) {
  Pair pair;
  job::Record record = SampleRecord();
  record.world.stop_why = std::string(4 << 20, 'x');
  absl::StatusOr<Inheritance> read = absl::UnknownError("");
  std::thread standby([&] { read = ReadInheritance(pair.standby.get()); });
  EXPECT_TRUE(SendRecord(pair.launcher.get(), record, SampleJob()).ok());
  pair.launcher.reset();
  standby.join();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->record->world.stop_why.size(), record.world.stop_why.size());
}

TEST(Handover, WhatNoLauncherSendsIsRefused) {
  Pair pair;
  ASSERT_TRUE(SendText(pair.launcher, std::string(8, '\xff')).ok());
  EXPECT_THAT(std::string(ReadInheritance(pair.standby.get()).status().message()),
              HasSubstr("a message of 4294967295 bytes"));
}

TEST(Handover, StandbyThatDoesNotReadIsNotWaitedForLonger) {
  Pair pair;
  const timeval patience{.tv_sec = 0, .tv_usec = 1000};
  ::setsockopt(pair.launcher.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  job::Record record = SampleRecord();
  record.world.stop_why = std::string(4 << 20, 'x');
  EXPECT_EQ(SendRecord(pair.launcher.get(), record, SampleJob()).message(), "it does not read");
}

}  // namespace
}  // namespace fsdprun
