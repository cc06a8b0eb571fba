#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "formats/json/strict_json.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {

/// The tokenizer that a model's samples are read and written with: `given` (as OpenTokenizer has
/// it), or, if that is empty, the one whose ids the model was trained on. `saved` is the training
/// state of its checkpoint, which says which that is; the file is looked for beside the model's
/// config.json. Bytes, if it was trained on text or does not say. Errors: ConfigError for another
/// tokenizer than the model's, for one that is not found, and for one with more ids than the model.
std::unique_ptr<const Tokenizer> SampleTokenizer(const std::string& given, const Json& saved,
                                                 int64_t vocab_size);

}  // namespace fsdprun::worker
