#include "fsdpctl/doctor/pair/handshake.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/rpc/call_proof.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kLeastNonce = 32;
constexpr size_t kMostNonce = 128;

}  // namespace

std::string PairProof(const std::string& token, const std::string& purpose,
                      const PairNonces& nonces) {
  // The numbers have their lengths, so that no two tests give the same text.
  return HmacHex(token, absl::StrCat("fsdprun doctor ", purpose, absl::string_view("\0", 1),
                                     nonces.comer.size(), ":", nonces.comer, nonces.listener.size(),
                                     ":", nonces.listener));
}

std::string ForStream(const std::string& test) { return absl::StrCat("stream of ", test); }

Handshake::Handshake(const std::string& token, std::string nonce) : token_(token) {
  nonces_.listener = std::move(nonce);
}

Handshake::Outcome Handshake::On(const Message& message, Message* answer) {
  *answer = {};
  return was_greeted_ ? OnProof(message, answer) : OnHello(message, answer);
}

Handshake::Outcome Handshake::OnHello(const Message& message, Message* answer) {
  if (message.kind != "fsdpctl-doctor") {
    return Outcome::kStranger;
  }
  if (message.Text("version") != kPairVersion) {
    *answer = {"refused", {{"why", "version"}}};
    return Outcome::kOtherVersion;
  }
  nonces_.comer = message.Text("nonce");
  if (nonces_.comer.size() < kLeastNonce || nonces_.comer.size() > kMostNonce) {
    return Outcome::kStranger;
  }
  test_ = message.Text("test");
  was_greeted_ = true;
  *answer = {"challenge", {{"nonce", nonces_.listener}}};
  return Outcome::kMore;
}

Handshake::Outcome Handshake::OnProof(const Message& message, Message* answer) {
  const std::string purpose = test_.empty() ? kForTest : ForStream(test_);
  if (message.kind != "proof") {
    return Outcome::kStranger;
  }
  // Without a token everybody proves it.
  if (!IsSameSecret(message.Text("mac"), PairProof(token_, purpose, nonces_))) {
    *answer = {"refused", {{"why", "token"}}};
    return Outcome::kOtherToken;
  }
  *answer = {"welcome", {{"mac", PairProof(token_, kForAnswer, nonces_)}}};
  return Outcome::kProven;
}

Message Hello(const std::string& nonce, const std::string& test) {
  return {"fsdpctl-doctor", {{"version", kPairVersion}, {"nonce", nonce}, {"test", test}}};
}

Message BackProof(const std::string& token, const char* purpose, const PairNonces& nonces) {
  return {purpose, {{"mac", PairProof(token, purpose, nonces)}}};
}

bool ProvesBack(const std::string& token, const char* purpose, const PairNonces& nonces,
                const Message& message) {
  return message.kind == purpose &&
         IsSameSecret(message.Text("mac"), PairProof(token, purpose, nonces));
}

}  // namespace fsdprun::doctor
