#include "launcher/control/control_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "agent/rpc/server_stream.h"
#include "base/check.h"
#include "base/mono_time.h"
#include "fsdprun/v1/control.grpc.pb.h"

namespace fsdprun {
namespace {

/// One question each; what comes after it is not read.
constexpr int kUnreadMax = 1;
/// How long the end of a job waits for those who follow it to hear of it.
constexpr Duration kLastWords = std::chrono::milliseconds(100);

}  // namespace

// One caller's question. Thread: the reactions run on gRPC's threads, the rest on the loop thread.
class ControlService::Call : public ServerStream<v1::ControlQuestion, v1::ControlAnswer> {
 public:
  Call(ControlService& service, CallId id) : ServerStream(kUnreadMax), service_(service), id_(id) {}

 private:
  void OnMessage(const v1::ControlQuestion& question) override {
    service_.PostIfLive([&service = service_, id = id_, question] { service.Ask(id, question); });
  }
  // Who has said all and goes on listening is heard of when the call is cancelled.
  void OnReadEnd() override {}
  void OnCancel() override {
    service_.PostIfLive([&service = service_, id = id_] { service.Lose(id); });
  }
  void OnAllWritten() override {
    service_.PostIfLive([&service = service_, id = id_] { service.Written(id); });
  }

  // Constant after construction.
  ControlService& service_;
  const CallId id_;
};

// What gRPC sees of the service. Reactions run on gRPC's threads.
class ControlService::Endpoint : public v1::JobControl::CallbackService {
 public:
  Endpoint(ControlService& service, CallCheck check)
      : service_(service), check_(std::move(check)) {}

  grpc::ServerBidiReactor<v1::ControlQuestion, v1::ControlAnswer>* Ask(
      grpc::CallbackServerContext* context) override {
    absl::Status status = check_(*context);
    const CallId id = next_id_++;
    auto call = std::make_shared<Call>(service_, id);
    if (!calls.Add(call)) {
      status = absl::UnavailableError("the job is over");
    }
    if (!status.ok()) {
      call->StartRefused(call, status);
      return call.get();
    }
    // Posted before any message of the call, so that the loop knows it when the first one arrives.
    service_.PostIfLive([&service = service_, id, call] { service.Admit(id, call); });
    call->Start(call);
    return call.get();
  }

  OpenStreams<Call> calls;

 private:
  ControlService& service_;
  const CallCheck check_;
  std::atomic<CallId> next_id_{1};
};

ControlService::ControlService(EventLoop& loop, CallCheck check, Callbacks callbacks)
    : loop_(loop),
      callbacks_(std::move(callbacks)),
      endpoint_(std::make_unique<Endpoint>(*this, std::move(check))) {}

ControlService::~ControlService() { *is_live_ = false; }

grpc::Service* ControlService::service() { return endpoint_.get(); }

void ControlService::End(const absl::Status& status) {
  has_ended_ = true;
  endpoint_->calls.EndAll(status, MonoNow() + kLastWords);
  calls_.clear();
}

void ControlService::Send(CallId id, v1::ControlAnswer answer) {
  if (const auto open = calls_.find(id); open != calls_.end()) {
    FSDPRUN_CHECK(!open->second.is_writing, "one answer at a time");
    open->second.is_writing = true;
    open->second.call->Send(std::move(answer));
  }
}

void ControlService::Finish(CallId id) {
  const auto open = calls_.find(id);
  if (open == calls_.end()) {
    return;
  }
  open->second.is_finished = true;
  if (!open->second.is_writing) {
    open->second.call->End(absl::OkStatus());
    calls_.erase(open);
  }
}

void ControlService::Refuse(CallId id, const absl::Status& status) {
  if (auto open = calls_.extract(id); !open.empty()) {
    open.mapped().call->End(status);
  }
}

void ControlService::Admit(CallId id, const std::shared_ptr<Call>& call) {
  calls_[id].call = call;
  if (has_ended_ || calls_.size() > kCallsMax) {
    Refuse(id, absl::ResourceExhaustedError("too many ask about this job at once"));
  }
}

void ControlService::Ask(CallId id, const v1::ControlQuestion& question) {
  const auto open = calls_.find(id);
  if (open != calls_.end() && !has_ended_ && !std::exchange(open->second.has_asked, true)) {
    callbacks_.on_question(id, question);
  }
}

void ControlService::Written(CallId id) {
  const auto open = calls_.find(id);
  if (open == calls_.end()) {
    return;
  }
  open->second.is_writing = false;
  if (open->second.is_finished) {
    Finish(id);
  } else if (!has_ended_) {
    callbacks_.on_written(id);
  }
}

void ControlService::Lose(CallId id) {
  if (auto open = calls_.extract(id); !open.empty()) {
    open.mapped().call->End(absl::CancelledError("the caller has gone"));
    if (!has_ended_) {
      callbacks_.on_lost(id);
    }
  }
}

void ControlService::PostIfLive(absl::AnyInvocable<void()> closure) {
  loop_.Post([live = is_live_, closure = std::move(closure)]() mutable {
    if (*live) {
      closure();
    }
  });
}

}  // namespace fsdprun
