#include "launcher/rpc/coordinator_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "agent/rpc/call_proof.h"
#include "agent/rpc/grpc_link.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"
#include "launcher/rpc/front_door.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

// A coordinator service with its listener and any number of links, on one loop.
class CoordinatorServiceTest : public ::testing::Test {
 protected:
  struct Agent {
    std::unique_ptr<GrpcLink> link;
    bool is_up = false;
    std::vector<ToAgent> received;
    std::vector<LinkLoss> losses;
  };

  // Listens at a free port, to which `target_` leads then.
  UniqueFd ListenAtTarget() {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener.get(), 16), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    target_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    return listener;
  }
  // As of a coordinator whose process is stopped: the kernel accepts the connection.
  UniqueFd BeSilent() { return ListenAtTarget(); }

  void SetUp() override {
    listener_ = ListenAtTarget();
    loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) {
      service_->AddConnection(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    });
    CoordinatorService::Callbacks callbacks;
    callbacks.on_message = [this](const FromAgent& message) {
      heard_.push_back(message);
      waiter_.Notice();
    };
    callbacks.on_stream_lost = [this](Incarnation agent) {
      lost_.push_back(agent);
      waiter_.Notice();
    };
    callbacks.on_stream_replaced = [this](Incarnation agent) {
      replaced_.push_back(agent);
      waiter_.Notice();
    };
    callbacks.on_refused = [this](const std::string& what) {
      refused_.push_back(what);
      waiter_.Notice();
    };
    service_ = std::make_unique<CoordinatorService>(
        loop_, CoordinatorService::Options{"job", "secret"}, std::move(callbacks));
    ASSERT_TRUE(service_->Start().ok());
  }

  std::unique_ptr<Agent> Connect(const std::string& token, const std::string& job = "job",
                                 Duration open_timeout = std::chrono::seconds(5)) {
    auto agent = std::make_unique<Agent>();
    agent->link = std::make_unique<GrpcLink>(
        loop_, GrpcLink::Options{
                   .targets = {target_},
                   .job_id = job,
                   .token = [token] { return absl::StatusOr<std::string>(token); },
                   .open_timeout = open_timeout,
               });
    Listen(*agent);
    agent->link->Open(/*patience=*/1);
    return agent;
  }

  void Listen(Agent& agent) {
    CoordinatorLink::Callbacks callbacks;
    callbacks.on_up = [this, &agent] {
      agent.is_up = true;
      waiter_.Notice();
    };
    callbacks.on_message = [this, &agent](const ToAgent& message) {
      agent.received.push_back(message);
      waiter_.Notice();
    };
    callbacks.on_lost = [this, &agent](const LinkLoss& loss) {
      agent.losses.push_back(loss);
      waiter_.Notice();
    };
    agent.link->SetCallbacks(std::move(callbacks));
  }

  // Runs the loop until the condition holds.
  void RunUntil(const std::function<bool()>& condition) {
    ASSERT_TRUE(waiter_.RunUntil(condition));
  }

  UniqueFd ConnectRaw() const {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    return socket;
  }

  // Acknowledges every PING frame (RFC 9113, 6.7) in what a server has sent in whole frames.
  static void AnswerPings(int fd, const std::string& frames) {
    for (size_t at = 0; at + 9 <= frames.size();) {
      const auto* head = reinterpret_cast<const unsigned char*>(frames.data() + at);
      const size_t size = 9 + (head[0] << 16 | head[1] << 8 | head[2]);
      if (head[3] == 6 && head[4] == 0) {
        std::string answer = frames.substr(at, size);
        answer[4] = 1;
        ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
      at += size;
    }
  }

  static FromAgent Joined(uint64_t incarnation) {
    NodeInfo node;
    node.incarnation = Incarnation(incarnation);
    node.name = "n";
    return {Incarnation(incarnation), Generation(0), AgentJoined{node, Generation(0), {}}};
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  UniqueFd listener_;
  std::string target_;
  std::unique_ptr<CoordinatorService> service_;
  std::vector<FromAgent> heard_;
  std::vector<Incarnation> lost_;
  std::vector<Incarnation> replaced_;
  std::vector<std::string> refused_;
};

TEST_F(CoordinatorServiceTest, MessagesTravelBothWaysInOrder) {
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  for (int i = 0; i < 100; ++i) {
    agent->link->Send({Incarnation(7), Generation(3), AgentHeartbeat{{i, 100, "t"}}});
  }
  RunUntil([&] { return heard_.size() == 101; });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(std::get<AgentHeartbeat>(heard_[static_cast<size_t>(i) + 1].message).progress.step,
              i);
    service_->Send({Incarnation(7), Generation(3), StopWorkers{15, Duration(i), "r"}});
  }
  service_->Send({Incarnation(8), Generation(3), AdmitAgent{}});
  RunUntil([&] { return agent->received.size() == 100; });
  EXPECT_EQ(std::get<StopWorkers>(agent->received.back().message).grace, Duration(99));
}

