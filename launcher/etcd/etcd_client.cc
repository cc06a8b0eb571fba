#include "launcher/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "etcd/v3/etcd.grpc.pb.h"

namespace fsdprun {
namespace {

namespace pb = ::etcdserverpb;

constexpr Duration kEtcdCancelPoll = std::chrono::milliseconds(50);
/// An etcd that comes back has kept the leases, but not for long: gRPC would wait for two minutes.
constexpr int kLongestReconnectPauseMs = 2000;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) {
    return std::string();
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-conf: cannot read the certificate or key '", path, "' for etcd"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const EtcdOptions& etcd) {
  if (!etcd.uses_tls) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(etcd.ca_file));
  ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem(etcd.certificate_file));
  ASSIGN_OR_RETURN(options.pem_private_key, ReadPem(etcd.key_file));
  return grpc::SslCredentials(options);
}

// The end of one call, which may come on another thread.
class Ending {
 public:
  void Set(grpc::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    status_ = std::move(status);
    changed_.NotifyAll();
  }

  grpc::Status Await(grpc::ClientContext* context, const std::function<bool()>& is_cancelled)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (!changed_.WaitUntil(
        mu_, MonoNow() + kEtcdCancelPoll,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return status_.has_value(); })) {
      if (is_cancelled && is_cancelled()) {
        context->TryCancel();
      }
    }
    return *status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mu_);
};

// `start(context, done)` starts a call that ends by its deadline.
template <class Start>
grpc::Status Carry(Duration timeout, const std::function<bool()>& is_cancelled, Start start) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::ceil<std::chrono::milliseconds>(timeout));
  Ending ending;
  start(&context, [&ending](grpc::Status status) { ending.Set(std::move(status)); });
  return ending.Await(&context, is_cancelled);
}

