#include "launcher/daemon/daemon_call.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/client_stream.h"
#include "agent/rpc/ended_calls.h"
#include "agent/rpc/grpc_lifetime.h"
#include "fsdprun/v1/daemon.grpc.pb.h"
#include "launcher/directory/job_token.h"

namespace fsdprun {
namespace {

constexpr int kCallKeepaliveMs = 5'000;
constexpr int kCallKeepaliveTimeoutMs = 5'000;
constexpr Duration kCallFlushTimeout = std::chrono::seconds(1);
/// A cancelled call ends within milliseconds, unless this process is hindered.
constexpr Duration kCallCancelTimeout = std::chrono::seconds(1);

std::shared_ptr<grpc::Channel> NewChannel(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  BeginGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(DaemonCall::kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kCallKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kCallKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Who calls decides about retries: no shared connection, no backoff of gRPC's own, no proxy.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetServiceConfigJSON("{}");
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace

// One call, which may end after its owner and the owner's loop. Thread: the reactions run on gRPC's
// threads, the rest on the loop thread.
class DaemonCall::Stream : public ClientStream<v1::DaemonMessage, v1::LauncherMessage> {
 public:
  Stream(DaemonCall& owner, uint64_t id)
      : owner_(owner),
        id_(id),
        is_live_(owner.is_live_),
        post_(owner.gate_.poster()),
        stub_(v1::NodeDaemon::NewStub(
            NewChannel(owner.options_.target,
                       ChannelCredentials(owner.options_.tls.get(), owner.options_.target,
                                          owner.options_.tls_name, verdict_)))) {
    AddProof(owner.options_.token, kDaemonRunId, context());
    context()->AddMetadata(kNonceKey, owner.nonces_.launcher);
  }

  void Open(const std::shared_ptr<Stream>& self) {
    stub_->async()->Session(context(), this);
    Start(self);
  }

  absl::Status verdict() const { return verdict_->Get(); }

 private:
  void OnMessage(const v1::DaemonMessage& message) override {
    post_([&owner = owner_, live = is_live_, id = id_, message] {
      if (*live) {
        owner.OnMessage(id, message);
      }
    });
  }

  void OnEnd(const absl::Status& status) override {
    post_([&owner = owner_, live = is_live_, id = id_, status] {
      if (*live) {
        owner.OnDone(id, status);
      }
    });
  }

  // Constant after construction.
  DaemonCall& owner_;  // Gone when it is not live.
  const uint64_t id_;
  const std::shared_ptr<const bool> is_live_;
  const LoopGate::Post post_;
  const std::shared_ptr<TlsVerdict> verdict_ = std::make_shared<TlsVerdict>();
  const std::unique_ptr<v1::NodeDaemon::Stub> stub_;
};

DaemonCall::DaemonCall(EventLoop& loop, Options options, Hooks hooks)
    : loop_(loop), options_(std::move(options)), hooks_(std::move(hooks)) {}

DaemonCall::~DaemonCall() {
  Close();
  *is_live_ = false;
  const MonoTime deadline = MonoNow() + kCallCancelTimeout;
  for (const auto& stream : retired_) {
    if (!stream->WaitDone(deadline)) {
      KeepUntilDone(stream, [call = stream.get()] { return call->IsDone(); });
    }
  }
}

void DaemonCall::Open(const v1::DaemonOrder& order) {
  Drop();
  std::erase_if(retired_, [](const auto& stream) { return stream->IsDone(); });
  order_ = order.SerializeAsString();
  nonces_ = {RandomHex(kNonceBytes), ""};
  is_answered_ = false;
  stream_ = std::make_shared<Stream>(*this, ++last_id_);
  timer_ = loop_.At(MonoNow() + kAnswerTimeout, [this] {
    End(absl::UnavailableError(absl::StrCat("no answer within ", ToSeconds(kAnswerTimeout), " s")));
  });
  stream_->Open(stream_);
}

void DaemonCall::Send(const v1::LauncherMessage& message) {
  if (stream_ != nullptr && is_answered_) {
    stream_->Send(message);
  }
}

void DaemonCall::Close() {
  if (stream_ != nullptr && is_answered_) {
    stream_->FinishWriting(MonoNow() + kCallFlushTimeout);
  }
  Drop();
}

void DaemonCall::Drop() {
  loop_.Cancel(std::exchange(timer_, 0));
  if (stream_ != nullptr) {
    stream_->Cancel();
    retired_.push_back(std::move(stream_));
    stream_ = nullptr;
  }
}

void DaemonCall::OnMessage(uint64_t id, const v1::DaemonMessage& message) {
  if (stream_ == nullptr || id != last_id_) {
    return;
  }
  if (!message.has_challenge() && !nonces_.daemon.empty()) {
    if (!std::exchange(is_answered_, true)) {
      loop_.Cancel(std::exchange(timer_, 0));
    }
    hooks_.on_message(message);
    return;
  }
  const bool is_first = nonces_.daemon.empty() && message.has_challenge();
  nonces_.daemon = message.challenge().nonce();
  if (!is_first || nonces_.daemon.empty() ||
      !IsSameSecret(message.challenge().answer(), DaemonAnswer(options_.token, nonces_))) {
    End(absl::PermissionDeniedError(
        "who listens there does not prove that it has this token, and was told nothing"));
    return;
  }
  v1::LauncherMessage sealed;
  EncryptedOrder order = SealOrder(options_.token, nonces_, order_);
  sealed.mutable_order()->set_order(std::move(order.text));
  sealed.mutable_order()->set_seal(std::move(order.seal));
  stream_->Send(sealed);
}

void DaemonCall::OnDone(uint64_t id, const absl::Status& status) {
  if (stream_ == nullptr || id != last_id_) {
    return;
  }
  const absl::Status explained = ExplainTls(status, options_.tls != nullptr, stream_->verdict());
  End(explained.ok() ? absl::UnavailableError("the daemon has ended the call") : explained);
}

void DaemonCall::End(const absl::Status& status) {
  Drop();
  hooks_.on_end(status);
}

}  // namespace fsdprun
