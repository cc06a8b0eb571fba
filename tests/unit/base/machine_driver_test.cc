#include "base/machine_driver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::seconds;

/// Answers event n with a record, a message, an action and news that all carry n.
class Counter {
 public:
  using Event = int;
  using Effects = fsdprun::Effects<int, std::string, double, char>;

  void Step(int event, MonoTime now, Effects& effects) {
    EXPECT_TRUE(effects.messages.empty() || event != 1) << "the first step begins with nothing";
    effects.Clear();
    if (event % 2 == 1) {
      effects.persist = event;
    }
    effects.messages = {"first " + std::to_string(event), "second " + std::to_string(event)};
    effects.actions.push_back(event);
    effects.news.push_back(static_cast<char>('0' + event));
    effects.wake_at = now + seconds(event);
  }
};

class Recorder : public MachineDriver<Counter>::Executor {
 public:
  MonoTime Now() override { return MonoTime(seconds(100)); }
  void Persist(const int& record) override { Note("persist " + std::to_string(record)); }
  void WakeAt(MonoTime at) override { Note("wake " + std::to_string((at - Now()) / seconds(1))); }
  void Send(std::string& message) override {
    Note("send " + message);
    if (on_send) {
      on_send();
    }
  }
  void Execute(double& action) override {
    Note("execute " + std::to_string(static_cast<int>(action)));
  }
  void Hear(const char& news) override { Note(std::string("hear ") + news); }
  void OnEvent(const int& event) override { Note("event " + std::to_string(event)); }
  void OnStepped(const int& event, const Counter::Effects& effects) override {
    Note("stepped " + std::to_string(event) + ", " + std::to_string(effects.messages.size()));
  }

  std::function<void()> on_send;
  std::vector<std::string> notes;

 private:
  void Note(std::string what) { notes.push_back(std::move(what)); }
};

class MachineDriverTest : public testing::Test {
 protected:
  static std::vector<std::string> NotesOf(int event) {
    const std::string n = std::to_string(event);
    std::vector<std::string> notes = {"event " + n};
    if (event % 2 == 1) {
      notes.push_back("persist " + n);
    }
    for (const std::string& what : {"wake " + n, "send first " + n, "send second " + n,
                                    "execute " + n, "hear " + n, "stepped " + n + ", 2"}) {
      notes.push_back(what);
    }
    return notes;
  }
  static std::vector<std::string> NotesOf(int first, int second) {
    std::vector<std::string> notes = NotesOf(first);
    const std::vector<std::string> more = NotesOf(second);
    notes.insert(notes.end(), more.begin(), more.end());
    return notes;
  }

  Counter machine_;
  Recorder executor_;
  MachineDriver<Counter> driver_{machine_, executor_};
};

TEST_F(MachineDriverTest, ARecordIsKeptBeforeAnythingOfItsStepIsSeen) {
  driver_.Feed(1);
  EXPECT_EQ(executor_.notes, NotesOf(1));
}

TEST_F(MachineDriverTest, NothingOfTheStepBeforeIsCarriedOutAgain) {
  driver_.Feed(1);
  driver_.Feed(2);
  EXPECT_EQ(executor_.notes, NotesOf(1, 2));
}

TEST_F(MachineDriverTest, AnEventOfAnEffectWaitsUntilItsStepIsCarriedOut) {
  executor_.on_send = [this, is_first = true]() mutable {
    if (std::exchange(is_first, false)) {
      driver_.Feed(2);
    }
  };
  driver_.Feed(1);
  EXPECT_EQ(executor_.notes, NotesOf(1, 2));
}

TEST_F(MachineDriverTest, WhoStopsItCarriesOutTheStepAndTakesNoOtherEvent) {
  executor_.on_send = [this] {
    driver_.Feed(3);
    driver_.Stop();
  };
  driver_.Feed(1);
  driver_.Feed(4);
  EXPECT_EQ(executor_.notes, NotesOf(1));
}

}  // namespace
}  // namespace fsdprun
