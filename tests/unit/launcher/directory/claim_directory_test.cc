#include "launcher/directory/claim_directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

LaunchPlan EtcdPlan(std::optional<bool> is_host) {
  LaunchPlan plan;
  plan.backend = RendezvousBackend::kEtcd;
  plan.is_host = is_host;
  plan.join_timeout = std::chrono::milliseconds(200);
  return plan;
}

TEST(ClaimDirectoryTest, ACoordinatorJoinsNobody) {
  // Nobody answers there, and that is not the end of it.
  const Claim other{.launch = "other", .endpoints = {{"192.0.2.1", 1}}, .lease_seconds = 40};
  ClaimDirectory directory({EtcdPlan(true), {}, nullptr, nullptr},
                           std::make_unique<FixedStore>(std::optional<Claim>(other)));
  const absl::Status status = directory.Find().status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_NE(status.message().find("another launcher hosts run id 'none', at 192.0.2.1:1"),
            std::string::npos);
}

TEST(ClaimDirectoryTest, ACoordinatorTakesThePlaceOfTheOneWhoseJournalItHas) {
  auto owned = std::make_unique<HeldStore>();
  HeldStore& store = *owned;
  store.found_ = Claim{.launch = "before",
                       .endpoints = {{"192.0.2.1", 1}},
                       .lease_seconds = 40,
                       .journal = "etcd /j"};
  DirectoryContext context{EtcdPlan(true), {}, nullptr, nullptr};
  context.journal = "etcd /j";
  ClaimDirectory directory(std::move(context), std::move(owned));
  EXPECT_TRUE(directory.Find().value().hosts);
  EXPECT_EQ(store.mine_.journal, "etcd /j");
}

TEST(ClaimDirectoryTest, ALauncherThatMustNotHostWaitsForAHost) {
  auto owned = std::make_unique<HeldStore>();
  HeldStore& store = *owned;
  std::string notice;
  DirectoryContext context{EtcdPlan(false), {}, nullptr, nullptr};
  context.notify = [&](const std::string& text) { notice = text; };
  ClaimDirectory directory(std::move(context), std::move(owned));
  const absl::Status status = directory.Find().status();
  EXPECT_NE(status.message().find("nobody hosts run id 'none'"), std::string::npos) << status;
  EXPECT_NE(notice.find("this launcher may not host (is_host=0)"), std::string::npos);
  EXPECT_EQ(store.mine_, Claim());
}

TEST(ClaimDirectoryTest, WhoLooksAgainIsToldOfAnotherHostAndClaimsNothing) {
  auto owned = std::make_unique<HeldStore>();
  HeldStore& store = *owned;
  ClaimDirectory directory({EtcdPlan(std::nullopt), {}, nullptr, nullptr}, std::move(owned));
  EXPECT_TRUE(absl::IsUnavailable(directory.LookAgain().status()));
  store.found_ = Claim{.launch = "next", .endpoints = {{"127.0.0.1", 1}}, .token = "its"};
  const Whereabouts where = directory.LookAgain().value();
  EXPECT_EQ(where.endpoints, (std::vector<NumericEndpoint>{{"127.0.0.1", 1}}));
  EXPECT_EQ(where.token, "its");
  store.found_ = Claim{.launch = "next", .closed_until = 1};
  EXPECT_TRUE(absl::IsUnavailable(directory.LookAgain().status()));
  EXPECT_EQ(store.mine_, Claim());
}

}  // namespace
}  // namespace fsdprun
