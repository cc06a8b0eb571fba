#include "launcher/watch/hang_text.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <utility>

namespace fsdprun::watch {
namespace {

constexpr size_t kNamesMax = 4;
constexpr int64_t kUnitOfBytes = 1000;

std::string Rounded(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

/// "4", "3 and 4", "1, 2 and 98 more".
std::string Listed(const std::vector<std::string>& names) {
  const size_t shown = names.size() <= kNamesMax ? names.size() : kNamesMax - 1;
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    const bool is_last = i + 1 == names.size();
    text += (i == 0 ? "" : is_last ? " and " : ", ") + names[i];
  }
  const size_t more = names.size() - shown;
  return more == 0 ? text : text + " and " + std::to_string(more) + " more";
}

std::string NodesOf(const std::vector<int>& ranks, const Places& places) {
  std::set<size_t> indices;
  for (const int rank : ranks) {
    indices.insert(places.NodeIndexOf(rank));
  }
  if (indices.size() > kNamesMax) {
    return std::to_string(indices.size()) + " nodes";
  }
  std::vector<std::string> names;
  names.reserve(indices.size());
  for (const size_t index : indices) {
    names.push_back(places.nodes()[index].name);
  }
  return (names.size() == 1 ? "node " : "nodes ") + Listed(names);
}

std::string BytesText(int64_t bytes) {
  const char* units[] = {" B", " kB", " MB", " GB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= kUnitOfBytes && unit < 3) {
    value /= kUnitOfBytes;
    ++unit;
  }
  return Rounded(value, unit == 0 ? "%.0f" : "%.1f") + units[unit];
}

/// "all_gather of layers.3 (4.2 MB)"
std::string CollectiveText(const OwnSample& own) {
  return (own.collective.empty() ? "a collective" : own.collective) +
         (own.unit.empty() ? "" : " of " + own.unit) +
         (own.bytes > 0 ? " (" + BytesText(own.bytes) + ")" : "");
}

/// "rank 3 (pid 4711) on node b"
std::string Who(const Scene& scene, const std::vector<int>& ranks, const Places& places) {
  if (ranks.size() != 1) {
    return DescribeRanks(ranks, places);
  }
  const int rank = ranks.front();
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(scene.At(rank).last().pid) +
         ") on node " + places.NodeOf(rank);
}

/// "step 120, in the backward pass"
std::string Where(const WatchedRank& seen) {
  if (!seen.tells()) {
    return "";
  }
  const std::string activity(TextOf(seen.activity()));
  return " in " + (seen.last().own->step >= 0
                       ? "step " + std::to_string(seen.last().own->step) + " (" + activity + ")"
                       : activity);
}

std::string DoesText(const WatchedRank& seen) {
  switch (seen.last().state) {
    case 'D':
      return "it is in uninterruptible sleep (state D: a disk, a network file system or a driver)";
    case 'Z':
      return "it is dead, and its parent has not collected it (state Z)";
    case 'T':
    case 't':
      return "it is stopped";
    default:
      return seen.IsBusy() ? "it computes all the time" : "it sleeps";
  }
}

std::string StoppedText(const WatchedRank& seen) {
  switch (seen.last().state) {
    case 'Z':
      return "dead without being collected by its parent (state Z)";
    case 't':
      return "held by a debugger or tracer (state t)";
    default:
      return "stopped (state T: SIGSTOP or job control; kill -CONT lets it go on)";
  }
}

std::string WaitText(const Scene& scene, const std::vector<int>& culprits) {
  const std::vector<int> waiting = WaitingRanks(scene, culprits);
  if (waiting.empty()) {
    return "";
  }
  return "; " + std::to_string(waiting.size()) +
         (waiting.size() == 1 ? " other waits" : " others wait") + " in " +
         CollectiveText(*scene.At(waiting.front()).last().own);
}

std::string MissingText(const Scene& scene) {
  const size_t missing = scene.ranks.size() - scene.present.size();
  return missing == 0 ? ""
                      : "; nothing is heard of " + std::to_string(missing) +
                            (missing == 1 ? " other worker" : " other workers");
}

std::string StoppedSentence(const Scene& scene, const Suspicion& found, const Places& places) {
  const WatchedRank& first = scene.At(found.culprits.front());
  return Who(scene, found.culprits, places) +
         (found.culprits.size() == 1 ? " has been " : " have been ") + StoppedText(first) +
         " for " + TextOf(found.lasted) + Where(first) + WaitText(scene, found.culprits);
}

/// Of those that have not said anything while the others wait for the first step.
std::string SilentSentence(const Scene& scene, const Suspicion& found, const Places& places) {
  const WatchedRank& first = scene.At(found.culprits.front());
  const bool is_one = found.culprits.size() == 1;
  const bool sleeps = first.idle() > Duration{} || first.last().state == 'D';
  return Who(scene, found.culprits, places) + (is_one ? " has" : " have") +
         " not said anything yet for " + TextOf(found.lasted) +
         (is_one ? sleeps ? ": " + DoesText(first) : ": it computes" : "") +
         "; the others have not done a step, and may wait for " + (is_one ? "it" : "them") +
         MissingText(scene);
}

std::string BehindSentence(const Scene& scene, const Suspicion& found, const Places& places) {
  const WatchedRank& first = scene.At(found.culprits.front());
  if (!first.tells()) {
    return SilentSentence(scene, found, places);
  }
  const bool is_one = found.culprits.size() == 1;
  std::string text = Who(scene, found.culprits, places) +
                     (is_one ? " has not moved for " : " have not moved for ") +
                     TextOf(found.lasted) + Where(first);
  if (is_one) {
    text += ": " + DoesText(first);
  }
  if (is_one && first.IsInCollective()) {
    text += ", having begun " + CollectiveText(*first.last().own);
  }
  return text + WaitText(scene, found.culprits) + MissingText(scene);
}

std::string CollectiveSentence(const Scene& scene, const Suspicion& found, const Places& places) {
  std::vector<int> tell;
  std::copy_if(scene.present.begin(), scene.present.end(), std::back_inserter(tell),
               [&](int rank) { return scene.At(rank).tells(); });
  const WatchedRank& first = scene.At(tell.front());
  const std::string nodes = NodesOf(tell, places);
  const bool is_one_node = nodes.rfind("node ", 0) == 0;
  const size_t silent = scene.present.size() - tell.size();
  return "all " + std::to_string(tell.size()) +
         (silent == 0 ? " workers" : " workers that say what they do") + " have entered " +
         CollectiveText(*first.last().own) + Where(first) + ", and it has not ended for " +
         TextOf(found.lasted) + ": " +
         (is_one_node ? "what carries it hangs, on " + nodes
                      : "the network between " + nodes + " hangs, or what uses it") +
         (silent == 0 ? "" : "; " + std::to_string(silent) + " others say nothing of themselves") +
         MissingText(scene);
}

std::string DisagreeSentence(const Scene& scene, const Suspicion& found, const Places& places) {
  const WatchedRank& first = scene.At(found.culprits.front());
  return Who(scene, found.culprits, places) +
         (found.culprits.size() == 1 ? " waits in " : " wait in ") +
         CollectiveText(*first.last().own) + Where(first) +
         " and the others in another collective" + WaitText(scene, found.culprits) + ": for " +
         TextOf(found.lasted) + " now; the workers have gone different ways through the program";
}

}  // namespace

Places::Places(std::vector<NodeRanks> nodes) : nodes_(std::move(nodes)) {
  int world_size = 0;
  for (const NodeRanks& node : nodes_) {
    world_size = std::max(world_size, node.first_rank + node.workers);
  }
  node_of_rank_.resize(static_cast<size_t>(world_size));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    std::fill_n(node_of_rank_.begin() + nodes_[i].first_rank, nodes_[i].workers, i);
  }
}

