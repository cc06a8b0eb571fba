#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// The operator's token: the content of `token_file` if given, else FSDPRUN_TOKEN; empty if neither
/// is set. Warns of a file that other users can read. Errors: INVALID_ARGUMENT for an unreadable,
/// empty or over-long token, and for characters other than printable ASCII, which gRPC metadata
/// cannot carry.
absl::StatusOr<std::string> GivenToken(const Environment& environment,
                                       const std::string& token_file);

/// The token of a plan: kNoToken if it takes anybody, else as GivenToken().
absl::StatusOr<std::string> TokenOf(const LaunchPlan& plan, const Environment& environment);

/// A token shared by the launchers of one user on one machine: a file of mode 0600 in a private
/// folder.
class TokenFile {
 public:
  /// The path of this job's token. Errors: PERMISSION_DENIED if the directory is not private to
  /// this user.
  static absl::StatusOr<std::string> Path(const Environment& environment, uint16_t port,
                                          absl::string_view run_id);

  /// Writes a fresh random token, replacing one left by a launcher that died. Only for the holder
  /// of the port.
  static absl::StatusOr<TokenFile> Create(const std::string& path);
  /// Reads the token of the launcher that holds the port. Errors: UNAVAILABLE if there is none
  /// (yet), PERMISSION_DENIED if it is not a private file of this user.
  static absl::StatusOr<std::string> Read(const std::string& path);

  /// Removes the file.
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;

  const std::string& token() const { return token_; }

 private:
  TokenFile(std::string path, std::string token);

  std::string path_;
  std::string token_;
};

/// Where this launcher has the job's token from.
struct JobToken {
  /// Empty: it is in the file `path`, which the host writes.
  std::string value;
  std::string path;
  /// The host's, which removes it.
  std::optional<TokenFile> file;
  /// What to do when the coordinator does not accept it.
  std::string advice;

  /// Writes the file, if the token is to be in one. Only for the holder of the port.
  absl::Status Publish();
};

/// The operator's token, else the secret of this user, else, where there is no place for that, a
/// private file of this machine, if no other machine can reach `endpoint`. Errors: as GivenToken(),
/// LoadUserSecret() and TokenFile::Path(); INVALID_ARGUMENT if a token must be given.
absl::StatusOr<JobToken> ChooseToken(const LaunchPlan& plan, const Environment& environment,
                                     const NumericEndpoint& endpoint);

/// `bytes` random bytes in hexadecimal, from the kernel.
std::string RandomHex(size_t bytes);

}  // namespace fsdprun
