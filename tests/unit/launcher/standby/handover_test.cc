#include "launcher/standby/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "tests/unit/launcher/journal/record_sample.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

struct Pair {
  Pair() {
    absl::StatusOr<HandoverSockets> made = MakeHandoverSockets();
    EXPECT_TRUE(made.ok()) << made.status();
    launcher = std::move(made->launcher);
    standby = std::move(made->standby);
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

TEST(Handover, WithoutARecordThereIsNone) {
  Pair pair;
  pair.launcher.reset();
  const absl::StatusOr<Inheritance> read = ReadInheritance(pair.standby.get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->record.has_value());
}

// Nobody reads yet: it is more than the kernel keeps of messages.
TEST(Handover, LargeRecordWaitsForNobody) {
  Pair pair;
  job::Record record = SampleRecord();
  record.world.stop_why = std::string(4 << 20, 'x');
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(SendRecord(pair.launcher.get(), record, SampleJob()).ok());
  }
  pair.launcher.reset();
  const absl::StatusOr<Inheritance> read = ReadInheritance(pair.standby.get());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->record->world.stop_why.size(), record.world.stop_why.size());
}

TEST(Handover, WhatNoLauncherSendsIsRefused) {
  Pair pair;
  ASSERT_TRUE(SendText(pair.launcher, std::string(8, '\xff')).ok());
  EXPECT_EQ(ReadInheritance(pair.standby.get()).status().message(),
            "what the launcher has said cannot be read");
}

TEST(Handover, RecordThatIsShorterThanItWasSaidToBeIsRefused) {
  Pair pair;
  // Field 2, a number: a record of 100 bytes, with an empty file.
  const std::string text = "\x10\x64";
  const UniqueFd file(::memfd_create("empty", MFD_CLOEXEC));
  iovec piece{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.get();
  std::memcpy(CMSG_DATA(header), &number, sizeof(number));
  ASSERT_EQ(::sendmsg(pair.launcher.get(), &message, 0), 2);
  pair.launcher.reset();
  EXPECT_THAT(std::string(ReadInheritance(pair.standby.get()).status().message()),
              HasSubstr("read the job's record"));
}

TEST(Handover, StandbyThatDoesNotReadIsNotWaitedFor) {
  Pair pair;
  absl::Status sent;
  int messages = 0;
  while (sent.ok() && messages < 100000) {
    sent = SendRecord(pair.launcher.get(), SampleRecord(), SampleJob());
    ++messages;
  }
  EXPECT_EQ(sent.message(), "it does not read");
  EXPECT_GT(messages, 100);
}

}  // namespace
}  // namespace fsdprun
