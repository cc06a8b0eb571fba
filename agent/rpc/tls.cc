#include "agent/rpc/tls.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/rpc/grpc_lifetime.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mono_time.h"
#include "base/signals_blocked.h"

namespace fsdprun {
namespace {

constexpr Duration kLookInterval = std::chrono::seconds(1);

std::string Text(grpc::string_ref text) { return {text.data(), text.size()}; }

// Runs on a thread of gRPC's, once the handshake has proved that the peer has the certificate's
// key.
class CoordinatorVerifier : public grpc::experimental::ExternalCertificateVerifier {
 public:
  CoordinatorVerifier(std::string ca, std::string name, std::shared_ptr<TlsVerdict> verdict)
      : ca_(std::move(ca)), name_(std::move(name)), verdict_(std::move(verdict)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* sync_status) override {
    const absl::Status status =
        VerifyCertificate({Text(request->peer_cert()), Text(request->peer_cert_full_chain())}, ca_,
                          TlsPeer::kCoordinator, name_);
    verdict_->Set(status);
    *sync_status = status.ok() ? grpc::Status::OK
                               : grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                                              std::string(status.message()));
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string ca_;
  const std::string name_;
  const std::shared_ptr<TlsVerdict> verdict_;
};

std::string Property(const grpc::AuthContext& caller, const char* name) {
  const std::vector<grpc::string_ref> values = caller.FindPropertyValues(name);
  return values.empty() ? std::string() : std::string(values.front().data(), values.front().size());
}

}  // namespace

constexpr char kTwoAlerts[] = "\x15\3\1\0\2\2\x46\x15\3\1\0\2\2\x46";  // protocol_version
constexpr char kEmptySettings[] = "\0\0\0\4\0\0\0\0\0";
const absl::string_view kAnswerToPlaintext(kTwoAlerts, sizeof(kTwoAlerts) - 1);
const absl::string_view kAnswerToTls(kEmptySettings, sizeof(kEmptySettings) - 1);

// What the threads of a Tls have in common. Outlives it where a thread hangs.
struct Tls::Shared {
  TlsFiles files;
  Mutex mu;
  CondVar changed;
  TlsContent content ABSL_GUARDED_BY(mu);
  uint64_t version ABSL_GUARDED_BY(mu) = 1;
  bool is_over ABSL_GUARDED_BY(mu) = false;
};

void TlsVerdict::Set(absl::Status status) {
  MutexLock lock(mu_);
  status_ = std::move(status);
}

absl::Status TlsVerdict::Get() const {
  MutexLock lock(mu_);
  return status_;
}

absl::StatusOr<std::shared_ptr<const Tls>> Tls::Make(const TlsFiles& files) {
  absl::StatusOr<TlsContent> content = LoadTls(files);
  if (!content.ok()) {
    return content.status();
  }
  auto shared = std::make_shared<Shared>();
  shared->files = files;
  {
    MutexLock lock(shared->mu);
    shared->content = *std::move(content);
  }
  {
    const SignalsBlocked signals_blocked;
    std::thread([shared] { Watch(shared); }).detach();
  }
  return std::shared_ptr<const Tls>(new Tls(std::move(shared)));
}

Tls::~Tls() {
  MutexLock lock(shared_->mu);
  shared_->is_over = true;
  shared_->changed.NotifyAll();
}

void Tls::Watch(const std::shared_ptr<Shared>& shared) {
  std::string last_error;
  for (;;) {
    {
      MutexLock lock(shared->mu);
      if (shared->changed.WaitUntil(
              shared->mu, MonoNow() + kLookInterval,
              [&shared]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return shared->is_over; })) {
        return;
      }
    }
    absl::StatusOr<TlsContent> now = LoadTls(shared->files);
    const std::string error(now.status().message());
    if (!now.ok() && error != last_error) {
      Log(LogLevel::kWarning,
          absl::StrCat(error, "; what was there before is used for now, for new connections too"));
    }
    last_error = error;
    MutexLock lock(shared->mu);
    if (now.ok() && !(*now == shared->content)) {
      shared->content = *std::move(now);
      ++shared->version;
      Log(LogLevel::kInfo, "new TLS certificates are used for connections from now on");
    }
  }
}

bool Tls::can_serve() const { return !shared_->files.certificate.empty(); }

TlsContent Tls::content() const {
  MutexLock lock(shared_->mu);
  return shared_->content;
}

std::shared_ptr<grpc::ChannelCredentials> Tls::ForChannel(
    const std::string& name, std::shared_ptr<TlsVerdict> verdict) const {
  namespace ge = grpc::experimental;
  BeginGrpc();
  TlsContent mine = content();
  ge::TlsChannelCredentialsOptions options;
  if (!mine.certificate.empty()) {
    const std::vector<ge::IdentityKeyCertPair> identity{{mine.key, mine.certificate}};
    options.set_certificate_provider(std::make_shared<ge::StaticDataCertificateProvider>(identity));
    options.watch_identity_key_cert_pairs();
  }
  // See Note [TLS of the control plane].
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(ge::ExternalCertificateVerifier::Create<CoordinatorVerifier>(
      mine.ca, name, std::move(verdict)));
  return ge::TlsCredentials(options);
}

