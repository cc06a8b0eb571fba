#include "launcher/directory/fixed_endpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/directory/listener.h"

namespace fsdprun {
namespace {

class FixedEndpointTest : public ::testing::Test {
 protected:
  FixedEndpointTest() {
    plan_.backend = RendezvousBackend::kC10d;
    plan_.min_nodes = plan_.max_nodes = 2;
    plan_.join_timeout = std::chrono::seconds(60);
    // Nobody listens there any more.
    plan_.endpoint = {"127.0.0.1", PortOf(BindListeners({"127.0.0.1"}, 0).value().front()).value()};
  }

  std::unique_ptr<FixedEndpoint> MakeDirectory() {
    return std::make_unique<FixedEndpoint>(DirectoryContext{plan_, environment_, nullptr, nullptr});
  }

  LaunchPlan plan_;
  const Environment environment_{{"FSDPRUN_TOKEN", "secret"}};
  const absl::Status nobody_answers_ = absl::UnavailableError("nobody answers");
  const absl::Status is_anothers_ = absl::NotFoundError("another run id");
};

TEST_F(FixedEndpointTest, WhoMayHostMovesOnceNobodyListensThere) {
  const auto directory = MakeDirectory();
  std::optional<Place> place = directory->Find().value();
  EXPECT_TRUE(place->hosts);
  EXPECT_FALSE(place->can_be_taken);
  EXPECT_EQ(place->may_move, Place::MayMove::kUntilAdmitted);
  EXPECT_FALSE(directory->HasMoved(nobody_answers_));
  place.reset();
  EXPECT_TRUE(directory->HasMoved(nobody_answers_));
  EXPECT_TRUE(directory->Find().value().hosts);
}

TEST_F(FixedEndpointTest, WhoMustNotHostWaitsAtANumericAddress) {
  plan_.is_host = false;
  const auto directory = MakeDirectory();
  const Place place = directory->Find().value();
  EXPECT_FALSE(place.hosts);
  EXPECT_EQ(place.may_move, Place::MayMove::kNever);
  EXPECT_FALSE(directory->HasMoved(nobody_answers_));
}

TEST_F(FixedEndpointTest, OnlyAMasterPortIsOfOneJob) {
  plan_.is_host = false;
  const auto c10d = MakeDirectory();
  ASSERT_TRUE(c10d->Find().ok());
  EXPECT_TRUE(c10d->HasMoved(is_anothers_));
  // Who has said so is gone by now.
  EXPECT_EQ(c10d->Find().value().endpoints.front().port, plan_.endpoint.port);
  plan_.backend = RendezvousBackend::kStatic;
  plan_.node_rank = 1;
  const auto fixed = MakeDirectory();
  ASSERT_TRUE(fixed->Find().ok());
  EXPECT_FALSE(fixed->HasMoved(is_anothers_));
}

TEST_F(FixedEndpointTest, NothingIsTendedByWhoHostsAtTheEndpointItself) {
  const auto directory = MakeDirectory();
  ASSERT_TRUE(directory->Find().value().hosts);
  SharedEndpoint* shared = directory->shared_endpoint();
  EXPECT_TRUE(shared->Tend().is_over);
  EXPECT_FALSE(shared->PlaceAt({}, {}).ok());
  const Place other = shared->PlaceAt({"127.0.0.1:1"}, {.value = "secret"}).value();
  EXPECT_EQ(other.endpoints.front().port, 1);
  EXPECT_EQ(other.may_move, Place::MayMove::kUntilAdmitted);
}

}  // namespace
}  // namespace fsdprun
