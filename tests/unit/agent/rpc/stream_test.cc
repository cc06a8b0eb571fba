#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/rpc/client_stream.h"
#include "agent/rpc/grpc_lifetime.h"
#include "agent/rpc/server_stream.h"
#include "base/mono_time.h"
#include "base/mutex.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"

namespace fsdprun {
namespace {

constexpr int kNoBound = std::numeric_limits<int>::max();
/// More than gRPC and the kernel keep of one stream.
constexpr int kFlood = 256;
constexpr size_t kFloodBytes = 256u << 10;

MonoTime Patience() { return MonoNow() + std::chrono::seconds(60); }

// What the ends of streams have been told, by gRPC's threads.
class Record {
 public:
  void Change(const std::function<void()>& change) {
    MutexLock lock(mu_);
    change();
    changed_.NotifyAll();
  }
  bool Until(const std::function<bool()>& condition) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, Patience(), condition);
  }
  bool Holds(const std::function<bool()>& condition) {
    MutexLock lock(mu_);
    return condition();
  }

 private:
  Mutex mu_;
  CondVar changed_;
};

class ServerEnd : public ServerStream<v1::FindRunId, v1::RunIdPlace> {
 public:
  ServerEnd(Record& record, int unread_max) : ServerStream(unread_max), record_(record) {}

  // Under the record's lock.
  std::vector<std::string> heard;
  bool has_read_end = false;
  int times_written = 0;

 private:
  void OnMessage(const v1::FindRunId& message) override {
    record_.Change([&] { heard.push_back(message.run_id()); });
  }
  void OnReadEnd() override {
    record_.Change([&] { has_read_end = true; });
  }
  void OnAllWritten() override {
    record_.Change([&] { ++times_written; });
  }

  Record& record_;
};

class Server : public v1::RunIds::CallbackService {
 public:
  explicit Server(Record& record) : record_(record) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Server() override { End(); }

  grpc::ServerBidiReactor<v1::FindRunId, v1::RunIdPlace>* Find(
      grpc::CallbackServerContext* /*context*/) override {
    const auto stream = std::make_shared<ServerEnd>(record_, unread_max);
    if (open_.Add(stream)) {
      stream->Start(stream);
    } else {
      stream->StartRefused(stream, absl::UnavailableError("too late"));
    }
    record_.Change([&] { streams_.push_back(stream); });
    return stream.get();
  }

  // Of the calls in the order in which they came.
  std::shared_ptr<ServerEnd> Stream(size_t index) {
    EXPECT_TRUE(record_.Until([&] { return streams_.size() > index; }));
    return streams_.at(index);
  }
  void End() {
    if (!std::exchange(has_ended_, true)) {
      open_.End(*server_, absl::UnavailableError("shutting down"));
    }
  }
  std::unique_ptr<v1::RunIds::Stub> NewStub() const {
    return v1::RunIds::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port_),
                                                   grpc::InsecureChannelCredentials()));
  }

  std::atomic<int> unread_max = kNoBound;
  OpenStreams<ServerEnd>& open() { return open_; }

 private:
  Record& record_;
  int port_ = 0;
  OpenStreams<ServerEnd> open_;
  std::vector<std::shared_ptr<ServerEnd>> streams_;
  bool has_ended_ = false;
  std::unique_ptr<grpc::Server> server_;
};

class ClientEnd : public ClientStream<v1::RunIdPlace, v1::FindRunId> {
 public:
  ClientEnd(Record& record, const Server& server) : record_(record), stub_(server.NewStub()) {}

  static std::shared_ptr<ClientEnd> Open(Record& record, const Server& server) {
    const auto stream = std::make_shared<ClientEnd>(record, server);
    stream->stub_->async()->Find(stream->context(), stream.get());
    stream->Start(stream);
    return stream;
  }
  void Say(const std::string& text) {
    v1::FindRunId message;
    message.set_run_id(text);
    Send(std::move(message));
  }

  // Under the record's lock.
  std::vector<std::string> heard;
  std::optional<absl::Status> end;
  size_t heard_before_end = 0;

 private:
  void OnMessage(const v1::RunIdPlace& message) override {
    record_.Change([&] { heard.push_back(message.endpoints(0)); });
  }
  void OnEnd(const absl::Status& status) override {
    record_.Change([&] {
      end = status;
      heard_before_end = heard.size();
    });
  }

  Record& record_;
  const std::unique_ptr<v1::RunIds::Stub> stub_;
};

v1::RunIdPlace Place(const std::string& text) {
  v1::RunIdPlace place;
  place.add_endpoints(text);
  return place;
}

std::vector<std::string> Numbers(int count) {
  std::vector<std::string> numbers;
  for (int i = 0; i < count; ++i) {
    numbers.push_back(std::to_string(i));
  }
  return numbers;
}

