#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/rpc/grpc_lifetime.h"
#include "fsdprun/v1/control.grpc.pb.h"
#include "launcher/control/control_desk.h"

namespace fsdprun {

/// A machine, its desk, and a server of it on a loop of its own.
class AskedJob {
 public:
  struct Options {
    JobSpec spec = [] {
      JobSpec spec;
      spec.launch_id = "12ab34cd";
      spec.min_nodes = 2;
      spec.max_nodes = 2;
      spec.node_ranks_bind = false;
      return spec;
    }();
    /// Where nodes join; empty: none can.
    std::string endpoint = "here:29400";
    /// Judges calls.
    CallCheck check = [](const grpc::CallbackServerContext&) { return absl::OkStatus(); };
  };

  AskedJob() : AskedJob(Options{}) {}
  explicit AskedJob(const Options& options)
      : machine_(options.spec),
        desk_(loop_, machine_,
              JobFacts{.run_id = "run7", .node = "here", .endpoint = options.endpoint}, Hooks(),
              asides_) {
    BeginGrpc();
    service_ = desk_.MakeService(options.check);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_->service());
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
    stub_ = v1::JobControl::NewStub(channel_);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~AskedJob() {
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
    Do([&] { Feed(event); });
  }
  void Say(uint64_t who, uint64_t g, AgentMessage message) {
    Step(FromAgent{Incarnation(who), Generation(g), std::move(message)});
  }
  /// With generation `g`: again, on another stream.
  void Join(uint64_t who, const std::string& name = "", std::optional<int> rank = {},
            uint64_t g = 0) {
    NodeInfo info;
    info.incarnation = Incarnation(who);
    info.name = name.empty() ? "node-" + std::to_string(who) : name;
    info.address = "10.0.0." + std::to_string(who);
    info.requested_node_rank = rank;
    Say(who, g, AgentJoined{info, Generation(g), {}});
  }
  /// Generation `g` of these nodes runs; the first has its store.
  void Run(uint64_t g, const std::vector<uint64_t>& who) {
    for (const uint64_t node : who) {
      Say(node, g, AgentPrepared{StoreEndpoint{"10.0.0.1", 30000}});
    }
    for (const uint64_t node : who) {
      Say(node, g, AgentStarted{});
    }
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

  /// What is said to the question; why it is refused, if it is.
  std::string Answer(const v1::ControlQuestion& question, grpc::Status* status) {
    const std::vector<v1::ControlAnswer> answers = Ask(question)->Rest(status);
    return answers.empty() ? status->error_message() : answers.front().done().what();
  }

  /// The streams of a node end; whoever asked it is told first.
  void LoseStream(uint64_t who) {
    Do([&] {
      asides_.StreamLost(Incarnation(who));
      Feed(job::AgentStreamLost{Incarnation(who)});
    });
  }
  /// What nodes were asked beside the machines since the last call.
  std::vector<std::pair<Incarnation, v1::ToNodeAside>> TakeAsides() {
    std::vector<std::pair<Incarnation, v1::ToNodeAside>> taken;
    Do([&] { taken.swap(asides_sent_); });
    return taken;
  }
  void Hear(uint64_t who, const v1::FromNodeAside& aside) {
    Do([&] { asides_.Hear(Incarnation(who), aside); });
  }

  const JobMachine& machine() const { return machine_; }

  /// What the desk has asked for; a drain and other numbers are done, too.
  std::vector<std::string> asked_for_;

 private:
  void Feed(const job::Event& event) {
    const job::Effects effects = machine_.Step(event, MonoNow());
    for (const job::News& news : effects.news) {
      desk_.Note(news);
    }
    desk_.Stepped();
  }
  ControlDesk::Hooks Hooks() {
    return {.stop = [this](int signal) { asked_for_.push_back("stop " + std::to_string(signal)); },
            .restart = [this] { asked_for_.push_back("restart"); },
            .drain =
                [this](Incarnation node) {
                  asked_for_.push_back("drain " + std::to_string(node.value()));
                  Feed(job::DrainAsked{node});
                },
            .scale =
                [this](int min, int max) {
                  asked_for_.push_back("scale " + std::to_string(min) + ":" + std::to_string(max));
                  Feed(job::ScaleAsked{min, max});
                },
            .add_workers = [](v1::JobStatus* status) { status->add_workers(); }};
  }

  EventLoop loop_;
  JobMachine machine_;
  std::vector<std::pair<Incarnation, v1::ToNodeAside>> asides_sent_;
  NodeAsides asides_{[this](Incarnation node, const v1::ToNodeAside& aside) {
                       asides_sent_.emplace_back(node, aside);
                     },
                     nullptr};

 public:
  ControlDesk desk_;

 private:
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobControl::Stub> stub_;
  std::thread thread_;
};

}  // namespace fsdprun