TEST_F(CoordinatorServiceTest, WrongTokenIsUnauthenticated) {
  for (const char* token : {"", "Secret", "secret2", "secre"}) {
    const auto agent = Connect(token);
    RunUntil([&] { return !agent->losses.empty(); });
    EXPECT_TRUE(absl::IsUnauthenticated(agent->losses.front().status))
        << agent->losses.front().status;
  }
  EXPECT_TRUE(heard_.empty());
  EXPECT_EQ(refused_.size(), 4u);
  EXPECT_THAT(refused_.front(), HasSubstr("a call from 127.0.0.1:"));
}

TEST_F(CoordinatorServiceTest, TokenReplacedDuringTheAttemptMayBeRetried) {
  auto agent = std::make_unique<Agent>();
  int reads = 0;
  agent->link = std::make_unique<GrpcLink>(
      loop_,
      GrpcLink::Options{.targets = {target_}, .job_id = "job", .token = [&reads] {
                          return absl::StatusOr<std::string>(reads++ == 0 ? "old" : "secret");
                        }});
  Listen(*agent);
  agent->link->Open(/*patience=*/1);
  RunUntil([&] { return !agent->losses.empty(); });
  EXPECT_TRUE(absl::IsUnavailable(agent->losses.front().status)) << agent->losses.front().status;
  agent->is_up = false;
  agent->link->Open(/*patience=*/1);
  RunUntil([&] { return agent->is_up; });
}

TEST_F(CoordinatorServiceTest, AddressesWithoutACoordinatorArePassedOver) {
  // 192.0.2.1 never answers; nothing listens on port 1.
  for (const std::string first : {"192.0.2.1:1", "127.0.0.1:1"}) {
    const auto agent = std::make_unique<Agent>();
    agent->link = std::make_unique<GrpcLink>(
        loop_, GrpcLink::Options{.targets = {first, "[::1]:1", target_},
                                 .job_id = "job",
                                 .token = [] { return absl::StatusOr<std::string>("secret"); },
                                 .open_timeout = std::chrono::seconds(60)});
    Listen(*agent);
    agent->link->Open(/*patience=*/1);
    RunUntil([&] { return agent->is_up; });
    EXPECT_TRUE(agent->losses.empty());
    agent->link->Send(Joined(7));
    RunUntil([&] { return !heard_.empty(); });
    heard_.clear();
  }
}

TEST_F(CoordinatorServiceTest, WhoDialsAgainIsNeverLost) {
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 1; });
  agent->is_up = false;
  agent->link->Open(/*patience=*/1);
  RunUntil([&] { return agent->is_up; });
  EXPECT_TRUE(replaced_.empty());  // The coordinator has not heard of the new stream.
  agent->link->Send(Joined(7));
  RunUntil([&] { return replaced_.size() == 1; });
  service_->Send(ToAgent{Incarnation(7), Generation(), AdmitAgent{}});
  RunUntil([&] { return !agent->received.empty(); });
  EXPECT_TRUE(lost_.empty());
  EXPECT_TRUE(agent->losses.empty());
}

