#pragma once

#include "formats/models/config_fields.h"
#include "formats/models/model_config.h"

namespace fsdprun {

/// The family of model_type "llama". Errors: ConfigError.
ModelConfig ParseLlama(const Fields& fields);

}  // namespace fsdprun
