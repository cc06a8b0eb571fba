#include "worker/data/token_layout.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "formats/tokens/datatrove_index.h"
#include "formats/tokens/llmc_header.h"
#include "formats/tokens/megatron_index.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

struct FormatName {
  DataFormat format;
  std::string_view name;
};
/// In the order of the enumerators.
constexpr std::array<FormatName, 5> kFormats = {{{DataFormat::kText, "text"},
                                                 {DataFormat::kLlmc, "llmc"},
                                                 {DataFormat::kMegatron, "megatron"},
                                                 {DataFormat::kDatatrove, "datatrove"},
                                                 {DataFormat::kRaw, "raw"}}};

constexpr size_t kHeadBytes = kLlmcHeaderBytes;

using FilePointer = std::shared_ptr<const DataFile>;

FilePointer Open(const std::string& path) { return std::make_shared<const DataFile>(path); }

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::string Without(const std::string& path, std::string_view ending) {
  return path.ends_with(ending) ? path.substr(0, path.size() - ending.size()) : path;
}

/// What the names of a data set of Megatron's begin with.
std::string PrefixOf(const std::string& path) {
  return path.ends_with(".idx") ? Without(path, ".idx") : Without(path, ".bin");
}

bool IsMegatron(const std::string& path) {
  const std::string prefix = PrefixOf(path);
  return path.ends_with(".idx") || (path.ends_with(".bin") && Exists(prefix + ".idx")) ||
         (!Exists(path) && Exists(prefix + ".idx") && Exists(prefix + ".bin"));
}

std::string Head(const DataFile& file) {
  std::string head(static_cast<size_t>(std::min(file.size(), kLlmcHeaderBytes)), '\0');
  file.read(0, head.data(), static_cast<int64_t>(head.size()));
  return head;
}

/// Of files that hold text, or tokens, in a form that is not read.
std::string PackedAs(std::string_view head) {
  const std::array<std::pair<std::string_view, const char*>, 10> known = {
      {{"\x1f\x8b", "compressed with gzip"},
       {"\x28\xb5\x2f\xfd", "compressed with zstd"},
       {{"\xfd\x37zXZ\0", 6}, "compressed with xz"},
       {"BZh", "compressed with bzip2"},
       {"PK\x03\x04", "a zip archive, such as torch.save or numpy's savez writes"},
       {"\x93NUMPY", "an array of numpy (.npy)"},
       {"PAR1", "a Parquet file"},
       {"ARROW1", "an Arrow file"},
       {"\xff\xff\xff\xff", "an Arrow stream, such as the Python package datasets writes"},
       {"\x89HDF", "an HDF5 file"}}};
  for (const auto& [magic, what] : known) {
    if (head.starts_with(magic)) {
      return what;
    }
  }
  return "";
}

/// Why nobody would want to learn the bytes of the file; empty: it is text, as far as can be told,
/// or its name says so.
std::string WhyNoText(const std::string& path, std::string_view head) {
  std::string packed = PackedAs(head);
  if (!packed.empty()) {
    return "it is " + packed;
  }
  for (const std::string_view ending : {".jsonl", ".ndjson", ".json"}) {
    if (path.ends_with(ending)) {
      return "it is JSON by its name";
    }
  }
  if (path.ends_with(".txt")) {
    return "";
  }
  if (const size_t zero = head.find('\0'); zero != std::string_view::npos) {
    return "byte " + std::to_string(zero) + " is zero, as in no text";
  }
  // A character that the head cuts has at most three bytes of four.
  const size_t valid = ValidUtf8Bytes(head);
  if (valid != head.size() && (head.size() < kHeadBytes || head.size() - valid > 3)) {
    return "byte " + std::to_string(valid) + " is not UTF-8";
  }
  return "";
}

DataFormat Detect(const std::string& path, const LayoutOptions& options) {
  if (IsMegatron(path)) {
    return DataFormat::kMegatron;
  }
  if (path.ends_with(".ds")) {
    return DataFormat::kDatatrove;
  }
  const std::string head = Head(*Open(path));
  if (IsLlmcFile(head)) {
    return DataFormat::kLlmc;
  }
  if (options.dtype || Exists(TokenFileInfoPath(path))) {
    return DataFormat::kRaw;
  }
  if (path.ends_with(".bin")) {
    throw ConfigError("data file " + path +
                      ": it has neither a header of llm.c nor an index (.idx) nor a description "
                      "(.bin.json) beside it; say with data.dtype how its ids are stored, or set "
                      "data.format to text to train on its bytes");
  }
  const std::string why = WhyNoText(path, head);
  if (!why.empty()) {
    throw ConfigError("data file " + path + ": " + why +
                      "; make tokens of it with fsdp-train tokenize, or set data.format to text "
                      "to train on its bytes");
  }
  return DataFormat::kText;
}

[[noreturn]] void RefuseDtype(const std::string& path, TokenDtype said, const std::string& where,
                              TokenDtype other, const std::string& other_where) {
  throw ConfigError("data file " + path + ": dtype is " + std::string(TokenDtypeName(said)) +
                    " in " + where + " and " + std::string(TokenDtypeName(other)) + " in " +
                    other_where + "; correct one of the two, or make the files again");
}