TEST_F(CoordinatorServiceTest, TheEndOfAnAgentThatDialsAgainIsALoss) {
  auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 1; });
  agent->link->Open(/*patience=*/1);
  agent.reset();
  RunUntil([&] { return lost_.size() == 1; });
}

TEST_F(CoordinatorServiceTest, RefusalOfAllAddressesIsToldOnce) {
  const auto agent = std::make_unique<Agent>();
  agent->link = std::make_unique<GrpcLink>(
      loop_, GrpcLink::Options{.targets = {"127.0.0.1:1", "127.0.0.2:1"},
                               .job_id = "job",
                               .token = [] { return absl::StatusOr<std::string>("secret"); }});
  Listen(*agent);
  agent->link->Open(/*patience=*/1);
  RunUntil([&] { return !agent->losses.empty(); });
  EXPECT_TRUE(agent->losses.front().nothing_listens);
  EXPECT_EQ(agent->losses.size(), 1u);
}

TEST(MostTellingTest, ACoordinatorsAnswerCountsBeforeSilenceAndStrangers) {
  const LinkLoss refused{absl::UnavailableError("refused"), true};
  const LinkLoss stranger{absl::UnimplementedError("stranger")};
  const LinkLoss wrong_token{absl::UnauthenticatedError("token")};
  EXPECT_EQ(MostTelling({refused, stranger, wrong_token}).status, wrong_token.status);
  EXPECT_EQ(MostTelling({stranger, refused}).status, refused.status);
  EXPECT_EQ(MostTelling({stranger}).status, stranger.status);
  EXPECT_TRUE(MostTelling({refused, {absl::UnavailableError("silent")}}).nothing_listens);
}

TEST_F(CoordinatorServiceTest, AnotherJobIsNotFound) {
  const auto agent = Connect("secret", "other");
  RunUntil([&] { return !agent->losses.empty(); });
  EXPECT_TRUE(absl::IsNotFound(agent->losses.front().status));
  EXPECT_THAT(std::string(agent->losses.front().status.message()), HasSubstr("'job', not 'other'"));
  EXPECT_FALSE(agent->is_up);
  EXPECT_TRUE(heard_.empty());
  EXPECT_TRUE(refused_.empty());
}