// gRPC asks for the certificate at every handshake. Its C++ interface has no credentials that can
// be told so.
class Tls::ServerSide : public grpc::ServerCredentials {
 public:
  explicit ServerSide(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {
    FSDPRUN_CHECK(false, "calls are admitted by their services");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    // An agent's certificate is verified by CheckCaller().
    grpc_server_credentials* credentials = ::grpc_ssl_server_credentials_create_with_options(
        ::grpc_ssl_server_credentials_create_options_using_config_fetcher(
            shared_->files.ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY,
            &ServerSide::Fetch, this));
    const int port = ::grpc_server_add_http2_port(server, address.c_str(), credentials);
    ::grpc_server_credentials_release(credentials);
    return port;
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ServerSide*>(self)->FetchNow(config);
  }

  grpc_ssl_certificate_config_reload_status FetchNow(grpc_ssl_server_certificate_config** config) {
    MutexLock lock(shared_->mu);
    if (fetched_ == shared_->version) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair{shared_->content.key.c_str(),
                                          shared_->content.certificate.c_str()};
    // gRPC wants CAs even of who verifies nothing; clients are told their names.
    const std::string& ca = shared_->content.ca;
    *config = ::grpc_ssl_server_certificate_config_create(ca.empty() ? pair.cert_chain : ca.c_str(),
                                                          &pair, 1);
    fetched_ = shared_->version;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<Shared> shared_;
  /// Guarded by the mutex of `shared_`.
  uint64_t fetched_ = 0;
};

std::shared_ptr<grpc::ServerCredentials> Tls::ForServer() const {
  BeginGrpc();
  FSDPRUN_CHECK(can_serve(), "a server of TLS shows a certificate");
  return std::make_shared<ServerSide>(shared_);
}

absl::Status Tls::CheckCaller(const grpc::AuthContext& caller) const {
  const TlsContent mine = content();
  if (mine.ca.empty()) {
    return absl::OkStatus();  // The coordinator has no CA: the job's token decides alone.
  }
  const TlsChain shown{Property(caller, GRPC_X509_PEM_CERT_PROPERTY_NAME),
                       Property(caller, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME)};
  if (shown.certificate.empty()) {
    return absl::PermissionDeniedError(
        "the coordinator asks for a certificate, and this node has shown none: give it --tls-cert "
        "and --tls-key");
  }
  return VerifyCertificate(shown, mine.ca, TlsPeer::kAgent, "");
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(
    const Tls* tls, const std::string& target, const std::string& name,
    const std::shared_ptr<TlsVerdict>& verdict) {
  if (tls == nullptr) {
    return grpc::InsecureChannelCredentials();
  }
  absl::string_view address = target;
  address = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&address, "[")) {
    absl::ConsumeSuffix(&address, "]");
  }
  return tls->ForChannel(name.empty() ? std::string(address) : name, verdict);
}

absl::Status ExplainTls(const absl::Status& status, bool uses_tls, const absl::Status& verdict) {
  if (!verdict.ok()) {
    return verdict;
  }
  if (!absl::IsUnavailable(status)) {
    return status;
  }
  // gRPC tells of a failed handshake in words only.
  const absl::string_view sign = uses_tls ? "wrong version number" : "Failed parsing HTTP/2";
  return absl::StrContains(status.message(), sign)
             ? absl::PermissionDeniedError(TlsMismatch(uses_tls))
             : status;
}

const char* TlsMismatch(bool is_here) {
  return is_here ? "this node speaks TLS, and who listens there does not: give the launcher there "
                   "--tls-cert and --tls-key, or leave out --tls-cert, --tls-key and --tls-ca here"
                 : "who listens there speaks TLS, and this node does not: give it --tls-ca, and "
                   "--tls-cert and --tls-key if the coordinator asks for a certificate";
}

std::string TlsClientHello() {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(::SSL_CTX_new(::TLS_client_method()),
                                                             ::SSL_CTX_free);
  const std::unique_ptr<SSL, void (*)(SSL*)> client(::SSL_new(context.get()), ::SSL_free);
  BIO* sent = ::BIO_new(::BIO_s_mem());
  ::SSL_set_bio(client.get(), ::BIO_new(::BIO_s_mem()), sent);  // Which it owns.
  ::SSL_connect(client.get());
  char* bytes = nullptr;
  const auto size = ::BIO_get_mem_data(sent, &bytes);
  return {bytes, static_cast<size_t>(size)};
}

}  // namespace fsdprun
