#pragma once

// Records what a run of Savers does to the disk, and tells what a power cut at any point breaks.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/manifest.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"
#include "tests/unit/worker/checkpoint/power_loss_disk.h"
#include "worker/checkpoint/channel.h"

namespace fsdprun::checkpoint {

// What a rank told its caller, among the records of what it did.
inline constexpr char kClaimed[] = "claimed";  // a Saver was made
inline constexpr char kSaved[] = "saved";      // a Save returned
inline constexpr char kKilled[] = "killed";    // it was killed

// Another program has made `runs` and not synced it; the rest is made by the first Saver.
inline constexpr char kParent[] = "runs";
inline constexpr char kDirectory[] = "runs/checkpoints";

/// What a run did on the disk, and on which.
struct Recording {
  std::string root;
  std::vector<Record> records;
};

/// What a directory of checkpoints says. A state after a power cut must say at least what the
/// directory said when the newest Saver was made (claim) and when the newest Save returned (rest);
/// of the older checkpoints, what has not been removed since.
struct Summary {
  int64_t newest = 0;           // the number (sequence) of the newest checkpoint; 0: none
  std::set<int64_t> sequences;  // of all
  std::string claim;
  std::string latest;
};

inline std::string ContentOf(const Tree& tree, const std::string& name) {
  const auto found = tree.find(std::string(kDirectory) + "/" + name);
  return found != tree.end() && found->second ? *found->second : std::string();
}

inline Tree Below(const Tree& tree, const std::string& directory) {
  const std::string prefix = directory + "/";
  Tree below;
  for (auto entry = tree.lower_bound(prefix);
       entry != tree.end() && entry->first.starts_with(prefix); ++entry) {
    below[entry->first.substr(prefix.size())] = entry->second;
  }
  return below;
}

/// The checkpoints by step. One that was moved aside and not replaced yet counts: the next Saver
/// puts it back.
inline std::map<int64_t, Tree> StepsIn(const Tree& tree) {
  std::map<int64_t, Tree> steps;
  for (const bool is_aside : {false, true}) {
    for (const auto& [path, content] : Below(tree, kDirectory)) {
      const size_t aside = path.find(".old-");
      const auto step = ParseStepName(path.substr(0, is_aside ? aside : std::string::npos));
      if (step && path.find('/') == std::string::npos && is_aside == (aside != std::string::npos)) {
        steps.try_emplace(*step, Below(tree, std::string(kDirectory) + "/" + path));
      }
    }
  }
  return steps;
}

inline int64_t SequenceOf(const Tree& checkpoint) {
  return json::parse(checkpoint.at(kManifestFile).value()).at("sequence").get<int64_t>();
}

/// Says what a power cut has broken.
class Inspector {
 public:
  Summary Summarize(const Tree& tree) {
    Summary summary{0, {}, ContentOf(tree, ".claim"), ContentOf(tree, "latest")};
    for (const auto& [step, files] : StepsIn(tree)) {
      summary.sequences.insert(Inspect(step, files).sequence);
    }
    summary.newest = summary.sequences.empty() ? 0 : *summary.sequences.rbegin();
    return summary;
  }

  /// `now`: what running programs saw. Empty: all that was promised is there.
  std::string Complaint(const Tree& tree, const Summary& now, const Summary& promise) {
    const std::map<int64_t, Tree> steps = StepsIn(tree);
    for (const auto& [step, files] : steps) {
      if (const std::string& damage = Inspect(step, files).damage; !damage.empty()) {
        return damage;
      }
    }
    const Summary left = Summarize(tree);
    if (left.newest < promise.newest || left.newest > now.newest) {
      return "the newest checkpoint is number " + std::to_string(left.newest) + ", but number " +
             std::to_string(promise.newest) + " was saved";
    }
    for (const int64_t sequence : promise.sequences) {
      if (now.sequences.contains(sequence) && !left.sequences.contains(sequence)) {
        return "the older checkpoint number " + std::to_string(sequence) + " is lost";
      }
    }
    if (left.claim != promise.claim && left.claim != now.claim) {
      return "the claim is lost";
    }
    if (left.latest != promise.latest && left.latest != now.latest) {
      return "`latest` is lost";
    }
    const auto named = ParseStepName(left.latest.substr(0, left.latest.find('\n')));
    if (!left.latest.empty() && !(named && steps.contains(*named))) {
      return "`latest` names " + left.latest + ", which is not there";
    }
    return {};
  }

 private:
  struct Finding {
    std::string damage;  // why the checkpoint is not as it was saved, or empty
    int64_t sequence = 0;
  };

