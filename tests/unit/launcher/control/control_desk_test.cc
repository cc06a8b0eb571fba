#include "launcher/control/control_desk.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/rpc/grpc_lifetime.h"
#include "fsdprun/v1/control.grpc.pb.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A machine, its desk, and a server of it on a loop of its own; `check` judges calls.
class Asked {
 public:
  explicit Asked(CallCheck check = [](const grpc::CallbackServerContext&) {
    return absl::OkStatus();
  }) {
    BeginGrpc();
    service_ = desk_.MakeService(std::move(check));
    grpc::ServerBuilder builder;
    builder.RegisterService(service_->service());
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
    stub_ = v1::JobControl::NewStub(channel_);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~Asked() {
    Do([this] { service_->End(absl::OkStatus()); });
    server_->Shutdown();
    server_->Wait();
    loop_.Stop();
    thread_.join();
  }

  /// On the loop.
  void Do(const std::function<void()>& what) {
    std::promise<void> done;
    loop_.Post([&] {
      what();
      done.set_value();
    });
    done.get_future().wait();
  }
  void Step(const job::Event& event) {
    Do([&] {
      const job::Effects effects = machine_.Step(event, MonoNow());
      for (const job::News& news : effects.news) {
        desk_.Note(news);
      }
      desk_.Stepped();
    });
  }
  void Join(uint64_t who) {
    NodeInfo info;
    info.incarnation = Incarnation(who);
    info.name = "node-" + std::to_string(who);
    Step(FromAgent{Incarnation(who), {}, AgentJoined{info, {}, {}}});
  }

  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::ControlQuestion, v1::ControlAnswer>> stream;

    std::optional<v1::ControlAnswer> Next() {
      v1::ControlAnswer answer;
      return stream->Read(&answer) ? std::optional(answer) : std::nullopt;
    }
    /// What comes until the end.
    std::vector<v1::ControlAnswer> Rest(grpc::Status* status = nullptr) {
      std::vector<v1::ControlAnswer> answers;
      while (auto answer = Next()) {
        answers.push_back(*answer);
      }
      const grpc::Status end = stream->Finish();
      if (status != nullptr) {
        *status = end;
      }
      return answers;
    }
  };
  std::unique_ptr<Call> Ask(const v1::ControlQuestion& question) {
    auto call = std::make_unique<Call>();
    call->stream = stub_->Ask(&call->context);
    call->stream->Write(question);
    return call;
  }

  std::vector<std::string> asked_for_;

 private:
  EventLoop loop_;
  JobMachine machine_{[] {
    JobSpec spec;
    spec.min_nodes = 2;
    spec.max_nodes = 2;
    return spec;
  }()};

 public:
  NodeAsides asides_{[](Incarnation, const v1::ToNodeAside&) {}, nullptr};
  ControlDesk desk_{
      loop_,
      machine_,
      JobFacts{.run_id = "run7", .node = "here", .min_nodes = 2, .max_nodes = 2},
      {.stop = [this](int signal) { asked_for_.push_back("stop " + std::to_string(signal)); },
       .restart = [this] { asked_for_.push_back("restart"); }},
      asides_};

 private:
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobControl::Stub> stub_;
  std::thread thread_;
};

v1::ControlQuestion StatusOf(bool follow) {
  v1::ControlQuestion question;
  question.mutable_status()->set_follow(follow);
  return question;
}

v1::ControlQuestion EventsOf(bool follow) {
  v1::ControlQuestion question;
  question.mutable_events()->set_follow(follow);
  return question;
}

TEST(ControlDeskTest, AStateIsToldOnce) {
  Asked job;
  job.Join(1);
  const std::vector<v1::ControlAnswer> answers = job.Ask(StatusOf(false))->Rest();
  ASSERT_EQ(answers.size(), 1U);
  const v1::JobStatus& status = answers[0].status();
  EXPECT_EQ(status.job(), "run7");
  EXPECT_EQ(status.phase(), "rendezvous");
  EXPECT_THAT(status.reason(), HasSubstr("1 of 2 joined"));
  ASSERT_EQ(status.nodes_size(), 1);
  EXPECT_EQ(status.nodes(0).name(), "node-1");
  EXPECT_EQ(status.nodes(0).group_rank(), -1);
}

