#include "launcher/daemon/daemon_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/check.h"
#include "base/mutex.h"
#include "fsdprun/v1/daemon.grpc.pb.h"
#include "launcher/daemon/order_seal.h"
#include "launcher/directory/job_token.h"
#include "launcher/rpc/front_door.h"

namespace fsdprun {
namespace {

/// A launcher whose machine is gone is noticed after both.
constexpr int kKeepaliveMs = 5'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int kMinPingIntervalMs = 1'000;
constexpr Duration kFlushTimeout = std::chrono::seconds(1);
constexpr Duration kDoneTimeout = std::chrono::seconds(5);

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace

// One launcher's call. Lives until gRPC is done with it and the service has dropped it.
// Thread: the reactions run on gRPC's threads, the rest on the loop thread.
class DaemonService::Call : public grpc::ServerBidiReactor<v1::LauncherMessage, v1::DaemonMessage> {
 public:
  Call(DaemonService& service, CallId id) : service_(service), id_(id) {}

  void Start(std::shared_ptr<Call> self, const std::string& launcher_nonce) {
    self_ = std::move(self);
    nonces_ = {launcher_nonce, RandomHex(kNonceBytes)};
    StartSendInitialMetadata();
    v1::DaemonMessage message;
    message.mutable_challenge()->set_nonce(nonces_.daemon);
    message.mutable_challenge()->set_answer(DaemonAnswer(service_.options_.token, nonces_));
    Send(std::move(message));
    StartRead(&incoming_);
  }

  // Ends the call with `status`; nothing is read from it.
  void StartRefused(std::shared_ptr<Call> self, const absl::Status& status) {
    self_ = std::move(self);
    End(status);
  }

  void Send(v1::DaemonMessage message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (is_finishing_) {
      return;
    }
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) {
      StartWrite(&outgoing_.front());
    }
  }

  void Flush(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return is_done_ || outgoing_.empty();
    });
  }

  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!std::exchange(is_finishing_, true)) {
      Finish(ToGrpc(status));
    }
  }

  bool WaitDone(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, deadline,
                              [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      service_.PostIfLive([&service = service_, id = id_] { service.Lose(id); });
      return;
    }
    if (!std::exchange(has_order_, true)) {
      ReadOrder();
    } else {
      service_.PostIfLive(
          [&service = service_, id = id_, message = incoming_] { service.Message(id, message); });
    }
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
    } else if (!outgoing_.empty() && !is_finishing_) {
      StartWrite(&outgoing_.front());
    } else if (outgoing_.empty()) {
      service_.PostIfLive([&service = service_, id = id_] {
        if (const auto open = service.calls_.find(id);
            open != service.calls_.end() && open->second.has_ordered) {
          service.callbacks_.on_written(id);
        }
      });
    }
    changed_.NotifyAll();
  }

  void OnDone() override {
    const std::shared_ptr<Call> self = std::move(self_);
    MutexLock lock(mu_);
    is_done_ = true;
    outgoing_.clear();
    changed_.NotifyAll();
  }

 private:
  void ReadOrder() {
    const v1::SealedOrder& sealed = incoming_.order();
    v1::DaemonOrder order;
    if (!incoming_.has_order() ||
        !IsSameSecret(sealed.seal(), OrderSeal(service_.options_.token, nonces_, sealed.order()))) {
      Refuse(absl::UnauthenticatedError("the order does not prove the token"),
             "an order that does not prove the token");
    } else if (!order.ParseFromString(sealed.order()) ||
               order.order_case() == v1::DaemonOrder::ORDER_NOT_SET) {
      Refuse(absl::InvalidArgumentError(
                 "this daemon cannot read the order; install one release of fsdprun on all "
                 "machines"),
             "an order of another release");
    } else {
      service_.PostIfLive([&service = service_, id = id_, order] { service.Order(id, order); });
    }
  }

  void Refuse(const absl::Status& status, const char* what) {
    service_.PostIfLive([&service = service_, id = id_, status, text = std::string(what)] {
      service.Refuse(id, status, text);
    });
  }

  // Constant after Start().
  DaemonService& service_;
  const CallId id_;
  CallNonces nonces_;

  std::shared_ptr<Call> self_;
  v1::LauncherMessage incoming_;
  /// Read and written by the reactions to reads, of which there is one at a time.
  bool has_order_ = false;

  Mutex mu_;
  CondVar changed_;
  /// The front is being written. A deque, so that its address stays.
  std::deque<v1::DaemonMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  bool is_finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;
};

// What gRPC sees of the service. Reactions run on gRPC's threads.
class DaemonService::Endpoint : public v1::NodeDaemon::CallbackService {
 public:
  explicit Endpoint(DaemonService& service)
      : door(service.loop_, {service.options_.token, service.options_.tls},
             service.callbacks_.on_refused),
        service_(service) {}

  grpc::ServerBidiReactor<v1::LauncherMessage, v1::DaemonMessage>* Session(
      grpc::CallbackServerContext* context) override {
    const absl::StatusOr<std::string> run_id = door.RunIdOf(*context);
    const CallId id = next_id_++;
    auto call = std::make_shared<Call>(service_, id);
    const auto nonce = context->client_metadata().find(kNonceKey);
    absl::Status status = run_id.status();
    if (!Register(call)) {
      status = absl::UnavailableError("the daemon is shutting down");
    } else if (status.ok() &&
               (*run_id != kDaemonRunId || nonce == context->client_metadata().end() ||
                nonce->second.size() != 2 * kNonceBytes)) {
      status = absl::InvalidArgumentError("this is the daemon of a node, not a coordinator");
    }
    if (!status.ok()) {
      call->StartRefused(call, status);
      return call.get();
    }
    // Posted before any message of the call, so that the loop knows it when the first one arrives.
    service_.PostIfLive([&service = service_, id, call] { service.Admit(id, call); });
    call->Start(call, std::string(nonce->second.data(), nonce->second.size()));
    return call.get();
  }

