#include "agent/rpc/call_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Proof = std::map<std::string, std::string>;

std::optional<std::string> Check(const std::string& token, const Proof& proof) {
  return ProvenRunId(token, CallMetadata(proof.begin(), proof.end()));
}

TEST(CallProofTest, IsWhatTheProtocolSays) {
  // python3: hmac.new(b"secret", b"fsdprun job token\0run 7", hashlib.sha256).hexdigest()
  EXPECT_EQ(ProofOf("secret", "run 7"),
            (Proof{{"fsdprun-run-id-bin", "run 7"},
                   {"fsdprun-proof",
                    "f52776845f56990a3731c5907fcec1882d20c553b3362b6ad3b8e37a858717a7"}}));
}

TEST(CallProofTest, WhoHasTheTokenProvesAnyRunId) {
  for (const char* run_id : {"", "run", "l\xc3\xa4uft"}) {
    EXPECT_EQ(Check("secret", ProofOf("secret", run_id)), run_id);
  }
}

TEST(CallProofTest, NobodyLearnsTheTokenFromIt) {
  for (const auto& [key, value] : ProofOf("secret", "run")) {
    EXPECT_THAT(value, Not(HasSubstr("secret")));
  }
}

TEST(CallProofTest, AnotherTokenOrAnotherRunIdOrNoneProvesNothing) {
  for (const char* token : {"", "Secret", "secret2", "secre"}) {
    EXPECT_EQ(Check("secret", ProofOf(token, "run")), std::nullopt);
  }
  Proof of_another = ProofOf("secret", "run");
  of_another["fsdprun-run-id-bin"] = "run2";
  EXPECT_EQ(Check("secret", of_another), std::nullopt);
  for (const char* key : {"fsdprun-run-id-bin", "fsdprun-proof"}) {
    Proof without = ProofOf("secret", "run");
    without.erase(key);
    EXPECT_EQ(Check("secret", without), std::nullopt);
    without[key] = "";
    EXPECT_EQ(Check("secret", without), std::nullopt);
  }
}

TEST(CallProofTest, WithoutATokenEveryCallProvesItselfButOneThatNamesNoRunId) {
  EXPECT_EQ(Check(kNoToken, ProofOf("any", "run")), "run");
  EXPECT_EQ(Check(kNoToken, ProofOf(kNoToken, "run")), "run");
  EXPECT_EQ(Check(kNoToken, {}), std::nullopt);
  EXPECT_EQ(Check("secret", ProofOf(kNoToken, "run")), std::nullopt);
}

}  // namespace
}  // namespace fsdprun
