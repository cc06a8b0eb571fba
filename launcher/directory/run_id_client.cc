#include "launcher/directory/run_id_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/check.h"
#include "base/mutex.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {
namespace {

constexpr Duration kAnswerPoll = std::chrono::milliseconds(50);
/// A coordinator under load; one that is gone is noticed by its silence.
constexpr Duration kLeaveTimeout = std::chrono::seconds(5);
constexpr Duration kCallEndTimeout = std::chrono::seconds(5);
/// A third of the silence after which a host counts as broken.
constexpr Duration kBeatInterval = Clocks{}.stream_silence / 3;

std::unique_ptr<v1::RunIds::Stub> NewStub(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  BeginGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON("{}");
  // A coordinator whose machine is gone ends no call.
  constexpr auto kSilence =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clocks{}.stream_silence);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kSilence.count() / 3));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(kSilence.count() - kSilence.count() / 3));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return v1::RunIds::NewStub(grpc::CreateCustomChannel(target, credentials, arguments));
}

RunIdClient::Kind FromWire(v1::RunIdPlace::Kind kind) {
  switch (kind) {
    case v1::RunIdPlace::KIND_HERE:
      return RunIdClient::Kind::kHere;
    case v1::RunIdPlace::KIND_THERE:
      return RunIdClient::Kind::kThere;
    case v1::RunIdPlace::KIND_YOURS:
      return RunIdClient::Kind::kYours;
    case v1::RunIdPlace::KIND_CLOSED:
      return RunIdClient::Kind::kClosed;
    case v1::RunIdPlace::KIND_WAIT:
      return RunIdClient::Kind::kWait;
    default:
      return RunIdClient::Kind::kUnknown;
  }
}

}  // namespace

// Lives until gRPC is done with it and the client has let go of it. Reactions run on gRPC's
// threads.
class RunIdClient::Call : public grpc::ClientBidiReactor<v1::FindRunId, v1::RunIdPlace> {
 public:
  Call(const std::string& target, const Security& security, const std::string& token,
       const Question& question)
      : uses_tls_(security.tls != nullptr),
        stub_(NewStub(
            target, ChannelCredentials(security.tls.get(), target, security.tls_name, verdict_))) {
    AddProof(token, question.run_id, &context_);
    message_.set_run_id(question.run_id);
    for (const std::string& endpoint : question.endpoints) {
      message_.add_endpoints(endpoint);
    }
    for (const std::string& endpoint : question.refused) {
      message_.add_refused(endpoint);
    }
    message_.set_hosts(question.hosts);
    message_.set_claim_lease_seconds(static_cast<uint32_t>(question.claim_lease.count()));
  }

  void Start(std::shared_ptr<Call> self) {
    self_ = std::move(self);
    stub_->async()->Find(&context_, this);
    StartWrite(&message_);
    StartRead(&place_);
    AddHold();  // For the message of Leave(), until the server ends the call.
    StartCall();
  }

