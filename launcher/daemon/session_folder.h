#pragma once

// Note [What is in a daemon's folder]
// `lock`, held by the daemon that uses it, and a folder for each session, named by its id:
//   spec     what it was told (a SessionSpec), with secrets: mode 600 in folders of mode 700
//   alive    held (flock) by the session's process while it lives; has its process id, and of a
//   job's
//            launcher a second line once the job has started
//   stdout, stderr
//   keeper   of a node's part: the socket at which its keeper takes the place of an agent that was
//            killed for another's
//   exit     its exit code, written at its end
// Sessions are no part of their daemon: they live on without it, and a daemon that is started on
// the same folder finds them here.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// Names a folder: 32 hexadecimal digits. Pure.
bool IsSessionId(absl::string_view text);

/// A daemon's folder, for as long as it lives. Thread: one.
class DaemonFolder {
 public:
  /// `given`, else a folder of this user for a daemon at `port`.
  static std::string PathFor(const std::string& given, uint16_t port,
                             const Environment& environment);
  /// Makes it, if need be. Errors: PERMISSION_DENIED if it is not this user's alone,
  /// ALREADY_EXISTS if another daemon has it, INVALID_ARGUMENT if it cannot be made.
  static absl::StatusOr<DaemonFolder> Open(const std::string& path);

  /// Removes what a daemon has there beside sessions.
  ~DaemonFolder();
  DaemonFolder(DaemonFolder&&) = default;
  DaemonFolder& operator=(DaemonFolder&&) = default;

  std::string PathOf(const std::string& session) const { return path_ + "/" + session; }
  /// Ids of those that are there.
  std::vector<std::string> Sessions() const;
  const std::string& path() const { return path_; }

 private:
  DaemonFolder(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

/// A session's process, as its daemon sees it.
struct SessionProcess {
  pid_t pid = 0;
  /// Invalid: it has ended.
  UniqueFd pidfd;
  /// Else it is an earlier daemon's.
  bool is_child = false;
};

/// Makes a session's folder and starts its process: `program --session FOLDER` with `environment`.
/// Errors: INTERNAL with what was attempted; nothing is left then.
absl::StatusOr<SessionProcess> StartSession(const std::string& folder, const v1::SessionSpec& spec,
                                            const std::string& program,
                                            const Environment& environment);
/// The same for a session whose process was killed and has left its keeper.
absl::StatusOr<SessionProcess> RestartSession(const std::string& folder, const std::string& program,
                                              const Environment& environment);
std::string KeeperSocketOf(const std::string& folder);
/// Finds the process of a session that an earlier daemon has started. Errors: UNAVAILABLE if it is
/// just being started, or cannot be watched now.
absl::StatusOr<SessionProcess> FindSession(const std::string& folder);

absl::StatusOr<v1::SessionSpec> ReadSessionSpec(const std::string& folder);
/// Of a session that has written it.
std::optional<int> ReadSessionExit(const std::string& folder);
/// Of a job's launcher: the job has started.
bool HasSessionStarted(const std::string& folder);
void RemoveSessionFolder(const std::string& folder);

/// For the session's own process: makes it known to daemons.
absl::Status EnterSessionFolder(const std::string& folder);
/// After EnterSessionFolder().
void NoteSessionStart();
absl::Status WriteSessionExit(const std::string& folder, int code);

}  // namespace fsdprun
