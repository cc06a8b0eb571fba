#include "agent/rpc/grpc_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "agent/rpc/client_stream.h"
#include "agent/rpc/codec.h"
#include "agent/rpc/connect_refusal.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/check.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"

namespace fsdprun {
namespace {

/// How long an address may be the only one that is tried; more than an answer takes in a healthy
/// network.
constexpr Duration kHeadStart = std::chrono::milliseconds(200);
constexpr Duration kFlushTimeout = std::chrono::seconds(1);
/// gRPC's threads may be starved for a while on a machine with far more to do than processors.
constexpr Duration kCancelTimeout = std::chrono::minutes(1);

std::shared_ptr<grpc::Channel> NewChannel(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  BeginGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // NodeMachine decides about retries: no shared connection, no backoff of gRPC's own, no proxy.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetServiceConfigJSON("{}");
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace

// One stream. Thread: the reactions run on gRPC's threads, the rest on the loop thread.
class GrpcLink::Stream : public ClientStream<v1::CoordinatorMessage, v1::AgentMessage> {
 public:
  Stream(GrpcLink& link, uint64_t id, const std::string& target)
      : link_(link),
        id_(id),
        stub_(v1::Coordinator::NewStub(
            NewChannel(target, ChannelCredentials(link.options_.tls.get(), target,
                                                  link.options_.tls_name, verdict_)))) {
    AddProof(link.used_token_, link.options_.job_id, context());
  }

  void Open(const std::shared_ptr<Stream>& self) {
    stub_->async()->Attach(context(), this);
    Start(self);
  }

  absl::Status verdict() const { return verdict_->Get(); }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) {
      link_.PostIfLive([&link = link_, id = id_] { link.ReportUp(id); });
    }
  }

  void OnMessage(const v1::CoordinatorMessage& incoming) override {
    if (incoming.has_aside() && incoming.job_id() == link_.options_.job_id) {
      link_.PostIfLive(
          [&link = link_, id = id_, aside = incoming.aside()] { link.ReportAside(id, aside); });
      return;
    }
    absl::StatusOr<ToAgent> message = incoming.job_id() == link_.options_.job_id
                                          ? Decode(incoming)
                                          : absl::NotFoundError("the message is about another job");
    link_.PostIfLive([&link = link_, id = id_, message = std::move(message)] {
      link.ReportMessage(id, message);
    });
  }

  void OnEnd(const absl::Status& status) override {
    link_.PostIfLive([&link = link_, id = id_, status] { link.ReportLoss(id, status); });
  }

