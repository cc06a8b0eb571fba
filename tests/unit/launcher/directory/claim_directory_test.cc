#include "launcher/directory/claim_directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fsdprun {
namespace {

/// The place of a claim that nobody replaces.
class FixedStore : public ClaimStore {
 public:
  explicit FixedStore(absl::StatusOr<std::optional<Claim>> found) : found_(std::move(found)) {}

  absl::StatusOr<std::optional<Claim>> Read() override { return found_; }
  std::optional<std::string> RenewalSign() const override { return std::nullopt; }
  absl::StatusOr<bool> Replace(const std::optional<Claim>&, const Claim&) override { return false; }
  absl::Status Release(const Claim&, const std::optional<Claim>&) override {
    return absl::OkStatus();
  }
  std::string Where() const override { return "the store"; }

 private:
  const absl::StatusOr<std::optional<Claim>> found_;
};

/// What Find() says if a signal has come when it polls for one the n-th time.
absl::Status FindUntilASignalComes(int poll, absl::StatusOr<std::optional<Claim>> found) {
  LaunchPlan plan;
  plan.join_timeout = std::chrono::seconds(60);
  const Environment environment;
  int polls = 0;
  ClaimDirectory directory({plan, environment, [&] { return ++polls >= poll; }, nullptr},
                           std::make_unique<FixedStore>(std::move(found)));
  return directory.Find().status();
}

TEST(ClaimDirectoryTest, ASignalIsToldInTheSameWordsWheneverItComes) {
  // Port 1 refuses: who is not interrupted tries to replace the claim again and again.
  const Claim dead{.launch = "gone", .endpoints = {{"127.0.0.1", 1}}, .token = "secret"};
  for (int poll = 1; poll < 12; ++poll) {
    EXPECT_EQ(FindUntilASignalComes(poll, dead),
              absl::CancelledError("interrupted while looking for the coordinator"))
        << poll;
  }
}

TEST(ClaimDirectoryTest, ACallThatASignalHasCutShortIsNoFailure) {
  EXPECT_EQ(FindUntilASignalComes(1, absl::CancelledError("the call has ended")),
            absl::CancelledError("interrupted while looking for the coordinator"));
}

}  // namespace
}  // namespace fsdprun
