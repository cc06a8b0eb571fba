#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <regex>
#include <set>

#include "tests/unit/worker/checkpoint/power_loss_run.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int WithoutSwap(const Record& record) { return record.name == "exchange" ? EINVAL : 0; }

/// A first checkpoint, more of them, one of the same step, old ones removed; then a successor that
/// keeps only what it has saved.
Recording RecordLife(const RecordingFileSystem::Fate& fate) {
  return RecordRun(2, fate, [](Recorder& recorder) {
    recorder.Claim(1, 2);
    for (const int64_t step : {1, 2, 3, 3}) {
      recorder.Save(step);
    }
    recorder.Claim(2, 1);
    recorder.Save(2);
  });
}

/// A job that is started on the disk takes the directory over, resumes and saves.
void ExpectResumes(const Tree& tree, const Summary& promise) {
  const TemporaryDirectory scratch(MemoryDirectory());
  WriteTree(tree, scratch.path());
  const std::string dir = scratch / kDirectory;
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives));
    options.generation = 3;
    Saver saver(std::move(options));
    const int64_t found = LoadAndCheck(dir, 1, Verify::kFull, "auto", &warnings);
    const std::map<int64_t, Tree> steps = StepsIn(ReadTree(scratch.path()));
    EXPECT_EQ(found >= 0, !steps.empty());
    EXPECT_GE(found < 0 ? 0 : SequenceOf(steps.at(found)), promise.newest);
    saver.Save(50, StateOf(0, 1, 50));
  });
  EXPECT_EQ(LoadAndCheck(dir, 1, Verify::kFull, "auto", &warnings), 50);
  EXPECT_THAT(warnings, ElementsAre());
}

/// All states that a power cut at any point can leave keep the promises, and a job resumes from
/// each.
void ExpectSurvivesAnyPowerCut(const Recording& recording, size_t states_min = 200) {
  Inspector inspector;
  Replay replay(recording, inspector);
  std::set<Tree> resumed;
  while (!replay.IsAtEnd()) {
    const std::string point = replay.Next().name + " " + replay.Next().path;
    replay.Step();
    const std::string complaint = replay.Complaint([&](const Tree& tree) {
      if (resumed.insert(tree).second) {
        ExpectResumes(tree, replay.promise());
      }
    });
    ASSERT_EQ(complaint, "") << "power lost after " << point;
    ASSERT_FALSE(testing::Test::HasFailure()) << "power lost after " << point;
  }
  EXPECT_GT(resumed.size(), states_min) << "power cuts have left nothing unfinished";
}

TEST(CheckpointPowerLossTest, AnyPowerCutLeavesWhatWasSaved) {
  ExpectSurvivesAnyPowerCut(RecordLife(nullptr));
}

TEST(CheckpointPowerLossTest, AnyPowerCutLeavesWhatWasSavedOnAFileSystemWithoutSwap) {
  ExpectSurvivesAnyPowerCut(RecordLife(WithoutSwap));
}

/// Saves beside the caller; what is no longer kept is removed when all of them are done.
TEST(CheckpointPowerLossTest, AnyPowerCutLeavesWhatWasSavedBesideTraining) {
  std::promise<void> are_saved;
  const std::shared_future<void> saved = are_saved.get_future().share();
  const auto removes_later = [&](const Record& record) {
    if (record.name == "remove" && record.path.find(".delete-") != std::string::npos) {
      saved.wait();
    }
    return 0;
  };
  const Recording recording = RecordRun(1, removes_later, [&](Recorder& recorder) {
    recorder.Claim(1, 1);
    for (const int64_t step : {1, 2, 3}) {
      recorder.SaveBeside(step);
    }
    are_saved.set_value();
    recorder.SaveBeside(3);
    recorder.Claim(2, 1);
    recorder.SaveBeside(2);
  });
  ExpectSurvivesAnyPowerCut(recording, 100);
}

std::string WithoutRandomNames(const std::string& path) {
  static const std::regex kRandom("\\.(tmp|delete|old)-[-0-9a-f]+");
  return std::regex_replace(path, kRandom, ".$1");
}