class StreamTest : public ::testing::Test {
 protected:
  ~StreamTest() override {
    for (const auto& client : clients_) {
      client->Cancel();
    }
    server_.End();
    for (const auto& client : clients_) {
      EXPECT_TRUE(client->WaitDone(Patience()));
    }
  }

  ClientEnd& Call() {
    clients_.push_back(ClientEnd::Open(record_, server_));
    return *clients_.back();
  }
  bool Until(const std::function<bool()>& condition) { return record_.Until(condition); }

  static void Flood(ClientEnd& client) {
    for (int i = 0; i < kFlood; ++i) {
      client.Say(std::string(kFloodBytes, 'x'));
    }
  }

  // Before any channel.
  const bool has_begun_ = (BeginGrpc(), true);
  Record record_;
  Server server_{record_};
  std::vector<std::shared_ptr<ClientEnd>> clients_;
};

TEST_F(StreamTest, AServerThatIsGoneEndsTheClientsQueue) {
  server_.unread_max = 1;  // So that the client's writes do not end.
  ClientEnd& client = Call();
  Flood(client);
  const auto server = server_.Stream(0);
  ASSERT_TRUE(Until([&] { return server->heard.size() == 1; }));
  server->End(absl::AbortedError("enough"));
  EXPECT_FALSE(client.WaitWritten(Patience()));
  ASSERT_TRUE(Until([&] { return client.end.has_value(); }));
  EXPECT_EQ(*client.end, absl::AbortedError("enough"));
  EXPECT_TRUE(client.WaitDone(Patience()));
  client.Say("into the void");
  client.FinishWriting(Patience());
  EXPECT_FALSE(client.WaitWritten(Patience()));
}

TEST_F(StreamTest, AClientThatIsGoneEndsTheServersQueue) {
  const auto stub = server_.NewStub();
  grpc::ClientContext context;
  const auto reads_nothing = stub->Find(&context);
  const auto server = server_.Stream(0);
  for (int i = 0; i < kFlood; ++i) {
    server->Send(Place(std::string(kFloodBytes, 'x')));
  }
  context.TryCancel();
  EXPECT_FALSE(server->WaitWritten(Patience()));
  ASSERT_TRUE(Until([&] { return server->has_read_end; }));
  server->Send(Place("into the void"));
  EXPECT_FALSE(server->WaitWritten(Patience()));
  EXPECT_FALSE(server->IsDone());  // The end is its owner's.
  server->End(absl::OkStatus());
  EXPECT_TRUE(server->WaitDone(Patience()));
  reads_nothing->Finish();
}

TEST_F(StreamTest, AClientThatIsCancelledInTheMiddleOfAReadEnds) {
  ClientEnd& client = Call();
  const auto server = server_.Stream(0);
  EXPECT_FALSE(client.IsDone());
  client.Cancel();
  ASSERT_TRUE(Until([&] { return client.end.has_value() && server->has_read_end; }));
  EXPECT_TRUE(absl::IsCancelled(*client.end)) << *client.end;
  EXPECT_TRUE(client.WaitDone(Patience()));
}

// The stop is longer than the limit; what has to happen happens right after it.
TEST_F(StreamTest, ATimeInWhichTheProcessIsStoppedIsNoneInWhichGrpcWasSlow) {
  constexpr Duration kLimit = std::chrono::milliseconds(500);
  ClientEnd& client = Call();
  EXPECT_FALSE(client.WaitDoneFor(kLimit));
  const MonoTime begin = MonoNow();
  std::FILE* stopper =
      ::popen("sleep 0.1; kill -STOP $PPID; sleep 1; kill -CONT $PPID; sleep 0.1; echo over", "r");
  std::thread ender([&] {
    EXPECT_EQ(std::fgetc(stopper), 'o');
    client.Cancel();
  });
  EXPECT_TRUE(client.WaitDoneFor(kLimit));
  EXPECT_GT(MonoNow() - begin, 2 * kLimit);
  ender.join();
  ::pclose(stopper);
}