// Another member may be able to, or may be reached.
bool MayTryAnother(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

// The first key behind all that begin with `prefix`, which does not end with the highest byte.
std::string EndOfPrefix(std::string prefix) {
  ++prefix.back();
  return prefix;
}

pb::TxnRequest ToRequest(const EtcdChange& change) {
  pb::TxnRequest request;
  for (const EtcdChange::Expect& expect : change.expects) {
    pb::Compare* compare = request.add_compare();
    compare->set_key(expect.key);
    compare->set_result(pb::Compare::EQUAL);
    if (expect.value.has_value()) {
      compare->set_target(pb::Compare::VALUE);
      compare->set_value(*expect.value);
    } else {
      compare->set_target(pb::Compare::CREATE);
      compare->set_create_revision(0);
    }
  }
  for (const EtcdChange::Put& put : change.puts) {
    pb::PutRequest* to = request.add_success()->mutable_request_put();
    to->set_key(put.key);
    to->set_value(put.value);
    to->set_lease(put.lease);
  }
  for (const std::string& key : change.deletes) {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  }
  for (const std::string& prefix : change.deletes_below) {
    pb::DeleteRangeRequest* range = request.add_success()->mutable_request_delete_range();
    range->set_key(prefix);
    range->set_range_end(EndOfPrefix(prefix));
  }
  return request;
}

// One message each way, on a stream that is ended then.
class KeepAlive
    : public grpc::ClientBidiReactor<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse> {
 public:
  KeepAlive(int64_t lease, grpc::ClientContext* context, std::function<void(grpc::Status)> done)
      : context_(context), done_(std::move(done)) {
    request_.set_id(lease);
  }

  void Start(pb::Lease::Stub& stub) {
    stub.async()->LeaseKeepAlive(context_, this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

  // Once it is done.
  bool is_alive() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return ttl_.value_or(0) > 0;
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      MutexLock lock(mu_);
      ttl_ = response_.ttl();
    }
    context_->TryCancel();
  }

  void OnDone(const grpc::Status& status) override {
    const auto done = std::move(done_);  // Whoever is told may destroy this.
    done(StatusAtEnd(status));
  }

 private:
  grpc::Status StatusAtEnd(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (ttl_.has_value()) {
      return grpc::Status::OK;
    }
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer about the lease")
                       : status;
  }

  grpc::ClientContext* const context_;
  std::function<void(grpc::Status)> done_;
  pb::LeaseKeepAliveRequest request_;
  pb::LeaseKeepAliveResponse response_;
  Mutex mu_;
  std::optional<int64_t> ttl_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

struct EtcdClient::Member {
  std::unique_ptr<pb::KV::Stub> kv;
  std::unique_ptr<pb::Lease::Stub> lease;
};

EtcdClient::EtcdClient(Options options) : options_(std::move(options)) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(Options options) {
  FSDPRUN_CHECK(!options.targets.empty(), "an etcd has a member");
  BeginGrpc();
  ASSIGN_OR_RETURN(const auto credentials, Credentials(options.etcd));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON("{}");
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectPauseMs);
  std::unique_ptr<EtcdClient> client(new EtcdClient(std::move(options)));
  for (const std::string& target : client->options_.targets) {
    const auto channel = grpc::CreateCustomChannel(target, credentials, arguments);
    client->members_.push_back(
        std::make_unique<Member>(Member{pb::KV::NewStub(channel), pb::Lease::NewStub(channel)}));
  }
  return client;
}

std::string EtcdClient::target() const { return absl::StrJoin(options_.targets, ","); }

// What cannot be reached now, or answers too late, may be reached later.
absl::Status EtcdClient::ToStatus(int code, const std::string& message) const {
  const auto kind = static_cast<absl::StatusCode>(code);
  if (kind == absl::StatusCode::kOk) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("etcd at ", options_.etcd.uses_tls ? "https://" : "http://",
                                        target(), ": ", message, "; ", options_.advice);
  const bool is_late = kind == absl::StatusCode::kDeadlineExceeded;
  return absl::Status(is_late ? absl::StatusCode::kUnavailable : kind, text);
}

// Each member once, the one first that has answered last.
template <class Start>
absl::Status EtcdClient::Call(Start start) {
  const size_t count = members_.size();
  const size_t first = first_.load();
  grpc::Status status;
  for (size_t i = 0; i < count; ++i) {
    const size_t index = (first + i) % count;
    status = Carry(options_.timeout / static_cast<int>(count), options_.is_cancelled,
                   [&](grpc::ClientContext* context, auto done) {
                     start(*members_[index], context, std::move(done));
                   });
    if (!MayTryAnother(status)) {
      first_ = index;
      break;
    }
  }
  return ToStatus(status.error_code(), status.error_message());
}

absl::StatusOr<std::optional<EtcdClient::Entry>> EtcdClient::Read(const std::string& key) {
  pb::RangeRequest request;
  pb::RangeResponse response;
  request.set_key(key);
  RETURN_IF_ERROR(Call([&](Member& member, grpc::ClientContext* context, auto done) {
    member.kv->async()->Range(context, &request, &response, done);
  }));
  if (response.kvs().empty()) {
    return std::optional<Entry>();
  }
  const pb::KeyValue& found = response.kvs(0);
  return std::optional<Entry>(Entry{found.value(), found.lease()});
}

absl::StatusOr<std::optional<std::string>> EtcdClient::Get(const std::string& key) {
  ASSIGN_OR_RETURN(std::optional<Entry> entry, Read(key));
  return entry.has_value() ? std::optional<std::string>(std::move(entry->value)) : std::nullopt;
}

absl::StatusOr<bool> EtcdClient::Commit(const EtcdChange& change) {
  const pb::TxnRequest request = ToRequest(change);
  pb::TxnResponse response;
  RETURN_IF_ERROR(Call([&](Member& member, grpc::ClientContext* context, auto done) {
    member.kv->async()->Txn(context, &request, &response, done);
  }));
  return response.succeeded();
}

absl::StatusOr<bool> EtcdClient::Exchange(const std::string& key,
                                          const std::optional<std::string>& expected,
                                          const std::optional<std::string>& value, int64_t lease) {
  EtcdChange change{.expects = {{key, expected}}};
  if (value.has_value()) {
    change.puts.push_back({key, *value, lease});
  } else {
    change.deletes.push_back(key);
  }
  return Commit(change);
}

absl::StatusOr<int64_t> EtcdClient::Grant(int64_t seconds) {
  pb::LeaseGrantRequest request;
  pb::LeaseGrantResponse response;
  request.set_ttl(seconds);
  RETURN_IF_ERROR(Call([&](Member& member, grpc::ClientContext* context, auto done) {
    member.lease->async()->LeaseGrant(context, &request, &response, done);
  }));
  return response.id();
}

absl::StatusOr<bool> EtcdClient::Renew(int64_t lease) {
  std::optional<KeepAlive> call;
  RETURN_IF_ERROR(Call([&](Member& member, grpc::ClientContext* context, auto done) {
    call.emplace(lease, context, done);
    call->Start(*member.lease);
  }));
  return call->is_alive();
}

absl::StatusOr<int64_t> EtcdClient::SecondsLeft(int64_t lease) {
  pb::LeaseTimeToLiveRequest request;
  pb::LeaseTimeToLiveResponse response;
  request.set_id(lease);
  RETURN_IF_ERROR(Call([&](Member& member, grpc::ClientContext* context, auto done) {
    member.lease->async()->LeaseTimeToLive(context, &request, &response, done);
  }));
  return response.ttl();
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  pb::LeaseRevokeRequest request;
  pb::LeaseRevokeResponse response;
  request.set_id(lease);
  return Call([&](Member& member, grpc::ClientContext* context, auto done) {
    member.lease->async()->LeaseRevoke(context, &request, &response, done);
  });
}

}  // namespace fsdprun
