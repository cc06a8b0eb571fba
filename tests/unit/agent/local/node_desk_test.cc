#include "agent/local/node_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeDeskTest : public testing::Test {
 protected:
  NodeDeskTest() : folder_(testing::TempDir() + "node_desk_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~NodeDeskTest() override { RemoveFolder(folder_); }

  void AskLogs(uint64_t id, bool follow, const std::vector<int>& ranks = {}) {
    v1::ToNodeAside aside;
    aside.set_id(id);
    aside.mutable_logs()->set_follow(follow);
    aside.mutable_logs()->set_tail_lines(10);
    aside.mutable_logs()->mutable_ranks()->Add(ranks.begin(), ranks.end());
    desk_.Hear(aside);
  }
  void AskSave(uint64_t id) {
    v1::ToNodeAside aside;
    aside.set_id(id);
    aside.mutable_save();
    desk_.Hear(aside);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::app) << text;
  }
  bool UntilAnswers(size_t count) {
    return waiter_.RunUntil([this, count] { return answers_.size() >= count; });
  }

  const std::string folder_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::vector<NodeDesk::Worker> workers_;
  int asked_to_save_ = 0;
  std::vector<v1::NodeAnswer> answers_;
  NodeDesk desk_{loop_,
                 [] { return StackReader::Programs{}; },
                 {.generation = [] { return Generation(4); },
                  .workers = [this] { return workers_; },
                  .ask_to_save = [this] { return asked_to_save_; },
                  .send =
                      [this](const v1::FromNodeAside& aside) {
                        answers_.push_back(aside.answer());
                        waiter_.Notice();
                      },
                  .unwritten = [] { return size_t{0}; }}};
};

TEST_F(NodeDeskTest, TellsLogsOfTheRanksThatAreWanted) {
  workers_ = {{.rank = 2, .stdout_path = folder_ + "/2"},
              {.rank = 3, .stdout_path = folder_ + "/3"}};
  Write("2", "two\n");
  Write("3", "three\n");
  AskLogs(9, /*follow=*/false, {3});
  ASSERT_TRUE(UntilAnswers(3));
  EXPECT_TRUE(answers_[0].logs().is_not_kept());  // Its standard error.
  EXPECT_THAT(answers_[1].logs().lines(), ElementsAre("three"));
  EXPECT_EQ(answers_[1].logs().rank(), 3);
  EXPECT_EQ(answers_[1].logs().generation(), 4u);
  EXPECT_EQ(answers_[1].id(), 9u);
  EXPECT_TRUE(answers_[2].is_last());
}

TEST_F(NodeDeskTest, FollowsTheWorkersOfTheNextWorld) {
  workers_ = {{.rank = 0, .stdout_path = folder_ + "/a", .stderr_path = folder_ + "/b"}};
  Write("a", "first\n");
  AskLogs(1, /*follow=*/true);
  ASSERT_TRUE(UntilAnswers(1));
  workers_[0].stdout_path = folder_ + "/c";
  desk_.WorkersBegan();
  Write("c", "second\n");
  ASSERT_TRUE(UntilAnswers(2));
  EXPECT_THAT(answers_[1].logs().lines(), ElementsAre("second"));
}

TEST_F(NodeDeskTest, WhatIsUnwantedIsAnsweredNoMore) {
  workers_ = {{.rank = 0, .stdout_path = folder_ + "/a", .stderr_path = folder_ + "/b"}};
  AskLogs(1, /*follow=*/true);
  v1::ToNodeAside unwanted;
  unwanted.set_id(1);
  unwanted.mutable_unwanted();
  desk_.Hear(unwanted);
  AskLogs(2, /*follow=*/true);
  desk_.StreamLost();
  Write("a", "unheard\n");
  ASSERT_TRUE(waiter_.PollUntil([&, polls = 0]() mutable { return ++polls > 300; }));
  EXPECT_TRUE(answers_.empty());
}

TEST_F(NodeDeskTest, TheNodeOfRankZeroTellsOfTheCheckpoint) {
  asked_to_save_ = 2;
  workers_ = {{.rank = 0}, {.rank = 1}};
  AskSave(5);
  desk_.CheckpointTold({.rank = 0, .step = 120, .path = "/checkpoints/step-120", .error = ""});
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[0].save().workers(), 2);
  EXPECT_FALSE(answers_[0].is_last());
  EXPECT_EQ(answers_[1].saved().step(), 120);
  EXPECT_EQ(answers_[1].saved().path(), "/checkpoints/step-120");
  EXPECT_TRUE(answers_[1].is_last());
  desk_.CheckpointTold({.rank = 0, .step = 240, .path = "nobody asked", .error = ""});
  EXPECT_EQ(answers_.size(), 2u);
}

TEST_F(NodeDeskTest, CheckpointThatCannotBeIsARefusal) {
  asked_to_save_ = 1;
  workers_ = {{.rank = 0}};
  AskSave(5);
  desk_.CheckpointTold({.rank = 0, .step = 7, .path = "", .error = "checkpoint.dir is not set"});
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[1].refusal(), "rank 0 has not saved step 7: checkpoint.dir is not set");
  EXPECT_TRUE(answers_[1].is_last());
}

TEST_F(NodeDeskTest, AnotherNodeOnlyPassesItOn) {
  asked_to_save_ = 2;
  workers_ = {{.rank = 2}, {.rank = 3}};
  AskSave(5);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0].is_last());
}

TEST_F(NodeDeskTest, RefusesWhatItCannotAnswer) {
  AskSave(1);
  EXPECT_THAT(answers_.back().refusal(), HasSubstr("no worker runs"));
  v1::ToNodeAside stacks;
  stacks.set_id(2);
  stacks.mutable_stacks();
  desk_.Hear(stacks);
  EXPECT_THAT(answers_.back().refusal(), HasSubstr("no such worker runs"));
  v1::ToNodeAside unknown;
  unknown.set_id(3);
  desk_.Hear(unknown);
  EXPECT_THAT(answers_.back().refusal(), HasSubstr("does not know the question"));
  for (uint64_t id = 10; id <= 10 + NodeDesk::kQuestionsMax; ++id) {
    AskLogs(id, /*follow=*/true);
  }
  EXPECT_THAT(answers_.back().refusal(), HasSubstr("too much"));
}

}  // namespace
}  // namespace fsdprun