  // Refuses further calls and returns those that are not done.
  std::vector<std::shared_ptr<Call>> CloseToNewCalls() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    is_closed_ = true;
    std::vector<std::shared_ptr<Call>> calls;
    for (const std::weak_ptr<Call>& weak : open_) {
      if (std::shared_ptr<Call> call = weak.lock()) {
        calls.push_back(std::move(call));
      }
    }
    return calls;
  }

  FrontDoor door;
  std::unique_ptr<grpc::Server> server;

 private:
  bool Register(const std::shared_ptr<Call>& call) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    std::erase_if(open_, [](const std::weak_ptr<Call>& weak) { return weak.expired(); });
    open_.push_back(call);
    return !is_closed_;
  }

  DaemonService& service_;
  std::atomic<CallId> next_id_{1};
  Mutex mu_;
  /// Every call that gRPC has not finished, including those not yet posted to the loop.
  std::vector<std::weak_ptr<Call>> open_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

DaemonService::DaemonService(EventLoop& loop, Options options, Callbacks callbacks)
    : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)) {}

DaemonService::~DaemonService() {
  Shutdown();
  *is_live_ = false;
}

absl::Status DaemonService::Start() {
  FSDPRUN_CHECK(!options_.token.empty(), "a daemon needs a token");
  BeginGrpc();
  endpoint_ = std::make_unique<Endpoint>(*this);
  grpc::ServerBuilder builder;
  builder.RegisterService(endpoint_.get());
  builder.SetMaxReceiveMessageSize(kMaxOrderBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  endpoint_->door.Prepare(&builder);
  endpoint_->server = builder.BuildAndStart();
  if (endpoint_->server == nullptr) {
    return absl::InternalError("gRPC could not start the daemon's service");
  }
  endpoint_->door.Open(endpoint_->server.get());
  return absl::OkStatus();
}

void DaemonService::AddConnection(UniqueFd connection) {
  endpoint_->door.Take(std::move(connection));
}

void DaemonService::Send(CallId call, v1::DaemonMessage message) {
  if (const auto open = calls_.find(call); open != calls_.end()) {
    open->second.call->Send(std::move(message));
  }
}

void DaemonService::End(CallId call, const absl::Status& status) {
  if (auto open = calls_.extract(call); !open.empty()) {
    loop_.Cancel(open.mapped().order_timer);
    open.mapped().call->End(status);
  }
}

void DaemonService::Shutdown() {
  if (std::exchange(is_shut_down_, true) || endpoint_ == nullptr) {
    return;
  }
  const MonoTime flush_deadline = MonoNow() + kFlushTimeout;
  const std::vector<std::shared_ptr<Call>> open = endpoint_->CloseToNewCalls();
  for (const auto& call : open) {
    call->Flush(flush_deadline);
    call->End(absl::UnavailableError("the daemon is shutting down"));
  }
  for (const auto& call : open) {
    call->WaitDone(flush_deadline);
  }
  endpoint_->server->Shutdown(std::chrono::system_clock::now());
  for (const auto& call : open) {
    FSDPRUN_CHECK(call->WaitDone(MonoNow() + kDoneTimeout),
                  "gRPC does not finish a call after shutdown");
  }
  endpoint_->server->Wait();
  calls_.clear();
}

void DaemonService::Admit(CallId id, const std::shared_ptr<Call>& call) {
  Open& open = calls_[id];
  open.call = call;
  open.order_timer = loop_.At(MonoNow() + kOrderTimeout, [this, id] {
    Refuse(id, absl::DeadlineExceededError("no order came"), "a call without an order");
  });
}

void DaemonService::Order(CallId id, const v1::DaemonOrder& order) {
  const auto open = calls_.find(id);
  if (open == calls_.end() || is_shut_down_) {
    return;
  }
  loop_.Cancel(open->second.order_timer);
  open->second.has_ordered = true;
  callbacks_.on_order(id, order);
}

void DaemonService::Message(CallId id, const v1::LauncherMessage& message) {
  const auto open = calls_.find(id);
  if (open != calls_.end() && open->second.has_ordered && !is_shut_down_) {
    callbacks_.on_message(id, message);
  }
}

void DaemonService::Refuse(CallId id, const absl::Status& status, const std::string& what) {
  if (calls_.contains(id)) {
    End(id, status);
    callbacks_.on_refused(what);
  }
}

void DaemonService::Lose(CallId id) {
  const auto open = calls_.find(id);
  if (open == calls_.end() || is_shut_down_) {
    return;
  }
  const bool has_ordered = open->second.has_ordered;
  End(id, absl::OkStatus());
  if (has_ordered) {
    callbacks_.on_lost(id);
  }
}

void DaemonService::PostIfLive(absl::AnyInvocable<void()> closure) {
  loop_.Post([live = is_live_, closure = std::move(closure)]() mutable {
    if (*live) {
      closure();
    }
  });
}

}  // namespace fsdprun
