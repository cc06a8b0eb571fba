// Each end of a meeting against a script for the other.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdpctl/doctor/pair/test_guest.h"
#include "fsdpctl/doctor/pair/test_host.h"
#include "fsdpctl/doctor/pair/test_orders.h"
#include "fsdpctl/doctor/report_json.h"
#include "launcher/directory/listener.h"

namespace fsdprun::doctor {
namespace {

constexpr char kToken[] = "token";
const std::string kScripted(64, 'c');

MonoTime Soon() { return MonoNow() + std::chrono::seconds(30); }

class MeetingEndsTest : public ::testing::Test {
 protected:
  MeetingEndsTest()
      : stop_(::eventfd(0, EFD_CLOEXEC)),
        listener_(BindListener({"127.0.0.1", 0}).value()),
        endpoint_{"127.0.0.1", PortOf(listener_).value()} {}

  /// Runs a host for `nodes` in all until it has tested them.
  std::thread StartHost(int nodes, Duration guest_patience, MeetingFacts* meeting) {
    return std::thread([this, nodes, guest_patience, meeting] {
      TestHost::Options options{.token = kToken,
                                .nodes = nodes,
                                .patience = std::chrono::seconds(30),
                                .own = {.own_node = "host"},
                                .mtu_of = [](const std::string&) { return 1500; },
                                .stop_fd = stop_.get(),
                                .notify = [](const std::string&) {},
                                .guest_patience = guest_patience,
                                .wait_pause = Duration{}};
      options.listeners.push_back(std::move(listener_));
      TestHost host(std::move(options));
      host.Run();
      *meeting = host.meeting();
    });
  }

  Link Connect() const {
    Link link(ConnectTo(endpoint_, SegmentSize::kUsual, Soon(), stop_.get()).value(), stop_.get());
    link.Trust();
    return link;
  }
  static std::string KindOf(Link* link) {
    const absl::StatusOr<Message> message = link->Receive(Soon());
    return message.ok() ? message->kind : message.status().ToString();
  }
  /// Says hello, and returns the proof that is asked for.
  static Message ProofAfterHello(Link* link) {
    EXPECT_TRUE(link->Send(Hello(kScripted, ""), Soon()).ok());
    const absl::StatusOr<Message> challenge = link->Receive(Soon());
    EXPECT_TRUE(challenge.ok()) << challenge.status();
    const PairNonces nonces{kScripted, challenge.ok() ? challenge->Text("nonce") : ""};
    return {"proof", {{"mac", PairProof(kToken, kForTest, nonces)}}};
  }

  const UniqueFd stop_;
  UniqueFd listener_;
  const NumericEndpoint endpoint_;
};

TEST_F(MeetingEndsTest, WhoComesWhileAnotherNodeIsTestedIsNoStranger) {
  constexpr Duration kPatience = std::chrono::seconds(2);
  MeetingFacts meeting;
  std::thread host = StartHost(/*nodes=*/3, kPatience, &meeting);
  std::optional<Link> slow(Connect());
  const Message proof = ProofAfterHello(&*slow);
  Link other = Connect();  // Is taken, and not looked at any more.
  EXPECT_TRUE(slow->Send(proof, Soon()).ok());
  EXPECT_EQ(KindOf(&*slow), "welcome");
  EXPECT_EQ(KindOf(&*slow), kTurn);
  EXPECT_TRUE(other.Send(Hello(kScripted, ""), Soon()).ok());
  std::this_thread::sleep_for(kPatience + std::chrono::milliseconds(500));
  slow.reset();
  const absl::StatusOr<Message> challenge = other.Receive(Soon());
  EXPECT_TRUE(challenge.ok()) << challenge.status();
  if (challenge.ok()) {
    const PairNonces nonces{kScripted, challenge->Text("nonce")};
    EXPECT_TRUE(other.Send({"proof", {{"mac", PairProof(kToken, kForTest, nonces)}}}, Soon()).ok());
    EXPECT_EQ(KindOf(&other), "welcome");
    EXPECT_EQ(KindOf(&other), kTurn);
  } else {
    const uint64_t tick = 1;
    EXPECT_EQ(::write(stop_.get(), &tick, sizeof(tick)), 8);
  }
  { const Link end = std::move(other); }
  host.join();
  EXPECT_EQ(meeting.strangers, 0);
  EXPECT_EQ(meeting.came, 2);
}

TEST_F(MeetingEndsTest, WhoWaitsForItsTurnIsToldToWaitOn) {
  MeetingFacts meeting;
  std::thread host = StartHost(/*nodes=*/4, std::chrono::seconds(30), &meeting);
  std::vector<Link> links;
  std::vector<Message> proofs;
  for (int i = 0; i < 3; ++i) {
    links.push_back(Connect());
    proofs.push_back(ProofAfterHello(&links.back()));
  }
  EXPECT_TRUE(links[0].Send(proofs[0], Soon()).ok());
  EXPECT_EQ(KindOf(&links[0]), "welcome");
  EXPECT_EQ(KindOf(&links[0]), kTurn);
  EXPECT_TRUE(links[1].Send(proofs[1], Soon()).ok());
  EXPECT_TRUE(links[2].Send(proofs[2], Soon()).ok());
  links[0].Release().reset();
  EXPECT_EQ(KindOf(&links[1]), "welcome");
  EXPECT_EQ(KindOf(&links[1]), kTurn);
  EXPECT_EQ(KindOf(&links[2]), "welcome");
  EXPECT_EQ(KindOf(&links[2]), kWait);
  links[1].Release().reset();
  EXPECT_EQ(KindOf(&links[2]), kTurn);
  links[2].Release().reset();
  host.join();
  EXPECT_EQ(meeting.came, 3);
}

TEST_F(MeetingEndsTest, ANodeThatIsToldToWaitDoes) {
  absl::StatusOr<PairFacts> found = absl::UnknownError("");
  std::thread guest([&] {
    JoinFailure failure = JoinFailure::kBroken;
    found = TestGuest({.token = kToken,
                       .endpoints = {endpoint_},
                       .endpoint_text = "host",
                       .patience = std::chrono::seconds(30),
                       .own = {.own_node = "guest"},
                       .mtu_of = [](const std::string&) { return 1500; },
                       .report = {.node = "guest"},
                       .stop_fd = stop_.get()})
                .Run(&failure);
  });
  EXPECT_TRUE(WaitFor(listener_.get(), POLLIN, Soon(), stop_.get()).ok());
  Link link(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
            stop_.get());
  link.Trust();
  Handshake handshake(kToken, std::string(64, 'l'));
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Message> message = link.Receive(Soon());
    Message answer;
    handshake.On(message.value_or(Message{}), &answer);
    EXPECT_TRUE(link.Send(answer, Soon()).ok());
  }
  EXPECT_TRUE(link.Send({kWait, {}}, Soon()).ok());
  const PairFacts facts{.own_node = "host", .node = "guest"};
  EXPECT_TRUE(link.Send({kEnd, {{"facts", PairFactsText(facts)}}}, Soon()).ok());
  EXPECT_EQ(KindOf(&link), kReport);
  guest.join();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->node, "host");
}

}  // namespace
}  // namespace fsdprun::doctor
