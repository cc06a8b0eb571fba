#include "launcher/directory/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/grpc_lifetime.h"
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
grpc::Status Carry(const EtcdClient::Options& options, Start start) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::ceil<std::chrono::milliseconds>(options.timeout));
  Ending ending;
  start(&context, [&ending](grpc::Status status) { ending.Set(std::move(status)); });
  return ending.Await(&context, options.is_cancelled);
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

struct EtcdClient::Stubs {
  std::unique_ptr<pb::KV::Stub> kv;
  std::unique_ptr<pb::Lease::Stub> lease;
};

EtcdClient::EtcdClient(Options options) : options_(std::move(options)) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(Options options) {
  BeginGrpc();
  ASSIGN_OR_RETURN(const auto credentials, Credentials(options.etcd));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON("{}");
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectPauseMs);
  const auto channel = grpc::CreateCustomChannel(options.target, credentials, arguments);
  std::unique_ptr<EtcdClient> client(new EtcdClient(std::move(options)));
  client->stubs_ =
      std::make_unique<Stubs>(Stubs{pb::KV::NewStub(channel), pb::Lease::NewStub(channel)});
  return client;
}

// What cannot be reached now, or answers too late, may be reached later.
absl::Status EtcdClient::ToStatus(int code, const std::string& message) const {
  const auto kind = static_cast<absl::StatusCode>(code);
  if (kind == absl::StatusCode::kOk) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("etcd at ", options_.etcd.uses_tls ? "https://" : "http://",
                                        options_.target, ": ", message,
                                        "; check --rdzv-endpoint, and protocol and certificates in "
                                        "--rdzv-conf");
  const bool is_late = kind == absl::StatusCode::kDeadlineExceeded;
  return absl::Status(is_late ? absl::StatusCode::kUnavailable : kind, text);
}

absl::StatusOr<std::optional<std::string>> EtcdClient::Get(const std::string& key) {
  pb::RangeRequest request;
  pb::RangeResponse response;
  request.set_key(key);
  const grpc::Status status = Carry(options_, [&](grpc::ClientContext* context, auto done) {
    stubs_->kv->async()->Range(context, &request, &response, done);
  });
  RETURN_IF_ERROR(ToStatus(status.error_code(), status.error_message()));
  return response.kvs().empty() ? std::nullopt
                                : std::optional<std::string>(response.kvs(0).value());
}

absl::StatusOr<bool> EtcdClient::Exchange(const std::string& key,
                                          const std::optional<std::string>& expected,
                                          const std::optional<std::string>& value, int64_t lease) {
  pb::TxnRequest request;
  pb::TxnResponse response;
  pb::Compare* compare = request.add_compare();
  compare->set_key(key);
  compare->set_result(pb::Compare::EQUAL);
  if (expected.has_value()) {
    compare->set_target(pb::Compare::VALUE);
    compare->set_value(*expected);
  } else {
    compare->set_target(pb::Compare::CREATE);
    compare->set_create_revision(0);
  }
  if (value.has_value()) {
    pb::PutRequest* put = request.add_success()->mutable_request_put();
    put->set_key(key);
    put->set_value(*value);
    put->set_lease(lease);
  } else {
    request.add_success()->mutable_request_delete_range()->set_key(key);
  }
  const grpc::Status status = Carry(options_, [&](grpc::ClientContext* context, auto done) {
    stubs_->kv->async()->Txn(context, &request, &response, done);
  });
  RETURN_IF_ERROR(ToStatus(status.error_code(), status.error_message()));
  return response.succeeded();
}

absl::StatusOr<int64_t> EtcdClient::Grant(int64_t seconds) {
  pb::LeaseGrantRequest request;
  pb::LeaseGrantResponse response;
  request.set_ttl(seconds);
  const grpc::Status status = Carry(options_, [&](grpc::ClientContext* context, auto done) {
    stubs_->lease->async()->LeaseGrant(context, &request, &response, done);
  });
  RETURN_IF_ERROR(ToStatus(status.error_code(), status.error_message()));
  return response.id();
}

absl::StatusOr<bool> EtcdClient::Renew(int64_t lease) {
  std::optional<KeepAlive> call;
  const grpc::Status status = Carry(options_, [&](grpc::ClientContext* context, auto done) {
    call.emplace(lease, context, done);
    call->Start(*stubs_->lease);
  });
  RETURN_IF_ERROR(ToStatus(status.error_code(), status.error_message()));
  return call->is_alive();
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  pb::LeaseRevokeRequest request;
  pb::LeaseRevokeResponse response;
  request.set_id(lease);
  const grpc::Status status = Carry(options_, [&](grpc::ClientContext* context, auto done) {
    stubs_->lease->async()->LeaseRevoke(context, &request, &response, done);
  });
  return ToStatus(status.error_code(), status.error_message());
}

}  // namespace fsdprun
