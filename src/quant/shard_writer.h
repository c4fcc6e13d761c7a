// Files of the target folder, written so that a crash at any moment leaves either the whole file or none under its name: a temporary name
// in the same folder, fsync, rename, fsync of the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quant/plan.h"

namespace ingot::quant {

// The temporary name of `file`: hidden, so that nobody takes it for a part of a model.
std::string temporary_name(const std::string& file);

// Errors name the path and the system's reason; a full disk, a limit on file size and a read-only folder say what to do.
tl::unexpected<Error> write_failure(const std::filesystem::path& path, std::string_view what, int error_number);

// Makes renames within the folder durable.
Result<> sync_folder(const std::filesystem::path& folder);

// A whole small file, replaced at once.
Result<> write_file_durably(const std::filesystem::path& folder, const std::string& file, std::string_view text);
Result<> copy_file_durably(const std::filesystem::path& from, const std::filesystem::path& folder, const std::string& file);

// One shard. write() from any thread; the rest from one at a time. Removes its temporary file when destroyed before finish().
class ShardWriter {
 public:
  // Makes the temporary file, reserves its size and writes the header.
  static Result<ShardWriter> create(const std::filesystem::path& folder, const PlannedShard& shard);
  ShardWriter(ShardWriter&& other) noexcept;
  ShardWriter& operator=(ShardWriter&&) = delete;
  ShardWriter(const ShardWriter&) = delete;
  ~ShardWriter();

  Result<> write(uint64_t offset, std::span<const uint8_t> bytes);

  // fsync, rename to the final name, fsync of the folder.
  Result<> finish();

 private:
  ShardWriter(std::filesystem::path folder, std::string file, int fd) : folder_(std::move(folder)), file_(std::move(file)), fd_(fd) {}
  std::filesystem::path temporary() const { return folder_ / temporary_name(file_); }

  std::filesystem::path folder_;
  std::string file_;
  int fd_ = -1;
};

// The checksum of a shard: XXH3 over its header and the digests of its bands' outputs, in the plan's order. Made so that threads can write
// bands in any order while the file is produced, and a reader can recompute it afterwards.
struct BandDigest {
  uint64_t weight = 0, scale = 0;
};
uint64_t digest_bytes(std::span<const uint8_t> bytes);
uint64_t digest_shard(const std::string& header, const std::vector<BandDigest>& bands);

// The same from a file on disk, read band by band. Errors: not there, another size, unreadable.
Result<uint64_t> digest_shard_file(const std::filesystem::path& folder, const Plan& plan, const PlannedShard& shard);

}  // namespace ingot::quant
