#include "launcher/daemon/daemon_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/rpc/call_proof.h"
#include "fsdprun/v1/daemon.grpc.pb.h"
#include "launcher/daemon/daemon_call.h"
#include "launcher/daemon/order_seal.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

v1::DaemonOrder FollowOrder(const std::string& id) {
  v1::DaemonOrder order;
  order.mutable_follow()->set_id(id);
  return order;
}

// Reads all that comes.
class Sink : public v1::NodeDaemon::Service {
 public:
  Sink() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Session(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::DaemonMessage, v1::LauncherMessage>* stream) override {
    v1::LauncherMessage message;
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A call by gRPC's synchronous interface, up to the daemon's challenge. Not on the loop's thread.
struct CallFromOutside {
  explicit CallFromOutside(const std::string& target)
      : stub(v1::NodeDaemon::NewStub(
            grpc::CreateChannel(target, grpc::InsecureChannelCredentials()))) {
    AddProof("secret", kDaemonRunId, &context);
    context.AddMetadata(kNonceKey, nonces.launcher);
    stream = stub->Session(&context);
    v1::DaemonMessage challenge;
    stream->Read(&challenge);
    nonces.daemon = challenge.challenge().nonce();
  }
  grpc::ClientContext context;
  CallNonces nonces{std::string(2 * kNonceBytes, 'a'), ""};
  std::unique_ptr<v1::NodeDaemon::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LauncherMessage, v1::DaemonMessage>> stream;
};

v1::DaemonMessage AcceptedMessage() {
  v1::DaemonMessage message;
  message.mutable_accepted();
  return message;
}

// A daemon's service with its listener, and launchers' calls, on one loop.
class DaemonServiceTest : public ::testing::Test {
 protected:
  struct Launcher {
    std::unique_ptr<DaemonCall> call;
    std::vector<v1::DaemonMessage> received;
    std::vector<absl::Status> ends;
  };

  void SetUp() override { Serve("secret"); }
  void TearDown() override {
    loop_.Unwatch(listener_.get());
    launchers_.clear();
    service_.reset();
  }

  void Serve(const std::string& token) {
    if (listener_.valid()) {
      loop_.Unwatch(listener_.get());
    }
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    ASSERT_EQ(::listen(listener_.get(), 16), 0);
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    target_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    service_ = std::make_unique<DaemonService>(
        loop_, DaemonService::Options{token},
        DaemonService::Callbacks{[this](DaemonService::CallId call, const v1::DaemonOrder& order) {
                                   calls_.push_back(call);
                                   orders_.push_back(order);
                                   waiter_.Notice();
                                 },
                                 [this](DaemonService::CallId, const v1::LauncherMessage& message) {
                                   messages_.push_back(message);
                                   waiter_.Notice();
                                 },
                                 [this](DaemonService::CallId) {
                                   ++written_;
                                   waiter_.Notice();
                                 },
                                 [this](DaemonService::CallId call) {
                                   lost_.push_back(call);
                                   waiter_.Notice();
                                 },
                                 [this](const std::string& what) {
                                   refused_.push_back(what);
                                   waiter_.Notice();
                                 }});
    ASSERT_TRUE(service_->Start().ok());
    loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) {
      service_->AddConnection(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    });
  }

  Launcher& Call(const std::string& token, const v1::DaemonOrder& order) {
    launchers_.push_back(std::make_unique<Launcher>());
    Launcher& launcher = *launchers_.back();
    launcher.call = std::make_unique<DaemonCall>(
        loop_, DaemonCall::Options{.target = target_, .token = token},
        DaemonCall::Hooks{[this, &launcher](const v1::DaemonMessage& message) {
                            launcher.received.push_back(message);
                            waiter_.Notice();
                          },
                          [this, &launcher](const absl::Status& status) {
                            launcher.ends.push_back(status);
                            waiter_.Notice();
                          }});
    launcher.call->Open(order);
    return launcher;
  }

  void RunUntil(const std::function<bool()>& condition) {
    ASSERT_TRUE(waiter_.RunUntil(condition));
  }

  // What the service answers to a call by hand, whose first message `make` makes of the challenge.
  grpc::Status CallByHand(const std::function<v1::LauncherMessage(const CallNonces&)>& make) {
    std::optional<grpc::Status> end;
    std::thread caller([&] {
      CallFromOutside call(target_);
      call.stream->Write(make(call.nonces));
      if (v1::DaemonMessage answer; call.stream->Read(&answer)) {
        call.context.TryCancel();  // It would stay open.
      }
      const grpc::Status status = call.stream->Finish();
      loop_.Post([&, status] {
        end = status;
        waiter_.Notice();
      });
    });
    EXPECT_TRUE(waiter_.RunUntil([&] { return end.has_value(); }));
    caller.join();
    return *end;
  }

  static v1::LauncherMessage Sealed(const CallNonces& nonces, const v1::DaemonOrder& order) {
    v1::LauncherMessage message;
    const EncryptedOrder sealed = SealOrder("secret", nonces, order.SerializeAsString());
    message.mutable_order()->set_order(sealed.text);
    message.mutable_order()->set_seal(sealed.seal);
    return message;
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  UniqueFd listener_;
  std::string target_;
  std::unique_ptr<DaemonService> service_;
  std::vector<std::unique_ptr<Launcher>> launchers_;
  std::vector<DaemonService::CallId> calls_;
  std::vector<v1::DaemonOrder> orders_;
  std::vector<v1::LauncherMessage> messages_;
  std::vector<DaemonService::CallId> lost_;
  std::vector<std::string> refused_;
  int written_ = 0;
};

TEST_F(DaemonServiceTest, WhoHasAnotherTokenGivesNoOrder) {
  Launcher& launcher = Call("wrong", FollowOrder("s"));
  RunUntil([&] { return !launcher.ends.empty() && !refused_.empty(); });
  EXPECT_TRUE(absl::IsUnauthenticated(launcher.ends[0])) << launcher.ends[0];
  EXPECT_THAT(refused_[0], HasSubstr("without the job's token"));
  EXPECT_TRUE(orders_.empty());
}

TEST_F(DaemonServiceTest, ADaemonThatDoesNotProveTheTokenIsToldNothing) {
  service_.reset();
  Serve(kNoToken);  // Takes everybody's word.
  Launcher& launcher = Call("secret", FollowOrder("s"));
  RunUntil([&] { return !launcher.ends.empty(); });
  EXPECT_TRUE(absl::IsPermissionDenied(launcher.ends[0])) << launcher.ends[0];
  EXPECT_THAT(std::string(launcher.ends[0].message()), HasSubstr("was told nothing"));
  EXPECT_TRUE(orders_.empty());
}

TEST_F(DaemonServiceTest, AnOrderOfAnotherCallIsRefused) {
  v1::LauncherMessage heard;
  const grpc::Status first = CallByHand([&](const CallNonces& nonces) {
    heard = Sealed({nonces.launcher, std::string(2 * kNonceBytes, 'b')}, FollowOrder("s"));
    return heard;
  });
  EXPECT_EQ(first.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(orders_.empty());
}

TEST_F(DaemonServiceTest, AnOrderThatWasChangedOnItsWayIsRefused) {
  const grpc::Status status = CallByHand([](const CallNonces& nonces) {
    v1::LauncherMessage message = Sealed(nonces, FollowOrder("s"));
    message.mutable_order()->mutable_order()->back() ^= 1;
    return message;
  });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(orders_.empty());
  RunUntil([&] { return !refused_.empty(); });
  EXPECT_THAT(refused_[0], HasSubstr("does not prove the token"));
}

TEST_F(DaemonServiceTest, AnOrderThatIsNotWholeOrNotEncryptedIsRefused) {
  for (const bool is_cut_off : {true, false}) {
    const grpc::Status status = CallByHand([&](const CallNonces& nonces) {
      v1::LauncherMessage message = Sealed(nonces, FollowOrder("s"));
      if (is_cut_off) {
        message.mutable_order()->mutable_order()->pop_back();
      } else {
        message.mutable_order()->set_order(FollowOrder("s").SerializeAsString());
      }
      return message;
    });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_TRUE(orders_.empty());
}

TEST_F(DaemonServiceTest, WhatIsNoOrderIsRefused) {
  EXPECT_EQ(CallByHand([](const CallNonces&) {
              v1::LauncherMessage message;
              message.mutable_done();
              return message;
            }).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CallByHand([](const CallNonces& nonces) {
              return Sealed(nonces, v1::DaemonOrder());
            }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(orders_.empty());
}

TEST_F(DaemonServiceTest, AnOrderBeyondTheBoundEndsTheCall) {
  Launcher& launcher =
      Call("secret", FollowOrder(std::string(DaemonService::kMaxOrderBytes + 1, 'x')));
  RunUntil([&] { return !launcher.ends.empty(); });
  EXPECT_TRUE(absl::IsResourceExhausted(launcher.ends[0])) << launcher.ends[0];
  EXPECT_TRUE(orders_.empty());
}

TEST_F(DaemonServiceTest, AnOrderIsFollowedByMessagesInBothDirections) {
  Launcher& launcher = Call("secret", FollowOrder("s"));
  RunUntil([&] { return !orders_.empty(); });
  EXPECT_EQ(orders_[0].follow().id(), "s");
  service_->Send(calls_[0], AcceptedMessage());
  RunUntil([&] { return !launcher.received.empty() && written_ > 0; });
  EXPECT_TRUE(launcher.received[0].has_accepted());
  v1::LauncherMessage signal;
  signal.mutable_signal()->set_signal(15);
  launcher.call->Send(signal);
  RunUntil([&] { return !messages_.empty(); });
  EXPECT_EQ(messages_[0].signal().signal(), 15);
}

// What a launcher sends and nobody has dealt with stays its own: see Note [Who sends more than is
// read]. That there was time for all of it is shown by another, who gets rid of more meanwhile.
TEST_F(DaemonServiceTest, ALauncherThatFloodsADaemonHasToWait) {
  constexpr int kMessages = 48;
  v1::LauncherMessage large;
  large.mutable_order()->set_order(std::string(1 << 20, 'x'));
  std::atomic<int> written = 0;
  std::promise<void> go;
  std::thread launcher([&] {
    CallFromOutside call(target_);
    call.stream->Write(Sealed(call.nonces, FollowOrder("s")));
    go.get_future().wait();
    while (written < kMessages && call.stream->Write(large)) {
      ++written;
    }
    call.stream->WritesDone();
    call.stream->Finish();
  });
  RunUntil([&] { return !orders_.empty(); });
  go.set_value();
  Sink sink;
  grpc::ClientContext call;
  const auto stub = v1::NodeDaemon::NewStub(
      grpc::CreateChannel(sink.target(), grpc::InsecureChannelCredentials()));
  const auto other = stub->Session(&call);
  for (int i = 0; i < 4 * kMessages; ++i) {
    EXPECT_TRUE(other->Write(large));
  }
  other->WritesDone();
  EXPECT_TRUE(other->Finish().ok());
  EXPECT_LT(written, kMessages / 2);
  RunUntil([&] { return messages_.size() == kMessages && !lost_.empty(); });
  launcher.join();
}

TEST_F(DaemonServiceTest, ADaemonEndsWhileLaunchersFloodIt) {
  v1::LauncherMessage signal;
  signal.mutable_signal()->set_signal(15);
  for (int i = 0; i < 4; ++i) {
    Call("secret", FollowOrder("s"));
  }
  RunUntil([&] { return orders_.size() == 4; });
  for (const DaemonService::CallId call : calls_) {
    service_->Send(call, AcceptedMessage());
  }
  RunUntil([&] {
    return std::ranges::all_of(launchers_,
                               [](const auto& launcher) { return !launcher->received.empty(); });
  });
  for (int i = 0; i < 1000; ++i) {
    for (const auto& launcher : launchers_) {
      launcher->call->Send(signal);
    }
    service_->Send(calls_[static_cast<size_t>(i) % 4], AcceptedMessage());
  }
  launchers_[0]->call.reset();
  service_.reset();
  RunUntil([&] { return !launchers_[3]->ends.empty(); });
  EXPECT_TRUE(absl::IsUnavailable(launchers_[3]->ends[0])) << launchers_[3]->ends[0];
}

TEST_F(DaemonServiceTest, TheDaemonsReasonReachesTheLauncher) {
  Launcher& launcher = Call("secret", FollowOrder("s"));
  RunUntil([&] { return !orders_.empty(); });
  service_->End(calls_[0], absl::ResourceExhaustedError("all slots are used"));
  RunUntil([&] { return !launcher.ends.empty(); });
  EXPECT_EQ(launcher.ends[0], absl::ResourceExhaustedError("all slots are used"));
  EXPECT_TRUE(lost_.empty());
}

TEST_F(DaemonServiceTest, ALostLauncherIsToldOfOnce) {
  Launcher& launcher = Call("secret", FollowOrder("s"));
  RunUntil([&] { return !orders_.empty(); });
  launcher.call.reset();
  RunUntil([&] { return !lost_.empty(); });
  EXPECT_EQ(lost_, calls_);
}

TEST_F(DaemonServiceTest, WhatWasSentBeforeCloseArrives) {
  Launcher& launcher = Call("secret", FollowOrder("s"));
  RunUntil([&] { return !orders_.empty(); });
  service_->Send(calls_[0], AcceptedMessage());
  RunUntil([&] { return !launcher.received.empty(); });
  v1::LauncherMessage done;
  done.mutable_done();
  launcher.call->Send(done);
  launcher.call->Close();
  RunUntil([&] { return !messages_.empty(); });
  EXPECT_TRUE(messages_[0].has_done());
}

TEST_F(DaemonServiceTest, WhereNobodyListensTheCallEnds) {
  loop_.Unwatch(listener_.get());
  listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  loop_.Watch(listener_.get(), EPOLLIN, [](uint32_t) {});
  Launcher& launcher = Call("secret", FollowOrder("s"));
  RunUntil([&] { return !launcher.ends.empty(); });
  EXPECT_TRUE(absl::IsUnavailable(launcher.ends[0])) << launcher.ends[0];
}

}  // namespace
}  // namespace fsdprun
