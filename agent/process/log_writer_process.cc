// The log writer's own process. See Note [Log writer].
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "agent/process/keeper_protocol.h"
#include "agent/process/log_writer.h"

namespace fsdprun::keeper {
namespace {

constexpr int kSocket = 3;

/// Nothing of the keeper's may be held open by a process that hangs: neither a worker's pipe nor
/// the launcher's own output.
void DropInheritedDescriptors(int socket) {
  ::dup2(socket, kSocket);
  ::closefrom(kSocket + 1);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    ::dup2(null, fd);
  }
  ::close(null);
}

/// Makes the folder that ends before path[end]; an error, or 0.
int MakeFolder(std::string& path, size_t end) {
  path[end] = '\0';
  const int error = ::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST ? errno : 0;
  path[end] = '/';
  return error;
}

/// Makes the folder of `path` and those above it that are missing; an error, or 0. Begins with the
/// deepest: mostly it alone is missing.
int MakeFolderOf(std::string path) {
  std::vector<size_t> missing;
  for (size_t end = path.rfind('/'); end != std::string::npos && end > 0;
       end = path.rfind('/', end - 1)) {
    const int error = MakeFolder(path, end);
    if (error == 0) {
      break;
    }
    if (error != ENOENT) {
      return error;
    }
    missing.push_back(end);
  }
  for (; !missing.empty(); missing.pop_back()) {
    if (const int error = MakeFolder(path, missing.back()); error != 0) {
      return error;
    }
  }
  return 0;
}

/// A descriptor, or an error as a negative number.
int OpenLog(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY;
  int file = ::open(path.c_str(), kFlags, 0644);
  if (file < 0 && errno == ENOENT) {
    const int error = MakeFolderOf(path);
    file = ::open(path.c_str(), kFlags, 0644);
    errno = file < 0 && error != 0 ? error : errno;
  }
  return file < 0 ? -errno : file;
}

/// Writes as much as the file takes; the error, or 0 if that is everything.
int WriteLog(int file, const char* data, size_t size, uint32_t& written) {
  while (written < size) {
    const ssize_t n = ::write(file, data + written, size - written);
    if (n > 0) {
      written += static_cast<uint32_t>(n);
    } else if (n == 0 || errno != EINTR) {
      return n == 0 ? ENOSPC : errno;
    }
  }
  return 0;
}

class LogFiles {
 public:
  LogAnswer Serve(const LogRequest& request, const char* payload) {
    LogAnswer answer{.file = request.file};
    const auto it = files_.find(request.file);
    switch (request.op) {
      case LogOp::kOpen: {
        const int file = OpenLog(std::string(payload, request.size));
        answer.error = file < 0 ? -file : 0;
        if (file >= 0) {
          files_.emplace(request.file, file);
        }
        return answer;
      }
      case LogOp::kWrite:
        answer.error = it == files_.end()
                           ? EBADF
                           : WriteLog(it->second, payload, request.size, answer.written);
        // Not tried again: the file holds a prefix of the stream.
        return answer.error == 0 ? answer : (Close(it), answer);
      case LogOp::kClose:
        Close(it);
        return answer;
    }
    return answer;
  }

 private:
  void Close(std::map<uint64_t, int>::iterator it) {
    if (it != files_.end()) {
      ::close(it->second);
      files_.erase(it);
    }
  }

  std::map<uint64_t, int> files_;
};

}  // namespace

void ServeLogRequests(int socket) {
  ::prctl(PR_SET_NAME, kLogWriterName);
  DropInheritedDescriptors(socket);
  LogFiles files;
  std::string packet(sizeof(LogRequest) + LogWriter::kMaxWriteBytes, '\0');
  for (;;) {
    const ssize_t got = ::recv(kSocket, packet.data(), packet.size(), 0);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < static_cast<ssize_t>(sizeof(LogRequest))) {
      ::_exit(0);
    }
    LogRequest request;
    std::memcpy(&request, packet.data(), sizeof(request));
    const LogAnswer answer = files.Serve(request, packet.data() + sizeof(request));
    if (::send(kSocket, &answer, sizeof(answer), MSG_NOSIGNAL) < 0) {
      ::_exit(0);
    }
  }
}

}  // namespace fsdprun::keeper