  const Finding& Inspect(int64_t step, const Tree& files) {
    const auto [known, is_new] = known_.try_emplace({step, files});
    Finding& finding = known->second;
    if (!is_new) {
      return finding;
    }
    if (!files.contains(kManifestFile)) {
      finding.damage = "there is no fsdprun.json";  // what Python writes has none and would load
      return finding;
    }
    const TemporaryDirectory scratch(MemoryDirectory());
    const std::string path = scratch / StepName(step);
    WriteTree(files, path);
    try {
      EXPECT_EQ(LoadAndCheck(scratch.path(), 1, Verify::kFull, path), step);
      finding.sequence = SequenceOf(files);
    } catch (const CheckpointError& error) {
      finding.damage = error.what();
    }
    return finding;
  }

  std::map<std::pair<int64_t, Tree>, Finding> known_;
};

/// The power may go after any record of a recording.
class Replay {
 public:
  Replay(const Recording& recording, Inspector& inspector)
      : recording_(recording), inspector_(inspector), disk_(recording.root) {}

  bool IsAtEnd() const { return next_ == recording_.records.size(); }
  const Record& Next() const { return recording_.records[next_]; }
  void Skip() { ++next_; }
  const Summary& promise() const { return promise_; }

  void Step() {
    const Record& record = recording_.records[next_++];
    disk_.Apply(record);
    if (record.name == kClaimed) {
      promise_.claim = inspector_.Summarize(disk_.Now()).claim;
    } else if (record.name == kSaved) {
      promise_ = inspector_.Summarize(disk_.Now());
    }
  }

  /// Within the writes of one file: a power cut now leaves nothing that one after them cannot.
  bool IsAmidWrites() const {
    return !IsAtEnd() && next_ > 0 && Next().name == "write" &&
           recording_.records[next_ - 1].name == "write" &&
           recording_.records[next_ - 1].path == Next().path;
  }

  /// What some power cut at this point breaks, or empty. `visit` gets the states that are good.
  std::string Complaint(const std::function<void(const Tree&)>& visit = nullptr) const {
    if (IsAmidWrites()) {
      return {};
    }
    const Summary now = inspector_.Summarize(disk_.Now());
    for (const Tree& tree : disk_.AfterPowerLoss()) {
      std::string complaint = inspector_.Complaint(tree, now, promise_);
      if (!complaint.empty()) {
        return complaint;
      }
      if (visit) {
        visit(tree);
      }
    }
    return {};
  }

 private:
  const Recording& recording_;
  Inspector& inspector_;
  PowerLossDisk disk_;
  Summary promise_;
  size_t next_ = 0;
};

/// One rank's way to save; `fate` is of its changes to the disk.
class Recorder {
 public:
  Recorder(RecordLog& log, std::string dir, std::shared_ptr<fsdp::Collectives> collectives,
           RecordingFileSystem::Fate fate)
      : log_(log), collectives_(std::move(collectives)) {
    options_ = OptionsOf(dir, GroupOf(collectives_));
    options_.file_system =
        std::make_shared<RecordingFileSystem>(log, collectives_->rank(), std::move(fate));
    options_.background = std::make_shared<LoneChannel>();  // Of a world of one only.
  }

  void Claim(uint64_t generation, int64_t keep) {
    options_.generation = generation;
    options_.keep = keep;
    saver_.emplace(options_);
    Note(kClaimed);
  }

  void Save(int64_t step) {
    saver_->Save(step, StateOf(collectives_->rank(), collectives_->size(), step));
    Note(kSaved);
  }

  /// Changes the state, as the next step of a training would, as soon as it may.
  void SaveBeside(int64_t step) {
    State state = StateOf(collectives_->rank(), collectives_->size(), step);
    saver_->Begin(step, state);
    saver_->AwaitCopy();
    for (const fsdp::LocalShard& slice : state.tensors) {
      slice.local.zero_();
    }
    saver_->Finish();
    Note(kSaved);
  }

  void Note(const char* name) {
    if (collectives_->rank() == 0) {
      log_.Add({.name = name});
    }
  }

 private:
  RecordLog& log_;
  std::shared_ptr<fsdp::Collectives> collectives_;
  SaverOptions options_;
  std::optional<Saver> saver_;
};

/// Runs `body` on each rank over a directory of its own. The model's tree and the real one must be
/// equal at the end, else the model misses what the product does.
inline Recording RecordRun(int64_t size, const RecordingFileSystem::Fate& fate,
                           const std::function<void(Recorder&)>& body) {
  const TemporaryDirectory root(MemoryDirectory());
  RecordLog log;
  std::filesystem::create_directory(root / kParent);
  log.Add({.name = "make_directory", .path = root / kParent});
  ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Recorder recorder(log, root / kDirectory, collectives, fate);
    body(recorder);
  });
  Recording recording{root.path(), log.records()};
  // The root and what it lies in are durable.
  std::erase_if(recording.records, [&](const Record& record) {
    return record.name == "sync_directory" && !record.path.starts_with(root.path());
  });
  PowerLossDisk disk(root.path());
  for (const Record& record : recording.records) {
    disk.Apply(record);
  }
  EXPECT_EQ(disk.Now(), ReadTree(root.path()));
  return recording;
}

}  // namespace fsdprun::checkpoint