/// Which sync of the protocol it is: of what, or after which change of the same rank.
std::string SiteOf(const Recording& recording, size_t index) {
  const std::vector<Record>& records = recording.records;
  static const std::regex kNumber("[0-9]+");
  const auto name_of = [&recording](const Record& record) {
    const std::string name =
        record.path == recording.root ? "." : record.path.substr(record.path.find_last_of('/') + 1);
    // Publishing is a swap or a rename.
    const std::string change = record.name == "exchange" ? "rename" : record.name;
    return change + " " + std::regex_replace(WithoutRandomNames(name), kNumber, "N");
  };
  const Record& record = records[index];
  const bool is_ancestor = (recording.root + "/" + kDirectory).starts_with(record.path + "/");
  if (record.name == "sync" || is_ancestor) {
    return name_of(record);
  }
  do {
    --index;
  } while (records[index].rank != record.rank || records[index].name == "sync_directory");
  return name_of(record) + " after " + name_of(records[index]);
}

/// What the first power cut breaks that breaks anything, if the syncs of this site do nothing.
std::string ComplaintWithout(const std::string& site, const Recording& recording,
                             Inspector& inspector) {
  Replay replay(recording, inspector);
  for (size_t i = 0; i < recording.records.size(); ++i) {
    if (recording.records[i].IsSync() && SiteOf(recording, i) == site) {
      replay.Skip();
      continue;
    }
    replay.Step();
    std::string complaint = replay.Complaint();
    if (!complaint.empty()) {
      return complaint;
    }
  }
  return {};
}

/// Of a life with all that a run syncs, each sync in turn does nothing.
void ExpectEachSyncIsNeeded(const Recording& recording) {
  std::set<std::string> sites;
  for (size_t i = 0; i < recording.records.size(); ++i) {
    if (recording.records[i].IsSync()) {
      sites.insert(SiteOf(recording, i));
    }
  }
  EXPECT_THAT(sites, ElementsAre("sync .claim.tmp",                                        //
                                 "sync .metadata",                                         //
                                 "sync __N_N.distcp",                                      //
                                 "sync fsdprun.json",                                      //
                                 "sync latest.tmp",                                        //
                                 "sync_directory .",                                       //
                                 "sync_directory checkpoints after rename .claim",         //
                                 "sync_directory checkpoints after rename latest",         //
                                 "sync_directory checkpoints after rename step-N",         //
                                 "sync_directory checkpoints after rename step-N.delete",  //
                                 "sync_directory runs",                                    //
                                 "sync_directory step-N.tmp after sync .metadata",         //
                                 "sync_directory step-N.tmp after sync __N_N.distcp"));
  Inspector inspector;
  for (const std::string& site : sites) {
    EXPECT_NE(ComplaintWithout(site, recording, inspector), "") << site;
  }
}

TEST(CheckpointPowerLossTest, WithoutAnyOneSyncSomethingIsLost) {
  ExpectEachSyncIsNeeded(RecordLife(nullptr));
}

TEST(CheckpointPowerLossTest, WithoutAnyOneSyncSomethingIsLostOnAFileSystemWithoutSwap) {
  ExpectEachSyncIsNeeded(RecordLife(WithoutSwap));
}

struct Killed {};

/// A run that is killed at change number `at` of its second Save of a step. Then a successor saves
/// another. False: the Save has no such change. The third and later of a file's writes are none of
/// their own: a file that is not whole is not whole.
bool RecordKill(size_t at, bool has_swap, Recording& recording) {
  size_t changes = 0;
  std::string file;  // That was written to last.
  int writes = 0;    // How often, without another change in between.
  bool is_armed = false;
  const auto fate = [&](const Record& record) {
    const bool is_same = record.name == "write" && record.path == file;
    file = record.name == "write" ? record.path : "";
    writes = is_same ? writes + 1 : 1;
    if (is_armed && writes <= 2 && changes++ == at) {
      is_armed = false;
      throw Killed();
    }
    return has_swap ? 0 : WithoutSwap(record);
  };
  bool was_killed = false;
  recording = RecordRun(1, fate, [&](Recorder& recorder) {
    recorder.Claim(1, 1);
    recorder.Save(2);
    is_armed = true;
    try {
      recorder.Save(2);
    } catch (const Killed&) {
      was_killed = true;
      recorder.Note(kKilled);
    }
    is_armed = false;
    recorder.Claim(2, 1);
    recorder.Save(3);
  });
  return was_killed;
}

