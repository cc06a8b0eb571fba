// A libnvrtc.so.12 that compiles nothing and writes down what it is asked.

#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>

#include "tests/unit/worker/models/fused/cuda/fake_libraries.h"

namespace {

fsdprun::worker::FakeLibrary fake;
int program_made = 0;

int Called(const std::string& name, const std::string& arguments) {
  static std::mutex mutex;  // callers may be several threads
  const std::lock_guard lock(mutex);
  fake.calls.push_back(arguments.empty() ? name : name + " " + arguments);
  return fake.failing == name ? 6 : 0;
}

// A cubin has zeros.
std::string Cubin() { return {"cu\0bin", 6}; }

}  // namespace

extern "C" {

fsdprun::worker::FakeLibrary* FakeOfNvrtc() { return &fake; }

int nvrtcCreateProgram(void** program, const char* text, const char* name, int headers,
                       const char* const* texts, const char* const* names) {
  *program = &program_made;
  std::string arguments = std::string(text) + " " + name;
  for (int i = 0; i < headers; ++i) {
    arguments += std::string(" ") + names[i] + (std::strlen(texts[i]) > 100 ? " (a text)" : "");
  }
  return Called("nvrtcCreateProgram", arguments);
}
int nvrtcCompileProgram(void* program, int options, const char* const* texts) {
  std::string arguments = program == &program_made ? "" : "another program ";
  for (int i = 0; i < options; ++i) {
    arguments += (i == 0 ? "" : " ") + std::string(texts[i]);
  }
  return Called("nvrtcCompileProgram", arguments);
}
int nvrtcGetProgramLogSize(void* /*program*/, size_t* bytes) {
  *bytes = fake.log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* /*program*/, char* text) {
  std::strcpy(text, fake.log.c_str());
  return 0;
}
int nvrtcGetCUBINSize(void* /*program*/, size_t* bytes) {
  *bytes = Cubin().size();
  return Called("nvrtcGetCUBINSize", "");
}
int nvrtcGetCUBIN(void* /*program*/, char* bytes) {
  std::memcpy(bytes, Cubin().data(), Cubin().size());
  return Called("nvrtcGetCUBIN", "");
}
int nvrtcDestroyProgram(void** program) {
  return Called("nvrtcDestroyProgram", *program == &program_made ? "" : "another program");
}
#ifndef FAKE_WITHOUT_ERROR_TEXTS
const char* nvrtcGetErrorString(int result) {
  return result == 6 ? "NVRTC_ERROR_COMPILATION" : "another error";
}
#endif

}  // extern "C"
