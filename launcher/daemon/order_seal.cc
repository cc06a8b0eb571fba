#include "launcher/daemon/order_seal.h"

#include <openssl/evp.h>

#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "base/check.h"

namespace fsdprun {
namespace {

// The numbers have one length, so that no two calls give the same text.
std::string Text(absl::string_view purpose, const CallNonces& nonces, absl::string_view rest) {
  return absl::StrCat(purpose, absl::string_view("\0", 1), nonces.launcher.size(), ":",
                      nonces.launcher, nonces.daemon.size(), ":", nonces.daemon, rest);
}

constexpr int kSealBytes = 16;
/// A key has one message.
constexpr unsigned char kCounter[12] = {};

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

/// Of the length that AES-256 has.
std::string OrderKey(const std::string& token, const CallNonces& nonces) {
  return absl::HexStringToBytes(HmacHex(token, Text("fsdprun order key", nonces, "")));
}

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* Bytes(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

std::string DaemonAnswer(const std::string& token, const CallNonces& nonces) {
  return HmacHex(token, Text("fsdprun daemon", nonces, ""));
}

EncryptedOrder SealOrder(const std::string& token, const CallNonces& nonces,
                         absl::string_view order) {
  FSDPRUN_CHECK(order.size() <= std::numeric_limits<int>::max(), "an order has no such length");
  const std::string key = OrderKey(token, nonces);
  const Cipher cipher(::EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  EncryptedOrder sealed{std::string(order.size(), '\0'), std::string(kSealBytes, '\0')};
  int length = 0;
  unsigned char rest[EVP_MAX_BLOCK_LENGTH];
  int rest_length = 0;
  FSDPRUN_CHECK(cipher != nullptr &&
                    ::EVP_EncryptInit_ex(cipher.get(), ::EVP_aes_256_gcm(), nullptr, Bytes(key),
                                         kCounter) == 1 &&
                    ::EVP_EncryptUpdate(cipher.get(), Bytes(sealed.text), &length, Bytes(order),
                                        static_cast<int>(order.size())) == 1 &&
                    ::EVP_EncryptFinal_ex(cipher.get(), rest, &rest_length) == 1 &&
                    ::EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kSealBytes,
                                          sealed.seal.data()) == 1,
                "libcrypto has no AES-256-GCM");
  return sealed;
}

std::optional<std::string> OpenOrder(const std::string& token, const CallNonces& nonces,
                                     absl::string_view text, absl::string_view seal) {
  if (seal.size() != kSealBytes || text.size() > std::numeric_limits<int>::max()) {
    return std::nullopt;  // A shorter one would be easier to guess.
  }
  const std::string key = OrderKey(token, nonces);
  const Cipher cipher(::EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  std::string order(text.size(), '\0');
  std::string expected(seal);
  int length = 0;
  unsigned char rest[EVP_MAX_BLOCK_LENGTH];
  int rest_length = 0;
  FSDPRUN_CHECK(cipher != nullptr && ::EVP_DecryptInit_ex(cipher.get(), ::EVP_aes_256_gcm(),
                                                          nullptr, Bytes(key), kCounter) == 1,
                "libcrypto has no AES-256-GCM");
  const bool is_whole =
      ::EVP_DecryptUpdate(cipher.get(), Bytes(order), &length, Bytes(text),
                          static_cast<int>(text.size())) == 1 &&
      ::EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kSealBytes, expected.data()) == 1 &&
      ::EVP_DecryptFinal_ex(cipher.get(), rest, &rest_length) == 1;
  return is_whole ? std::optional<std::string>(std::move(order)) : std::nullopt;
}

std::string TokenOfJob(const std::string& token, absl::string_view run_id) {
  return token == kNoToken ? token
                           : HmacHex(token, absl::StrCat("fsdprun job of daemons",
                                                         absl::string_view("\0", 1), run_id));
}

}  // namespace fsdprun
