#include "formats/models/config_fields.h"

#include <cmath>
#include <utility>

namespace fsdprun {

Fields::Fields(const Json& object, std::string source, std::string prefix)
    : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

bool Fields::Has(const char* key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

bool Fields::IsNull(const char* key) const {
  return object_.contains(key) && object_.at(key).is_null();
}

void Fields::Refuse(const char* key, const std::string& expectation) const {
  const std::string value = Has(key) ? " = " + Excerpt(object_.at(key)) : " is missing";
  throw ConfigError(source_ + ": " + prefix_ + key + value + ": expected " + expectation);
}

void Fields::RefuseIfPresent(const char* key, const std::string& expectation) const {
  if (Has(key)) {
    Refuse(key, expectation);
  }
}

void Fields::RefuseKeysExcept(const std::set<std::string>& known,
                              const std::string& expectation) const {
  for (const auto& [key, value] : object_.items()) {
    if (!known.contains(key)) {
      Refuse(key.c_str(), expectation);
    }
  }
}

int64_t Fields::Dimension(const char* key, int64_t max) const {
  if (!Has(key) || !object_.at(key).is_number_integer()) {
    Refuse(key, "an integer >= 1");
  }
  const std::optional<int64_t> value = Integer(key);
  if (value && *value < 1) {
    Refuse(key, "an integer >= 1");
  }
  if (!value || *value > max) {
    Refuse(key, "at most " + std::to_string(max));
  }
  return *value;
}

int64_t Fields::DimensionOr(int64_t missing, const char* key, int64_t max) const {
  return Has(key) ? Dimension(key, max) : missing;
}

std::optional<int64_t> Fields::Integer(const char* key) const {
  const Json& value = object_.at(key);
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() >> 63 != 0);
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

double Fields::Positive(const char* key) const {
  if (!Has(key) || !object_.at(key).is_number() || !(object_.at(key).get<double>() > 0) ||
      !std::isfinite(object_.at(key).get<double>())) {
    Refuse(key, "a number > 0");
  }
  return object_.at(key).get<double>();
}

double Fields::Positive(const char* key, double missing) const {
  return Has(key) ? Positive(key) : missing;
}

double Fields::NumberOr(double missing, const char* key) const {
  if (!Has(key)) {
    return missing;
  }
  if (!object_.at(key).is_number()) {
    Refuse(key, "a number");
  }
  return object_.at(key).get<double>();
}

bool Fields::Flag(const char* key, bool missing) const {
  if (!Has(key)) {
    return missing;
  }
  if (!object_.at(key).is_boolean()) {
    Refuse(key, "true or false");
  }
  return object_.at(key).get<bool>();
}

std::string Fields::Text(const char* key, const std::string& missing) const {
  if (!Has(key)) {
    return missing;
  }
  if (!object_.at(key).is_string()) {
    Refuse(key, "a string");
  }
  return object_.at(key).get<std::string>();
}

Fields Fields::Object(const char* key) const {
  if (!object_.at(key).is_object()) {
    Refuse(key, "an object");
  }
  return Fields(object_.at(key), source_, prefix_ + key + ".");
}

}  // namespace fsdprun
