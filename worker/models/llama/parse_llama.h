#pragma once

#include "worker/models/config_fields.h"
#include "worker/models/model_config.h"

namespace fsdprun::worker {

/// The family of model_type "llama". Errors: ConfigError.
ModelConfig ParseLlama(const Fields& fields);

}  // namespace fsdprun::worker
