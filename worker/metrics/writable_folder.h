#pragma once

#include <string>

namespace fsdprun::worker {

/// Makes `folder`, for files of `what` ("TensorBoard files"), and looks whether files can be made
/// there, so that a wrong path is known before the job is formed; empty: does nothing. `key`: of
/// the configuration, for errors. Errors: MetricsError.
void CheckWritableFolder(const std::string& folder, const std::string& what,
                         const std::string& key);

/// What is to be written at a path, or in it.
enum class Place { kFile, kFolder };

/// Whether something could be written at `path`, as an errno, 0 if so: to the file or in the folder
/// that is there, or else in the nearest folder above it that is. Changes nothing, so what only the
/// attempt would tell, such as a full disk, is not found.
int WhyNotWritable(const std::string& path, Place place);

}  // namespace fsdprun::worker