// Who has heard a call for one run id cannot ask for another with its proof.
TEST_F(CoordinatorServiceTest, AQuestionNeedsAProofForTheRunIdThatItAsksFor) {
  const auto ask = [&](const std::string& proven, const std::string& asked) {
    std::optional<grpc::Status> end;
    std::thread caller([&] {
      grpc::ClientContext call;
      AddProof("secret", proven, &call);
      const auto stub =
          v1::RunIds::NewStub(grpc::CreateChannel(target_, grpc::InsecureChannelCredentials()));
      const auto stream = stub->Find(&call);
      v1::FindRunId question;
      question.set_run_id(asked);
      stream->Write(question);
      v1::RunIdPlace place;
      const bool is_answered = stream->Read(&place);
      if (is_answered) {
        call.TryCancel();  // It would stay open.
      }
      const grpc::Status status = stream->Finish();
      loop_.Post([&, status, is_answered] {
        end = is_answered ? grpc::Status::OK : status;
        waiter_.Notice();
      });
    });
    RunUntil([&] { return end.has_value(); });
    caller.join();
    return end->error_code();
  };
  EXPECT_EQ(ask("other", "other"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("job", "job"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("other", "job"), grpc::StatusCode::UNAUTHENTICATED);
}

// A beat is no word of the end; one of a host whose place another call has ends its call.
TEST_F(CoordinatorServiceTest, AHostThatBeatsKeepsItsRunIdAndIsToldIfItHasLostIt) {
  bool is_over = false;
  std::thread caller([&] {
    const auto stub =
        v1::RunIds::NewStub(grpc::CreateChannel(target_, grpc::InsecureChannelCredentials()));
    v1::FindRunId hosted;
    hosted.set_run_id("other");
    hosted.add_endpoints("192.0.2.1:1");
    hosted.set_hosts(true);
    v1::FindRunId beat;
    beat.set_beats(true);
    v1::RunIdPlace place;
    std::array<grpc::ClientContext, 3> calls;
    const auto ask = [&](grpc::ClientContext& call, const v1::FindRunId& question) {
      AddProof("secret", "other", &call);
      auto stream = stub->Find(&call);
      EXPECT_TRUE(stream->Write(question));
      EXPECT_TRUE(stream->Read(&place));
      return stream;
    };
    const auto first = ask(calls[0], hosted);
    EXPECT_EQ(place.kind(), v1::RunIdPlace::KIND_YOURS);
    EXPECT_TRUE(place.wants_beats());
    EXPECT_TRUE(first->Write(beat));
    v1::FindRunId joins;
    joins.set_run_id("other");
    const auto second = ask(calls[1], joins);
    EXPECT_EQ(place.kind(), v1::RunIdPlace::KIND_THERE);
    EXPECT_FALSE(place.wants_beats());
    const auto third = ask(calls[2], hosted);
    EXPECT_EQ(place.kind(), v1::RunIdPlace::KIND_YOURS);
    EXPECT_TRUE(first->Write(beat));
    EXPECT_FALSE(first->Read(&place));
    EXPECT_TRUE(first->Finish().ok());
    for (const auto* stream : {&second, &third}) {
      calls[stream == &second ? 1 : 2].TryCancel();
      (*stream)->Finish();
    }
    loop_.Post([&] {
      is_over = true;
      waiter_.Notice();
    });
  });
  RunUntil([&] { return is_over; });
  caller.join();
}

TEST_F(CoordinatorServiceTest, BrokenStreamIsReportedOnce) {
  auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 1; });
  agent.reset();
  RunUntil([&] { return !lost_.empty(); });
  EXPECT_EQ(lost_, std::vector<Incarnation>{Incarnation(7)});
}

TEST_F(CoordinatorServiceTest, NewerStreamOfAnAgentReplacesTheOlderSilently) {
  const auto first = Connect("secret");
  const auto second = Connect("secret");
  RunUntil([&] { return first->is_up && second->is_up; });
  first->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 1; });
  second->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 2 && !first->losses.empty(); });
  service_->Send({Incarnation(7), Generation(0), AdmitAgent{}});
  RunUntil([&] { return second->received.size() == 1; });
  EXPECT_TRUE(lost_.empty());
  EXPECT_TRUE(first->received.empty());
}

TEST_F(CoordinatorServiceTest, OneStreamMaySpeakForOneAgentOnly) {
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  agent->link->Send({Incarnation(8), Generation(0), AgentStarted{}});
  RunUntil([&] { return !agent->losses.empty(); });
  EXPECT_TRUE(absl::IsInvalidArgument(agent->losses.front().status));
  EXPECT_EQ(lost_, std::vector<Incarnation>{Incarnation(7)});
}

TEST_F(CoordinatorServiceTest, CloseWritesWhatIsQueued) {
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  agent->link->Send({Incarnation(7), Generation(0), AgentLeft{}});
  agent->link->Close();
  RunUntil([&] { return heard_.size() == 2 && lost_.size() == 1; });
}

TEST_F(CoordinatorServiceTest, ShutdownWritesWhatIsQueued) {
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 1; });
  service_->Send({Incarnation(7), Generation(0), ReleaseAgent{0, "done"}});
  service_->Shutdown();
  RunUntil([&] { return agent->received.size() == 1 && !agent->losses.empty(); });
}

