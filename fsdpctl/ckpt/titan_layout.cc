#include "fsdpctl/ckpt/titan_layout.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/rotary_rows.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/inspect.h"

namespace fsdprun::ckpt {
namespace {

using fsdp::archive::Error;

constexpr std::string_view kTitanMoments = "optimizer.state.";
/// A buffer of old files.
constexpr std::string_view kComputedBuffer = ".rotary_emb.inv_freq";
/// Besides the weights, which are at the top level.
constexpr std::string_view kTitanOthers[] = {"optimizer.", "lr_scheduler.", "dataloader.",
                                             "train_state."};

struct SourceDescription {
  Json config;
  std::string source;  // for errors
};

/// The model's configuration: as given, as fsdp-train has put it into the checkpoint, or beside the
/// weights.
SourceDescription DescribeSource(const CkptOptions& options, const TensorSource& source) {
  const std::string& path = options.operands[0];
  std::string file = options.config_file;
  if (const auto* dcp = dynamic_cast<const CheckpointTensors*>(&source);
      dcp != nullptr && file.empty()) {
    const std::optional<Json> state = PlainObject(dcp->opened(), "train.state");
    if (state && state->is_object() && state->contains("model_config")) {
      return {state->at("model_config"), path + ", train.state.model_config"};
    }
  }
  if (file.empty()) {
    file = path + "/config.json";
    if (!checkpoint::FileExists(file)) {
      throw Error("cannot convert " + path +
                  ": it does not say which model it is of, which the order of its rows depends on; "
                  "name the model's config.json with --config FILE");
    }
  }
  return {ReadStrictJsonFile(file), file};
}

[[noreturn]] void RefuseParameter(const std::string& path, const std::string& key,
                                  const std::string& who, const TitanNames& names) {
  throw Error("cannot convert " + path + ": " + who + " " + names.model_type() +
              " has no parameter for " + key);
}

/// Reads `source` with the rows of `heads` reordered, as the last of the sources.
void ReorderRows(std::unique_ptr<TensorSource> source, std::map<std::string, int64_t> heads,
                 RotaryOrder to, Conversion& conversion) {
  auto reordered = std::make_unique<RotaryRows>(*source, std::move(heads), to);
  conversion.sources.push_back(std::move(source));
  conversion.sources.push_back(std::move(reordered));
}

/// "optimizer.state.layers.0.ffn_norm.weight.exp_avg" -> parameter and ".exp_avg"; none: no moment.
std::optional<std::pair<std::string, std::string>> SplitTitanMoment(std::string_view key) {
  if (!key.starts_with(kTitanMoments)) {
    return std::nullopt;
  }
  key.remove_prefix(kTitanMoments.size());
  const size_t dot = key.rfind('.');
  const std::string_view leaf = dot == std::string_view::npos ? "" : key.substr(dot);
  if (leaf != ".exp_avg" && leaf != ".exp_avg_sq" && leaf != ".step") {
    return std::nullopt;
  }
  return std::pair(std::string(key.substr(0, dot)), std::string(leaf));
}

bool IsTitanOther(std::string_view key) {
  for (const std::string_view prefix : kTitanOthers) {
    if (key.starts_with(prefix)) {
      return true;
    }
  }
  return false;
}

/// A tied head is a second copy of the embedding with torchtitan.
void CheckTitanHead(TensorSource& source, const std::string& path, const std::string& head,
                    const std::string& embedding) {
  const TensorFacts& a = source.tensors().at(head);
  const TensorFacts& b = source.tensors().at(embedding);
  if (a.dtype != b.dtype || a.shape != b.shape ||
      CompareTensors(source, head, source, embedding).different > 0) {
    throw Error("cannot convert " + path + ": " + head + " differs from " + embedding +
                ", but the model's configuration says tie_word_embeddings; give one that does not "
                "with --config FILE");
  }
}

/// Maps every weight, and every moment of one, to its name with Hugging Face.
class TitanReader {
 public:
  TitanReader(TensorSource& source, const TitanNames& names, std::string path)
      : source_(source), names_(names), path_(std::move(path)) {}

