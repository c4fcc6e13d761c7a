#include "quant/shard_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file_io.h"

namespace ingot::quant {
namespace {

namespace fs = std::filesystem;

Result<> write_all(int fd, const fs::path& path, uint64_t offset, const uint8_t* data, size_t size) {
  if (const int error = write_fully_at(fd, data, size, offset); error != 0) return write_failure(path, "write", error);
  return {};
}

Result<int> create_temporary(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return write_failure(path, "create", errno);
  return fd;
}

Result<> publish(int fd, const fs::path& temporary, const fs::path& final_path) {
  const bool synced = ::fsync(fd) == 0;
  int error = errno;
  ::close(fd);
  const bool renamed = synced && ::rename(temporary.c_str(), final_path.c_str()) == 0;
  if (synced) error = errno;
  if (!renamed) {
    ::unlink(temporary.c_str());
    return write_failure(final_path, synced ? "rename a finished file to" : "write", error);
  }
  return sync_folder(final_path.parent_path());
}

}  // namespace

std::string temporary_name(const std::string& file) { return "." + file + ".tmp"; }

tl::unexpected<Error> write_failure(const fs::path& path, std::string_view what, int error_number) {
  std::string hint;
  if (error_number == ENOSPC || error_number == EDQUOT) hint = "free some space and run again with --resume: finished shards are kept";
  if (error_number == EFBIG) hint = "the file system or `ulimit -f` allows no larger file: choose a smaller --shard-size";
  if (error_number == EROFS || error_number == EACCES || error_number == EPERM) hint = "the target must be a folder that you may write to";
  return fail_hint(hint, "cannot {} {}: {}", what, path.string(), std::strerror(error_number));
}

Result<> sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return write_failure(folder, "open", errno);
  const bool synced = ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  // Some network file systems have no fsync of folders; their renames are durable by themselves.
  if (!synced && error != EINVAL && error != ENOTSUP) return write_failure(folder, "write", error);
  return {};
}

Result<> write_file_durably(const fs::path& folder, const std::string& file, std::string_view text) {
  const fs::path temporary = folder / temporary_name(file);
  INGOT_ASSIGN(const int fd, create_temporary(temporary));
  if (auto written = write_all(fd, temporary, 0, reinterpret_cast<const uint8_t*>(text.data()), text.size()); !written) {
    ::close(fd);
    ::unlink(temporary.c_str());
    return written;
  }
  return publish(fd, temporary, folder / file);
}

Result<> copy_file_durably(const fs::path& from, const fs::path& folder, const std::string& file) {
  const int source = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) return fail("cannot open {}: {}", from.string(), std::strerror(errno));
  std::string text;
  std::vector<char> buffer(1 << 20);
  ssize_t n = 0;
  while ((n = ::read(source, buffer.data(), buffer.size())) > 0) text.append(buffer.data(), static_cast<size_t>(n));
  const int error = errno;
  ::close(source);
  if (n < 0) return fail("cannot read {}: {}", from.string(), std::strerror(error));
  return write_file_durably(folder, file, text);
}

Result<ShardWriter> ShardWriter::create(const fs::path& folder, const PlannedShard& shard) {
  const fs::path path = folder / temporary_name(shard.file);
  INGOT_ASSIGN(const int fd, create_temporary(path));
  ShardWriter writer(folder, shard.file, fd);
  // Reserves the space, so that a full disk shows before the work; not every file system can.
  if (shard.bytes > 0 && ::fallocate(fd, 0, 0, static_cast<off_t>(shard.bytes)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    return write_failure(path, fmt::format("reserve {} bytes for", shard.bytes), errno);
  INGOT_TRY(write_all(fd, path, 0, reinterpret_cast<const uint8_t*>(shard.header.data()), shard.header.size()));
  return writer;
}

ShardWriter::ShardWriter(ShardWriter&& other) noexcept
    : folder_(std::move(other.folder_)), file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)) {}

ShardWriter::~ShardWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary().c_str());
}

Result<> ShardWriter::write(uint64_t offset, std::span<const uint8_t> bytes) {
  return write_all(fd_, temporary(), offset, bytes.data(), bytes.size());
}

Result<> ShardWriter::finish() { return publish(std::exchange(fd_, -1), temporary(), folder_ / file_); }

uint64_t digest_bytes(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t digest_shard(const std::string& header, const std::vector<BandDigest>& bands) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  XXH3_64bits_update(state, header.data(), header.size());
  for (const BandDigest& band : bands) {
    XXH3_64bits_update(state, &band.weight, sizeof(band.weight));
    XXH3_64bits_update(state, &band.scale, sizeof(band.scale));
  }
  const uint64_t digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return digest;
}

Result<uint64_t> digest_shard_file(const fs::path& folder, const Plan& plan, const PlannedShard& shard) {
  const fs::path path = folder / shard.file;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat st {};
  std::vector<uint8_t> buffer;
  const auto read = [&](uint64_t offset, uint64_t bytes) {
    buffer.resize(bytes);
    return read_fully_at(fd, buffer.data(), bytes, offset) == 0;
  };
  std::vector<BandDigest> digests;
  bool good = ::fstat(fd, &st) == 0 && static_cast<uint64_t>(st.st_size) == shard.bytes && read(0, shard.header.size());
  const std::string header(buffer.begin(), buffer.end());
  for (const Band& band : bands_of(plan, shard)) {
    const Unit& unit = plan.units[band.unit];
    const BandPlace place = place_of(unit, band);
    BandDigest digest;
    good = good && read(unit.weight.offset + place.weight_begin, place.weight_bytes);
    if (!good) break;
    digest.weight = digest_bytes(buffer);
    good = read(unit.scale.offset + place.scale_begin, place.scale_bytes);
    digest.scale = digest_bytes(buffer);
    digests.push_back(digest);
  }
  ::close(fd);
  if (!good) return fail("{} cannot be read, or has not the {} bytes that were written", path.string(), shard.bytes);
  return digest_shard(header, digests);
}

}  // namespace ingot::quant
