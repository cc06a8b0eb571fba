#include "launcher/daemon/daemon_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/grpc_lifetime.h"
#include "agent/rpc/server_stream.h"
#include "base/check.h"
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
/// How many messages of one call may wait for the loop; each may be as long as an order.
constexpr int kUnreadMax = 4;

}  // namespace

// One launcher's call. Thread: the reactions run on gRPC's threads, the rest on the loop thread.
class DaemonService::Call : public ServerStream<v1::LauncherMessage, v1::DaemonMessage> {
 public:
  Call(DaemonService& service, CallId id) : ServerStream(kUnreadMax), service_(service), id_(id) {}

  void Challenge(const std::shared_ptr<Call>& self, const std::string& launcher_nonce) {
    nonces_ = {launcher_nonce, RandomHex(kNonceBytes)};
    Start(self);
    v1::DaemonMessage message;
    message.mutable_challenge()->set_nonce(nonces_.daemon);
    message.mutable_challenge()->set_answer(DaemonAnswer(service_.options_.token, nonces_));
    Send(std::move(message));
  }

 private:
  void OnMessage(const v1::LauncherMessage& message) override {
    if (!std::exchange(has_order_, true)) {
      ReadOrder(message);
    } else {
      service_.PostIfLive(
          [&service = service_, id = id_, message] { service.Message(id, message); });
    }
  }

  void OnReadEnd() override {
    service_.PostIfLive([&service = service_, id = id_] { service.Lose(id); });
  }

  void OnAllWritten() override {
    service_.PostIfLive([&service = service_, id = id_] { service.Written(id); });
  }

  void ReadOrder(const v1::LauncherMessage& message) {
    const v1::SealedOrder& sealed = message.order();
    const std::optional<std::string> text =
        message.has_order()
            ? OpenOrder(service_.options_.token, nonces_, sealed.order(), sealed.seal())
            : std::nullopt;
    v1::DaemonOrder order;
    if (!text.has_value()) {
      Refuse(absl::UnauthenticatedError("the order does not prove the token"),
             "an order that does not prove the token");
    } else if (!order.ParseFromString(*text) ||
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

  // Constant after Challenge().
  DaemonService& service_;
  const CallId id_;
  CallNonces nonces_;

  /// Used by OnMessage() only.
  bool has_order_ = false;
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
    if (!calls.Add(call)) {
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
    call->Challenge(call, std::string(nonce->second.data(), nonce->second.size()));
    return call.get();
  }

  FrontDoor door;
  std::unique_ptr<grpc::Server> server;
  OpenStreams<Call> calls;

 private:
  DaemonService& service_;
  std::atomic<CallId> next_id_{1};
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
  endpoint_->calls.End(*endpoint_->server, absl::UnavailableError("the daemon is shutting down"));
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
  // The callback may end the call.
  const std::shared_ptr<Call> call = open->second.call;
  callbacks_.on_order(id, order);
  call->ReadOn();
}

void DaemonService::Message(CallId id, const v1::LauncherMessage& message) {
  const auto open = calls_.find(id);
  if (open == calls_.end() || is_shut_down_) {
    return;
  }
  const std::shared_ptr<Call> call = open->second.call;
  if (open->second.has_ordered) {
    callbacks_.on_message(id, message);
  }
  call->ReadOn();
}

void DaemonService::Written(CallId id) {
  const auto open = calls_.find(id);
  if (open != calls_.end() && open->second.has_ordered) {
    callbacks_.on_written(id);
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
