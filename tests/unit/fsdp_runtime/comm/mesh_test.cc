#include <ATen/ATen.h>
#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/comm/local_world.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> errors_on_ranks(const std::string& backend, int64_t ranks,
                                         const testing::Body& body) {
  return testing::run_backend(backend, ranks, body,
                              std::chrono::minutes(10));  // longer than a test may take
}

TEST(DeviceMeshTest, ChecksShapeAndNames) {
  auto world = make_local_world(2);
  const auto mesh = init_device_mesh(c10::kCPU, {2}, {"dp_shard"}, world[1]);
  EXPECT_EQ(mesh->size(), 2);
  EXPECT_EQ(mesh->local_rank(), 1);
  EXPECT_EQ(mesh->group(), world[1]);
  EXPECT_THROW(mesh->group(1), c10::Error);
  EXPECT_THROW(init_device_mesh(c10::kCPU, {3}, {"dp"}, world[0]), c10::Error);
  EXPECT_THROW(init_device_mesh(c10::kCPU, {2}, {}, world[0]), c10::Error);
  EXPECT_THROW(init_device_mesh(c10::kCPU, {2}, {""}, world[0]), c10::Error);
  EXPECT_THROW(init_device_mesh(c10::kCPU, {2, 1}, {"dp", "dp"}, world[0]), c10::Error);
  EXPECT_THROW(init_device_mesh(c10::kCUDA, {2}, {"dp"}, world[0]), c10::Error);
}

// Rank 4 of 2 x 3 stands in row 1 and column 1.
TEST(DeviceMeshTest, AxesAreTheRowMajorArrangementOfTheRanks) {
  for (const std::string backend : {"local", "gloo"}) {
    for (const std::string& error : errors_on_ranks(backend, 6, [](Collectives& group) {
           // The mesh shares ownership; the test's group outlives it.
           const std::shared_ptr<Collectives> world(&group, [](Collectives*) {});
           const auto mesh = init_device_mesh(c10::kCPU, {2, 3}, {"replicate", "shard"}, world);
           const int64_t row = group.rank() / 3;
           const int64_t column = group.rank() % 3;
           EXPECT_EQ(mesh->ndim(), 2);
           EXPECT_EQ(mesh->axis("shard"), 1);
           EXPECT_EQ(mesh->size(0), 2);
           EXPECT_EQ(mesh->size(1), 3);
           EXPECT_EQ(mesh->local_rank(0), row);
           EXPECT_EQ(mesh->local_rank(1), column);
           const auto ranks_along = [&](const std::shared_ptr<Collectives>& line) {
             at::Tensor ranks = at::empty({line->size()}, at::kLong);
             line->all_gather_into(ranks, at::full({1}, group.rank(), at::kLong))->wait();
             return std::vector<int64_t>(ranks.data_ptr<int64_t>(),
                                         ranks.data_ptr<int64_t>() + ranks.numel());
           };
           EXPECT_THAT(ranks_along(mesh->group(0)), ::testing::ElementsAre(column, column + 3));
           EXPECT_THAT(ranks_along(mesh->group(1)),
                       ::testing::ElementsAre(3 * row, 3 * row + 1, 3 * row + 2));
           const auto shard = mesh->slice({"shard"});
           EXPECT_EQ(shard->axis_names(), std::vector<std::string>{"shard"});
           EXPECT_EQ(shard->group(), mesh->group(1));
           const auto all = mesh->flatten({"replicate", "shard"}, "dp");
           EXPECT_EQ(all->size(), 6);
           EXPECT_EQ(all->group(), world);
           EXPECT_THROW(mesh->slice({"tp"}), c10::Error);
           EXPECT_THROW(mesh->slice({"shard", "shard"}), c10::Error);
           EXPECT_THROW(shard->flatten({"shard"}, "dp"), c10::Error);
           EXPECT_THROW(mesh->flatten({"shard", "replicate"}, "dp"), c10::Error);
         })) {
      EXPECT_EQ(error, "") << backend;
    }
  }
}

