#include "worker/contract/control_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "proto/worker_contract.h"

namespace fsdprun::worker {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    agent = ends[0];
    worker = ends[1];
  }
  ~Pair() { CloseAgent(); }
  void CloseAgent() {
    if (agent >= 0) {
      ::close(agent);
    }
    agent = -1;
  }
  std::string Read() const {
    std::string text(1 << 20, '\0');
    const ssize_t got = ::recv(agent, text.data(), text.size(), MSG_DONTWAIT);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }
  void Write(const std::string& text) const {
    EXPECT_EQ(::send(agent, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  int agent = -1;
  int worker = -1;
};

TEST(ControlChannelTest, SendsTheFourRecordsAsLines) {
  const Pair pair;
  ControlChannel channel(pair.worker);
  EXPECT_TRUE(channel.SendHello(3, 7));
  auto hello = nlohmann::json::parse(pair.Read());
  EXPECT_EQ(hello["v"], 1);
  EXPECT_EQ(hello["type"], "hello");
  EXPECT_EQ(hello["rank"], 3);
  EXPECT_EQ(hello["generation"], 7);
  EXPECT_EQ(hello["pid"], ::getpid());
  EXPECT_TRUE(channel.SendProgress(10, 100, "loss 2.31"));
  EXPECT_EQ(nlohmann::json::parse(pair.Read()),
            nlohmann::json::parse(
                R"({"v":1,"type":"progress","step":10,"total":100,"text":"loss 2.31"})"));
  EXPECT_TRUE(channel.SendProgress(11, 100, ""));
  EXPECT_EQ(nlohmann::json::parse(pair.Read()),
            nlohmann::json::parse(R"({"v":1,"type":"progress","step":11,"total":100})"));
  EXPECT_TRUE(channel.SendCheckpoint(11, "/ckpt/step_11"));
  EXPECT_EQ(
      nlohmann::json::parse(pair.Read()),
      nlohmann::json::parse(R"({"v":1,"type":"checkpoint","step":11,"path":"/ckpt/step_11"})"));
  EXPECT_TRUE(channel.SendNoCheckpoint(12, "no room"));
  EXPECT_EQ(nlohmann::json::parse(pair.Read()),
            nlohmann::json::parse(R"({"v":1,"type":"checkpoint","step":12,"error":"no room"})"));
  EXPECT_TRUE(channel.SendDone());
  const std::string done = pair.Read();
  EXPECT_EQ(done.back(), '\n');
  EXPECT_EQ(nlohmann::json::parse(done)["type"], "done");
}

TEST(ControlChannelTest, LongAndBinaryTextStillFitsARecord) {
  const Pair pair;
  ControlChannel channel(pair.worker);
  EXPECT_TRUE(channel.SendProgress(1, 2, std::string(1 << 20, '\x01')));
  const std::string line = pair.Read();
  EXPECT_LE(line.size(), static_cast<size_t>(contract::kMaxRecordBytes));
  const auto sent = nlohmann::json::parse(line)["text"].get<std::string>();
  EXPECT_GT(sent.size(), 500u);  // six bytes each in JSON
  EXPECT_EQ(sent.find_first_not_of('\x01'), std::string::npos);
  EXPECT_TRUE(channel.SendProgress(1, 2, "a\xff\xfez"));
  EXPECT_EQ(nlohmann::json::parse(pair.Read())["text"], "a\uFFFD\uFFFDz");
}

TEST(ControlChannelTest, FullSocketDropsWholeRecordsOnly) {
  const Pair pair;
  ControlChannel channel(pair.worker);
  const std::string text(4000, 'x');
  int accepted = 0;
  while (channel.SendProgress(accepted, 1, text)) {
    ASSERT_LT(++accepted, 100'000);
  }
  EXPECT_FALSE(channel.SendDone());
  std::string all;
  for (std::string part = pair.Read(); !part.empty(); part = pair.Read()) {
    all += part;
  }
  EXPECT_TRUE(channel.SendDone());
  all += pair.Read();
  int lines = 0;
  for (size_t at = 0, end; (end = all.find('\n', at)) != std::string::npos; at = end + 1, ++lines) {
    ASSERT_TRUE(nlohmann::json::accept(all.substr(at, end - at)));
  }
  EXPECT_EQ(lines, accepted + 1);
}

TEST(ControlChannelTest, DeadAgentMakesTheChannelInert) {
  Pair pair;
  ControlChannel channel(pair.worker);
  pair.CloseAgent();
  EXPECT_FALSE(channel.SendDone());
  EXPECT_FALSE(channel.is_open());
  EXPECT_FALSE(channel.PollStop().has_value());
  ControlChannel none(-1);
  EXPECT_FALSE(none.SendHello(0, 0));
  ControlChannel wrong(987654);
  EXPECT_FALSE(wrong.is_open());
}

TEST(ControlChannelTest, AnotherFileOfTheProcessIsLeftAlone) {
  const int file = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  {
    ControlChannel channel(file);
    EXPECT_FALSE(channel.is_open());
    EXPECT_FALSE(channel.SendDone());
  }
  EXPECT_EQ(::close(file), 0);
}

TEST(ControlChannelTest, ReadsStopThroughGarbageAndFragments) {
  const Pair pair;
  ControlChannel channel(pair.worker);
  EXPECT_FALSE(channel.PollStop().has_value());
  pair.Write(
      "not "
      "json\n[]\n{\"type\":1}\n{\"type\":\"future\"}\n{\"v\":1,\"type\":\"notice\",\"signal\":10}"
      "\n" +
      std::string(20'000, 'z'));
  EXPECT_FALSE(channel.PollStop().has_value());
  pair.Write(
      "{\"type\":\"stop\",\"grace_ms\":1}\n");  // The end of the over-long line: not a record.
  EXPECT_FALSE(channel.PollStop().has_value());
  pair.Write("{\"v\":1,\"type\":\"stop\",");
  EXPECT_FALSE(channel.PollStop().has_value());
  pair.Write("\"grace_ms\":1500}\n");
  ASSERT_TRUE(channel.PollStop().has_value());
  EXPECT_EQ(channel.PollStop()->grace_ms, 1500);
}

TEST(ControlChannelTest, ASaveIsTakenOnce) {
  const Pair pair;
  ControlChannel channel(pair.worker);
  pair.Write(R"({"v":1,"type":"save"})"
             "\n");
  EXPECT_FALSE(channel.TakeSave());  // it was not read yet
  EXPECT_FALSE(channel.PollStop().has_value());
  EXPECT_TRUE(channel.TakeSave());
  EXPECT_FALSE(channel.TakeSave());
  pair.Write(R"({"v":1,"type":"save","id":7})"
             "\n"
             R"({"v":1,"type":"save"})"
             "\n"
             R"({"v":1,"type":"stop","grace_ms":5})"
             "\n");
  EXPECT_TRUE(channel.PollStop().has_value());
  EXPECT_TRUE(channel.TakeSave());  // two that were not acted on yet are one
  EXPECT_FALSE(channel.TakeSave());
}

}  // namespace
}  // namespace fsdprun::worker
