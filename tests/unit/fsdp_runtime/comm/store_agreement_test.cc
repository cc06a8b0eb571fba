#include "fsdp_runtime/src/comm/store_agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// The errors of ranks whose operations are compared through a store only.
std::vector<std::string> run(int64_t size, const testing::Body& body,
                             int64_t* keys_left = nullptr) {
  const auto store = testing::serve_store();
  auto world = make_local_world(size);
  const auto client = [&store] {
    return std::make_shared<StoreClient>("127.0.0.1", store->getPort(), std::chrono::seconds(60));
  };
  const std::vector<std::string> errors = testing::run_threads(
      size,
      [&](int64_t rank) {
        return agree_through_store(world[static_cast<size_t>(rank)], client(), "agreement");
      },
      body);
  if (keys_left != nullptr) {
    *keys_left = client()->num_keys();
  }
  return errors;
}

void issue(Collectives& group, const std::string& purpose, Lane lane = Lane::kGather) {
  group.name_next(purpose);
  group.all_gather_into(at::empty({group.size()}), at::ones({1}), lane)->wait();
}

TEST(StoreAgreementTest, IsUnanimousIfAllValuesAreEqualAndLeavesTheKeysOfOneRound) {
  int64_t keys_after_two = 0;
  int64_t keys_after_ten = 0;
  for (int64_t* keys : {&keys_after_two, &keys_after_ten}) {
    const auto errors = run(
        3,
        [&](Collectives& group) {
          for (int round = 0; round < (keys == &keys_after_two ? 2 : 10); ++round) {
            issue(group, "unit a");
            EXPECT_TRUE(group.agree(7)->wait());
            const AgreementPtr divided = group.agree(group.rank() == 2 ? 1 : 0);
            EXPECT_FALSE(divided->wait());
            EXPECT_FALSE(divided->wait());
          }
        },
        keys);
    EXPECT_THAT(errors, Each(std::string()));
  }
  EXPECT_EQ(keys_after_ten, keys_after_two);
}

TEST(StoreAgreementTest, FirstOperationThatDiffersIsNamedOnAllRanks) {
  const auto errors = run(3, [](Collectives& group) {
    issue(group, "unit a");
    EXPECT_TRUE(group.agree(0)->wait());
    issue(group, "unit a");
    issue(group, group.rank() == 1 ? "unit c" : "unit b");
    issue(group, "unit c");
    group.agree(0)->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks 0 and 2 issued all_gather #2 for unit b"),
                                 HasSubstr("but rank 1 issued all_gather #2 for unit c"))));
}

TEST(StoreAgreementTest, OperationsOnlyOneRankHasIssuedAreNamedThoughTheyNeverEnd) {
  const auto errors = run(2, [](Collectives& group) {
    WorkPtr pending;
    if (group.rank() == 0) {
      group.name_next("unit a");
      pending = group.reduce_scatter_into(at::empty({1}), at::ones({2}), ReduceOp::kSum);
    }
    group.agree(0)->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 issued reduce_scatter #1 for unit a on lane 1"),
                                 HasSubstr("but rank 1 issued barrier #1"))));
}

TEST(StoreAgreementTest, LongLogsAreForgottenAlike) {
  const auto errors = run(2, [](Collectives& group) {
    for (int i = 0; i < 4096 + 3; ++i) {
      issue(group, group.rank() == 1 && i == 4097 ? "unit b" : "unit a");
    }
    group.agree(0)->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 issued all_gather #4098 for unit b")));
}

}  // namespace
}  // namespace fsdp
