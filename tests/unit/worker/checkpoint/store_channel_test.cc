#include "worker/checkpoint/store_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdprun::checkpoint {
namespace {

std::string Nothing(const std::vector<std::string>& /*texts*/) { return ""; }

class StoreChannelTest : public testing::Test {
 protected:
  std::unique_ptr<StoreChannel> Join(int64_t rank, int64_t size,
                                     std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
    StoreChannelOptions options;
    options.store = std::make_shared<fsdp::StoreClient>("127.0.0.1", server_->getPort(),
                                                        std::chrono::seconds(30));
    options.prefix = "checkpoint/1";
    options.rank = rank;
    options.size = size;
    options.timeout = timeout;
    return std::make_unique<StoreChannel>(std::move(options));
  }

  const c10::intrusive_ptr<c10d::TCPStore> server_ = fsdp::testing::serve_store();
};

TEST_F(StoreChannelTest, Rank0HasEveryTextInOrderAndItsAnswerIsEveryRanks) {
  constexpr int64_t kRanks = 3;
  constexpr int kRounds = 40;
  std::vector<std::thread> ranks;
  const int64_t keys_before = server_->getNumKeys();
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto channel = Join(rank, kRanks);
      for (int round = 0; round < kRounds; ++round) {
        const std::string text = std::string("\0\xff", 2) + std::to_string(round);
        const std::string answered =
            channel->Ask(text + "," + std::to_string(rank), [&](const auto& texts) {
              EXPECT_EQ(rank, 0);
              EXPECT_THAT(texts, testing::ElementsAre(text + ",0", text + ",1", text + ",2"));
              return text + "!";
            });
        EXPECT_EQ(answered, text + "!");
        EXPECT_EQ(channel->Broadcast(rank == 0 ? text : "not this"), text);
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  EXPECT_LE(server_->getNumKeys() - keys_before, 4);  // earlier exchanges are forgotten
}

TEST_F(StoreChannelTest, NamesTheRankThatHasNotAnswered) {
  const auto channel = Join(0, 2, std::chrono::milliseconds(300));
  try {
    channel->Ask("mine", Nothing);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), ETIMEDOUT);
    EXPECT_EQ(std::string(error.what()).find("rank 1 has not told"), 0U) << error.what();
  }
}

TEST_F(StoreChannelTest, WhatFailsOnRank0FailsOnAllAndTheNextSeriesIsAsNew) {
  std::vector<std::string> failures(2);
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      // Rank 0 gives up while rank 2 never comes; rank 1 would wait for long.
      const auto channel = Join(rank, 3, std::chrono::milliseconds(rank == 0 ? 200 : 60'000));
      channel->Restart();
      for (int attempt = 0; attempt < 2; ++attempt) {  // the second fails at once
        try {
          channel->Ask("mine", Nothing);
          ADD_FAILURE() << rank;
        } catch (const CheckpointError& error) {
          EXPECT_EQ(error.error_number(), ETIMEDOUT);
          failures[static_cast<size_t>(rank)] = error.what();
        }
      }
      channel->Restart();
      EXPECT_EQ(channel->Broadcast(rank == 0 ? "again" : ""), "again");
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  EXPECT_EQ(failures[0].find("rank 2 has not told"), 0U) << failures[0];
  EXPECT_EQ(failures[1], failures[0]);
}

TEST_F(StoreChannelTest, StoreThatIsGoneIsALostChannel) {
  auto server = fsdp::testing::serve_store();
  StoreChannelOptions options;
  options.store =
      std::make_shared<fsdp::StoreClient>("127.0.0.1", server->getPort(), std::chrono::seconds(30));
  options.prefix = "checkpoint/1";
  options.size = 2;
  options.silence_max = std::chrono::milliseconds(100);
  StoreChannel channel(std::move(options));
  server.reset();
  try {
    channel.Ask("mine", Nothing);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), kChannelLost) << error.what();
  }
}

c10::intrusive_ptr<c10d::TCPStore> ServeAt(uint16_t port) {
  const fsdp::SigpipeBlock no_sigpipe;
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST_F(StoreChannelTest, StoreThatIsOutOfReachForAWhileIsAskedAgain) {
  auto server = fsdp::testing::serve_store();
  const uint16_t port = server->getPort();
  const auto join = [&](int64_t rank) {
    StoreChannelOptions options;
    options.store =
        std::make_shared<fsdp::StoreClient>("127.0.0.1", port, std::chrono::seconds(30));
    options.prefix = "checkpoint/1";
    options.rank = rank;
    options.size = 2;
    return std::make_unique<StoreChannel>(std::move(options));
  };
  const auto rank0 = join(0);
  const auto rank1 = join(1);
  server.reset();  // both connections are cut
  std::thread other([&] { EXPECT_EQ(rank1->Ask("mine", Nothing), "all"); });
  std::thread first([&] {
    EXPECT_EQ(rank0->Ask("first",
                         [](const std::vector<std::string>& texts) {
                           EXPECT_THAT(texts, testing::ElementsAre("first", "mine"));
                           return std::string("all");
                         }),
              "all");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server = ServeAt(port);
  first.join();
  other.join();
  EXPECT_FALSE(rank0->IsLost() || rank1->IsLost());
}

TEST_F(StoreChannelTest, LargeTextIsSentOnceHoweverLongTheStoreReadsIt) {
  StoreChannelOptions options;
  options.store =
      std::make_shared<fsdp::StoreClient>("127.0.0.1", server_->getPort(), std::chrono::seconds(30),
                                          /*call_timeout=*/std::chrono::milliseconds(0));
  options.prefix = "checkpoint/1";
  options.size = 2;
  options.silence_max = std::chrono::milliseconds(0);
  StoreChannel channel(std::move(options));
  const std::string text(size_t{4} << 20, 'x');
  EXPECT_EQ(channel.Broadcast(text), text);
  EXPECT_FALSE(channel.IsLost());
}

TEST_F(StoreChannelTest, WhatRank0HasAnsweredHoldsThoughNobodyHearsIt) {
  auto server = fsdp::testing::serve_store();
  StoreChannelOptions options;
  options.store =
      std::make_shared<fsdp::StoreClient>("127.0.0.1", server->getPort(), std::chrono::seconds(30));
  options.prefix = "checkpoint/1";
  options.silence_max = std::chrono::milliseconds(100);
  StoreChannel channel(std::move(options));
  const std::string answered = channel.Ask("mine", [&](const std::vector<std::string>&) {
    server.reset();
    return std::string("published");
  });
  EXPECT_EQ(answered, "published");
  EXPECT_TRUE(channel.IsLost());
  try {
    channel.Broadcast("more");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), kChannelLost) << error.what();
  }
}

TEST_F(StoreChannelTest, IsCancelledWhileItWaits) {
  const auto channel = Join(1, 2);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    channel->Cancel(CheckpointError("enough", ECANCELED));
  });
  try {
    channel->Broadcast("");
    ADD_FAILURE();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), ECANCELED);
  }
  other.join();
}

}  // namespace
}  // namespace fsdprun::checkpoint
