#include "launcher/run/host_lookups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;

/// Answers for names at once, but for those that begin with "slow" when it is told to.
class NameServer {
 public:
  HostLookups::Addresses LookUp(const std::string& host,
                                const std::function<bool()>& is_cancelled) {
    MutexLock lock(mu_);
    most_ = std::max(most_, ++asked_);
    while (host.rfind("slow", 0) == 0 && !answers_ && !is_cancelled()) {
      changed_.WaitUntil(mu_, MonoNow() + std::chrono::milliseconds(1), [] { return false; });
    }
    --asked_;
    was_cancelled_ = was_cancelled_ || is_cancelled();
    return std::vector<std::string>{absl::StrCat("address of ", host)};
  }
  void Answer() {
    MutexLock lock(mu_);
    answers_ = true;
  }
  size_t asked() {
    MutexLock lock(mu_);
    return asked_;
  }
  size_t most() {
    MutexLock lock(mu_);
    return most_;
  }
  bool was_cancelled() {
    MutexLock lock(mu_);
    return was_cancelled_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool answers_ ABSL_GUARDED_BY(mu_) = false;
  bool was_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  size_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  size_t most_ ABSL_GUARDED_BY(mu_) = 0;
};

class HostLookupsTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& hosts) {
    lookups_->Start(hosts, [this](size_t index, const HostLookups::Addresses& addresses) {
      EXPECT_TRUE(found_.emplace(index, addresses.value()).second);
      waiter_.Notice();
    });
  }
  bool AwaitFound(size_t count) {
    return waiter_.RunUntil([&] { return found_.size() == count; });
  }

  const std::shared_ptr<NameServer> server_ = std::make_shared<NameServer>();
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<HostLookups> lookups_ = std::make_unique<HostLookups>(
      loop_,
      [server = server_](const std::string& host, const std::function<bool()>& is_cancelled) {
        return server->LookUp(host, is_cancelled);
      });
  std::map<size_t, std::vector<std::string>> found_;
};

TEST_F(HostLookupsTest, NameThatNobodyAnswersForHoldsUpNoOther) {
  Start({"slow", "a", "b"});
  ASSERT_TRUE(AwaitFound(2));
  EXPECT_THAT(found_[1], ElementsAre("address of a"));
  EXPECT_THAT(found_[2], ElementsAre("address of b"));
  server_->Answer();
  ASSERT_TRUE(AwaitFound(3));
  EXPECT_THAT(found_[0], ElementsAre("address of slow"));
}

TEST_F(HostLookupsTest, NotMoreAreLookedUpAtOnceThanTheBound) {
  const size_t count = 3 * HostLookups::kAtOnce;
  Start(std::vector<std::string>(count, "slow"));
  ASSERT_TRUE(waiter_.PollUntil([this] { return server_->asked() == HostLookups::kAtOnce; }));
  server_->Answer();
  ASSERT_TRUE(AwaitFound(count));
  EXPECT_EQ(server_->most(), HostLookups::kAtOnce);
}

TEST_F(HostLookupsTest, WhatIsBeingLookedUpEndsWithIt) {
  Start({"slow"});
  ASSERT_TRUE(waiter_.PollUntil([this] { return server_->asked() == 1; }));
  lookups_.reset();
  EXPECT_TRUE(server_->was_cancelled());
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_TRUE(found_.empty());
}

}  // namespace
}  // namespace fsdprun
