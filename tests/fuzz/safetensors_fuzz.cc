// A safetensors file -> checked header. An input that begins with '{' is the header of a file whose
// data size is taken from the header itself, because mutation would rarely keep the two consistent;
// one that begins with "index:" is the index of a model in the files a.safetensors, with the
// tensors t and u, and b.safetensors, with v; any other input is the whole file. Accepted headers
// and indexes are compared with a plain JSON parse.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/check.h"
#include "formats/safetensors/safetensors.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun::worker {
namespace {

/// The largest end of data_offsets in the header, 0 without any.
int64_t ClaimedDataBytes(const Json& header) {
  int64_t end = 0;
  if (!header.is_object()) {
    return 0;
  }
  for (const auto& [name, entry] : header.items()) {
    if (!entry.is_object() || !entry.contains("data_offsets")) {
      continue;
    }
    const Json& offsets = entry.at("data_offsets");
    if (offsets.is_array() && offsets.size() == 2 && offsets[1].is_number_unsigned() &&
        offsets[1].get<uint64_t>() < uint64_t{1} << 62) {
      end = std::max(end, offsets[1].get<int64_t>());
    }
  }
  return end;
}

/// Recomputes sizes with 128-bit arithmetic and checks that the tensors tile the data.
void CheckAccepted(const SafetensorsHeader& header, const Json& plain, int64_t data_begin,
                   int64_t file_bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, entry] : header.tensors) {
    __extension__ unsigned __int128 bits = SafetensorsDtypeBits(entry.dtype);
    FSDPRUN_CHECK(bits != 0, "unknown dtype accepted");
    for (const int64_t dimension : entry.shape) {
      FSDPRUN_CHECK(dimension >= 0, "negative dimension");
      bits *= static_cast<uint64_t>(dimension);
      FSDPRUN_CHECK(bits >> 70 == 0, "impossible size accepted");
    }
    FSDPRUN_CHECK(entry.begin <= entry.end &&
                      bits == 8 * static_cast<decltype(bits)>(entry.end - entry.begin),
                  "data_offsets do not match the shape");
    const Json& said = plain.at(name);
    FSDPRUN_CHECK(
        said.at("dtype") == entry.dtype && said.at("shape") == entry.shape &&
            said.at("data_offsets") == Json({entry.begin - data_begin, entry.end - data_begin}),
        "entry differs from the header");
    ranges.emplace_back(entry.begin, entry.end);
  }
  FSDPRUN_CHECK(plain.size() == header.tensors.size() + plain.count("__metadata__"),
                "entry missing");
  std::sort(ranges.begin(), ranges.end());
  int64_t at = data_begin;
  for (const auto& [begin, end] : ranges) {
    FSDPRUN_CHECK(begin == at, "hole or overlap");
    at = end;
  }
  FSDPRUN_CHECK(at == file_bytes, "tensors do not end at the end of the file");
}

/// Calls `read`; false if it throws the documented exception.
template <class Read>
bool IsAccepted(size_t input_bytes, Read&& read) {
  try {
    const fuzz::MemoryBound bound((64 << 10) + 256 * input_bytes);
    read();
    return true;
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return false;
  }
}

void FuzzHeader(std::string_view text) {
  const Json plain = Json::parse(text.begin(), text.end(), nullptr, false);
  const auto data_begin = static_cast<int64_t>(8 + text.size());
  const int64_t file_bytes = data_begin + ClaimedDataBytes(plain);
  SafetensorsHeader header;
  if (IsAccepted(text.size(), [&] {
        header = ParseSafetensorsHeader(text, data_begin, file_bytes, "the file");
      })) {
    CheckAccepted(header, plain, data_begin, file_bytes);
  }
}

/// A file in memory with these bytes, always the same one. Returns its path.
std::string FileWith(std::string_view bytes) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  FSDPRUN_CHECK(::ftruncate(fd, static_cast<off_t>(bytes.size())) == 0 &&
                    ::pwrite(fd, bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()),
                "writing the input to a memfd failed");
  return "/proc/self/fd/" + std::to_string(fd);
}

