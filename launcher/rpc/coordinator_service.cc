#include "launcher/rpc/coordinator_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/rpc/codec.h"
#include "agent/rpc/grpc_lifetime.h"
#include "agent/rpc/server_stream.h"
#include "base/check.h"
#include "fsdprun/v1/coordinator.grpc.pb.h"
#include "launcher/rpc/front_door.h"
#include "launcher/rpc/run_id_service.h"

namespace fsdprun {
namespace {

constexpr int kMinPingIntervalMs = 300;
/// What gRPC reads of a message. One that is too long, but not longer than this, is counted as
/// refused; gRPC ends the stream of a longer one by itself.
constexpr int kMaxReadBytes = 4 * kMaxMessageBytes;
/// Silence after which a connection is given up, in silences of a transport. That a node is silent
/// is noticed by its lease, and that its machine is gone by the kernel (see FrontDoor): this is for
/// what a proxy holds open, and must not end connections of nodes that are slow.
constexpr int kKeepaliveFactor = 10;
/// Between two looks for hosts of other run ids that are silent.
constexpr Duration kWatchInterval = std::chrono::seconds(1);
/// How many messages of one stream may wait for the loop.
constexpr int kUnreadMax = 64;

}  // namespace

// One agent's stream. Thread: the reactions run on gRPC's threads, the rest on the loop thread.
class CoordinatorService::Stream : public ServerStream<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  Stream(CoordinatorService& service, uint64_t id)
      : ServerStream(kUnreadMax), service_(service), id_(id) {}

  // Set once, by the first message: the agent at the other end. Loop thread.
  Incarnation agent;

 private:
  void OnMessage(const v1::AgentMessage& incoming) override {
    const absl::Status checked = service_.Check(incoming);
    if (checked.ok() && incoming.has_aside()) {
      service_.PostIfLive([&service = service_, id = id_,
                           agent = Incarnation(incoming.incarnation()),
                           aside = incoming.aside()] { service.ReportAside(id, agent, aside); });
      return;
    }
    absl::StatusOr<FromAgent> message =
        checked.ok() ? Decode(incoming) : absl::StatusOr<FromAgent>(checked);
    if (!message.ok()) {
      service_.PostIfLive([&service = service_, id = id_, status = message.status()] {
        service.Refuse(id, status);
      });
      return;
    }
    service_.PostIfLive([&service = service_, id = id_, message = *std::move(message)] {
      service.ReportMessage(id, message);
    });
  }

  void OnReadEnd() override {
    service_.PostIfLive([&service = service_, id = id_] { service.ReportLoss(id); });
  }

  // Constant after construction.
  CoordinatorService& service_;
  const uint64_t id_;
};

// What gRPC sees of the service. Reactions run on gRPC's threads.
class CoordinatorService::Endpoint : public v1::Coordinator::CallbackService {
 public:
  explicit Endpoint(CoordinatorService& service)
      : door(service.loop_, {service.options_.token, service.options_.tls},
             service.callbacks_.on_refused),
        run_ids(service.options_.job_id, door,
                [&service](const std::vector<std::string>& endpoints) {
                  service.PostIfLive([&service, endpoints] {
                    if (service.callbacks_.on_other_host) {
                      service.callbacks_.on_other_host(endpoints);
                    }
                  });
                }),
        service_(service) {}

  grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    const absl::Status status = Check(*context);
    const uint64_t id = next_id_++;
    auto stream = std::make_shared<Stream>(service_, id);
    if (!streams.Add(stream)) {
      stream->StartRefused(stream, absl::UnavailableError("the coordinator is shutting down"));
      return stream.get();
    }
    if (!status.ok()) {
      stream->StartRefused(stream, status);
      return stream.get();
    }
    // Posted before any message of the stream, so that the loop knows the stream when the first one
    // arrives.
    service_.PostIfLive(
        [&service = service_, id, stream] { service.streams_.emplace(id, stream); });
    stream->Start(stream);
    return stream.get();
  }

  /// Whether the call is of somebody who has this job's token.
  absl::Status Check(const grpc::CallbackServerContext& call) {
    const absl::StatusOr<std::string> run_id = door.RunIdOf(call);
    // That it is another's is not worth a line here: a launcher of that run id will ask where its
    // own coordinator is.
    return !run_id.ok() || *run_id == service_.options_.job_id ? run_id.status()
                                                               : service_.AnotherRunId(*run_id);
  }

  FrontDoor door;
  RunIdService run_ids;
  std::unique_ptr<GuestService> guest;
  std::unique_ptr<grpc::Server> server;
  OpenStreams<Stream> streams;

 private:
  CoordinatorService& service_;
  std::atomic<uint64_t> next_id_{1};
};

CoordinatorService::CoordinatorService(EventLoop& loop, Options options, Callbacks callbacks)
    : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)) {}

CoordinatorService::~CoordinatorService() {
  Shutdown();
  *is_live_ = false;
}

