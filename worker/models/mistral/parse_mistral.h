#pragma once

#include "worker/models/config_fields.h"
#include "worker/models/model_config.h"

namespace fsdprun::worker {

/// The family of model_type "mistral". Errors: ConfigError.
ModelConfig ParseMistral(const Fields& fields);

}  // namespace fsdprun::worker