void FuzzFile(std::string_view bytes) {
  const std::string path = FileWith(bytes);
  IsAccepted(bytes.size(), [&] {
    const SafetensorsFile file(path);
    for (const auto& [name, entry] : file.header().tensors) {
      std::string data(static_cast<size_t>(entry.end - entry.begin), '\0');
      file.Read(entry.begin, entry.end - entry.begin, data.data());
      FSDPRUN_CHECK(data == bytes.substr(static_cast<size_t>(entry.begin), data.size()),
                    "wrong tensor data");
    }
  });
}

/// A folder with the two files, whose index is a symbolic link to `index_path`.
class ModelFolder {
 public:
  explicit ModelFolder(const std::string& index_path) {
    char folder[] = "/tmp/fsdprun_fuzz_XXXXXX";
    FSDPRUN_CHECK(::mkdtemp(folder) != nullptr, "making a folder failed");
    path_ = folder;
    Write("a.safetensors", 5,
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("u":{"dtype":"F32","shape":[],"data_offsets":[1,5]}})");
    Write("b.safetensors", 2, R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})");
    std::filesystem::create_symlink(index_path, path_ + "/model.safetensors.index.json");
  }
  ~ModelFolder() { std::filesystem::remove_all(path_); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  void Write(const char* name, size_t data_bytes, std::string_view header) const {
    const uint64_t header_bytes = header.size();
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
    file << header << std::string(data_bytes, 'x');
    FSDPRUN_CHECK(file.flush().good(), "writing a file failed");
  }

  std::string path_;
};

void FuzzIndex(std::string_view text) {
  static const ModelFolder folder(FileWith(""));
  FileWith(text);
  // The two files are read, too.
  constexpr size_t kFilesBytes = 1024;
  IsAccepted(kFilesBytes + text.size(), [&] {
    const SafetensorsModel model(folder.path());
    const Json plain = Json::parse(text);
    for (const auto& [tensor, file] : plain.at("weight_map").items()) {
      const std::string path = model.tensors().at(tensor).file->path();
      FSDPRUN_CHECK(path == folder.path() + "/" + file.get<std::string>(),
                    "a tensor in another file");
    }
  });
}

/// Replaces a random number of the text by an interesting one: blind mutation mostly breaks the
/// JSON.
size_t MutateNumber(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  static constexpr const char* kNumbers[] = {"0",
                                             "1",
                                             "2",
                                             "8",
                                             "24",
                                             "32",
                                             "65",
                                             "4294967296",
                                             "1152921504606846976",
                                             "4611686018427387904",
                                             "9223372036854775807",
                                             "18446744073709551615"};
  std::string text(fuzz::AsText(data, size));
  const size_t begin = text.find_first_of("0123456789", seed % (size + 1));
  if (begin == std::string::npos) {
    return size;
  }
  const size_t end = std::min(text.find_first_not_of("0123456789", begin), size);
  text.replace(begin, end - begin, kNumbers[seed / 7 % std::size(kNumbers)]);
  const size_t new_size = std::min(text.size(), max_size);
  text.copy(reinterpret_cast<char*>(data), new_size);
  return new_size;
}

}  // namespace
}  // namespace fsdprun::worker

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  return seed % 3 == 0 ? fsdprun::worker::MutateNumber(data, size, max_size, seed / 3)
                       : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fsdprun::fuzz::AsText(data, size);
  constexpr std::string_view kIndex = "index:";
  if (input.starts_with(kIndex)) {
    fsdprun::worker::FuzzIndex(input.substr(kIndex.size()));
  } else if (input.starts_with('{')) {
    fsdprun::worker::FuzzHeader(input);
  } else {
    fsdprun::worker::FuzzFile(input);
  }
  return 0;
}
