#pragma once

#include <string>

#include "formats/json/strict_json.h"

namespace fsdprun::ckpt {

/// What a command has to say, in both forms, and whether all is well (exit code 0 or 1).
struct Report {
  Json json = Json::object();
  std::string text;
  bool is_good = true;
};

}  // namespace fsdprun::ckpt
