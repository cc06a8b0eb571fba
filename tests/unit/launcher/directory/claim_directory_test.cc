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
  absl::StatusOr<bool> Confirm(const Claim&) override { return false; }
  absl::Status Release(const Claim&, const std::optional<Claim>&) override {
    return absl::OkStatus();
  }
  std::string Where() const override { return "the store"; }

 private:
  const absl::StatusOr<std::optional<Claim>> found_;
};

/// The place of a claim that its holder has made.
class HeldStore : public ClaimStore {
 public:
  absl::StatusOr<std::optional<Claim>> Read() override { return found_; }
  std::optional<std::string> RenewalSign() const override { return sign_; }
  absl::StatusOr<bool> Replace(const std::optional<Claim>&, const Claim& mine) override {
    found_ = mine_ = mine;
    return true;
  }
  absl::StatusOr<bool> Confirm(const Claim& mine) override {
    return found_.ok() ? absl::StatusOr<bool>(*found_ == mine) : found_.status();
  }
  absl::Status Release(const Claim&, const std::optional<Claim>&) override {
    return absl::OkStatus();
  }
  std::string Where() const override { return "the store"; }

  absl::StatusOr<std::optional<Claim>> found_ = std::optional<Claim>();
  std::optional<std::string> sign_ = "sign";
  Claim mine_;
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

TEST(ClaimDirectoryTest, AHostIsToldWhatTheStoreSaysOfItsClaim) {
  LaunchPlan plan;
  plan.join_timeout = std::chrono::seconds(60);
  auto owned = std::make_unique<HeldStore>();
  HeldStore& store = *owned;
  ClaimDirectory directory({plan, {}, nullptr, nullptr}, std::move(owned));
  EXPECT_FALSE(directory.Confirm().value());  // It has none.
  const MonoTime before = MonoNow();
  const Place place = directory.Find().value();
  ASSERT_TRUE(place.can_be_taken);
  EXPECT_GE(place.sure_from, before);
  EXPECT_TRUE(directory.Confirm().value());
  store.found_ = absl::UnavailableError("it does not answer");
  EXPECT_EQ(directory.Confirm().status(), absl::UnavailableError("it does not answer"));
  store.found_ = Claim{.launch = "another's"};
  EXPECT_FALSE(directory.Confirm().value());
  store.found_ = store.mine_;
  EXPECT_TRUE(directory.Confirm().value());
}

}  // namespace
}  // namespace fsdprun