  // Whether there is an answer, or the end of the call, by then.
  bool Wait(MonoTime until) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(
        mu_, until, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_answered_ || is_done_; });
  }

  absl::StatusOr<Answer> Result() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!is_answered_) {
      const absl::Status status(status_.ok() ? absl::StatusCode::kUnavailable
                                             : static_cast<absl::StatusCode>(status_.error_code()),
                                status_.error_message());
      return ExplainTls(status, uses_tls_, verdict_->Get());
    }
    return answer_;
  }

  bool is_open() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return is_answered_ && !is_broken_;
  }

  void Beat(MonoTime now) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!wants_beats_ || !is_written_ || is_broken_ || is_left_ || now < next_beat_) {
      return;
    }
    next_beat_ = now + kBeatInterval;
    is_written_ = false;
    message_.Clear();
    message_.set_beats(true);
    StartWrite(&message_);
  }

  bool Leave(bool closes) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (is_broken_ || !is_answered_) {
      return false;
    }
    is_left_ = true;
    const MonoTime deadline = MonoNow() + kLeaveTimeout;
    // The answer may be here before gRPC has said that the question is written, or a beat, and
    // until then nothing else can be.
    changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return is_written_ || is_broken_ || is_done_;
    });
    if (is_broken_ || is_done_ || !is_written_) {
      return false;
    }
    message_.Clear();
    message_.set_closes(closes);
    StartWriteLast(&message_, grpc::WriteOptions());
    changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
    return is_done_ && status_.ok();
  }

  void Cancel() { context_.TryCancel(); }

  bool WaitDone(MonoTime until) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, until,
                              [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    is_written_ |= ok;
    is_broken_ |= !ok;
    changed_.NotifyAll();
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(mu_);
      if (ok && !is_answered_) {
        answer_.kind = FromWire(place_.kind());
        answer_.endpoints.assign(place_.endpoints().begin(), place_.endpoints().end());
        wants_beats_ = place_.wants_beats();
        is_answered_ = true;
      }
      is_broken_ |= !ok;
      changed_.NotifyAll();
    }
    if (ok) {
      StartRead(&place_);
    } else {
      RemoveHold();
    }
  }

  void OnDone(const grpc::Status& status) override {
    // The client keeps it until it is done: a channel must not end on a thread of gRPC's, which
    // would wait for itself.
    MutexLock lock(mu_);
    self_.reset();
    status_ = status;
    is_done_ = true;
    changed_.NotifyAll();
  }

 private:
  const bool uses_tls_;
  const std::shared_ptr<TlsVerdict> verdict_ = std::make_shared<TlsVerdict>();
  const std::unique_ptr<v1::RunIds::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<Call> self_;
  v1::FindRunId message_;
  v1::RunIdPlace place_;

  Mutex mu_;
  CondVar changed_;
  Answer answer_ ABSL_GUARDED_BY(mu_);
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
  bool is_answered_ ABSL_GUARDED_BY(mu_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
  bool wants_beats_ ABSL_GUARDED_BY(mu_) = false;
  MonoTime next_beat_ ABSL_GUARDED_BY(mu_);
  /// The latest message: the question, a beat, or what Leave() has said.
  bool is_written_ ABSL_GUARDED_BY(mu_) = false;
  bool is_left_ ABSL_GUARDED_BY(mu_) = false;
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;
};

RunIdClient::RunIdClient(Security security) : security_(std::move(security)) {}

RunIdClient::~RunIdClient() {
  if (call_ != nullptr) {
    call_->Cancel();
    if (!call_->WaitDone(MonoNow() + kCallEndTimeout)) {
      // This process may have been stopped meanwhile. The last reference must not end on a thread
      // of gRPC's, see OnDone().
      std::thread([call = std::move(call_)] { call->WaitDone(MonoTime::max()); }).detach();
    }
  }
}

absl::StatusOr<RunIdClient::Answer> RunIdClient::Ask(const std::string& target,
                                                     const std::string& token,
                                                     const Question& question, MonoTime deadline,
                                                     const std::function<bool()>& is_cancelled) {
  Start(target, token, question);
  while (!call_->Wait(std::min(deadline, MonoNow() + kAnswerPoll))) {
    if (is_cancelled && is_cancelled()) {
      return absl::CancelledError("interrupted while asking for the coordinator");
    }
    if (MonoNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat("no answer from ", target));
    }
  }
  return call_->Result();
}

void RunIdClient::Start(const std::string& target, const std::string& token,
                        const Question& question) {
  FSDPRUN_CHECK(call_ == nullptr, "a client asks once");
  call_ = std::make_shared<Call>(target, security_, token, question);
  call_->Start(call_);
}

std::optional<absl::StatusOr<RunIdClient::Answer>> RunIdClient::Poll() {
  if (!call_->Wait(MonoNow())) {
    return std::nullopt;
  }
  return call_->Result();
}

void RunIdClient::Beat() {
  if (call_ != nullptr) {
    call_->Beat(MonoNow());
  }
}

bool RunIdClient::is_open() const { return call_ != nullptr && call_->is_open(); }

bool RunIdClient::Leave(bool closes) { return call_ != nullptr && call_->Leave(closes); }

}  // namespace fsdprun
