// The header of a safetensors file, parsed with a SAX parser: the DOM of a malicious header of 100
// MB would take gigabytes, and would silently keep one of two duplicate keys.

#include <algorithm>
#include <limits>
#include <optional>

#include "formats/safetensors/safetensors.h"

namespace fsdprun {
namespace {

struct DtypeBits {
  std::string_view name;
  int64_t bits;
};
constexpr DtypeBits kDtypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"I16", 16},        {"U16", 16},
    {"I32", 32},    {"U32", 32},    {"I64", 64},        {"U64", 64},        {"F16", 16},
    {"BF16", 16},   {"F32", 32},    {"F64", 64},        {"C64", 64},        {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}};

constexpr size_t kMaxDimensions = 64;

/// Accepts exactly {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}

  const std::string& defect() const { return defect_; }

  bool null() override { return Refuse("a null value"); }
  bool boolean(bool) override { return Refuse("a true or false value"); }
  bool number_integer(number_integer_t) override { return Refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Refuse("a number with a fraction or out of range");
  }
  bool binary(binary_t&) override { return Refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!list_) {
      return Refuse("a number");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Refuse("a number out of range");
    }
    if (list_->size() >= kMaxDimensions) {
      return Refuse("a list of more than " + std::to_string(kMaxDimensions) + " numbers");
    }
    list_->push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[field_] = value;
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype" || list_) {
      return Refuse("a text");
    }
    tensor_->dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) {
      return Refuse("an object inside an entry");
    }
    place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
    if (place_ == Place::kTensor) {
      tensor_ = &header_.tensors[name_];
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTop) {
      name_ = value;
      field_.clear();
      const bool is_new = value == "__metadata__" ? !std::exchange(has_metadata_, true)
                                                  : !header_.tensors.contains(value);
      return is_new || Refuse("the key twice");
    }
    field_ = value;
    if (place_ == Place::kMetadata) {
      return !header_.metadata.contains(value) || Refuse("the key twice");
    }
    bool* seen = value == "dtype"          ? &has_dtype_
                 : value == "shape"        ? &has_shape_
                 : value == "data_offsets" ? &has_offsets_
                                           : nullptr;
    if (seen == nullptr) {
      return Refuse("an unknown field");
    }
    return !std::exchange(*seen, true) || Refuse("the key twice");
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      field_.clear();
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        return Refuse("an entry without dtype, shape or data_offsets");
      }
      if (offsets_.size() != 2) {
        return Refuse("data_offsets that are not two numbers");
      }
      tensor_->begin = offsets_[0];
      tensor_->end = offsets_[1];
    }
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || list_ || field_ == "dtype") {
      return Refuse("a list");
    }
    list_ = field_ == "shape" ? &tensor_->shape : &offsets_;
    list_->clear();
    return true;
  }

  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    defect_ = "the header is not valid JSON at its byte " + std::to_string(position);
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor };

  bool Refuse(const std::string& what) {
    defect_ = "the header has " + what;
    if (place_ != Place::kOutside) {
      defect_ += " at \"" + name_ + (field_.empty() ? "" : "." + field_) + "\"";
    }
    return false;
  }

  SafetensorsHeader& header_;
  std::string defect_;
  Place place_ = Place::kOutside;
  std::string name_;
  std::string field_;
  SafetensorsEntry* tensor_ = nullptr;
  std::vector<int64_t>* list_ = nullptr;
  std::vector<int64_t> offsets_;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

/// Bytes of a tensor; nullopt on overflow or when the bits do not fill whole bytes.
std::optional<int64_t> TensorBytes(const SafetensorsEntry& entry, int64_t bits) {
  int64_t total = bits;
  for (const int64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(total, dimension, &total)) {
      return std::nullopt;
    }
  }
  return total % 8 == 0 ? std::optional<int64_t>(total / 8) : std::nullopt;
}

void CheckTiling(const SafetensorsHeader& header, int64_t data_bytes, const std::string& source) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> by_offset;
  for (const auto& named : header.tensors) {
    by_offset.push_back(&named);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t expected = 0;
  for (const auto* named : by_offset) {
    if (named->second.begin != expected) {
      throw ConfigError(source + ": tensor " + named->first + " begins at byte " +
                        std::to_string(named->second.begin) + " of the data, expected " +
                        std::to_string(expected) + ": tensors overlap or leave a hole");
    }
    expected = named->second.end;
  }
  if (expected != data_bytes) {
    throw ConfigError(source + ": the tensors end at byte " + std::to_string(expected) +
                      " of the data, the file has " + std::to_string(data_bytes) + ": " +
                      (expected > data_bytes ? "truncated" : "trailing bytes"));
  }
}

}  // namespace

int64_t SafetensorsDtypeBits(std::string_view dtype) {
  for (const DtypeBits& known : kDtypes) {
    if (known.name == dtype) {
      return known.bits;
    }
  }
  return 0;
}

SafetensorsHeader ParseSafetensorsHeader(std::string_view text, int64_t data_begin,
                                         int64_t file_bytes, const std::string& source) {
  if (text.empty() || text.front() != '{') {
    throw ConfigError(source + ": not a safetensors file: the header does not begin with {");
  }
  // The JSON library takes a zero byte for the end of the text, and no JSON has one.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw ConfigError(source + ": the header is not valid JSON at its byte " +
                      std::to_string(zero + 1));
  }
  SafetensorsHeader header;
  HeaderEvents events(header);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) {
    throw ConfigError(source + ": " + events.defect());
  }
  for (const auto& [name, entry] : header.tensors) {
    const int64_t bits = SafetensorsDtypeBits(entry.dtype);
    if (bits == 0) {
      throw ConfigError(source + ": tensor " + name + " has the unknown dtype \"" + entry.dtype +
                        "\"");
    }
    if (TensorBytes(entry, bits) != entry.end - entry.begin) {
      throw ConfigError(source + ": tensor " + name + " has data_offsets [" +
                        std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                        "] that do not fit its shape and dtype " + entry.dtype);
    }
  }
  CheckTiling(header, file_bytes - data_begin, source);
  for (auto& [name, entry] : header.tensors) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return header;
}

}  // namespace fsdprun
