#pragma once

#include "formats/models/config_fields.h"
#include "formats/models/model_config.h"

namespace fsdprun {

/// The family of model_type "mistral". Errors: ConfigError.
ModelConfig ParseMistral(const Fields& fields);

}  // namespace fsdprun
