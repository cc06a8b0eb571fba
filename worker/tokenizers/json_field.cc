#include "worker/tokenizers/json_field.h"

#include <algorithm>

namespace fsdprun::worker {

void JsonField::Refuse(const std::string& expectation) const {
  constexpr size_t kMostCharacters = 60;
  // A large value would be written as a whole to be cut.
  std::string excerpt = value_->is_object() ? "an object" : value_->is_array() ? "a list" : "";
  if (excerpt.empty()) {
    excerpt = value_->dump(-1, ' ', true, LookupJson::error_handler_t::replace);
  }
  if (excerpt.size() > kMostCharacters) {
    excerpt = excerpt.substr(0, kMostCharacters - 3) + "...";
  }
  throw ConfigError(name_ + " = " + excerpt + ": expected " + expectation);
}

void JsonField::CheckKeys(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) {
    Refuse("an object");
  }
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw ConfigError(name_ + ": the key \"" + key + "\" is not supported");
    }
  }
}

JsonField JsonField::At(const char* key) const {
  if (!value_->is_object()) {
    Refuse("an object");
  }
  const auto found = value_->find(key);
  if (found == value_->end()) {
    throw ConfigError(name_ + ": the key \"" + key + "\" is missing");
  }
  return {*found, name_ + separator_ + key};
}

JsonField JsonField::At(size_t index) const {
  return {value_->at(index), name_ + "[" + std::to_string(index) + "]"};
}

size_t JsonField::size() const {
  if (!value_->is_array()) {
    Refuse("a list");
  }
  return value_->size();
}

std::string JsonField::Text() const {
  if (!value_->is_string()) {
    Refuse("a text");
  }
  return value_->get<std::string>();
}

bool JsonField::Truth() const {
  if (!value_->is_boolean()) {
    Refuse("true or false");
  }
  return value_->get<bool>();
}

uint32_t JsonField::Id() const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > kLargestId) {
    Refuse("an id, an integer from 0 to " + std::to_string(kLargestId));
  }
  return value_->get<uint32_t>();
}

}  // namespace fsdprun::worker