/// The description beside the file, which has to agree with what is known of it.
void AddInfo(const LayoutOptions& options, TokenLayout& layout) {
  const std::string& path = layout.part.file->path();
  const std::string info_path = TokenFileInfoPath(path);
  if (Exists(info_path)) {
    layout.info = ReadTokenFileInfo(info_path);
    if (layout.info->dtype != layout.part.dtype) {
      RefuseDtype(path, layout.part.dtype, "it or its index", layout.info->dtype, info_path);
    }
    if (layout.info->tokens != layout.part.tokens) {
      throw ConfigError("data file " + path + ": it has " + std::to_string(layout.part.tokens) +
                        " tokens, and " + info_path +
                        ": tokens = " + std::to_string(layout.info->tokens) +
                        "; one of the two was cut short or is of another data set: copy or make "
                        "both again");
    }
  }
  if (options.dtype && *options.dtype != layout.part.dtype) {
    RefuseDtype(path, layout.part.dtype, "it or its index", *options.dtype, "data.dtype");
  }
}

void ReadLlmc(const std::string& path, TokenLayout& layout) {
  FilePointer file = Open(path);
  const LlmcHeader header = ParseLlmcHeader(Head(*file), file->size(), "data file " + path);
  layout.part = {std::move(file), header.dtype, kLlmcHeaderBytes, header.tokens};
}

void ReadMegatron(const std::string& path, bool wants_documents, TokenLayout& layout) {
  const std::string prefix = PrefixOf(path);
  const std::string index_path = prefix + ".idx";
  MegatronIndex index =
      ReadMegatronIndex(DataFile(index_path), "data file " + index_path, wants_documents);
  FilePointer file = Open(prefix + ".bin");
  const int64_t expected = index.tokens * TokenBytes(index.dtype);
  if (file->size() != expected) {
    throw ConfigError("data file " + file->path() + ": it has " + std::to_string(file->size()) +
                      " bytes, and the sequence_lengths in " + index_path + " add up to " +
                      std::to_string(expected) + " (" + std::to_string(index.tokens) +
                      " tokens of " + std::string(TokenDtypeName(index.dtype)) +
                      "); one of the two was cut short or is of another data set: copy or make "
                      "both again");
  }
  layout.part = {std::move(file), index.dtype, 0, index.tokens};
  if (wants_documents) {
    layout.document_ends = std::move(index.document_ends);
  }
}

/// Of ids and nothing else, stored as `dtype`.
void ReadPlain(FilePointer file, TokenDtype dtype, TokenLayout& layout) {
  const int64_t bytes = TokenBytes(dtype);
  if (file->size() % bytes != 0) {
    throw ConfigError("data file " + file->path() + ": it has " + std::to_string(file->size()) +
                      " bytes, no whole number of ids of " + std::string(TokenDtypeName(dtype)) +
                      "; it was cut short (copy or make it again), or the dtype is another");
  }
  const int64_t tokens = file->size() / bytes;
  layout.part = {std::move(file), dtype, 0, tokens};
}

void ReadDatatrove(const std::string& path, const LayoutOptions& options, TokenLayout& layout) {
  FilePointer file = Open(path);
  const std::string index_path = path + ".index";
  if (!Exists(index_path) && options.dtype) {
    return ReadPlain(std::move(file), *options.dtype, layout);
  }
  DatatroveIndex index = ReadDatatroveIndex(DataFile(index_path), file->size(),
                                            "data file " + index_path, options.wants_documents);
  layout.part = {std::move(file), index.dtype, 0, index.tokens};
  if (options.wants_documents) {
    layout.document_ends = std::move(index.document_ends);
  }
}

void ReadRaw(const std::string& path, const LayoutOptions& options, TokenLayout& layout) {
  const std::string info_path = TokenFileInfoPath(path);
  if (!options.dtype && !Exists(info_path)) {
    throw ConfigError("data file " + path + ": nothing says how its ids are stored: give " +
                      "data.dtype, or a description " + info_path);
  }
  ReadPlain(Open(path), options.dtype ? *options.dtype : ReadTokenFileInfo(info_path).dtype,
            layout);
}

}  // namespace

std::string_view DataFormatName(DataFormat format) {
  return kFormats[static_cast<size_t>(format)].name;
}

std::optional<DataFormat> FindDataFormat(std::string_view word) {
  for (const FormatName& known : kFormats) {
    if (known.name == word) {
      return known.format;
    }
  }
  return std::nullopt;
}

TokenLayout ReadTokenLayout(const std::string& path, const LayoutOptions& options) {
  TokenLayout layout;
  layout.format = options.format ? *options.format : Detect(path, options);
  switch (layout.format) {
    case DataFormat::kText:
      ReadPlain(Open(path), TokenDtype::kUint8, layout);
      return layout;
    case DataFormat::kLlmc:
      ReadLlmc(path, layout);
      break;
    case DataFormat::kMegatron:
      ReadMegatron(path, options.wants_documents, layout);
      break;
    case DataFormat::kDatatrove:
      ReadDatatrove(path, options, layout);
      break;
    case DataFormat::kRaw:
      ReadRaw(path, options, layout);
      break;
  }
  AddInfo(options, layout);
  return layout;
}

}  // namespace fsdprun::worker
