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

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";
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

void CheckNames(const std::string& directory, const SafetensorsModel& model,
                const std::vector<fsdp::LocalShard>& slices, bool has_tied_head) {
  std::set<std::string> wanted;
  std::vector<std::string> missing;
  for (const fsdp::LocalShard& slice : slices) {
    wanted.insert(slice.fqn);
    if (!model.tensors().contains(slice.fqn)) {
      missing.push_back(slice.fqn);
    }
  }
  if (!missing.empty()) {
    RefuseNames("weights " + directory + " lack tensors of the model", missing);
  }
  std::vector<std::string> extra;
  for (const auto& [name, located] : model.tensors()) {
    const bool is_ignored =
        (has_tied_head && name == kHead) || name.ends_with(".rotary_emb.inv_freq");
    if (!wanted.contains(name) && !is_ignored) {
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
                   const fsdp::LocalShard& embedding) {
  const Located& head = model.tensors().at(kHead);
  const Located& stored = model.tensors().at(kEmbedding);
  bool is_equal =
      head.entry->shape == stored.entry->shape && head.entry->dtype == stored.entry->dtype;
  if (is_equal) {
    ForEachChunk(embedding, [&](int64_t, int64_t begin, int64_t count) {
      const at::Tensor a = ReadRange(kHead, head, begin, count);
      const at::Tensor b = ReadRange(kEmbedding, stored, begin, count);
      is_equal = is_equal && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
    });
  }
  if (!is_equal) {
    throw ConfigError("weights " + directory +
                      ": lm_head.weight differs from model.embed_tokens.weight, but config.json "
                      "says tie_word_embeddings; set that to false or remove lm_head.weight");
  }
}

}  // namespace

void LoadWeights(const std::string& directory, const std::vector<fsdp::LocalShard>& slices,
                 bool has_tied_head) {
  const at::NoGradGuard no_grad;
  const SafetensorsModel model(directory);
  CheckNames(directory, model, slices, has_tied_head);
  for (const fsdp::LocalShard& slice : slices) {
    const Located& located = model.tensors().at(slice.fqn);
    if (located.entry->shape != slice.global_shape) {
      throw ConfigError("weights " + directory + ": tensor " + slice.fqn + " has shape " +
                        ShapeText(located.entry->shape) + ", the model expects " +
                        ShapeText(slice.global_shape));
    }
    StoredDtype(slice.fqn, *located.entry);
  }
  for (const fsdp::LocalShard& slice : slices) {
    const Located& located = model.tensors().at(slice.fqn);
    ForEachChunk(slice, [&](int64_t in_slice, int64_t begin, int64_t count) {
      slice.local.slice(0, in_slice, in_slice + count)
          .copy_(ReadRange(slice.fqn, located, begin, count));
    });
    if (has_tied_head && slice.fqn == kEmbedding && model.tensors().contains(kHead)) {
      CheckTiedHead(directory, model, slice);
    }
  }
}

}  // namespace fsdprun::worker
