#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/json/strict_json.h"

namespace fsdprun::ckpt {

/// Which names: torchtitan has renamed parameters behind version 0.2.
enum class TitanStyle { kNow, kVersion02 };

/// The names of a model's parameters with Hugging Face and with torchtitan. Source: torchtitan's
/// state_dict_adapter.py of llama3 and qwen3, without mixtures of experts.
class TitanNames {
 public:
  /// `config`: the model's config.json. Errors: ConfigError naming `source` for a model that
  /// torchtitan does not have, and for numbers of heads that are none.
  TitanNames(const Json& config, const std::string& source);

  /// nullopt: torchtitan's model has no such parameter.
  std::optional<std::string> ToTitan(std::string_view name, TitanStyle style) const;
  /// The names of both styles. nullopt: Hugging Face's model has no such parameter.
  std::optional<std::string> FromTitan(std::string_view name) const;

  /// Into how many heads the rows of Hugging Face's parameter are divided, if torchtitan has them
  /// in another order: see Note [Rows of rotary embeddings]. 0: the rows are the same.
  int64_t ReorderedHeads(std::string_view name) const;

  const std::string& model_type() const { return model_type_; }
  bool has_tied_head() const { return has_tied_head_; }

 private:
  std::string model_type_;
  bool has_tied_head_ = false;
  bool is_interleaved_ = false;
  int64_t query_heads_ = 0;
  int64_t key_heads_ = 0;
};

inline constexpr char kHeadName[] = "lm_head.weight";
inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";

}  // namespace fsdprun::ckpt
