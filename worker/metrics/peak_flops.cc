#include "worker/metrics/peak_flops.h"

#include <cctype>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace fsdprun::worker {
namespace {

struct Peak {
  /// Words of the name; the first row that is in it counts.
  std::string_view words;
  double tera;
};

// clang-format off
constexpr Peak kPeaks[] = {
    {"GB200", 2500}, {"B200", 2250}, {"B100", 1750},
    {"GH200", 989}, {"H200 NVL", 835}, {"H200", 989}, {"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989}, {"H800", 989}, {"H20", 148},
    {"A100", 312}, {"A800", 312}, {"A40", 149.7}, {"A30", 165}, {"A10G", 70}, {"A10", 125},
    {"L40S", 362}, {"L40", 181}, {"L4", 121}, {"V100", 125}, {"T4", 65},
    {"RTX 6000 Ada", 364}, {"RTX A6000", 154.8}, {"RTX 4090", 165.2}, {"RTX 3090", 71},
};
// clang-format on

/// Whether `words` are in `name`, not as a part of longer ones.
bool HasWords(std::string_view name, std::string_view words) {
  const auto is_part = [&](size_t at) {
    return at < name.size() && std::isalnum(static_cast<unsigned char>(name[at])) != 0;
  };
  for (size_t at = name.find(words); at != std::string_view::npos; at = name.find(words, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + words.size())) {
      return true;
    }
  }
  return false;
}

/// The value of "Model:" in what the driver says of a GPU.
std::string ModelIn(const std::filesystem::path& information) {
  constexpr std::string_view kKey = "Model:";
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kKey)) {
      const size_t begin = line.find_first_not_of(" \t", kKey.size());
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

}  // namespace

std::optional<double> PeakFlopsOf(std::string_view name) {
  for (const Peak& peak : kPeaks) {
    if (HasWords(name, peak.words)) {
      return peak.tera * 1e12;
    }
  }
  return std::nullopt;
}

std::vector<std::string> GpuNames(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(ModelIn(entry->path() / "information"));
  }
  return names;
}

std::optional<double> PeakFlopsOfMachine(const std::vector<std::string>& names) {
  std::optional<double> peak;
  for (const std::string& name : names) {
    const std::optional<double> own = PeakFlopsOf(name);
    if (!own || (peak && *peak != *own)) {
      return std::nullopt;
    }
    peak = own;
  }
  return peak;
}

}  // namespace fsdprun::worker
