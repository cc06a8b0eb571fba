#include "fsdp_runtime/src/comm/store_agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Store = c10::intrusive_ptr<c10d::TCPStore>;

/// The errors of ranks whose operations are compared through `store` only.
std::vector<std::string> run(int64_t size, const testing::Body& body,
                             const Store& store = testing::serve_store(),
                             std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  auto world = make_local_world(size);
  const uint16_t port = store->getPort();
  return testing::run_threads(
      size,
      [&](int64_t rank) {
        return agree_through_store(world[static_cast<size_t>(rank)],
                                   std::make_shared<StoreClient>("127.0.0.1", port, timeout),
                                   "agreement");
      },
      body);
}

/// The server's ends of all connections with the store.
void cut_connections(const Store& store) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in6 own{};
    sockaddr_in6 peer{};
    socklen_t own_length = sizeof(own);
    socklen_t peer_length = sizeof(peer);
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
        ntohs(own.sin6_port) == store->getPort()) {  // where that of IPv4 is, too
      ::shutdown(fd, SHUT_RDWR);
    }
  }
}

void issue(Collectives& group, const std::string& purpose, Lane lane = Lane::kGather) {
  group.name_next(purpose);
  group.all_gather_into(at::empty({group.size()}), at::ones({1}), lane)->wait();
}

/// An operation that does not end, because this rank alone issues it.
WorkPtr issue_alone(Collectives& group, const std::string& purpose) {
  group.name_next(purpose);
  return group.reduce_scatter_into(at::empty({1}), at::ones({group.size()}), ReduceOp::kSum);
}

TEST(StoreAgreementTest, IsUnanimousIfAllValuesAreEqualAndLeavesTheKeysOfFewRounds) {
  const Store store = testing::serve_store();
  const auto errors = run(
      3,
      [](Collectives& group) {
        for (int round = 0; round < 100; ++round) {
          issue(group, "unit a");
          EXPECT_TRUE(group.agree(7)->wait());
          const AgreementPtr divided = group.agree(group.rank() == 2 ? 1 : 0);
          EXPECT_FALSE(divided->wait());
          EXPECT_FALSE(divided->wait());
        }
      },
      store);
  EXPECT_THAT(errors, Each(std::string()));
  EXPECT_LE(store->getNumKeys(), 66 * 4) << "three values and a verdict for each round";
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
      pending = issue_alone(group, "unit a");
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

TEST(StoreAgreementTest, RanksThatDoNotArriveAreNamedOnTheOthers) {
  for (const int64_t missing : {0, 2}) {
    const auto errors = run(
        3,
        [&](Collectives& group) {
          issue(group, "unit a");
          group.barrier();
          if (group.rank() != missing) {
            issue_alone(group, "unit b");
            group.agree(0)->wait();
          }
        },
        testing::serve_store(), std::chrono::seconds(2));
    for (int64_t rank = 0; rank < 3; ++rank) {
      const std::string& error = errors[static_cast<size_t>(rank)];
      if (rank == missing) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_THAT(error,
                    AllOf(HasSubstr("these ranks had not arrived: " + std::to_string(missing) +
                                    "; rank " + std::to_string(rank)),
                          HasSubstr("had issued reduce_scatter #2 for unit b on lane 1")));
      }
    }
  }
}

TEST(StoreAgreementTest, ConnectionThatBreaksIsReplaced) {
  const Store store = testing::serve_store();
  const auto errors = run(
      2,
      [&](Collectives& group) {
        EXPECT_TRUE(group.agree(0)->wait());
        group.barrier();
        if (group.rank() == 0) {
          cut_connections(store);
        }
        group.barrier();
        EXPECT_TRUE(group.agree(0)->wait());
      },
      store);
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(StoreAgreementTest, RanksThatLoseTheStoreAreVictims) {
  Store store = testing::serve_store();
  const auto errors = run(
      2,
      [&](Collectives& group) {
        EXPECT_TRUE(group.agree(0)->wait());
        group.barrier();
        if (group.rank() == 0) {
          store.reset();
        }
        group.barrier();
        EXPECT_THROW(group.agree(0)->wait(), PeerError);
      },
      store);
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(StoreAgreementTest, MarkThatIsWaitedForComparesTheOperationsBeforeIt) {
  const auto errors = run(2, [](Collectives& group) {
    issue(group, group.rank() == 0 ? "unit a" : "unit b");
    group.name_next("the end of a forward");
    group.mark(Lane::kGather)->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 issued all_gather #1 for unit a")));
}

TEST(StoreAgreementTest, MarkNeedsNoAgreementOfItsOwnIfOneHasFollowed) {
  const Store store = testing::serve_store();
  const int64_t keys_before = store->getNumKeys();
  const auto errors = run(
      2,
      [](Collectives& group) {
        for (int round = 0; round < 3; ++round) {
          const WorkPtr mark = group.mark(Lane::kGather);
          EXPECT_TRUE(group.agree(0)->wait());
          mark->wait();
        }
      },
      store);
  EXPECT_THAT(errors, Each(std::string()));
  EXPECT_EQ(store->getNumKeys() - keys_before, 3 * 3);
}

}  // namespace
}  // namespace fsdp
