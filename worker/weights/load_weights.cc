#include "worker/weights/load_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "formats/safetensors/safetensors.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun::worker {
namespace {

using Located = SafetensorsModel::Located;

constexpr int64_t kChunkElements = int64_t{4} << 20;
constexpr size_t kMaxNamesShown = 5;

at::ScalarType StoredDtype(const std::string& name, const SafetensorsEntry& entry) {
  if (entry.dtype == "F32") {
    return at::kFloat;
  }
  if (entry.dtype == "BF16") {
    return at::kBFloat16;
  }
  if (entry.dtype == "F16") {
    return at::kHalf;
  }
  throw ConfigError("tensor " + name + " has dtype " + entry.dtype + ": expected F32, BF16 or F16");
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

/// The file's name for the model's `name`: the same, or that without the body's prefix.
const std::string& StoredName(const SafetensorsModel& model, const std::string& name,
                              const std::string& without_prefix) {
  const bool is_shortened = !model.tensors().contains(name) && !without_prefix.empty() &&
                            model.tensors().contains(without_prefix);
  return is_shortened ? without_prefix : name;
}

/// What the file has for the slices, in their order.
using StoredNames = std::vector<std::string>;

StoredNames FindNames(const std::string& directory, const SafetensorsModel& model,
                      const std::vector<fsdp::LocalShard>& slices, const WeightNames& names) {
  StoredNames stored;
  std::vector<std::string> missing;
  for (const fsdp::LocalShard& slice : slices) {
    const bool is_of_body = slice.fqn.starts_with(names.body_prefix);
    const std::string shorter = is_of_body ? slice.fqn.substr(names.body_prefix.size()) : "";
    stored.push_back(StoredName(model, slice.fqn, shorter));
    if (!model.tensors().contains(stored.back())) {
      missing.push_back(slice.fqn);
    }
  }
  if (!missing.empty()) {
    RefuseNames("weights " + directory + " lack tensors of the model", missing);
  }
  return stored;
}

bool IsIgnored(const std::string& name, const WeightNames& names) {
  return name == names.tied_head ||
         std::any_of(names.ignored_suffixes.begin(), names.ignored_suffixes.end(),
                     [&](const std::string& suffix) { return name.ends_with(suffix); });
}

void CheckNoOthers(const std::string& directory, const SafetensorsModel& model,
                   const StoredNames& stored, const WeightNames& names) {
  const std::set<std::string> wanted(stored.begin(), stored.end());
  std::vector<std::string> extra;
  for (const auto& [name, located] : model.tensors()) {
    if (!wanted.contains(name) && !IsIgnored(name, names)) {
      extra.push_back(name);
    }
  }
  if (!extra.empty()) {
    RefuseNames("weights " + directory + " hold tensors that the model lacks", extra);
  }
}

/// Elements [begin, begin + count) of a stored tensor, in its stored dtype.
at::Tensor ReadRange(const std::string& name, const Located& located, int64_t begin,
                     int64_t count) {
  at::Tensor stored = at::empty({count}, StoredDtype(name, *located.entry));
  const int64_t bytes = stored.element_size();
  located.file->Read(located.entry->begin + begin * bytes, count * bytes, stored.data_ptr());
  return stored;
}

/// Calls `use(offset in the slice, offset in the tensor, count)` for pieces of bounded size.
template <class Use>
void ForEachChunk(const fsdp::LocalShard& slice, Use use) {
  const fsdp::Box whole = fsdp::plan::whole_box(slice.global_shape);
  int64_t box_begin = 0;
  for (const fsdp::Box& box : slice.boxes) {
    fsdp::plan::for_each_run(box, whole, box, [&](int64_t from, int64_t to, int64_t numel) {
      for (int64_t done = 0; done < numel; done += kChunkElements) {
        use(box_begin + to + done, from + done, std::min(kChunkElements, numel - done));
      }
    });
    box_begin += fsdp::plan::numel_of(box);
  }
}

void CheckTiedHead(const std::string& directory, const SafetensorsModel& model,
                   const std::string& head_name, const std::string& embedding_name,
                   const fsdp::LocalShard& embedding) {
  const Located& head = model.tensors().at(head_name);
  const Located& stored = model.tensors().at(embedding_name);
  bool is_equal =
      head.entry->shape == stored.entry->shape && head.entry->dtype == stored.entry->dtype;
  if (is_equal) {
    ForEachChunk(embedding, [&](int64_t, int64_t begin, int64_t count) {
      const at::Tensor a = ReadRange(head_name, head, begin, count);
      const at::Tensor b = ReadRange(embedding_name, stored, begin, count);
      is_equal = is_equal && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
    });
  }
  if (!is_equal) {
    throw ConfigError(
        "weights " + directory + ": " + head_name + " differs from " + embedding_name +
        ", but config.json says tie_word_embeddings; set that to false or remove " + head_name);
  }
}

void CheckEntry(const std::string& directory, const std::string& name,
                const SafetensorsEntry& entry, const std::vector<int64_t>& expected) {
  if (entry.shape != expected) {
    throw ConfigError("weights " + directory + ": tensor " + name + " has shape " +
                      ShapeText(entry.shape) + ", the model expects " + ShapeText(expected));
  }
  StoredDtype(name, entry);
}

}  // namespace

void LoadWeights(const std::string& directory, const std::vector<fsdp::LocalShard>& slices,
                 const WeightNames& names) {
  const at::NoGradGuard no_grad;
  const SafetensorsModel model(directory);
  const StoredNames stored = FindNames(directory, model, slices, names);
  CheckNoOthers(directory, model, stored, names);
  for (size_t i = 0; i < slices.size(); ++i) {
    CheckEntry(directory, stored[i], *model.tensors().at(stored[i]).entry, slices[i].global_shape);
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    const Located& located = model.tensors().at(stored[i]);
    ForEachChunk(slices[i], [&](int64_t in_slice, int64_t begin, int64_t count) {
      slices[i]
          .local.slice(0, in_slice, in_slice + count)
          .copy_(ReadRange(stored[i], located, begin, count));
    });
    if (slices[i].fqn == names.embedding && model.tensors().contains(names.tied_head)) {
      CheckTiedHead(directory, model, names.tied_head, stored[i], slices[i]);
    }
  }
}

}  // namespace fsdprun::worker
