#include "launcher/directory/run_id_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/directory/listener.h"
#include "launcher/rpc/run_id_table.h"

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = RunIdClient::Kind;

HostMove AfterKind(Kind kind) { return MoveAfter(RunIdClient::Answer{kind, {}}); }

TEST(RunIdHostTest, OnlyAnEndpointThatDoesNotAnswerIsTakenOver) {
  EXPECT_EQ(MoveAfter(absl::UnavailableError("")), HostMove::kTakeOver);
  EXPECT_EQ(MoveAfter(absl::UnauthenticatedError("")), HostMove::kStay);
  EXPECT_EQ(MoveAfter(absl::UnimplementedError("")), HostMove::kStay);
}

TEST(RunIdHostTest, AnotherHostOfTheRunIdIsMet) {
  EXPECT_EQ(AfterKind(Kind::kHere), HostMove::kMeet);
  EXPECT_EQ(AfterKind(Kind::kThere), HostMove::kMeet);
  for (const Kind kind : {Kind::kYours, Kind::kClosed, Kind::kUnknown, Kind::kWait}) {
    EXPECT_EQ(AfterKind(kind), HostMove::kStay);
  }
}

TEST(RunIdHostTest, WhoeverDoesNotAnswerIsAskedLessOftenButBeforeNewcomersAreSentAway) {
  for (const absl::Status& error : {absl::UnavailableError(""), absl::UnauthenticatedError("")}) {
    Duration pause = PauseAfter(error, Duration::zero());
    EXPECT_GT(pause, Duration::zero());
    for (int i = 0; i < 10; ++i) {
      pause = PauseAfter(error, pause);
    }
    EXPECT_GE(pause, RunIdTable::kSettle / 2);
    EXPECT_LT(pause, RunIdTable::kSettle);
  }
  const Duration long_pause = std::chrono::seconds(1);
  EXPECT_EQ(PauseAfter(RunIdClient::Answer{Kind::kYours, {}}, long_pause), Duration::zero());
  EXPECT_GT(PauseAfter(RunIdClient::Answer{Kind::kThere, {}}, Duration::zero()), Duration::zero());
}

/// The endpoint, as it is met by a host at another port.
struct FakeEndpoint {
  MonoTime now{std::chrono::hours(1)};
  Reach reach{Reach::Kind::kConnects, 0};
  /// Of its addresses, those where a question ends.
  std::map<std::string, absl::StatusOr<RunIdClient::Answer>> answers;
  std::vector<std::string> asked;
  int beats = 0;
};

class FakeCall : public RunIdClient {
 public:
  FakeCall(FakeEndpoint& endpoint, std::string target)
      : endpoint_(endpoint), target_(std::move(target)) {}

  absl::StatusOr<Answer> Ask(const std::string& target, const std::string& token,
                             const Question& question, MonoTime /*deadline*/,
                             const std::function<bool()>& /*is_cancelled*/) override {
    Start(target, token, question);
    return Poll().value_or(absl::UnavailableError("no answer from " + target));
  }
  void Start(const std::string& target, const std::string& /*token*/,
             const Question& question) override {
    EXPECT_TRUE(question.hosts);
    target_ = target;
    endpoint_.asked.push_back(target);
  }
  std::optional<absl::StatusOr<Answer>> Poll() override {
    const auto answer = endpoint_.answers.find(target_);
    return answer == endpoint_.answers.end() ? std::nullopt : std::optional(answer->second);
  }
  bool is_open() const override {
    const auto answer = endpoint_.answers.find(target_);
    return answer != endpoint_.answers.end() && answer->second.ok();
  }
  void Beat() override { ++endpoint_.beats; }
  bool Leave(bool /*closes*/) override { return true; }

 private:
  FakeEndpoint& endpoint_;
  std::string target_;
};

/// A host of run id `run7`, which was told so at the first of two addresses.
class RunIdHostConfirmTest : public ::testing::Test {
 protected:
  static constexpr const char* kOne = "192.0.2.1:29400";
  static constexpr const char* kTwo = "192.0.2.2:29400";

  RunIdHostConfirmTest() { Say(kOne, Kind::kYours); }

