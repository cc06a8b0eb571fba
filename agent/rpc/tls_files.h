#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdprun {

/// Of --tls-cert, --tls-key and --tls-ca; empty: not given. A certificate comes with its key.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string ca;

  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

/// What is in them, in PEM, checked. Without `ca` the CAs of the system count.
struct TlsContent {
  std::string certificate;
  std::string key;
  std::string ca;

  bool operator==(const TlsContent&) const = default;
};

/// Reads and checks them: regular files with what their option says, a key that fits the
/// certificate, which is valid now, and that others cannot read. Errors: INVALID_ARGUMENT naming
/// option, file and reason.
absl::StatusOr<TlsContent> LoadTls(const TlsFiles& files);

/// Who shows a certificate.
enum class TlsPeer { kCoordinator, kAgent };

/// What a peer has shown, in PEM.
struct TlsChain {
  /// The one whose key it has proved to have.
  std::string certificate;
  /// Whatever else it has sent, from anywhere, perhaps with the first once more: it proves nothing
  /// by itself. Of an agent gRPC leaves out the first.
  std::string others;
};

/// Whether a certificate is `peer`'s: issued by one of `ca`
/// (empty: the system's) for this use, valid now, and for `name`, a host name or a numeric
/// address; empty: any. Errors: PERMISSION_DENIED with the reason, for people.
absl::Status VerifyCertificate(const TlsChain& shown, const std::string& ca, TlsPeer peer,
                               const std::string& name);

}  // namespace fsdprun
