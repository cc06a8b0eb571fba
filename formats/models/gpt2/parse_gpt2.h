#pragma once

#include "formats/models/config_fields.h"
#include "formats/models/model_config.h"

namespace fsdprun {

/// The family of model_type "gpt2". Errors: ConfigError.
ModelConfig ParseGpt2(const Fields& fields);

/// The model of a network as GPT-2's.
ModelConfig DescribeGpt2(const Gpt2Config& config);

}  // namespace fsdprun