TEST(ControlDeskTest, WhoFollowsTheStateHearsOfEachNewOne) {
  Asked job;
  const auto call = job.Ask(StatusOf(true));
  EXPECT_EQ(call->Next()->status().nodes_size(), 0);
  job.Join(1);
  EXPECT_EQ(call->Next()->status().nodes_size(), 1);
  job.Join(2);
  EXPECT_EQ(call->Next()->status().phase(), "preparing");
}

TEST(ControlDeskTest, EventsAreToldFromTheFirstThatIsKnown) {
  Asked job;
  const auto call = job.Ask(EventsOf(true));
  EXPECT_EQ(call->Next()->events().lines_size(), 0);
  job.Join(1);
  EXPECT_THAT(call->Next()->events().lines(0), HasSubstr("node-1"));
  for (uint64_t i = 0; i < ControlDesk::kEventsKept; ++i) {
    job.Do([&] { job.desk_.Note(job::Warned{"again"}); });
  }
  uint64_t forgotten = 0;
  size_t lines = 0;
  for (const v1::ControlAnswer& answer : job.Ask(EventsOf(false))->Rest()) {
    EXPECT_LE(answer.events().lines_size(), static_cast<int>(ControlDesk::kLinesAtOnce));
    forgotten += answer.events().forgotten();
    lines += static_cast<size_t>(answer.events().lines_size());
  }
  EXPECT_EQ(forgotten, 1U);
  EXPECT_EQ(lines, ControlDesk::kEventsKept);
}

TEST(ControlDeskTest, WhatAnOperatorAsksForIsPassedOn) {
  Asked job;
  v1::ControlQuestion question;
  question.mutable_stop()->set_signal(SIGTERM);
  EXPECT_THAT(job.Ask(question)->Rest().at(0).done().what(), HasSubstr("being stopped"));
  question.mutable_stop()->set_signal(SIGKILL);
  grpc::Status status;
  job.Ask(question)->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  question.mutable_restart();
  job.Ask(question)->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("no workers run"));
  job.Join(1);
  job.Join(2);
  EXPECT_THAT(job.Ask(question)->Rest().at(0).done().what(), HasSubstr("generation 1 ends"));
  EXPECT_THAT(job.asked_for_, ElementsAre("stop 15", "restart"));
}

TEST(ControlDeskTest, WhoMayNotAskIsTold) {
  Asked job([](const grpc::CallbackServerContext&) {
    return absl::UnauthenticatedError("the token is wrong");
  });
  grpc::Status status;
  EXPECT_TRUE(job.Ask(StatusOf(false))->Rest(&status).empty());
  EXPECT_EQ(status.error_message(), "the token is wrong");
}

TEST(ControlDeskTest, AQuestionThatIsNoneIsRefused) {
  Asked job;
  grpc::Status status;
  job.Ask({})->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(ControlDeskTest, TooManyAreRefusedUntilSomeHaveGone) {
  Asked job;
  std::vector<std::unique_ptr<Asked::Call>> calls;
  for (size_t i = 0; i < ControlService::kCallsMax; ++i) {
    calls.push_back(job.Ask(StatusOf(true)));
    ASSERT_TRUE(calls.back()->Next());
  }
  grpc::Status status;
  job.Ask(StatusOf(false))->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  calls[0]->context.TryCancel();
  calls[0]->Rest();
  do {  // Until the server has heard of it, too.
    job.Ask(StatusOf(false))->Rest(&status);
  } while (!status.ok());
}

TEST(ControlDeskTest, OnceClosedNobodyIsToldMore) {
  Asked job;
  const auto call = job.Ask(StatusOf(true));
  EXPECT_TRUE(call->Next());
  job.Do([&] { job.desk_.Close("another one has taken over"); });
  grpc::Status status;
  call->Rest(&status);
  EXPECT_EQ(status.error_message(), "another one has taken over");
  job.Ask(StatusOf(false))->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace fsdprun