absl::Status CoordinatorService::Start() {
  FSDPRUN_CHECK(!options_.token.empty(), "a coordinator on the network needs a token");
  BeginGrpc();
  endpoint_ = std::make_unique<Endpoint>(*this);
  grpc::ServerBuilder builder;
  builder.RegisterService(endpoint_.get());
  builder.RegisterService(&endpoint_->run_ids);
  if (options_.make_guest) {
    endpoint_->guest = options_.make_guest(
        [this](const grpc::CallbackServerContext& call) { return endpoint_->Check(call); });
    builder.RegisterService(endpoint_->guest->service());
  }
  builder.SetMaxReceiveMessageSize(kMaxReadBytes);
  const auto silence =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.stream_silence);
  const int keepalive_ms = static_cast<int>(
      std::min<int64_t>(kKeepaliveFactor * silence.count(), std::numeric_limits<int>::max()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms / 3);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms - keepalive_ms / 3);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  endpoint_->door.Prepare(&builder);
  endpoint_->server = builder.BuildAndStart();
  if (endpoint_->server == nullptr) {
    return absl::InternalError("gRPC could not start the coordinator's service");
  }
  endpoint_->door.Open(endpoint_->server.get());
  WatchHosts();
  return absl::OkStatus();
}

/// The transport notices their silence too late: see kKeepaliveFactor.
void CoordinatorService::WatchHosts() {
  endpoint_->run_ids.NoteSilence();
  watch_timer_ = loop_.At(MonoNow() + kWatchInterval, [this] { WatchHosts(); });
}

void CoordinatorService::AddConnection(UniqueFd connection) {
  endpoint_->door.Take(std::move(connection));
}

void CoordinatorService::TakeOver() { endpoint_->run_ids.Settle(); }

void CoordinatorService::Send(const ToAgent& message) {
  const auto it = stream_of_agent_.find(message.incarnation);
  if (it != stream_of_agent_.end()) {
    streams_.at(it->second)->Send(Encode(message, options_.job_id));
  }
}

void CoordinatorService::SendAside(Incarnation agent, const v1::ToNodeAside& aside) {
  if (const auto it = stream_of_agent_.find(agent); it != stream_of_agent_.end()) {
    v1::CoordinatorMessage message;
    message.set_job_id(options_.job_id);
    message.set_incarnation(agent.value());
    *message.mutable_aside() = aside;
    streams_.at(it->second)->Send(std::move(message));
  }
}

void CoordinatorService::Shutdown() {
  if (std::exchange(is_shut_down_, true) || endpoint_ == nullptr) {
    return;
  }
  loop_.Cancel(watch_timer_);
  if (endpoint_->guest != nullptr) {
    endpoint_->guest->End(absl::OkStatus());
  }
  endpoint_->streams.End(*endpoint_->server, absl::OkStatus());
  streams_.clear();
  stream_of_agent_.clear();
}

void CoordinatorService::ReportMessage(uint64_t id, const FromAgent& message) {
  const auto it = streams_.find(id);
  if (it == streams_.end() || is_shut_down_) {
    return;
  }
  Stream& stream = *it->second;
  if (stream.agent != Incarnation() && stream.agent != message.incarnation) {
    Refuse(id, absl::InvalidArgumentError("messages of two incarnations on one stream"));
    return;
  }
  if (stream.agent == Incarnation()) {
    stream.agent = message.incarnation;
    const auto older = stream_of_agent_.find(message.incarnation);
    if (older != stream_of_agent_.end()) {
      const auto node = streams_.extract(older->second);
      node.mapped()->End(absl::AbortedError("the agent has opened a newer stream"));
      if (callbacks_.on_stream_replaced) {
        callbacks_.on_stream_replaced(message.incarnation);
      }
    }
    stream_of_agent_[message.incarnation] = id;
  }
  // The callback may end the stream.
  const std::shared_ptr<Stream> still = it->second;
  callbacks_.on_message(message);
  still->ReadOn();
}

void CoordinatorService::ReportAside(uint64_t id, Incarnation agent,
                                     const v1::FromNodeAside& aside) {
  const auto it = streams_.find(id);
  if (it == streams_.end() || is_shut_down_) {
    return;
  }
  const std::shared_ptr<Stream> stream = it->second;
  if (stream->agent != agent || agent == Incarnation()) {
    Refuse(id, absl::InvalidArgumentError("an agent has spoken before it has joined"));
    return;
  }
  if (callbacks_.on_aside) {
    callbacks_.on_aside(agent, aside);
  }
  stream->ReadOn();
}

void CoordinatorService::ReportLoss(uint64_t id) {
  const auto it = streams_.find(id);
  if (it == streams_.end() || is_shut_down_) {
    return;
  }
  const std::shared_ptr<Stream> stream = it->second;
  streams_.erase(it);
  stream->End(absl::OkStatus());
  if (stream->agent != Incarnation()) {
    stream_of_agent_.erase(stream->agent);
    callbacks_.on_stream_lost(stream->agent);
  }
}

void CoordinatorService::Refuse(uint64_t id, const absl::Status& status) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) {
    return;
  }
  it->second->End(status);
  callbacks_.on_refused(std::string(status.message()));
  ReportLoss(id);
}

absl::Status CoordinatorService::Check(const v1::AgentMessage& message) const {
  if (message.ByteSizeLong() > kMaxMessageBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a message of ", message.ByteSizeLong(),
                                                     " bytes, of which at most ", kMaxMessageBytes,
                                                     " are allowed"));
  }
  return message.job_id() == options_.job_id ? absl::OkStatus() : AnotherRunId(message.job_id());
}

absl::Status CoordinatorService::AnotherRunId(const std::string& run_id) const {
  return absl::NotFoundError(
      absl::StrCat("this coordinator has run id '", options_.job_id, "', not '", run_id, "'"));
}

void CoordinatorService::PostIfLive(absl::AnyInvocable<void()> closure) {
  loop_.Post([live = is_live_, closure = std::move(closure)]() mutable {
    if (*live) {
      closure();
    }
  });
}

}  // namespace fsdprun
