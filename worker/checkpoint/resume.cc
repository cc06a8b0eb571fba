#include "worker/checkpoint/resume.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "formats/checkpoint/checkpoint_reader.h"
#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/patience.h"

namespace fsdprun::checkpoint {
namespace {

using nlohmann::json;

/// On rank 0.
std::vector<StepEntry> ListOf(const Group& group, const std::string& given) {
  const std::string directory = WithoutTrailingSlash(given);
  return group.steps ? group.steps->List(directory) : StepList().List(directory);
}

/// Paths to try, newest first; warns of directories that are not candidates.
std::vector<std::string> CandidatesIn(const std::string& directory, const Group& group) {
  std::vector<std::string> paths;
  for (const StepEntry& entry : ListOf(group, directory)) {
    if (entry.is_complete) {
      paths.push_back(entry.path);
    } else {
      EmitWarning(group, "skipped " + entry.path + ": it is incomplete (no .metadata)");
    }
  }
  return paths;
}

/// `path` itself, or the checkpoints in it.
std::vector<std::string> CandidatesAt(const std::string& given, const Group& group) {
  const std::string path = WithoutTrailingSlash(given);
  if (!DirectoryExists(path)) {
    throw CheckpointError(path +
                          ": no such directory; expected a checkpoint or a directory of them");
  }
  if (FileExists(path + "/" + kMetadataFile)) {
    return {path};
  }
  std::vector<std::string> paths = CandidatesIn(path, group);
  if (paths.empty()) {
    throw CheckpointError(path + " is no checkpoint (no .metadata) and holds no step-<N>");
  }
  return paths;
}

/// How many ranks have written a file, by the files' names: __<rank>_<number>.distcp.
int64_t CountWriters(const DcpMetadata& metadata) {
  std::set<std::string> writers;
  const auto note = [&](const BlobLocation& blob) {
    if (blob.file.starts_with("__")) {
      writers.insert(blob.file.substr(0, blob.file.find('_', 2)));
    }
  };
  for (const auto& [key, blob] : metadata.objects) {
    note(blob);
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    for (const StoredChunk& chunk : tensor.chunks) {
      note(chunk.blob);
    }
  }
  return static_cast<int64_t>(writers.size());
}

Candidate Describe(const OpenedCheckpoint& opened) {
  Candidate candidate;
  candidate.path = opened.path;
  candidate.has_checksums = opened.manifest.has_value();
  if (opened.manifest) {
    candidate.step = opened.manifest->step;
    candidate.world_size = opened.manifest->world_size;
    candidate.run = opened.manifest->run;
  } else {
    candidate.step =
        ParseStepName(opened.path.substr(opened.path.find_last_of('/') + 1)).value_or(0);
    candidate.world_size = CountWriters(opened.metadata);
  }
  return candidate;
}

/// Each rank reads every world-size'th file.
void VerifyOwnFiles(const std::string& path, const Group& group) {
  const std::string name = path + "/" + kManifestFile;
  const Manifest manifest = DecodeManifest(ReadWholeFile(name, kManifestBytesMax), name);
  int64_t index = 0;
  for (const auto& [file, expected] : manifest.files) {
    if (index++ % group.collectives->size() == group.collectives->rank()) {
      VerifyFile(path, file, expected);
    }
  }
}

/// Throws on all ranks, or on none.
Candidate VerifyOnAll(const std::string& path, const Group& group, Verify verify) {
  const std::string text = AttemptOnRank0(group, [&] {
    const Candidate candidate = Describe(OpenCheckpoint(path));
    return json{candidate.path, candidate.step, candidate.world_size, candidate.has_checksums,
                candidate.run}
        .dump();
  });
  const json value = json::parse(text);
  Candidate candidate;
  candidate.path = value.at(0).get<std::string>();
  candidate.step = value.at(1).get<int64_t>();
  candidate.world_size = value.at(2).get<int64_t>();
  candidate.has_checksums = value.at(3).get<bool>();
  candidate.run = value.at(4).get<std::string>();
  if (verify == Verify::kFull && candidate.has_checksums) {
    AttemptOnAll(group, [&] {
      VerifyOwnFiles(candidate.path, group);
      return std::string();
    });
    candidate.files_verified = true;
  }
  return candidate;
}

/// The newest checkpoint that verifies, and what was tried before it.
struct Search {
  std::optional<Candidate> found;
  std::vector<std::string> warnings;  // one per checkpoint that does not verify, newest first
  std::string first_error;
  int error_number = 0;  // of an error that may pass, if there was one
};

// Note [Removed while it is read]
// Who holds a directory goes on saving while another start reads it, and makes room: what was
// listed may be gone when it is opened, and so may what was verified when it is loaded. Then there
// is a newer one, or there was, so the directory is listed again, and not an older one of the old
// list taken. As often as a holder that saves all the time could need; after that it is an error.
constexpr int kSearchesMax = 5;

/// Collective.
bool WasRemoved(const std::string& path, const Group& group) {
  const std::string answer = AttemptOnRank0(group, [&]() -> std::string {
    try {
      return DirectoryExists(path) ? "there" : "removed";
    } catch (const CheckpointError&) {
      return "unknown";
    }
  });
  return answer == "removed";
}

/// So that it does not count as one of those that are kept.
void NoteDamaged(const std::string& path, const CheckpointError& error, const Group& group) {
  if (group.steps && IsDamage(error.error_number())) {
    group.steps->NoteDamaged(path);
  }
}

/// How candidates are looked at.
struct Look {
  Verify verify;
  const Unloadable& unloadable;
};

/// Throws on all ranks, or on none.
Candidate VerifyUnlessUnloadable(const std::string& path, const Group& group, const Look& look) {
  if (const auto known = look.unloadable.find(path); known != look.unloadable.end()) {
    throw known->second;
  }
  return ReadPatiently(group, [&] { return VerifyOnAll(path, group, look.verify); });
}

/// nullopt if one of them was removed in the meantime, unless `is_last`.
std::optional<Search> TryInTurn(const json& paths, const Group& group, const Look& look,
                                bool is_last) {
  Search search;
  for (const json& path : paths) {
    try {
      search.found = VerifyUnlessUnloadable(path.get<std::string>(), group, look);
      for (const std::string& warning : search.warnings) {
        EmitWarning(group, warning + "; taking the older " + search.found->path + " instead");
      }
      break;
    } catch (const CheckpointError& error) {
      if (!is_last && WasRemoved(path.get<std::string>(), group)) {
        return std::nullopt;
      }
      if (!IsDamage(error.error_number())) {
        throw;
      }
      NoteDamaged(path.get<std::string>(), error, group);
      search.warnings.push_back("skipped " + path.get<std::string>() + ": " + error.what());
      search.first_error = search.first_error.empty() ? error.what() : search.first_error;
      if (MayPass(error.error_number())) {
        search.error_number = error.error_number();
      }
    }
  }
  return search;
}

/// `list` runs on rank 0 only.
Search FindNewest(const Group& group, const Look& look,
                  const std::function<std::vector<std::string>()>& list) {
  for (int number = 1;; ++number) {
    const json paths = json::parse(ReadPatiently(
        group, [&] { return AttemptOnRank0(group, [&] { return json(list()).dump(); }); }));
    if (auto search = TryInTurn(paths, group, look, number == kSearchesMax)) {
      return std::move(*search);
    }
  }
}

constexpr char kStartOver[] = "move it away and start the job anew if its steps may be done again";

/// Those of the launch, newest first. After a restart an unreadable fsdprun.json may be of its only
/// checkpoint: going on without would silently do all steps again.
std::vector<std::string> OwnCandidates(const std::string& directory, const Launch& launch,
                                       const Group& group) {
  std::vector<std::string> paths;
  int64_t newest = -1;
  std::string unreadable;
  int64_t unreadable_step = -1;
  for (const StepEntry& entry : ListOf(group, directory)) {
    if (!entry.sequence) {
      unreadable = entry.step > unreadable_step ? entry.path : unreadable;
      unreadable_step = std::max(unreadable_step, entry.step);
    } else if (entry.is_complete && entry.job_id == launch.job_id) {
      paths.push_back(entry.path);
      newest = std::max(newest, entry.step);
    }
  }
  if (paths.empty() && !unreadable.empty() && launch.is_restart) {
    throw CheckpointError("cannot tell whether " + unreadable +
                          " is of this launch: its fsdprun.json cannot be read; " + kStartOver);
  }
  if (unreadable_step > newest && launch.is_restart) {
    EmitWarning(group, "skipped " + unreadable +
                           ": its fsdprun.json cannot be read. If it is of this launch, the steps "
                           "since " +
                           paths.front() + " are done again");
  }
  return paths;
}

/// Those that the run may go back to, newest first; also what does not say its run any more, which
/// is then told as damaged.
std::vector<std::string> RunCandidates(const std::string& directory, const OfRun& wanted,
                                       const Group& group) {
  std::vector<std::string> paths;
  for (const StepEntry& entry : ListOf(group, directory)) {
    const bool is_of_run = entry.run == wanted.run || !entry.sequence;
    if (is_of_run && entry.is_complete && entry.step <= wanted.step_max &&
        wanted.steps.contains(entry.step)) {
      paths.push_back(entry.path);
    }
  }
  return paths;
}

std::string DescribeFailure(const Search& search) {
  return "none of the " + std::to_string(search.warnings.size()) +
         " checkpoints is valid; the newest: " + search.first_error;
}

}  // namespace

std::string WithoutTrailingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

std::optional<Candidate> FindResume(const std::string& dir, const std::string& resume,
                                    const Group& group, Verify verify,
                                    const Unloadable& unloadable) {
  if (resume == "none") {
    return std::nullopt;
  }
  if (resume != "auto") {
    return FindAt(resume, group, verify, unloadable);
  }
  Search search = FindNewest(group, {verify, unloadable}, [&] { return CandidatesIn(dir, group); });
  if (!search.found && !search.warnings.empty()) {
    throw CheckpointError("cannot resume: " + DescribeFailure(search) +
                              "; move it away or set checkpoint.resume to none to start over",
                          search.error_number);
  }
  return std::move(search.found);
}

Candidate FindAt(const std::string& path, const Group& group, Verify verify,
                 const Unloadable& unloadable) {
  const Search search =
      FindNewest(group, {verify, unloadable}, [&] { return CandidatesAt(path, group); });
  if (!search.found) {
    throw CheckpointError(DescribeFailure(search), search.error_number);
  }
  return *search.found;
}

std::optional<Candidate> FindOfJob(const std::string& dir, const Launch& launch, const Group& group,
                                   Verify verify, const Unloadable& unloadable) {
  if (launch.job_id.empty()) {
    return std::nullopt;
  }
  Search search =
      FindNewest(group, {verify, unloadable}, [&] { return OwnCandidates(dir, launch, group); });
  if (!search.found && !search.warnings.empty()) {
    throw CheckpointError("cannot resume from this launch's own checkpoints: " +
                              DescribeFailure(search) + "; " + kStartOver,
                          search.error_number);
  }
  return std::move(search.found);
}

std::optional<Candidate> FindOfRun(const std::string& dir, const OfRun& wanted, const Group& group,
                                   Verify verify, const Unloadable& unloadable) {
  Search search =
      FindNewest(group, {verify, unloadable}, [&] { return RunCandidates(dir, wanted, group); });
  if (!search.found && !search.warnings.empty()) {
    throw CheckpointError("cannot go back: " + DescribeFailure(search), search.error_number);
  }
  return std::move(search.found);
}

// Note [Damage that a load finds]
// A load verifies what it reads, so it may find out half-way that a checkpoint is damaged, and the
// state is then partly that checkpoint's. The next older one overwrites all of it. If there is none
// that can be loaded, the error ends the run: it never goes on, or starts anew, from such a state.
std::optional<Candidate> LoadChosen(
    const Group& group,
    const std::function<std::optional<Candidate>(const Unloadable& unloadable)>& find,
    const std::function<void(const Candidate&)>& load) {
  Unloadable unloadable;
  std::string lost;
  int removals = 0;
  while (true) {
    std::optional<Candidate> candidate = find(unloadable);
    if (!candidate && !lost.empty()) {
      throw CheckpointError("cannot resume: " + lost + ", and there is no other");
    }
    if (!candidate) {
      return std::nullopt;
    }
    if (const auto known = unloadable.find(candidate->path); known != unloadable.end()) {
      throw known->second;
    }
    try {
      ReadPatiently(group, [&] { load(*candidate); });
      return candidate;
    } catch (const MismatchError&) {
      throw;
    } catch (const CheckpointError& error) {
      if (WasRemoved(candidate->path, group)) {
        if (++removals == kSearchesMax) {
          throw;
        }
        lost = candidate->path + " was removed while it was being loaded";
        EmitWarning(group, lost + "; looking for the newest");
      } else if (!IsDamage(error.error_number())) {
        throw;
      } else {
        NoteDamaged(candidate->path, error, group);
        lost = error.what();
        unloadable.emplace(candidate->path, error);
      }
    }
  }
}

std::string NewRun(const Group& group) {
  return AttemptOnRank0(group, [] { return RandomId(); });
}

int64_t CountPublications(const std::string& dir, const Group& group) {
  const auto count = [&] {
    int64_t newest = 0;
    for (const StepEntry& entry : ListOf(group, dir)) {
      newest = std::max(newest, entry.sequence.value_or(0));
    }
    return std::to_string(newest);
  };
  return std::stoll(ReadPatiently(group, [&] { return AttemptOnRank0(group, count); }));
}

}  // namespace fsdprun::checkpoint
