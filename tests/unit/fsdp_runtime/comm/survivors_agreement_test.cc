#include "fsdp_runtime/src/comm/survivors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>
#include <thread>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Ranks = std::vector<int64_t>;

/// What each rank that comes is told, by what it leaves out.
std::vector<Ranks> agreed(const Ranks& members, const std::map<int64_t, std::set<int64_t>>& coming,
                          std::chrono::milliseconds patience = std::chrono::minutes(10),
                          const std::set<int64_t>& gone = {}) {
  const auto store = testing::serve_store();
  std::vector<Ranks> told(coming.size());
  std::vector<std::thread> threads;
  for (const auto& [rank, excluded] : coming) {
    threads.emplace_back([&, rank = rank, excluded = excluded, index = threads.size()] {
      StoreClient client("127.0.0.1", store->getPort(), std::chrono::seconds(60));
      told[index] = agree_on_survivors(
          client, "world", rank, members, excluded, [&] { return gone; },
          std::chrono::steady_clock::now() + patience);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return told;
}

TEST(SurvivorsAgreementTest, AllThatComeGoOnWithoutTheLost) {
  EXPECT_THAT(agreed({0, 1, 2, 3}, {{0, {2}}, {1, {2}}, {3, {2}}}), Each(ElementsAre(0, 1, 3)));
}

// Else ranks would wait for one that others know to be gone.
TEST(SurvivorsAgreementTest, WhomOneExcludesNobodyWaitsFor) {
  EXPECT_THAT(agreed({0, 1, 2, 3}, {{0, {}}, {3, {1, 2}}}), Each(ElementsAre(0, 3)));
}

TEST(SurvivorsAgreementTest, WhoDoesNotComeIsLeftBehind) {
  EXPECT_THAT(agreed({4, 6, 8}, {{4, {}}, {8, {}}}, std::chrono::seconds(2)),
              Each(ElementsAre(4, 8)));
}

// Where ranks see that another one dies while they wait for it.
TEST(SurvivorsAgreementTest, WhoIsGoneNobodyWaitsFor) {
  EXPECT_THAT(agreed({0, 1, 2, 3}, {{0, {2}}, {1, {2}}}, std::chrono::minutes(10), {3}),
              Each(ElementsAre(0, 1)));
}

// A rank that gave up would be one that has come, and the others would form a group with it.
TEST(SurvivorsAgreementTest, StoreThatIsSilentForSecondsIsAskedAgain) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t server = ::fork();
  if (server == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto store = testing::serve_store();
    const int port = store->getPort();
    (void)!::write(pipe[1], &port, sizeof(port));
    ::pause();
    ::_exit(0);
  }
  int port = 0;
  ASSERT_EQ(::read(pipe[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  std::map<int64_t, Ranks> told;
  const auto come = [&](int64_t rank) {
    StoreClient client("127.0.0.1", port, std::chrono::seconds(60));
    told[rank] = agree_on_survivors(
        client, "world", rank, {0, 1}, {}, [] { return std::set<int64_t>(); },
        std::chrono::steady_clock::now() + std::chrono::minutes(10));
  };
  std::thread first([&] { come(0); });
  StoreClient other("127.0.0.1", port, std::chrono::seconds(60));
  other.wait({"world/arrived/0"}, other.deadline());
  ::kill(server, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // the fault itself
  ::kill(server, SIGCONT);
  other.set("world/arrived/1", ",");
  first.join();
  EXPECT_THAT(told[0], ElementsAre(0, 1));
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

TEST(SurvivorsAgreementTest, WhoIsLeftOutHearsOfItToo) {
  EXPECT_THAT(agreed({0, 1, 2}, {{0, {1}}, {1, {}}, {2, {1}}}), Each(ElementsAre(0, 2)));
}

}  // namespace
}  // namespace fsdp
