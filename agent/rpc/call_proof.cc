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

/// In hexadecimal.
std::string Mac(const std::string& token, const std::string& run_id) {
  const std::string message = absl::StrCat(kPurpose, absl::string_view("\0", 1), run_id);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const unsigned char* made =
      ::HMAC(::EVP_sha256(), token.data(), static_cast<int>(token.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &size);
  FSDPRUN_CHECK(made != nullptr, "libcrypto has no HMAC-SHA256");
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace

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
  // The time says nothing about where they differ.
  const bool is_right =
      proof->second.size() == expected.size() &&
      ::CRYPTO_memcmp(proof->second.data(), expected.data(), expected.size()) == 0;
  return is_right ? std::optional<std::string>(std::move(claimed)) : std::nullopt;
}

}  // namespace fsdprun
