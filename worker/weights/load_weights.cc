#include "worker/weights/load_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "formats/checkpoint/file_system.h"
#include "formats/tensors/open_tensors.h"
#include "fsdp_runtime/archive/error.h"
#include "worker/weights/slice_chunks.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kMaxNamesShown = 5;

at::ScalarType StoredDtype(const std::string& name, const TensorFacts& facts) {
  if (facts.dtype == "float32") {
    return at::kFloat;
  }
  if (facts.dtype == "bfloat16") {
    return at::kBFloat16;
  }
  if (facts.dtype == "float16") {
    return at::kHalf;
  }
  throw ConfigError("tensor " + name + " has dtype " + facts.dtype +
                    ": expected float32, bfloat16 or float16");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

[[noreturn]] void RefuseNames(const std::string& what, const std::vector<std::string>& names) {
  std::string text = what + ":";
  for (size_t i = 0; i < std::min(names.size(), kMaxNamesShown); ++i) {
    text += (i == 0 ? " " : ", ") + names[i];
  }
  if (names.size() > kMaxNamesShown) {
    text += " and " + std::to_string(names.size() - kMaxNamesShown) + " more";
  }
  throw ConfigError(text);
}

/// Weights that were opened, wherever they are.
struct Stored {
  std::string path;
  std::unique_ptr<TensorSource> source;
  /// The source's names by those of the model.
  std::map<std::string, std::string> names;

  const TensorFacts& FactsOf(const std::string& name) const {
    return source->tensors().at(names.at(name));
  }
};

/// What `read` returns. Damage becomes a ConfigError: each restart would read up to it again.
template <typename Read>
auto RefuseDamage(const Read& read) {
  try {
    return read();
  } catch (const fsdp::archive::Error& error) {
    if (checkpoint::MayPass(error.error_number())) {
      throw;
    }
    throw ConfigError(std::string("model.weights: ") + error.what());
  }
}

Stored Open(const std::string& path) {
  return RefuseDamage([&] {
    Stored stored{path, OpenTensors(path), {}};
    stored.names = stored.source->Weights();
    return stored;
  });
}

/// The stored name for the model's `name`: the same, or that without the body's prefix.
const std::string& StoredName(const Stored& stored, const std::string& name,
                              const std::string& without_prefix) {
  const bool is_shortened = !stored.names.contains(name) && !without_prefix.empty() &&
                            stored.names.contains(without_prefix);
  return is_shortened ? without_prefix : name;
}

/// What is stored for the slices, in their order.
using StoredNames = std::vector<std::string>;

StoredNames FindNames(const Stored& stored, const std::vector<fsdp::LocalShard>& slices,
                      const WeightNames& names) {
  StoredNames found;
  std::vector<std::string> missing;
  for (const fsdp::LocalShard& slice : slices) {
    const bool is_of_body = slice.fqn.starts_with(names.body_prefix);
    const std::string shorter = is_of_body ? slice.fqn.substr(names.body_prefix.size()) : "";
    found.push_back(StoredName(stored, slice.fqn, shorter));
    if (!stored.names.contains(found.back())) {
      missing.push_back(slice.fqn);
    }
  }
  if (!missing.empty()) {
    RefuseNames("weights " + stored.path + " lack tensors of the model", missing);
  }
  return found;
}

bool IsIgnored(const std::string& name, const WeightNames& names) {
  return name == names.tied_head ||
         std::any_of(names.ignored_suffixes.begin(), names.ignored_suffixes.end(),
                     [&](const std::string& suffix) { return name.ends_with(suffix); });
}

void CheckNoOthers(const Stored& stored, const StoredNames& found, const WeightNames& names) {
  const std::set<std::string> wanted(found.begin(), found.end());
  std::vector<std::string> extra;
  for (const auto& [name, in_source] : stored.names) {
    if (!wanted.contains(name) && !IsIgnored(name, names)) {
      extra.push_back(name);
    }
  }
  if (!extra.empty()) {
    RefuseNames("weights " + stored.path + " hold tensors that the model lacks", extra);
  }
}

/// Elements [begin, begin + count) of a stored tensor, in its stored dtype.
at::Tensor ReadRange(const Stored& stored, const std::string& name, int64_t begin, int64_t count) {
  at::Tensor range = at::empty({count}, StoredDtype(name, stored.FactsOf(name)));
  RefuseDamage([&] { stored.source->Read(stored.names.at(name), begin, count, range.data_ptr()); });
  return range;
}

void CheckTiedHead(const Stored& stored, const std::string& head_name,
                   const std::string& embedding_name, const fsdp::LocalShard& embedding) {
  const TensorFacts& head = stored.FactsOf(head_name);
  const TensorFacts& facts = stored.FactsOf(embedding_name);
  bool is_equal = head.shape == facts.shape && head.dtype == facts.dtype;
  if (is_equal) {
    ForEachChunk(embedding, [&](int64_t, int64_t begin, int64_t count) {
      const at::Tensor a = ReadRange(stored, head_name, begin, count);
      const at::Tensor b = ReadRange(stored, embedding_name, begin, count);
      is_equal = is_equal && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
    });
  }
  if (!is_equal) {
    throw ConfigError(
        "weights " + stored.path + ": " + head_name + " differs from " + embedding_name +
        ", but config.json says tie_word_embeddings; set that to false or remove " + head_name);
  }
}

void CheckFacts(const Stored& stored, const std::string& name,
                const std::vector<int64_t>& expected) {
  const TensorFacts& facts = stored.FactsOf(name);
  if (facts.shape != expected) {
    throw ConfigError("weights " + stored.path + ": tensor " + name + " has shape " +
                      ShapeText(facts.shape) + ", the model expects " + ShapeText(expected));
  }
  StoredDtype(name, facts);
}

/// What is stored for the slices, which is what the model expects.
StoredNames Match(const Stored& stored, const std::vector<fsdp::LocalShard>& slices,
                  const WeightNames& names) {
  StoredNames found = FindNames(stored, slices, names);
  CheckNoOthers(stored, found, names);
  for (size_t i = 0; i < slices.size(); ++i) {
    CheckFacts(stored, found[i], slices[i].global_shape);
  }
  return found;
}

}  // namespace

void CheckWeights(const std::string& path, const std::vector<fsdp::LocalShard>& slices,
                  const WeightNames& names) {
  Match(Open(path), slices, names);
}

void LoadWeights(const std::string& path, const std::vector<fsdp::LocalShard>& slices,
                 const WeightNames& names) {
  const at::NoGradGuard no_grad;
  const Stored stored = Open(path);
  const StoredNames found = Match(stored, slices, names);
  for (size_t i = 0; i < slices.size(); ++i) {
    ForEachChunk(slices[i], [&](int64_t in_slice, int64_t begin, int64_t count) {
      slices[i]
          .local.slice(0, in_slice, in_slice + count)
          .copy_(ReadRange(stored, found[i], begin, count));
    });
    if (slices[i].fqn == names.embedding && stored.names.contains(names.tied_head)) {
      CheckTiedHead(stored, names.tied_head, found[i], slices[i]);
    }
  }
}

}  // namespace fsdprun::worker
