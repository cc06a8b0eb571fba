// The file that a record is kept in.

#include <openssl/evp.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "launcher/journal/record_codec.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kFirstLine = "fsdprun journal 1\n";
constexpr absl::string_view kAnyFirstLine = "fsdprun journal ";
constexpr size_t kDigestBytes = 32;

std::string Sha256(absl::string_view text) {
  std::string digest(kDigestBytes, '\0');
  unsigned int size = 0;
  const int made =
      ::EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(&digest[0]), &size,
                   ::EVP_sha256(), nullptr);
  FSDPRUN_CHECK(made == 1 && size == kDigestBytes, "libcrypto has no SHA-256");
  return digest;
}

}  // namespace

std::string FileText(const v1::JobRecord& record) {
  const std::string body = record.SerializeAsString();
  return absl::StrCat(kFirstLine, Sha256(body), body);
}

absl::StatusOr<v1::JobRecord> ReadFileText(absl::string_view text) {
  if (absl::StartsWith(text, kAnyFirstLine) && !absl::StartsWith(text, kFirstLine)) {
    return absl::UnimplementedError("another version of fsdprun has written it");
  }
  v1::JobRecord record;
  const bool has_head =
      absl::StartsWith(text, kFirstLine) && text.size() >= kFirstLine.size() + kDigestBytes;
  const absl::string_view digest =
      has_head ? text.substr(kFirstLine.size(), kDigestBytes) : absl::string_view();
  const absl::string_view body =
      has_head ? text.substr(kFirstLine.size() + kDigestBytes) : absl::string_view();
  if (!has_head || Sha256(body) != digest ||
      !record.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return absl::DataLossError("it is cut off, or something else has written into it");
  }
  return record;
}

}  // namespace fsdprun