TEST_F(StreamTest, WhereNobodyListensTheCallEnds) {
  server_.End();
  ClientEnd& client = Call();
  client.Say("is anybody there?");
  ASSERT_TRUE(Until([&] { return client.end.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*client.end)) << *client.end;
  EXPECT_FALSE(client.WaitWritten(Patience()));
}

TEST_F(StreamTest, NoMoreIsReadThanMayWait) {
  server_.unread_max = 3;
  ClientEnd& client = Call();
  const auto bounded = server_.Stream(0);
  for (const std::string& number : Numbers(10)) {
    client.Say(number);
  }
  ASSERT_TRUE(Until([&] { return bounded->heard.size() >= 3; }));
  // Another stream, whose messages come later and are many more, shows that there was time.
  server_.unread_max = kNoBound;
  ClientEnd& other = Call();
  const auto unbounded = server_.Stream(1);
  for (int i = 0; i < 1000; ++i) {
    other.Say("x");
  }
  ASSERT_TRUE(Until([&] { return unbounded->heard.size() == 1000; }));
  EXPECT_TRUE(record_.Holds([&] { return bounded->heard == Numbers(3); }));
  for (size_t dealt_with = 1; dealt_with <= 7; ++dealt_with) {
    bounded->ReadOn();
    ASSERT_TRUE(Until([&] { return bounded->heard.size() == 3 + dealt_with; }));
  }
  EXPECT_EQ(bounded->heard, Numbers(10));
}

TEST_F(StreamTest, WhoIsGoneWhileNothingIsReadIsMissedWhenItIsReadAgain) {
  server_.unread_max = 1;
  ClientEnd& client = Call();
  client.Say("0");
  const auto server = server_.Stream(0);
  ASSERT_TRUE(Until([&] { return server->heard.size() == 1; }));
  client.Cancel();
  ASSERT_TRUE(client.WaitDone(Patience()));
  EXPECT_FALSE(record_.Holds([&] { return server->has_read_end; }));
  server->ReadOn();
  EXPECT_TRUE(Until([&] { return server->has_read_end; }));
}

TEST_F(StreamTest, AServerEndsWhileItDoesNotRead) {
  server_.unread_max = 1;
  ClientEnd& client = Call();
  Flood(client);
  const auto server = server_.Stream(0);
  ASSERT_TRUE(Until([&] { return server->heard.size() == 1; }));
  server->End(absl::ResourceExhaustedError("too much"));
  server->ReadOn();  // Of a message that was dealt with late.
  EXPECT_TRUE(server->WaitDone(Patience()));
  ASSERT_TRUE(Until([&] { return client.end.has_value(); }));
  EXPECT_EQ(*client.end, absl::ResourceExhaustedError("too much"));
}

TEST_F(StreamTest, TheServersEndFollowsItsLastMessage) {
  ClientEnd& client = Call();
  const auto server = server_.Stream(0);
  for (const std::string& number : Numbers(1000)) {
    server->Send(Place(number));
  }
  EXPECT_TRUE(server->WaitWritten(Patience()));
  server->End(absl::OutOfRangeError("that was all"));
  server->Send(Place("too late"));
  ASSERT_TRUE(Until([&] { return client.end.has_value(); }));
  EXPECT_EQ(*client.end, absl::OutOfRangeError("that was all"));
  EXPECT_EQ(client.heard, Numbers(1000));
  EXPECT_EQ(client.heard_before_end, 1000u);
  EXPECT_GE(server->times_written, 1);
}

TEST_F(StreamTest, TheClientsEndFollowsItsLastMessage) {
  ClientEnd& client = Call();
  const auto server = server_.Stream(0);
  for (const std::string& number : Numbers(1000)) {
    client.Say(number);
  }
  client.FinishWriting(MonoNow());  // In vain: the server does not end the call.
  client.FinishWriting(MonoNow());
  client.WaitWritten(Patience());
  client.FinishWriting(MonoNow());
  client.Say("too late");
  ASSERT_TRUE(Until([&] { return server->has_read_end; }));
  EXPECT_EQ(server->heard, Numbers(1000));
  EXPECT_FALSE(client.IsDone());
  server->End(absl::OkStatus());
  EXPECT_TRUE(client.WaitDone(Patience()));
  EXPECT_EQ(client.end, absl::OkStatus());
}

TEST_F(StreamTest, AServerThatEndsWritesWhatIsQueuedAndRefusesWhoComesThen) {
  ClientEnd& client = Call();
  const auto server = server_.Stream(0);
  for (const std::string& number : Numbers(1000)) {
    server->Send(Place(number));
  }
  server_.End();
  EXPECT_FALSE(server_.open().Add(std::make_shared<ServerEnd>(record_, 1)));
  ASSERT_TRUE(Until([&] { return client.end.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*client.end)) << *client.end;
  EXPECT_EQ(client.heard, Numbers(1000));
}

TEST_F(StreamTest, BothEndsGoWhileMessagesAreUnderWay) {
  for (size_t round = 0; round < 20; ++round) {
    ClientEnd& client = Call();
    const auto server = server_.Stream(round);
    for (int i = 0; i < 100; ++i) {
      client.Say(std::string(1000, 'x'));
      server->Send(Place(std::string(1000, 'x')));
    }
    if (round % 2 == 0) {
      client.Cancel();
    } else {
      server->End(absl::OkStatus());
    }
    ASSERT_TRUE(client.WaitDone(Patience()));
    clients_.pop_back();
  }
  Server other(record_);
  const auto client = ClientEnd::Open(record_, other);
  other.Stream(0)->Send(Place("x"));
  Flood(*client);
  other.End();
  EXPECT_TRUE(client->WaitDone(Patience()));
}

}  // namespace
}  // namespace fsdprun
