#include "launcher/run/exec_words.h"

#include "absl/strings/str_cat.h"

namespace fsdprun {

std::vector<char*> ExecPointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> ExecVariables(const Environment& environment) {
  std::vector<std::string> variables;
  variables.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

}  // namespace fsdprun