  // Constant after construction.
  GrpcLink& link_;
  const uint64_t id_;
  const std::shared_ptr<TlsVerdict> verdict_ = std::make_shared<TlsVerdict>();
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
};

GrpcLink::GrpcLink(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {
  FSDPRUN_CHECK(!options_.targets.empty(), "a link leads somewhere");
  order_.resize(options_.targets.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
}

GrpcLink::~GrpcLink() {
  *is_live_ = false;
  DropStreams();
  for (const auto& stream : retired_) {
    FSDPRUN_CHECK(stream->WaitDoneFor(kCancelTimeout), "gRPC does not finish a cancelled stream");
  }
}

void GrpcLink::SetCallbacks(Callbacks callbacks) { callbacks_ = std::move(callbacks); }

void GrpcLink::Open(int patience) {
  DropAttempt();
  if (stream_ != nullptr) {
    RetireStanding();
    standing_ = std::exchange(stream_, nullptr);
  }
  absl::StatusOr<std::string> token = options_.token();
  if (!token.ok()) {
    PostIfLive([this, attempt = attempt_, loss = LinkLoss{token.status()}] {
      if (attempt == attempt_) {
        Tell(loss);
      }
    });
    return;
  }
  used_token_ = *token;
  begun_ = 0;
  losses_.assign(order_.size(), std::nullopt);
  open_limit_ = options_.open_timeout * (options_.has_fixed_open_timeout ? 1 : patience);
  open_timer_ = loop_.At(MonoNow() + open_limit_, [this] { OnOpenTimeout(); });
  StartNext();
}

void GrpcLink::Redirect(std::vector<std::string> targets) {
  FSDPRUN_CHECK(!targets.empty(), "a link leads somewhere");
  const bool is_open = !candidates_.empty() || stream_ != nullptr;
  if (is_open) {
    DropStreams();
  }
  options_.targets = std::move(targets);
  order_.resize(options_.targets.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (is_open) {
    Open(/*patience=*/1);
  }
}

// See Note [Several addresses].
void GrpcLink::StartNext() {
  loop_.Cancel(next_timer_);
  Candidate candidate{.id = ++last_id_, .position = begun_++};
  candidate.stream =
      std::make_shared<Stream>(*this, candidate.id, options_.targets[order_[candidate.position]]);
  const std::shared_ptr<Stream> stream = candidate.stream;
  candidates_.push_back(std::move(candidate));
  stream->Open(stream);
  if (begun_ < order_.size()) {
    next_timer_ = loop_.At(MonoNow() + kHeadStart, [this] { StartNext(); });
  }
}

void GrpcLink::OnOpenTimeout() {
  const absl::Status status =
      absl::UnavailableError(absl::StrCat("no answer from ", options_.targets[order_.front()],
                                          " within ", ToSeconds(open_limit_), " s"));
  for (const Candidate& candidate : candidates_) {
    losses_[candidate.position] = LinkLoss{status};
  }
  FailAttempt();
}

void GrpcLink::Send(const FromAgent& message) {
  agent_ = message.incarnation;
  if (stream_ != nullptr) {
    stream_->Send(Encode(message, options_.job_id));
  }
}

void GrpcLink::SendAside(const v1::FromNodeAside& aside) {
  if (stream_ != nullptr) {
    v1::AgentMessage message;
    message.set_job_id(options_.job_id);
    message.set_incarnation(agent_.value());
    *message.mutable_aside() = aside;
    stream_->Send(std::move(message));
  }
}

size_t GrpcLink::unwritten() const { return stream_ != nullptr ? stream_->Unwritten() : 0; }

void GrpcLink::Close() {
  if (stream_ != nullptr) {
    stream_->FinishWriting(MonoNow() + kFlushTimeout);
  }
  DropStreams();
}

// Ends the attempt, but not a stream that came of it.
void GrpcLink::DropAttempt() {
  ++attempt_;
  loop_.Cancel(open_timer_);
  loop_.Cancel(next_timer_);
  std::erase_if(retired_, [](const std::shared_ptr<Stream>& stream) { return stream->IsDone(); });
  for (Candidate& candidate : candidates_) {
    Retire(std::move(candidate.stream));
  }
  candidates_.clear();
}

void GrpcLink::DropStreams() {
  DropAttempt();
  if (stream_ != nullptr) {
    Retire(std::exchange(stream_, nullptr));
  }
  RetireStanding();
}

void GrpcLink::RetireStanding() {
  if (standing_ != nullptr) {
    Retire(std::exchange(standing_, nullptr));
  }
}

void GrpcLink::Retire(std::shared_ptr<Stream> stream) {
  stream->Cancel();
  retired_.push_back(std::move(stream));
}

void GrpcLink::ReportUp(uint64_t id) {
  const auto it = std::find_if(candidates_.begin(), candidates_.end(),
                               [id](const Candidate& candidate) { return candidate.id == id; });
  if (it == candidates_.end()) {
    return;
  }
  const Candidate winner = *it;
  candidates_.erase(it);
  DropAttempt();
  stream_ = winner.stream;
  was_up_ = true;
  stream_id_ = winner.id;
  const auto position = order_.begin() + static_cast<std::ptrdiff_t>(winner.position);
  std::rotate(order_.begin(), position, position + 1);
  callbacks_.on_up();
}

void GrpcLink::ReportMessage(uint64_t id, const absl::StatusOr<ToAgent>& message) {
  if (stream_ == nullptr || id != stream_id_) {
    return;
  }
  if (!message.ok()) {
    ReportLoss(id, message.status());
    return;
  }
  RetireStanding();
  callbacks_.on_message(*message);
}

void GrpcLink::ReportAside(uint64_t id, const v1::ToNodeAside& aside) {
  if (stream_ != nullptr && id == stream_id_ && callbacks_.on_aside) {
    callbacks_.on_aside(aside);
  }
}

void GrpcLink::ReportLoss(uint64_t id, const absl::Status& status) {
  if (stream_ != nullptr && id == stream_id_) {
    Retire(std::exchange(stream_, nullptr));
    DropAttempt();
    Tell({status, IsConnectRefusal(status)});
    return;
  }
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].id == id) {
      FailCandidate(i, status);
      return;
    }
  }
}

void GrpcLink::FailCandidate(size_t index, const absl::Status& status) {
  Candidate candidate = std::move(candidates_[index]);
  candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(index));
  losses_[candidate.position] =
      LinkLoss{Explain(status, *candidate.stream), IsConnectRefusal(status)};
  Retire(std::move(candidate.stream));
  if (begun_ < order_.size()) {
    StartNext();
  } else if (candidates_.empty()) {
    FailAttempt();
  }
}

// In a job that runs, a certificate is about to be replaced.
absl::Status GrpcLink::Explain(const absl::Status& status, const Stream& stream) const {
  const absl::Status explained = ExplainTls(status, options_.tls != nullptr, stream.verdict());
  return absl::IsPermissionDenied(explained) && was_up_
             ? absl::UnavailableError(explained.message())
             : explained;
}

void GrpcLink::FailAttempt() {
  DropAttempt();
  std::vector<LinkLoss> losses;
  for (const std::optional<LinkLoss>& loss : losses_) {
    if (loss.has_value()) {
      losses.push_back(*loss);
    }
  }
  Tell(MostTelling(losses));
}

void GrpcLink::Tell(const LinkLoss& loss) {
  if (loss.status.ok()) {
    callbacks_.on_lost({absl::UnavailableError("the coordinator closed the stream")});
  } else if (absl::IsUnauthenticated(loss.status) && TokenHasChanged()) {
    callbacks_.on_lost(
        {absl::UnavailableError("a new coordinator has just replaced the job's token")});
  } else {
    callbacks_.on_lost(loss);
  }
}

LinkLoss MostTelling(const std::vector<LinkLoss>& losses) {
  for (const LinkLoss& loss : losses) {
    if (absl::IsUnauthenticated(loss.status) || absl::IsNotFound(loss.status) ||
        absl::IsInvalidArgument(loss.status) || absl::IsPermissionDenied(loss.status)) {
      return loss;  // A coordinator has answered.
    }
  }
  for (const LinkLoss& loss : losses) {
    if (!absl::IsUnimplemented(loss.status)) {
      return loss;
    }
  }
  return losses.front();
}

bool GrpcLink::TokenHasChanged() const {
  const absl::StatusOr<std::string> token = options_.token();
  return token.ok() && *token != used_token_;
}

void GrpcLink::PostIfLive(absl::AnyInvocable<void()> closure) {
  loop_.Post([live = is_live_, closure = std::move(closure)]() mutable {
    if (*live) {
      closure();
    }
  });
}

}  // namespace fsdprun
