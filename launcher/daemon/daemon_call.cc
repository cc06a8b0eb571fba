#include "launcher/daemon/daemon_call.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/check.h"
#include "base/mutex.h"
#include "fsdprun/v1/daemon.grpc.pb.h"
#include "launcher/directory/job_token.h"

namespace fsdprun {
namespace {

constexpr int kCallKeepaliveMs = 5'000;
constexpr int kCallKeepaliveTimeoutMs = 5'000;
constexpr Duration kCallFlushTimeout = std::chrono::seconds(1);
constexpr Duration kCallCancelTimeout = std::chrono::seconds(5);

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

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

// One call. Lives until gRPC is done with it and the owner has dropped it.
// Thread: the reactions run on gRPC's threads, the rest on the loop thread.
class DaemonCall::Stream : public grpc::ClientBidiReactor<v1::LauncherMessage, v1::DaemonMessage> {
 public:
  Stream(DaemonCall& owner, uint64_t id)
      : owner_(owner),
        id_(id),
        stub_(v1::NodeDaemon::NewStub(
            NewChannel(owner.options_.target,
                       ChannelCredentials(owner.options_.tls.get(), owner.options_.target,
                                          owner.options_.tls_name, verdict_)))) {
    AddProof(owner.options_.token, kDaemonRunId, &context_);
    context_.AddMetadata(kNonceKey, owner.nonces_.launcher);
  }

  void Start(std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    stub_->async()->Session(&context_, this);
    StartRead(&incoming_);
    // Send() starts writes outside of reactions; the hold delays OnDone until no more writes can
    // follow.
    AddHold();
    StartCall();
  }

  void Send(const v1::LauncherMessage& message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (is_broken_) {
      return;
    }
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) {
      StartWrite(&outgoing_.front());
    }
  }

  // No more writes after those that are queued.
  void FinishWriting(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return is_broken_ || outgoing_.empty();
    });
    if (!is_broken_ && outgoing_.empty()) {
      StartWritesDone();
      changed_.WaitUntil(mu_, deadline,
                         [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
    }
  }

  void Cancel() { context_.TryCancel(); }
  absl::Status verdict() const { return verdict_->Get(); }

  bool IsDone() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return is_done_;
  }

  bool WaitDone(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, deadline,
                              [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        MutexLock lock(mu_);
        is_broken_ = true;
        changed_.NotifyAll();
      }
      RemoveHold();
      return;
    }
    owner_.PostIfLive(
        [&owner = owner_, id = id_, message = incoming_] { owner.OnMessage(id, message); });
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    outgoing_.pop_front();
    if (!ok) {
      is_broken_ = true;
      outgoing_.clear();
    } else if (!outgoing_.empty() && !is_broken_) {
      StartWrite(&outgoing_.front());
    }
    changed_.NotifyAll();
  }

  void OnDone(const grpc::Status& status) override {
    owner_.PostIfLive(
        [&owner = owner_, id = id_, result = FromGrpc(status)] { owner.OnDone(id, result); });
    // The owner keeps it until it sees that it is done. The last channel must not end on a thread
    // of gRPC's, which would wait for itself.
    MutexLock lock(mu_);
    self_.reset();
    is_done_ = true;
    changed_.NotifyAll();
  }

 private:
  // Constant after construction.
  DaemonCall& owner_;
  const uint64_t id_;
  const std::shared_ptr<TlsVerdict> verdict_ = std::make_shared<TlsVerdict>();
  const std::unique_ptr<v1::NodeDaemon::Stub> stub_;

  grpc::ClientContext context_;
  std::shared_ptr<Stream> self_;
  v1::DaemonMessage incoming_;

  Mutex mu_;
  CondVar changed_;
  /// The front is being written. A deque, so that its address stays.
  std::deque<v1::LauncherMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;
};

DaemonCall::DaemonCall(EventLoop& loop, Options options, Hooks hooks)
    : loop_(loop), options_(std::move(options)), hooks_(std::move(hooks)) {}

DaemonCall::~DaemonCall() {
  Close();
  *is_live_ = false;
  for (const auto& stream : retired_) {
    FSDPRUN_CHECK(stream->WaitDone(MonoNow() + kCallCancelTimeout),
                  "gRPC does not finish a cancelled call");
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
  stream_->Start(stream_);
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
  sealed.mutable_order()->set_order(order_);
  sealed.mutable_order()->set_seal(OrderSeal(options_.token, nonces_, order_));
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

void DaemonCall::PostIfLive(absl::AnyInvocable<void()> closure) {
  loop_.Post([live = is_live_, closure = std::move(closure)]() mutable {
    if (*live) {
      closure();
    }
  });
}

}  // namespace fsdprun