TEST(DeviceMeshTest, SomeOfThreeAxesCanBeFlattened) {
  for (const std::string& error : errors_on_ranks("local", 8, [](Collectives& group) {
         const std::shared_ptr<Collectives> world(&group, [](Collectives*) {});
         const auto mesh = init_device_mesh(c10::kCPU, {2, 1, 4}, {"pp", "dp", "tp"}, world);
         EXPECT_EQ(mesh->size(1), 1);
         const auto plane = mesh->flatten({"dp", "tp"}, "dp_tp");
         EXPECT_EQ(plane->size(), 4);
         EXPECT_EQ(plane->local_rank(), group.rank() % 4);
         at::Tensor sum = at::full({1}, group.rank(), at::kLong);
         plane->group()->all_reduce(sum, ReduceOp::kSum)->wait();
         EXPECT_EQ(sum.item<int64_t>(), group.rank() < 4 ? 6 : 22);
       })) {
    EXPECT_EQ(error, "");
  }
}

// A module is sharded over a slice, and keeps nothing else of the mesh.
TEST(DeviceMeshTest, ItsPartsKeepTheWorldAlive) {
  std::vector<std::thread> ranks;
  for (std::shared_ptr<Collectives>& world : make_local_world(4)) {
    ranks.emplace_back([world = std::move(world)]() mutable {
      const std::weak_ptr<Collectives> kept = world;
      auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"replicate", "shard"}, std::move(world));
      std::shared_ptr<DeviceMesh> slice = mesh->slice({"shard"});
      std::shared_ptr<DeviceMesh> line = mesh->flatten({"replicate"}, "line");
      const std::shared_ptr<Collectives> groups[] = {slice->group(), line->group()};
      mesh.reset();
      slice.reset();
      EXPECT_FALSE(kept.expired());
      slice = line->slice({"line"});
      line.reset();
      EXPECT_FALSE(kept.expired());
      slice.reset();
      EXPECT_TRUE(kept.expired());  // the groups alone do not keep it
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

// The group in the middle is gone when its part is used.
TEST(SplitTest, PartsOfAPartAreGroupsOfTheirOwn) {
  for (const std::string backend : {"local", "gloo", "auto"}) {
    for (const std::string& error : errors_on_ranks(backend, 4, [](Collectives& group) {
           std::shared_ptr<Collectives> part = group.split(group.rank() % 2)->split(0);
           EXPECT_EQ(part->size(), 2);
           EXPECT_EQ(part->rank(), group.rank() / 2);
           EXPECT_EQ(part->split(part->rank())->size(), 1);
           part->barrier();
         })) {
      EXPECT_EQ(error, "") << backend;
    }
  }
}

// It is a part like any other, though nothing is exchanged there.
TEST(SplitTest, APartOfOneRankBelongsToItsWorld) {
  for (const std::string backend : {"local", "gloo"}) {
    for (const std::string& error : errors_on_ranks(backend, 2, [](Collectives& group) {
           const std::shared_ptr<Collectives> alone = group.split(group.rank());
           EXPECT_THAT(alone->world_ranks(), ElementsAre(group.rank()));
           EXPECT_THAT(alone->split(7)->world_ranks(), ElementsAre(group.rank()));
           if (group.rank() == 1) {
             alone->abort("the operator said so");
           }
           group.barrier();
         })) {
      EXPECT_THAT(error, HasSubstr("rank 1 aborted all groups: the operator said so")) << backend;
    }
  }
}

TEST(SplitTest, APartOfOneRankShrinksToItself) {
  for (const std::string& error : errors_on_ranks("local", 2, [](Collectives& group) {
         const std::shared_ptr<Collectives> alone = group.split(group.rank());
         EXPECT_EQ(alone->shrink({1 - group.rank()})->size(), 1);
         EXPECT_THROW(alone->shrink({group.rank()}), c10::Error);
       })) {
    EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace fsdp