std::string DescribeHang(const Scene& scene, const Suspicion& suspicion, const Places& places) {
  switch (suspicion.kind) {
    case HangKind::kStopped:
      return StoppedSentence(scene, suspicion, places);
    case HangKind::kBehind:
      return BehindSentence(scene, suspicion, places);
    case HangKind::kCollective:
      return CollectiveSentence(scene, suspicion, places);
    case HangKind::kDisagree:
      return DisagreeSentence(scene, suspicion, places);
    case HangKind::kAsleep:
      return Who(scene, suspicion.culprits, places) +
             (suspicion.culprits.size() == 1 ? " has" : " have") +
             " been in uninterruptible sleep (state D: a disk, a "
             "network file system or a driver) for " +
             TextOf(suspicion.lasted);
    case HangKind::kIdle:
      return "none of the " + std::to_string(scene.present.size()) + " workers on " +
             NodesOf(scene.present, places) + " has used the CPU for " + TextOf(suspicion.lasted);
    case HangKind::kNoProgress:
      return "no step has been reported for " + TextOf(suspicion.lasted);
  }
  return "";
}

std::string DescribeRanks(const std::vector<int>& ranks, const Places& places) {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int rank : ranks) {
    names.push_back(std::to_string(rank));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + Listed(names) + " on " + NodesOf(ranks, places);
}

std::string TextOf(Duration duration) {
  const int64_t seconds = duration / std::chrono::seconds(1);
  if (seconds < 100) {
    return Rounded(ToSeconds(duration), "%.1f s");
  }
  if (seconds < 3600) {
    return std::to_string(seconds / 60) + " min " + std::to_string(seconds % 60) + " s";
  }
  return std::to_string(seconds / 3600) + " h " + std::to_string(seconds / 60 % 60) + " min";
}

std::string TextOfStep(Duration duration) {
  return duration < std::chrono::seconds(1) ? Rounded(ToSeconds(duration) * 1e3, "%.0f ms")
                                            : Rounded(ToSeconds(duration), "%.2f s");
}

}  // namespace fsdprun::watch
