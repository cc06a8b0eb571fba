#pragma once

// Note [TLS of the control plane]
// Both ends show what --tls-cert names and accept what --tls-ca has issued. gRPC makes the
// handshake, and with it the proof that who shows a certificate has its key; the certificates
// themselves are verified here, by OpenSSL, because a refusal has to say why, at both ends, and to
// be counted. An agent verifies the coordinator's certificate, and that it is for the host that the
// user has named, before it sends a byte of a call. A coordinator with a CA verifies the agent's
// before it looks at a call, and refuses calls without one. The files are looked at every second: a
// certificate that was replaced holds for connections that are made from then on, and one that
// cannot be used changes nothing but a line in the log.

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/rpc/tls_files.h"
#include "base/mutex.h"

namespace fsdprun {

/// Why the certificate of the other end of a connection was not accepted; OK while it was not shown
/// or is accepted. Any thread.
class TlsVerdict {
 public:
  void Set(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Get() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

/// What a process has for TLS. Any thread.
class Tls {
 public:
  /// Reads the files, and again when they change, on a thread of its own. Errors: as LoadTls().
  static absl::StatusOr<std::shared_ptr<const Tls>> Make(const TlsFiles& files);
  /// The thread may hang with a file system, and is not waited for.
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  /// A coordinator can show a certificate.
  bool can_serve() const;
  TlsContent content() const;

  /// Of a new connection to the coordinator on the host `name`: with what the files have now.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(const std::string& name,
                                                       std::shared_ptr<TlsVerdict> verdict) const;
  /// Of a coordinator: every handshake is with what the files have then. Needs can_serve().
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  /// Of a call to a coordinator: whether its caller has shown a certificate that is needed. Errors:
  /// PERMISSION_DENIED.
  absl::Status CheckCaller(const grpc::AuthContext& caller) const;

 private:
  struct Shared;
  class ServerSide;

  explicit Tls(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  static void Watch(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

/// Of a new connection to `target`, `address:port`; without `tls`, those that encrypt nothing. The
/// certificate must be for `name`; empty: for the address.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(
    const Tls* tls, const std::string& target, const std::string& name,
    const std::shared_ptr<TlsVerdict>& verdict);

/// What became of an attempt to reach a coordinator, in TLS's terms: PERMISSION_DENIED, with what
/// to do, if the ends do not agree about TLS or about a certificate; else `status`. Pure.
absl::Status ExplainTls(const absl::Status& status, bool uses_tls, const absl::Status& verdict);

/// What to do where one end speaks TLS and the other does not.
const char* TlsMismatch(bool is_here);

/// What a coordinator that speaks TLS answers who does not, and the reverse: each says to the
/// other's library that this is the wrong protocol.
extern const absl::string_view kAnswerToPlaintext;
extern const absl::string_view kAnswerToTls;

/// How a TLS client begins, for a server that has not been met. Needs no certificate.
std::string TlsClientHello();

}  // namespace fsdprun
