#include "tests/unit/worker/checkpoint/power_loss_disk.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

namespace fsdprun::checkpoint {
namespace {

constexpr size_t kAllSubsetsMax = 4;  // of so many changes all subsets are tried
constexpr int kRandomSubsets = 8;

void Require(bool condition, const std::string& what) {
  if (!condition) {
    throw std::logic_error("the model of the disk has no case for this: " + what);
  }
}

}  // namespace

void RecordLog::Add(Record record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  records_.push_back(std::move(record));
}

int RecordingFileSystem::Intercept(const Effect& effect) {
  Record record{rank_,
                std::string(effect.name),
                effect.path,
                std::string(effect.from),
                std::string(effect.bytes),
                effect.byte_count};
  const int error = fate_ ? fate_(record) : 0;
  if (error == 0) {
    log_.Add(std::move(record));
  }
  return error;
}

Tree ReadTree(const std::string& directory) {
  Tree tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    std::optional<std::string>& content =
        tree[std::filesystem::relative(entry.path(), directory).string()];
    if (!entry.is_directory()) {
      content.emplace(entry.file_size(), '\0');
      std::ifstream(entry.path(), std::ios::binary)
          .read(content->data(), static_cast<std::streamsize>(content->size()));
    }
  }
  return tree;
}

void WriteTree(const Tree& tree, const std::string& directory) {
  std::filesystem::create_directories(directory);
  for (const auto& [path, content] : tree) {  // a directory sorts before what is in it
    if (content) {
      std::ofstream(directory + "/" + path, std::ios::binary) << *content;
    } else {
      std::filesystem::create_directory(directory + "/" + path);
    }
  }
}

PowerLossDisk::PowerLossDisk(std::string root) : root_(std::move(root)) {
  nodes_.push_back({.is_directory = true});
}

std::vector<std::string> PowerLossDisk::Parts(const std::string& path) const {
  Require(path == root_ || path.starts_with(root_ + "/"), path + " is not below " + root_);
  std::vector<std::string> parts;
  for (const auto& part : std::filesystem::path(path.substr(root_.size())).relative_path()) {
    parts.push_back(part.string());
  }
  return parts;
}

PowerLossDisk::NodeId PowerLossDisk::Find(const std::vector<std::string>& parts) const {
  NodeId node = 0;
  for (const std::string& part : parts) {
    const auto found = nodes_[node].names.find(part);
    Require(found != nodes_[node].names.end(), "no " + part);
    node = found->second;
  }
  return node;
}

/// The directory that a path lies in, and its name there.
std::pair<PowerLossDisk::NodeId, std::string> PowerLossDisk::Locate(const std::string& path) const {
  std::vector<std::string> parts = Parts(path);
  Require(!parts.empty(), path);
  std::string name = std::move(parts.back());
  parts.pop_back();
  return {Find(parts), std::move(name)};
}

void PowerLossDisk::Apply(const Record& record) {
  if (record.name == "make_directory") {
    MakeDirectories(record);
  } else if (record.name == "create") {
    Create(record);
  } else if (record.name == "rename" || record.name == "exchange") {
    Move(record);
  } else if (record.name == "remove") {
    const auto [directory, name] = Locate(record.path);
    Remove(record.rank, directory, name);
  } else if (record.name == "sync_directory") {
    SyncDirectory(record.rank, Find(Parts(record.path)));
  } else if (record.name == "reserve") {
    Node& file = nodes_[Find(Parts(record.path))];
    file.bytes.resize(std::max(file.bytes.size(), static_cast<size_t>(record.byte_count)));
    file.is_dirty = true;
  } else if (record.name == "write") {
    Node& file = nodes_[Find(Parts(record.path))];
    file.bytes.replace(file.position,
                       std::min(record.bytes.size(), file.bytes.size() - file.position),
                       record.bytes);
    file.position += record.bytes.size();
    file.is_dirty = true;
  } else if (record.name == "sync") {
    Node& file = nodes_[Find(Parts(record.path))];
    file.durable_bytes = file.bytes;
    file.is_dirty = false;
  }
}

void PowerLossDisk::MakeDirectories(const Record& record) {
  NodeId node = 0;
  for (const std::string& part : Parts(record.path)) {
    if (!nodes_[node].names.contains(part)) {
      nodes_.push_back({.is_directory = true});
      ChangeNames({record.rank, node, {{part, nodes_.size() - 1}}});
    }
    node = nodes_[node].names.at(part);
  }
}

void PowerLossDisk::Create(const Record& record) {
  const auto [directory, name] = Locate(record.path);
  const auto found = nodes_[directory].names.find(name);
  if (found == nodes_[directory].names.end()) {
    nodes_.emplace_back();
    ChangeNames({record.rank, directory, {{name, nodes_.size() - 1}}});
    return;
  }
  Node& file = nodes_[found->second];
  file.is_dirty = file.is_dirty || !file.durable_bytes.empty();
  file.bytes.clear();
  file.position = 0;
}

void PowerLossDisk::Move(const Record& record) {
  const auto [directory, name] = Locate(record.path);
  const auto [from_directory, from] = Locate(record.from);
  Require(directory == from_directory, "a rename between directories");
  const Names& names = nodes_[directory].names;
  Change change{record.rank, directory, {{name, names.at(from)}, {from, std::nullopt}}};
  if (record.name == "exchange") {
    change.names[from] = names.at(name);
  }
  ChangeNames(std::move(change));
}

