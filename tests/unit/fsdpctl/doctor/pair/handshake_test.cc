#include "fsdpctl/doctor/pair/handshake.h"

#include <gtest/gtest.h>

namespace fsdprun::doctor {
namespace {

using Outcome = Handshake::Outcome;

const std::string kComer(64, 'c');
const std::string kListener(64, 'l');

/// What the end that listens says to a hello and to a proof with `token`.
Outcome Greet(Handshake* handshake, const std::string& token, const std::string& test,
              Message* answer) {
  if (handshake->On(Hello(kComer, test), answer) != Outcome::kMore) {
    return Outcome::kStranger;
  }
  EXPECT_EQ(answer->kind, "challenge");
  const PairNonces nonces{kComer, answer->Text("nonce")};
  const std::string purpose = test.empty() ? kForTest : ForStream(test);
  return handshake->On({"proof", {{"mac", PairProof(token, purpose, nonces)}}}, answer);
}

TEST(HandshakeTest, WhoHasTheTokenIsWelcomeAndAnswered) {
  Handshake handshake("token", kListener);
  Message answer;
  EXPECT_EQ(Greet(&handshake, "token", "", &answer), Outcome::kProven);
  EXPECT_EQ(answer.kind, "welcome");
  EXPECT_EQ(answer.Text("mac"), PairProof("token", kForAnswer, {kComer, kListener}));
  EXPECT_EQ(handshake.test(), "");
  EXPECT_EQ(handshake.nonces().comer, kComer);
}

TEST(HandshakeTest, AnotherTokenIsRefused) {
  Handshake handshake("token", kListener);
  Message answer;
  EXPECT_EQ(Greet(&handshake, "other", "", &answer), Outcome::kOtherToken);
  EXPECT_EQ(answer.kind, "refused");
  EXPECT_TRUE(answer.Text("mac").empty());
}

TEST(HandshakeTest, FurtherConnectionsAreOfOneTest) {
  Handshake handshake("token", kListener);
  Message answer;
  EXPECT_EQ(Greet(&handshake, "token", "7", &answer), Outcome::kProven);
  EXPECT_EQ(handshake.test(), "7");
  // The proof for one test is none for another, nor for the first connection.
  const PairNonces nonces{kComer, kListener};
  EXPECT_NE(PairProof("token", ForStream("7"), nonces), PairProof("token", ForStream("8"), nonces));
  EXPECT_NE(PairProof("token", ForStream("7"), nonces), PairProof("token", kForTest, nonces));
}

TEST(HandshakeTest, AProofDoesNotHoldForOtherNumbers) {
  Message answer;
  Handshake first("token", kListener);
  first.On(Hello(kComer, ""), &answer);
  const Message heard{"proof",
                      {{"mac", PairProof("token", kForTest, {kComer, answer.Text("nonce")})}}};
  Handshake second("token", std::string(64, 'm'));
  second.On(Hello(kComer, ""), &answer);
  EXPECT_EQ(second.On(heard, &answer), Outcome::kOtherToken);
  // The numbers cannot be shifted into each other.
  EXPECT_NE(PairProof("t", kForTest, {"ab", "c"}), PairProof("t", kForTest, {"a", "bc"}));
}

TEST(HandshakeTest, StrangersAndOtherVersions) {
  Message answer;
  EXPECT_EQ(Handshake("token", kListener).On({"GET / HTTP/1.1", {}}, &answer), Outcome::kStranger);
  EXPECT_TRUE(answer.kind.empty());
  EXPECT_EQ(Handshake("token", kListener).On(Hello("short", ""), &answer), Outcome::kStranger);
  Message newer = Hello(kComer, "");
  newer.fields["version"] = "99";
  EXPECT_EQ(Handshake("token", kListener).On(newer, &answer), Outcome::kOtherVersion);
  EXPECT_EQ(answer.Text("why"), "version");
  Handshake handshake("token", kListener);
  handshake.On(Hello(kComer, ""), &answer);
  EXPECT_EQ(handshake.On(Hello(kComer, ""), &answer), Outcome::kStranger);
}

TEST(HandshakeTest, ConnectionsBackAreProvedBothWays) {
  const PairNonces nonces{kComer, kListener};
  const Message back = BackProof("token", kForBack, nonces);
  EXPECT_TRUE(ProvesBack("token", kForBack, nonces, back));
  EXPECT_FALSE(ProvesBack("other", kForBack, nonces, back));
  EXPECT_FALSE(ProvesBack("token", kForHere, nonces, back));
  EXPECT_FALSE(ProvesBack("token", kForHere, nonces, {kForHere, back.fields}));
}

}  // namespace
}  // namespace fsdprun::doctor
