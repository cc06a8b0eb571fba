#include "fsdpctl/jobs/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/rpc/bidi_stream.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/grpc_lifetime.h"
#include "fsdprun/v1/control.grpc.pb.h"

namespace fsdprun {
namespace {

constexpr std::chrono::seconds kConnectTimeout{10};
/// Between two looks whether somebody has stopped it meanwhile.
constexpr std::chrono::milliseconds kConnectLook{100};
/// A connection whose other end has vanished without a word is noticed after both together, ms.
constexpr int kKeepaliveMs = 15'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
/// The state of some hundred thousand workers.
constexpr int kMaxAnswerBytes = 64 << 20;

/// Who only listens would otherwise wait for ever on a machine that has lost its power. The
/// coordinator takes pings as they come; a socket of this machine needs none.
void NoticeSilence(const std::string& target, grpc::ChannelArguments* arguments) {
  if (absl::StartsWith(target, "unix:")) {
    return;
  }
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments->SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

std::shared_ptr<grpc::Channel> NewChannel(const JobAddress& address,
                                          const std::shared_ptr<TlsVerdict>& verdict) {
  BeginGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetServiceConfigJSON("{}");
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  NoticeSilence(address.target, &arguments);
  return grpc::CreateCustomChannel(
      address.target,
      ChannelCredentials(address.tls.get(), address.target, address.tls_name, verdict), arguments);
}

bool IsStopped(const CallStop* stop) { return stop != nullptr && stop->is_stopped(); }

bool Connect(grpc::Channel& channel, std::chrono::milliseconds timeout, const CallStop* stop) {
  const auto end = std::chrono::system_clock::now() + timeout;
  bool is_connected = false;
  while (!is_connected && !IsStopped(stop) && std::chrono::system_clock::now() < end) {
    is_connected = channel.WaitForConnected(std::chrono::system_clock::now() + kConnectLook);
  }
  return is_connected;
}

/// While it lives, `stop` cancels the call.
class Stoppable {
 public:
  Stoppable(CallStop* stop, grpc::ClientContext& context) : stop_(stop) {
    if (stop_ != nullptr) {
      stop_->SetCancel([&context] { context.TryCancel(); });
    }
  }
  ~Stoppable() {
    if (stop_ != nullptr) {
      stop_->SetCancel(nullptr);
    }
  }
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;

 private:
  CallStop* const stop_;
};

}  // namespace

void CallStop::Stop() {
  const MutexLock lock(mu_);
  is_stopped_ = true;
  if (cancel_) {
    cancel_();
  }
}

bool CallStop::is_stopped() const {
  const MutexLock lock(mu_);
  return is_stopped_;
}

void CallStop::SetCancel(std::function<void()> cancel) {
  const MutexLock lock(mu_);
  cancel_ = std::move(cancel);
  if (is_stopped_ && cancel_) {
    cancel_();
  }
}

absl::Status AskJob(const JobAddress& address, const v1::ControlQuestion& question,
                    const std::function<void(const v1::ControlAnswer&)>& on_answer,
                    std::optional<std::chrono::milliseconds> limit, CallStop* stop) {
  const auto verdict = std::make_shared<TlsVerdict>();
  const std::shared_ptr<grpc::Channel> channel = NewChannel(address, verdict);
  const auto connect_timeout =
      std::min<std::chrono::milliseconds>(kConnectTimeout, limit.value_or(kConnectTimeout));
  if (!Connect(*channel, connect_timeout, stop)) {
    if (IsStopped(stop)) {
      return absl::CancelledError("nobody wants to know any more");
    }
    const absl::Status why = verdict->Get();
    return why.ok() ? absl::UnavailableError(absl::StrCat("nobody answers at ", address.target,
                                                          " within ",
                                                          connect_timeout.count() / 1000.0, " s"))
                    : why;
  }
  const std::unique_ptr<v1::JobControl::Stub> stub = v1::JobControl::NewStub(channel);
  grpc::ClientContext context;
  if (!address.token.empty()) {
    AddProof(address.token, address.run_id, &context);
  }
  if (limit.has_value()) {
    context.set_deadline(std::chrono::system_clock::now() + *limit);
  }
  const Stoppable stoppable(stop, context);
  const auto call = stub->Ask(&context);
  call->Write(question);
  call->WritesDone();
  v1::ControlAnswer answer;
  while (call->Read(&answer)) {
    on_answer(answer);
  }
  return ExplainTls(FromGrpc(call->Finish()), address.tls != nullptr, verdict->Get());
}

}  // namespace fsdprun
