#include "agent/rpc/call_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace fsdprun {
namespace {

constexpr char kProofKey[] = "fsdprun-proof";
/// The suffix lets gRPC carry any bytes.
constexpr char kRunIdKey[] = "fsdprun-run-id-bin";
/// Sets these proofs apart from whatever else may be made of the token one day.
constexpr char kPurpose[] = "fsdprun job token";

std::string Mac(const std::string& token, const std::string& run_id) {
  return HmacHex(token, absl::StrCat(kPurpose, absl::string_view("\0", 1), run_id));
}

}  // namespace

std::string HmacHex(const std::string& key, const std::string& message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const unsigned char* made =
      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &size);
  FSDPRUN_CHECK(made != nullptr, "libcrypto has no HMAC-SHA256");
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

bool IsSameSecret(absl::string_view left, absl::string_view right) {
  return left.size() == right.size() &&
         ::CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

std::map<std::string, std::string> ProofOf(const std::string& token, const std::string& run_id) {
  return {{kRunIdKey, run_id}, {kProofKey, Mac(token, run_id)}};
}

void AddProof(const std::string& token, const std::string& run_id, grpc::ClientContext* call) {
  for (const auto& [key, value] : ProofOf(token, run_id)) {
    call->AddMetadata(key, value);
  }
}

std::optional<std::string> ProvenRunId(const std::string& token, const CallMetadata& metadata) {
  const auto run_id = metadata.find(kRunIdKey);
  const auto proof = metadata.find(kProofKey);
  if (run_id == metadata.end() || proof == metadata.end()) {
    return std::nullopt;
  }
  std::string claimed(run_id->second.data(), run_id->second.size());
  if (token == kNoToken) {
    return claimed;
  }
  const std::string expected = Mac(token, claimed);
  return IsSameSecret({proof->second.data(), proof->second.size()}, expected)
             ? std::optional<std::string>(std::move(claimed))
             : std::nullopt;
}

}  // namespace fsdprun
