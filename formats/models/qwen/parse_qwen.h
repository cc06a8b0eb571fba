#pragma once

#include "formats/models/config_fields.h"
#include "formats/models/model_config.h"

namespace fsdprun {

/// The family of model_type "qwen2": biases of queries, keys and values. Errors: ConfigError.
ModelConfig ParseQwen2(const Fields& fields);

/// The family of model_type "qwen3": norms of queries and keys. Errors: ConfigError.
ModelConfig ParseQwen3(const Fields& fields);

}  // namespace fsdprun