TEST(CheckpointPowerLossTest, PowerCutAfterAKillLosesNothing) {
  for (const bool has_swap : {true, false}) {
    Recording recording;
    Inspector inspector;
    size_t at = 0;
    for (; RecordKill(at, has_swap, recording); ++at) {
      Replay replay(recording, inspector);
      while (replay.Next().name != kKilled) {
        replay.Step();
      }
      while (!replay.IsAtEnd()) {
        replay.Step();
        ASSERT_EQ(replay.Complaint(), "") << "killed at change " << at << " of the save";
      }
    }
    EXPECT_GT(at, 20u);
  }
}

TEST(CheckpointPowerLossTest, SwapThatCannotBeSyncedKeepsWhatItReplaced) {
  for (const bool has_swap : {true, false}) {
    int moved = 0;
    const auto fate = [&](const Record& record) {
      moved += (record.name == "rename" || record.name == "exchange") &&
               record.path.ends_with("/step-2");
      const bool is_broken = record.name == "sync_directory" && record.path.ends_with(kDirectory);
      return is_broken && moved > (has_swap ? 1 : 2) ? EIO : has_swap ? 0 : WithoutSwap(record);
    };
    const Recording recording = RecordRun(1, fate, [](Recorder& recorder) {
      recorder.Claim(1, 1);
      recorder.Save(2);
      for (int attempt = 0; attempt < 2; ++attempt) {  // the second cannot sync the first
        EXPECT_THAT(MessageOf<CheckpointError>([&] { recorder.Save(2); }),
                    HasSubstr("Input/output error"));
      }
    });
    Inspector inspector;
    Replay replay(recording, inspector);
    while (!replay.IsAtEnd()) {
      const std::string point = replay.Next().name + " " + replay.Next().path;
      replay.Step();
      ASSERT_EQ(replay.Complaint(), "") << point;
    }
    EXPECT_EQ(replay.promise().newest, 1);
  }
}

/// The changes of a run with paths below its directory and without random names; the writes of a
/// file as one.
std::vector<std::string> Protocol(const Recording& recording) {
  const std::string directory = recording.root + "/" + kDirectory;
  std::vector<std::string> lines;
  for (const Record& record : recording.records) {
    std::string path =
        record.path.starts_with(directory) ? record.path.substr(directory.size()) : record.path;
    std::string line = record.name + " ." + WithoutRandomNames(path);
    if (lines.empty() || line != lines.back()) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

TEST(CheckpointPowerLossTest, SyncsComeInTheOrderOfTheProtocol) {
  const Recording recording = RecordRun(1, nullptr, [](Recorder& recorder) {
    recorder.Claim(1, 1);
    recorder.Save(1);
    recorder.Save(2);
  });
  const std::vector<std::string> protocol = Protocol(recording);
  const auto saved = std::find(protocol.begin(), protocol.end(), std::string(kSaved) + " .");
  ASSERT_NE(saved, protocol.end());
  EXPECT_THAT(std::vector<std::string>(saved + 1, protocol.end()),
              ElementsAre("make_directory ./step-2.tmp",        //
                          "create ./step-2.tmp/__0_0.distcp",   //
                          "reserve ./step-2.tmp/__0_0.distcp",  //
                          "write ./step-2.tmp/__0_0.distcp",    //
                          "sync ./step-2.tmp/__0_0.distcp",     //
                          "sync_directory ./step-2.tmp",        //
                          "create ./.lock",                     //
                          "create ./step-2.tmp/fsdprun.json",   //
                          "write ./step-2.tmp/fsdprun.json",    //
                          "sync ./step-2.tmp/fsdprun.json",     //
                          "create ./step-2.tmp/.metadata",      //
                          "write ./step-2.tmp/.metadata",       //
                          "sync ./step-2.tmp/.metadata",        //
                          "sync_directory ./step-2.tmp",        //
                          "rename ./step-2",                    //
                          "sync_directory .",                   //
                          "create ./latest.tmp",                //
                          "write ./latest.tmp",                 //
                          "sync ./latest.tmp",                  //
                          "rename ./latest",                    //
                          "sync_directory .",                   //
                          "create ./.lock",                     //
                          "rename ./step-1.delete",             //
                          "sync_directory .",                   //
                          "remove ./step-2.tmp",                //
                          "remove ./step-2.old",                //
                          "remove ./step-1.delete",             //
                          "saved ."));
}

}  // namespace
}  // namespace fsdprun::checkpoint
