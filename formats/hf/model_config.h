#pragma once

#include <string>

#include "formats/json/strict_json.h"

namespace fsdprun {

// A model's configuration as a document, of any model: what is not known here stays as it is. What
// of it makes the network that is trained is read by formats/models/model_config.h, which refuses
// what it does not know. Of the families that both know, the defaults are in both, as either would
// be wrong without them: tests/fuzz/checkpoint_texts_fuzz.cc compares what they make of a file.

/// A config.json that transformers 4 and 5 read alike: with `dtype` in both its spellings,
/// `architectures`, and, where the model has rotary embeddings, both `rope_theta` with
/// `rope_scaling` (4) and `rope_parameters` (5). transformers 4 takes 10000 for the base of a file
/// that has the latter alone, and says nothing. Other fields stay as they are. `source` names the
/// configuration in errors. Errors: ConfigError if it is no object, has no model_type, or says two
/// different things about the embeddings.
Json CompleteModelConfig(Json config, const std::string& dtype, const std::string& source);

/// generation_config.json: the ids of special tokens that the configuration has.
Json GenerationConfig(const Json& config);

/// Whether the head is the embedding: by the configuration, or where it says nothing by the default
/// of its model_type.
bool TiesEmbeddings(const Json& config);

}  // namespace fsdprun