  void Add(const std::string& key, CheckpointToWrite& output) {
    const auto moment = SplitTitanMoment(key);
    if (!moment && IsTitanOther(key)) {
      return;
    }
    const std::string titan = moment ? moment->first : key;
    const std::optional<std::string> name = names_.FromTitan(titan);
    if (!name) {
      RefuseParameter(path_, key, "Hugging Face's", names_);
    }
    if (names_.has_tied_head() && *name == kHeadName) {
      if (!moment) {
        head_ = key;
      }
      return;
    }
    if (!moment && *name == kEmbeddingName) {
      embedding_ = key;
    }
    const int64_t heads = names_.ReorderedHeads(*name);
    if (heads > 0 && (!moment || moment->second != ".step")) {
      heads_[key] = heads;
    }
    output.tensors.push_back({moment ? std::string(kStatePrefix) + *name + moment->second
                                     : std::string(kModelPrefix) + *name,
                              key,
                              {}});
  }

  std::map<std::string, int64_t> Finish() {
    if (embedding_.empty()) {
      throw Error("cannot convert " + path_ +
                  ": it has no tok_embeddings.weight, so it is no checkpoint of torchtitan");
    }
    if (!head_.empty()) {
      CheckTitanHead(source_, path_, head_, embedding_);
    }
    return std::move(heads_);
  }

 private:
  TensorSource& source_;
  const TitanNames& names_;
  std::string path_;
  std::string head_;
  std::string embedding_;
  std::map<std::string, int64_t> heads_;
};

}  // namespace

Conversion ConvertToTitan(const CkptOptions& options, TitanStyle style) {
  const std::string& path = options.operands[0];
  std::unique_ptr<TensorSource> source = OpenTensors(path);
  const SourceDescription description = DescribeSource(options, *source);
  const TitanNames names(description.config, description.source);
  const bool is_dcp = LayoutOf(path) == TensorLayout::kDcp;
  const std::string prefix(is_dcp ? kModelPrefix : "");
  Conversion conversion;
  CheckpointToWrite output;
  std::map<std::string, int64_t> heads;
  const auto add = [&](const std::string& titan, const std::string& key) {
    output.tensors.push_back({titan, key, {titan}});
  };
  bool leaves_out = false;
  for (const auto& [key, facts] : source->tensors()) {
    if (!key.starts_with(prefix) || key.ends_with(kComputedBuffer)) {
      leaves_out = leaves_out || key.starts_with(kStatePrefix);
      continue;
    }
    const std::string name = key.substr(prefix.size());
    const std::optional<std::string> titan = names.ToTitan(name, style);
    if (!titan) {
      RefuseParameter(path, key, "torchtitan's", names);
    }
    add(*titan, key);
    if (const int64_t count = names.ReorderedHeads(name); count > 0) {
      heads[key] = count;
    }
  }
  const std::string embedding = prefix + kEmbeddingName;
  if (source->tensors().count(embedding) == 0) {
    throw Error("cannot convert " + path + ": it has no " + embedding);
  }
  if (names.has_tied_head() && source->tensors().count(prefix + kHeadName) == 0) {
    add(*names.ToTitan(kHeadName, style), embedding);
  }
  TakeStep(*source, output);
  if (leaves_out) {
    conversion.note =
        "the weights alone were converted: the optimizer's state stays behind, as torchtitan takes "
        "the weights alone of the checkpoint that it begins with\n";
  }
  ReorderRows(std::move(source), std::move(heads), RotaryOrder::kInterleaved, conversion);
  conversion.folders.push_back({"", std::move(output)});
  return conversion;
}

Conversion ConvertFromTitan(const CkptOptions& options) {
  const std::string& path = options.operands[0];
  std::unique_ptr<TensorSource> source = OpenTensors(path);
  const SourceDescription description = DescribeSource(options, *source);
  const TitanNames names(description.config, description.source);
  Conversion conversion;
  CheckpointToWrite output;
  TitanReader reader(*source, names, path);
  for (const auto& [key, facts] : source->tensors()) {
    reader.Add(key, output);
  }
  std::map<std::string, int64_t> heads = reader.Finish();
  TakeStep(*source, output);
  ReorderRows(std::move(source), std::move(heads), RotaryOrder::kHalves, conversion);
  conversion.folders.push_back({"", std::move(output)});
  conversion.note =
      "weights and the optimizer's moments were converted, and nothing of the rest: learning rate, "
      "position in the data, random state\n";
  return conversion;
}

}  // namespace fsdprun::ckpt
