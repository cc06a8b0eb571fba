#include "launcher/directory/job_token.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "base/check.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/directory/private_folder.h"
#include "launcher/directory/user_secret.h"

namespace fsdprun {
namespace {

constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kTokenBytes = 32;

absl::StatusOr<std::string> ReadSmallFile(int fd, const std::string& path) {
  char buffer[kMaxTokenBytes + 1];
  const ssize_t n = ::read(fd, buffer, sizeof(buffer));
  if (n < 0 || n > static_cast<ssize_t>(kMaxTokenBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read a token from ", path, ": ",
                     n < 0 ? ErrorText(errno) : "it is longer than 4096 bytes"));
  }
  return std::string(absl::StripAsciiWhitespace(absl::string_view(buffer, static_cast<size_t>(n))));
}

// The token, if it is a valid metadata value.
absl::StatusOr<std::string> Checked(const std::string& token, absl::string_view source) {
  if (token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat(source, " is longer than 4096 bytes"));
  }
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c >= 0x20 && c <= 0x7e; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(source,
                     ": a token is made of printable ASCII characters only (for example "
                     "by `openssl rand -hex 32`)"));
  }
  if (token == kNoToken) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": '", kNoToken, "' stands for no token; give --no-token for that"));
  }
  return token;
}

}  // namespace

absl::StatusOr<std::string> GivenToken(const Environment& environment,
                                       const std::string& token_file) {
  if (token_file.empty()) {
    const auto it = environment.find("FSDPRUN_TOKEN");
    return it == environment.end() || it->second.empty() ? std::string()
                                                         : Checked(it->second, "FSDPRUN_TOKEN");
  }
  const UniqueFd file(::open(token_file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: cannot open '", token_file, "': ", ErrorText(errno)));
  }
  ASSIGN_OR_RETURN(const std::string token, ReadSmallFile(file.get(), token_file));
  if (token.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--token-file: '", token_file, "' is empty"));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
    Log(LogLevel::kWarning, absl::StrCat("the job token in ", token_file,
                                         " is readable by other users, who could then join the "
                                         "job; chmod 600 it"));
  }
  return Checked(token, absl::StrCat("--token-file '", token_file, "'"));
}

absl::StatusOr<std::string> TokenOf(const LaunchPlan& plan, const Environment& environment) {
  return plan.takes_anybody ? absl::StatusOr<std::string>(kNoToken)
                            : GivenToken(environment, plan.token_file);
}

absl::StatusOr<std::string> TokenFile::Path(const Environment& environment, uint16_t port,
                                            absl::string_view run_id) {
  const std::string folder = RuntimeFolder(environment);
  if (const absl::Status status = MakePrivateFolder(folder); !status.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the job token is not safe here: ", status.message(),
                     ", or set FSDPRUN_TOKEN on all nodes"));
  }
  // The id is arbitrary text; hexadecimal is safe in a file name.
  return absl::StrCat(folder, "/", port, "-", absl::BytesToHexString(run_id.substr(0, 100)),
                      ".token");
}

absl::StatusOr<TokenFile> TokenFile::Create(const std::string& path) {
  ::unlink(path.c_str());
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  TokenFile result(path, RandomHex(kTokenBytes));
  if (!file.valid() || (errno = WriteAll(file.get(), result.token_)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot write the job token to ", path, ": ", ErrorText(errno)));
  }
  return result;
}

absl::StatusOr<std::string> TokenFile::Read(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) {
      return absl::UnavailableError(absl::StrCat("there is no job token in ", path, " yet"));
    }
    return absl::PermissionDeniedError(
        absl::StrCat("cannot read the job token in ", path, ": ", ErrorText(errno)));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, " is not a private file of this user"));
  }
  ASSIGN_OR_RETURN(std::string token, ReadSmallFile(file.get(), path));
  if (token.size() != 2 * kTokenBytes) {
    return absl::UnavailableError(absl::StrCat("the job token in ", path, " is being written"));
  }
  return token;
}

TokenFile::TokenFile(std::string path, std::string token)
    : path_(std::move(path)), token_(std::move(token)) {}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::exchange(other.path_, std::string())), token_(std::move(other.token_)) {}

TokenFile& TokenFile::operator=(TokenFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(token_, other.token_);
  return *this;
}

TokenFile::~TokenFile() {
  if (!path_.empty()) {
    ::unlink(path_.c_str());
  }
}

absl::Status JobToken::Publish() {
  if (value.empty()) {
    ASSIGN_OR_RETURN(TokenFile written, TokenFile::Create(path));
    value = written.token();
    file.emplace(std::move(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobToken> ChooseToken(const LaunchPlan& plan, const Environment& environment,
                                     const NumericEndpoint& endpoint) {
  JobToken token;
  token.advice = "set FSDPRUN_TOKEN (or --token-file) to the same value on all nodes";
  ASSIGN_OR_RETURN(token.value, TokenOf(plan, environment));
  if (!token.value.empty()) {
    return token;
  }
  absl::StatusOr<UserSecret> secret = LoadUserSecret(environment);
  if (secret.ok()) {
    token.value = std::move(secret->value);
    token.advice = absl::StrCat(
        "this node took it from ", secret->path,
        ": copy that file from the coordinator's node to this one (same user, mode 600), or set "
        "FSDPRUN_TOKEN (or --token-file) to the same value on all nodes");
    return token;
  }
  if (!absl::IsNotFound(secret.status())) {
    return secret.status();
  }
  if (!IsLoopback(endpoint.address)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the coordinator's address ", ToString(endpoint),
        " can be reached from other machines, so the job needs a token, and ",
        secret.status().message(),
        "; set FSDPRUN_TOKEN to the same random text on all nodes (for example from `openssl "
        "rand -hex 32`), or give --token-file"));
  }
  ASSIGN_OR_RETURN(token.path, TokenFile::Path(environment, endpoint.port, plan.rdzv_id));
  return token;
}

std::string RandomHex(size_t bytes) {
  std::string buffer(bytes, '\0');
  FSDPRUN_CHECK(::getrandom(buffer.data(), buffer.size(), 0) == static_cast<ssize_t>(bytes),
                "getrandom failed");
  return absl::BytesToHexString(buffer);
}

}  // namespace fsdprun
