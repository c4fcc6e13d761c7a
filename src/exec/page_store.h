// PageStore: the disk tier of the prefix cache. Keeps pages (latents and index keys of page_size tokens, one opaque blob) as files that
// survive a restart. put() and fetch() return at once: a writer thread and a reader thread of its own do the I/O, so that a read never
// waits behind writes. Never decides what is worth storing, never looks inside a page.
//
// One file a page: dir/<identity>/<first two hex digits of key>/<key>.page, written under a temporary name and renamed, so nobody ever sees
// half a page. Nothing is synced: after a power cut the checksum finds what did not arrive. Several processes may share a folder: each
// keeps to max_bytes for the files it knows (found at open, or written by itself), and a file that another one evicted is a miss.
//
// Evicted first is the least recently used page among those that no other page follows: a page is of no use without those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/host_page.h"
#include "sched/page_key.h"

namespace ingot::exec {

using sched::PageBytes;

// Part of model_identity(): files of another version lie in another folder.
inline constexpr uint32_t kPageFileVersion = 1;

class PageStore {
 public:
  struct Options {
    std::filesystem::path dir;             // may hold pages of several models; made when missing
    int64_t max_bytes = 0;                 // of all page files of this model
    uint64_t model_identity = 0;           // see model_identity()
    int64_t page_size = 0;                 // tokens
    int64_t page_bytes = 0;                // of one page
    int64_t max_queued_bytes = 256 << 20;  // pages that wait for the writer thread
  };
  struct Stats {
    int64_t bytes = 0;          // on disk now, headers and token ids included
    int64_t pages = 0;          // on disk now
    int64_t pages_written = 0;  // the rest count since open()
    int64_t pages_read = 0;     // given to done()
    int64_t pages_dropped_queue_full = 0;
    int64_t pages_dropped_no_room = 0;  // all stored pages were wanted: read by a waiting fetch, or followed by others
    int64_t pages_evicted = 0;
    int64_t pages_damaged = 0;
    int64_t write_errors = 0;  // disk full, a file that cannot be written or removed
  };
  using Done = std::function<void(std::vector<std::shared_ptr<PageBytes>>)>;

  // Reads the header of every page that is there, deletes damaged ones and what a crash left, trims to max_bytes; ordered by mtime.
  // Errors name --hicache-dir: cannot be made, read or written, not a folder, max_bytes below one page.
  static Result<std::unique_ptr<PageStore>> open(const Options& options);

  // Writes what is queued. Fetches that wait get their done(), with an empty list. No other call may run or follow.
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  // Any thread. `tokens`: the page_size ids of this page; `page`: page_bytes bytes, not changed while shared. A page that is stored or
  // queued already counts as used and is not written again. Dropped, and counted: when more than max_queued_bytes would wait, when no
  // stored page may make room, when the disk refuses. `parent` is the key of the page before, kRootPageKey for the first.
  void put(sched::PageKey key, sched::PageKey parent, std::vector<int32_t> tokens, std::shared_ptr<const PageBytes> page);

  // Any thread. Gives the leading run of `keys` that is stored (or queued) to done(), which is called once, on the reader thread, and may
  // call anything here but the destructor. `tokens` has page_size ids a key: a page with other tokens ends the run, as does a damaged one,
  // whose file is deleted with one line in the log. The pages count as used from this call on and are not evicted before done().
  void fetch(std::vector<sched::PageKey> keys, std::vector<int32_t> tokens, Done done);

  // Any thread: stored or queued. A promise it is not: the file may turn out damaged.
  bool contains(sched::PageKey key) const;

  // Waits until nothing is queued: all pages put before are on disk or dropped.
  void flush();

  // Any thread; flushes first. Deletes every page that no fetch waits for; pages put meanwhile may stay.
  void clear();

  Stats stats() const;

 private:
  struct Impl;
  explicit PageStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What the contents of a page depend on, apart from its tokens: config.json, every tensor's name, dtype and shape and 64 bytes from its
// middle, the file version, page_size, and `cache_dtype` (any text that tells apart what a page may hold). Not the folder's name, nor how
// tensors are spread over shards. Reads one memory page a tensor. Errors: those of Checkpoint::open, config.json unreadable.
Result<uint64_t> model_identity(const std::filesystem::path& model_dir, std::string_view cache_dtype, int64_t page_size);

}  // namespace ingot::exec
