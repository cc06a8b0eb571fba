#pragma once

// Note [Who may test]
// A node that listens tells nothing to, and moves no byte for, who has not proved the token. Both
// ends choose a random number; the one that came answers with HMAC(token, what for, both numbers),
// and the one that listens with another of them, so that neither can be repeated elsewhere, and
// neither end is left with somebody else's. The other connections of a test, and the one that is
// made back, are proved likewise, with the number of the first. Nothing is encrypted: who can
// listen on the way reads what was found on the nodes, and who can change packets can change that,
// too.

#include <string>

#include "fsdpctl/doctor/pair/pair_message.h"

namespace fsdprun::doctor {

struct PairNonces {
  std::string comer;
  std::string listener;
};

/// `purpose`: what is proved. Pure.
std::string PairProof(const std::string& token, const std::string& purpose,
                      const PairNonces& nonces);

// Purposes.
inline constexpr char kForTest[] = "test";
inline constexpr char kForAnswer[] = "answer";
inline constexpr char kForBack[] = "back";
inline constexpr char kForHere[] = "here";
/// Of a further connection of the test with that number.
std::string ForStream(const std::string& test);

/// The end of the node that listens: what it answers to one connection, message by message. Pure.
class Handshake {
 public:
  enum class Outcome { kMore, kProven, kOtherToken, kOtherVersion, kStranger };

  /// `nonce`: random.
  Handshake(const std::string& token, std::string nonce);

  /// Sets `answer`, whose kind is empty if there is none. After anything but kMore it is over.
  Outcome On(const Message& message, Message* answer);

  const PairNonces& nonces() const { return nonces_; }
  /// The test that the connection is for; empty: it is a test's first.
  const std::string& test() const { return test_; }

 private:
  Outcome OnHello(const Message& message, Message* answer);
  Outcome OnProof(const Message& message, Message* answer);

  const std::string token_;
  PairNonces nonces_;
  std::string test_;
  bool was_greeted_ = false;
};

/// The first message of who comes; `test` as above.
Message Hello(const std::string& nonce, const std::string& test);
/// What proves a connection that was made back, and what answers it.
Message BackProof(const std::string& token, const char* purpose, const PairNonces& nonces);
bool ProvesBack(const std::string& token, const char* purpose, const PairNonces& nonces,
                const Message& message);

}  // namespace fsdprun::doctor