  std::unique_ptr<RunIdHost> MakeHost(uint16_t port, std::vector<std::string> listen_on) {
    RunIdHost::Options options;
    options.holder = {{"192.0.2.1", port}, {"192.0.2.2", port}};
    options.listen_on = std::move(listen_on);
    options.run_id = "run7";
    options.endpoints = {"192.0.2.3:1234"};
    RunIdHost::Outside outside;
    outside.now = [this] { return endpoint_.now; };
    outside.reach = [this](const auto&, MonoTime, const auto&) { return endpoint_.reach; };
    outside.new_call = [this](const RunIdClient::Security&) {
      return std::make_unique<FakeCall>(endpoint_, "");
    };
    return std::make_unique<RunIdHost>(std::move(options),
                                       std::make_unique<FakeCall>(endpoint_, kOne), outside);
  }

  void Say(const std::string& address, Kind kind) {
    endpoint_.answers.insert_or_assign(
        address,
        RunIdClient::Answer{kind, kind == Kind::kThere ? std::vector<std::string>{"192.0.2.9:99"}
                                                       : std::vector<std::string>{}});
  }
  void Fail(const std::string& address, const absl::Status& error) {
    endpoint_.answers.insert_or_assign(address, error);
  }
  void Silence(const std::string& address) { endpoint_.answers.erase(address); }
  void Pass(Duration time) { endpoint_.now += time; }

  std::string WhyUnsure() {
    const absl::StatusOr<bool> is_own = host_->Confirm();
    if (!is_own.ok()) {
      return std::string(is_own.status().message());
    }
    return *is_own ? "own" : "not own";
  }
  /// As the launcher does; what was told meanwhile.
  std::vector<std::vector<std::string>> TendFor(Duration time) {
    std::vector<std::vector<std::string>> told;
    for (const MonoTime end = endpoint_.now + time; endpoint_.now < end; Pass(milliseconds(100))) {
      if (const Tended tended = host_->Tend(); !tended.other_host.empty()) {
        told.push_back(tended.other_host);
      }
    }
    return told;
  }

  FakeEndpoint endpoint_;
  std::unique_ptr<RunIdHost> host_ = MakeHost(29400, {});
};

TEST_F(RunIdHostConfirmTest, IsOwnIfTheEndpointSaysSo) {
  EXPECT_EQ(host_->Confirm(), absl::StatusOr<bool>(true));
  EXPECT_THAT(endpoint_.asked, ElementsAre(kOne));
}

TEST_F(RunIdHostConfirmTest, WhoTendsBeats) {
  host_->Tend();
  host_->Tend();
  EXPECT_EQ(endpoint_.beats, 2);
}

TEST_F(RunIdHostConfirmTest, AJobThatIsOverUnderThisRunIdWasAnothers) {
  Say(kOne, Kind::kClosed);
  EXPECT_EQ(host_->Confirm(), absl::StatusOr<bool>(false));
}

TEST_F(RunIdHostConfirmTest, IsOwnWhileNobodyListensAtTheEndpoint) {
  endpoint_.reach = {Reach::Kind::kRefused, 0};
  EXPECT_EQ(host_->Confirm(), absl::StatusOr<bool>(true));
  EXPECT_THAT(endpoint_.asked, IsEmpty());
}

TEST_F(RunIdHostConfirmTest, WhoGetsNoAnswerIsToldWhy) {
  endpoint_.reach = {Reach::Kind::kSilent, 0};
  EXPECT_THAT(WhyUnsure(), AllOf(HasSubstr("run7"), HasSubstr(kOne), HasSubstr(kTwo),
                                 HasSubstr("no connection")));
  endpoint_.reach = {Reach::Kind::kConnects, 0};
  Silence(kOne);
  EXPECT_THAT(WhyUnsure(), HasSubstr("no answer from"));
  Fail(kOne, absl::UnavailableError("broken"));
  Fail(kTwo, absl::UnauthenticatedError("the token is wrong"));
  EXPECT_THAT(WhyUnsure(), HasSubstr("the token is wrong"));
  for (const Kind kind : {Kind::kUnknown, Kind::kWait}) {
    Say(kTwo, kind);
    EXPECT_THAT(WhyUnsure(), HasSubstr("does not know"));
  }
}

TEST_F(RunIdHostConfirmTest, AnotherHostMayGiveWayForAWhile) {
  for (const Kind kind : {Kind::kHere, Kind::kThere}) {
    Say(kOne, kind);
    EXPECT_THAT(WhyUnsure(), HasSubstr(kind == Kind::kThere ? "192.0.2.9:99" : kOne));
    Pass(milliseconds(2900));
    EXPECT_THAT(WhyUnsure(), HasSubstr("give way"));
    Say(kOne, Kind::kYours);  // It has.
    EXPECT_EQ(WhyUnsure(), "own");
    Say(kOne, kind);
    EXPECT_THAT(WhyUnsure(), HasSubstr("give way"));
    Pass(seconds(3));
    EXPECT_EQ(WhyUnsure(), "not own");
    Say(kOne, Kind::kYours);
    EXPECT_EQ(WhyUnsure(), "own");
  }
}