TEST_F(CoordinatorServiceTest, ARedirectedStreamIsOpenedAnewThereAndNoLossIsTold) {
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  agent->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 1; });
  agent->is_up = false;
  agent->link->Redirect({target_});
  RunUntil([&] { return agent->is_up && lost_.size() == 1; });
  agent->link->Send(Joined(7));
  RunUntil([&] { return heard_.size() == 2; });
  service_->Send({Incarnation(7), Generation(0), AdmitAgent{}});
  RunUntil([&] { return agent->received.size() == 1; });
  EXPECT_TRUE(agent->losses.empty());
}

TEST_F(CoordinatorServiceTest, AnAttemptUnderWayIsRedirected) {
  const std::string target = target_;
  const UniqueFd silent = BeSilent();
  const auto agent = Connect("secret", "job", std::chrono::hours(1));
  agent->link->Redirect({target});
  RunUntil([&] { return agent->is_up; });
  EXPECT_TRUE(agent->losses.empty());
}

TEST_F(CoordinatorServiceTest, UnreachableCoordinatorIsUnavailable) {
  target_ = "127.0.0.1:1";
  const auto agent = Connect("secret");
  RunUntil([&] { return !agent->losses.empty(); });
  EXPECT_TRUE(absl::IsUnavailable(agent->losses.front().status));
  EXPECT_TRUE(agent->losses.front().nothing_listens) << agent->losses.front().status;
}

TEST_F(CoordinatorServiceTest, SomebodyThereWhoDoesNotAnswerIsNotTakenForNobody) {
  const UniqueFd silent = BeSilent();
  const auto agent = Connect("secret", "job", std::chrono::milliseconds(100));
  RunUntil([&] { return !agent->losses.empty(); });
  EXPECT_TRUE(absl::IsUnavailable(agent->losses.front().status));
  EXPECT_FALSE(agent->losses.front().nothing_listens) << agent->losses.front().status;
}

// Clients that keep a connection without a call: one sends half a handshake, one completes it and
// answers pings, one sends nothing.
TEST_F(CoordinatorServiceTest, ConnectionWithoutACallIsClosed) {
  const std::string preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  const auto agent = Connect("secret");
  const std::vector<std::string> hellos = {"P", preface, ""};
  std::vector<UniqueFd> strangers;
  size_t closed = 0;
  for (const std::string& hello : hellos) {
    const int fd = strangers.emplace_back(ConnectRaw()).get();
    ASSERT_EQ(::send(fd, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
    loop_.Watch(fd, EPOLLIN, [this, fd, &hello, &closed](uint32_t) {
      char buffer[256];
      const ssize_t got = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got > 0 && hello.size() > 1) {
        AnswerPings(fd, std::string(buffer, static_cast<size_t>(got)));
      } else if (got == 0 || (got < 0 && errno != EAGAIN)) {
        ++closed;
        loop_.Unwatch(fd);
        waiter_.Notice();
      }
    });
  }
  RunUntil([&] { return closed == strangers.size(); });
  EXPECT_TRUE(agent->is_up);
  EXPECT_TRUE(agent->losses.empty());
}

// See Note [One after the other].
TEST_F(CoordinatorServiceTest, ManyWhoConnectAndSayNothingDelayACallByLittle) {
  const std::string preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  std::vector<UniqueFd> strangers;
  for (size_t i = 0; i < 4 * FrontDoor::kArrivalsMax; ++i) {
    strangers.push_back(ConnectRaw());
    ASSERT_EQ(::send(strangers.back().get(), preface.data(), preface.size(), 0), 33);
    service_->AddConnection(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  const MonoTime begin = MonoNow();
  const auto agent = Connect("secret");
  RunUntil([&] { return agent->is_up; });
  EXPECT_GE(MonoNow() - begin, 3 * FrontDoor::kArrivalTime);
  EXPECT_TRUE(agent->losses.empty());
}

}  // namespace
}  // namespace fsdprun