void PowerLossDisk::Remove(int64_t rank, NodeId directory, const std::string& name) {
  const auto found = nodes_[directory].names.find(name);
  if (found == nodes_[directory].names.end()) {
    return;
  }
  const Names below = nodes_[found->second].names;
  for (const auto& [name_below, node] : below) {
    Remove(rank, found->second, name_below);
  }
  ChangeNames({rank, directory, {{name, std::nullopt}}});
}

void PowerLossDisk::ChangeNames(Change change) {
  Names& names = nodes_[change.directory].names;
  MakeDurable(change, names);
  pending_.push_back(std::move(change));
}

void PowerLossDisk::SyncDirectory(int64_t rank, NodeId directory) {
  std::vector<bool> is_durable(pending_.size());
  for (size_t i = pending_.size(); i-- > 0;) {
    if (is_durable[i] || (pending_[i].rank == rank && pending_[i].directory == directory)) {
      is_durable[i] = true;
      for (size_t j = 0; j < i; ++j) {
        is_durable[j] = is_durable[j] || IsOrdered(pending_[j], pending_[i]);
      }
    }
  }
  std::vector<Change> left;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (is_durable[i]) {
      MakeDurable(pending_[i], nodes_[pending_[i].directory].durable_names);
    } else {
      left.push_back(std::move(pending_[i]));
    }
  }
  pending_ = std::move(left);
}

bool PowerLossDisk::IsOrdered(const Change& a, const Change& b) {
  return a.directory == b.directory &&
         std::any_of(a.names.begin(), a.names.end(),
                     [&b](const auto& name) { return b.names.contains(name.first); });
}

void PowerLossDisk::MakeDurable(const Change& change, Names& names) {
  for (const auto& [name, node] : change.names) {
    if (node) {
      names[name] = *node;
    } else {
      names.erase(name);
    }
  }
}

/// Sets of pending changes that may have become durable; each with those that it comes after.
std::set<std::vector<bool>> PowerLossDisk::Survivors() const {
  const size_t count = pending_.size();
  std::set<std::vector<bool>> chosen;
  const auto choose = [&](const std::function<bool(size_t)>& is_wanted) {
    std::vector<bool> survives(count);
    for (size_t i = count; i-- > 0;) {
      survives[i] = survives[i] || is_wanted(i);
      for (size_t j = 0; survives[i] && j < i; ++j) {
        survives[j] = survives[j] || IsOrdered(pending_[j], pending_[i]);
      }
    }
    chosen.insert(std::move(survives));
  };
  if (count <= kAllSubsetsMax) {
    for (size_t mask = 0; mask < size_t{1} << count; ++mask) {
      choose([&](size_t i) { return (mask >> i & 1) != 0; });
    }
    return chosen;
  }
  for (size_t last = 0; last <= count; ++last) {
    choose([&](size_t i) { return i < last; });
    choose([&](size_t i) { return i == last; });
    choose([&](size_t i) {
      return last == count || (i != last && !(i > last && IsOrdered(pending_[last], pending_[i])));
    });
  }
  std::mt19937 random(static_cast<unsigned>(count));
  for (int i = 0; i < kRandomSubsets; ++i) {
    choose([&](size_t) { return random() % 2 == 0; });
  }
  return chosen;
}

std::string PowerLossDisk::BytesAfter(NodeId id, Unsynced unsynced) const {
  const Node& file = nodes_[id];
  if (!file.is_dirty || unsynced == Unsynced::kThere) {
    return file.bytes;
  }
  switch (unsynced) {
    case Unsynced::kHalf:
      return file.bytes.substr(0, file.bytes.size() / 2);
    case Unsynced::kZeros:
      return std::string(file.bytes.size(), '\0');
    default:
      return file.durable_bytes;
  }
}

void PowerLossDisk::Collect(NodeId directory, const std::string& prefix,
                            const std::vector<Names>& names,
                            const std::function<std::string(NodeId)>& bytes, Tree& tree) const {
  for (const auto& [name, id] : names[directory]) {
    if (nodes_[id].is_directory) {
      tree[prefix + name] = std::nullopt;
      Collect(id, prefix + name + "/", names, bytes, tree);
    } else {
      tree[prefix + name] = bytes(id);
    }
  }
}

Tree PowerLossDisk::Now() const {
  std::vector<Names> names;
  for (const Node& node : nodes_) {
    names.push_back(node.names);
  }
  Tree tree;
  Collect(
      0, "", names, [this](NodeId id) { return nodes_[id].bytes; }, tree);
  return tree;
}

std::set<Tree> PowerLossDisk::AfterPowerLoss() const {
  std::set<Tree> trees;
  for (const std::vector<bool>& survives : Survivors()) {
    std::vector<Names> names;
    for (const Node& node : nodes_) {
      names.push_back(node.durable_names);
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (survives[i]) {
        MakeDurable(pending_[i], names[pending_[i].directory]);
      }
    }
    const auto add = [&](const std::function<Unsynced(NodeId)>& fate) {
      Tree tree;
      Collect(
          0, "", names, [&](NodeId id) { return BytesAfter(id, fate(id)); }, tree);
      trees.insert(std::move(tree));
    };
    for (const Unsynced unsynced :
         {Unsynced::kLost, Unsynced::kHalf, Unsynced::kZeros, Unsynced::kThere}) {
      add([unsynced](NodeId) { return unsynced; });
    }
    for (NodeId lost = 0; lost < nodes_.size(); ++lost) {
      if (nodes_[lost].is_dirty) {
        add([lost](NodeId id) { return id == lost ? Unsynced::kLost : Unsynced::kThere; });
      }
    }
  }
  return trees;
}

}  // namespace fsdprun::checkpoint