TEST_F(RunIdHostConfirmTest, AQuestionWithoutAnAnswerSaysNothingOfAHostThatWasMet) {
  Say(kOne, Kind::kThere);
  EXPECT_THAT(WhyUnsure(), HasSubstr("give way"));
  Silence(kOne);
  Pass(seconds(2));
  EXPECT_THAT(WhyUnsure(), HasSubstr("no answer"));
  endpoint_.reach = {Reach::Kind::kRefused, 0};  // Who has told of it is gone, not the other host.
  EXPECT_THAT(WhyUnsure(), HasSubstr("another host"));
  endpoint_.reach = {Reach::Kind::kConnects, 0};
  Say(kOne, Kind::kThere);
  Pass(seconds(1));
  EXPECT_EQ(WhyUnsure(), "not own");
}

TEST_F(RunIdHostConfirmTest, AHostThatWasMetAtTheEndpointIsGoneWithIt) {
  Say(kOne, Kind::kHere);
  EXPECT_THAT(WhyUnsure(), HasSubstr("give way"));
  endpoint_.reach = {Reach::Kind::kRefused, 0};
  EXPECT_EQ(WhyUnsure(), "own");
}

TEST_F(RunIdHostConfirmTest, EveryAddressIsAskedUntilOneAnswers) {
  Fail(kOne, absl::UnavailableError("no route"));
  Say(kTwo, Kind::kThere);
  EXPECT_THAT(WhyUnsure(), HasSubstr("give way"));
  EXPECT_THAT(endpoint_.asked, ElementsAre(kOne, kTwo));
  endpoint_.asked.clear();
  endpoint_.reach = {Reach::Kind::kConnects, 1};
  Pass(seconds(3));
  EXPECT_EQ(WhyUnsure(), "not own");
  EXPECT_THAT(endpoint_.asked, ElementsAre(kTwo));
}

TEST_F(RunIdHostConfirmTest, WhatIsAnsweredTooLateIsSeenByWhoTends) {
  Silence(kOne);
  EXPECT_THAT(WhyUnsure(), HasSubstr("no answer"));
  Pass(seconds(1));
  Say(kTwo, Kind::kThere);
  host_->Tend();
  Pass(seconds(3));
  EXPECT_EQ(WhyUnsure(), "not own");
}

TEST_F(RunIdHostConfirmTest, TheOtherHostIsToldOfOnceAlsoIfAnAddressIsDead) {
  Fail(kOne, absl::UnavailableError("no route"));
  EXPECT_THAT(TendFor(seconds(2)), IsEmpty());
  Say(kTwo, Kind::kThere);
  EXPECT_THAT(TendFor(seconds(2)), IsEmpty());
  EXPECT_THAT(TendFor(seconds(20)), ElementsAre(ElementsAre("192.0.2.9:99")));
  EXPECT_EQ(WhyUnsure(), "not own");
  Say(kTwo, Kind::kYours);
  EXPECT_THAT(TendFor(seconds(20)), IsEmpty());
  EXPECT_EQ(WhyUnsure(), "own");
}

TEST_F(RunIdHostConfirmTest, WhoCannotServeAtTheEndpointGoesOnAsBefore) {
  const uint16_t port = PortOf(BindListeners({"127.0.0.1"}, 0).value().front()).value();
  host_ = MakeHost(port, {"127.0.0.1"});
  const std::string one = absl::StrCat("192.0.2.1:", port);
  const std::string two = absl::StrCat("192.0.2.2:", port);
  Silence(kOne);
  for (const std::string& address : {one, two}) {
    Fail(address, absl::UnavailableError("refused"));
  }
  host_->Tend();
  EXPECT_EQ(host_->Tend().listeners.size(), 1u);
  EXPECT_TRUE(host_->has_taken_over());
  EXPECT_EQ(WhyUnsure(), "own");
  host_->CannotListen();
  Say(one, Kind::kThere);  // Another was faster.
  Say(two, Kind::kThere);
  EXPECT_THAT(WhyUnsure(), HasSubstr("give way"));
}

}  // namespace
}  // namespace fsdprun
