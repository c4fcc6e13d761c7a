#include "exec/page_store.h"

#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <future>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "support/checkpoint_writer.h"
#include "tensor/latent_format.h"

namespace ingot::exec {
namespace {

namespace fs = std::filesystem;
using sched::PageKey;
using tensor::DType;
using test_support::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPageSize = 4;     // tokens
constexpr int64_t kPageBytes = 100;  // not a multiple of anything
constexpr int64_t kHeaderBytes = 56;
constexpr int64_t kFileBytes = kHeaderBytes + kPageSize * 4 + kPageBytes;
constexpr uint64_t kIdentity = 0xabcdef0123456789;

using Pages = std::vector<std::shared_ptr<PageBytes>>;

// A conversation of `num_pages` pages: its tokens count up from `first`; page i holds bytes that depend on first and i.
struct Chain {
  std::vector<int32_t> tokens;
  std::vector<PageKey> keys;
  int32_t first = 0;

  Chain(int32_t first_token, int64_t num_pages) : tokens(static_cast<size_t>(num_pages * kPageSize)), first(first_token) {
    std::iota(tokens.begin(), tokens.end(), first_token);
    keys = sched::page_keys(tokens, kPageSize);
  }
  PageBytes bytes(size_t i) const {
    PageBytes out(static_cast<size_t>(kPageBytes));
    for (size_t b = 0; b < out.size(); ++b) out[b] = static_cast<std::byte>(static_cast<size_t>(first) * 31 + i * 7 + b);
    return out;
  }
  std::vector<int32_t> tokens_of(size_t i) const {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(i) * kPageSize;
    return {begin, begin + kPageSize};
  }
  void put_page(PageStore& store, size_t i) const {
    store.put(keys[i], i == 0 ? sched::kRootPageKey : keys[i - 1], tokens_of(i), std::make_shared<const PageBytes>(bytes(i)));
  }
  void put(PageStore& store) const {
    for (size_t i = 0; i < keys.size(); ++i) put_page(store, i);
    store.flush();
  }
  // How many pages come back; each must be what was put.
  size_t fetched(PageStore& store) const {
    std::promise<Pages> promise;
    store.fetch(keys, tokens, [&](Pages pages) { promise.set_value(std::move(pages)); });
    const Pages pages = promise.get_future().get();
    for (size_t i = 0; i < pages.size(); ++i) EXPECT_EQ(*pages[i], bytes(i)) << "page " << i << " of the chain that begins at " << first;
    return pages.size();
  }
  // Which pages are there, as text: "110" for the first two of three.
  std::string there(const PageStore& store) const {
    std::string out;
    for (const PageKey key : keys) out += store.contains(key) ? '1' : '0';
    return out;
  }
};

PageStore::Options options_for(const fs::path& dir, int64_t max_pages = 100) {
  PageStore::Options options;
  options.dir = dir;
  options.max_bytes = max_pages * kFileBytes;
  options.model_identity = kIdentity;
  options.page_size = kPageSize;
  options.page_bytes = kPageBytes;
  return options;
}

std::unique_ptr<PageStore> open_store(const PageStore::Options& options) {
  auto store = PageStore::open(options);
  INGOT_CHECK(store.has_value(), "{}", store.error().text());
  return std::move(*store);
}
std::unique_ptr<PageStore> open_store(const fs::path& dir, int64_t max_pages = 100) { return open_store(options_for(dir, max_pages)); }

fs::path file_of(const fs::path& dir, PageKey key, uint64_t identity = kIdentity) {
  const std::string name = fmt::format("{:016x}", key);
  return dir / fmt::format("{:016x}", identity) / name.substr(0, 2) / (name + ".page");
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

int64_t files_under(const fs::path& dir) {
  int64_t n = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) n += entry.is_regular_file() ? 1 : 0;
  return n;
}
int64_t bytes_under(const fs::path& dir) {
  int64_t n = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir))
    n += entry.is_regular_file() ? static_cast<int64_t>(entry.file_size()) : 0;
  return n;
}

TEST(PageStore, AStoredPrefixComesBackByteForByte) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 5);
  EXPECT_EQ(chain.fetched(*store), 0U);
  chain.put(*store);
  EXPECT_EQ(chain.there(*store), "11111");
  EXPECT_EQ(chain.fetched(*store), 5U);
  const auto stats = store->stats();
  EXPECT_EQ(stats.pages, 5);
  EXPECT_EQ(stats.bytes, 5 * kFileBytes);
  EXPECT_EQ(stats.pages_written, 5);
  EXPECT_EQ(stats.pages_read, 5);
  EXPECT_EQ(bytes_under(dir.path()), 5 * kFileBytes);
}

TEST(PageStore, AfterARestartEveryPromptIsComputedAnew) {
  TempDir dir;
  const Chain chain(1000, 5);
  // No flush: closing the store writes what is queued.
  {
    const auto store = open_store(dir.path());
    for (size_t i = 0; i < 5; ++i) chain.put_page(*store, i);
  }
  const auto store = open_store(dir.path());
  EXPECT_EQ(store->stats().pages, 5);
  EXPECT_EQ(chain.fetched(*store), 5U);
}

TEST(PageStore, AFetchBeforeTheWriterIsDoneMissesWhatIsQueued) {
  TempDir dir;
  const auto store = open_store(dir.path());
  for (int32_t first = 0; first < 20; ++first) {
    const Chain chain(1000 * first, 5);
    for (size_t i = 0; i < 5; ++i) chain.put_page(*store, i);
    EXPECT_EQ(chain.there(*store), "11111");
    EXPECT_EQ(chain.fetched(*store), 5U);
  }
}

TEST(PageStore, TwoPromptsWithOneHashShareAPage) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 3);
  chain.put(*store);
  const auto run_with = [&](size_t changed) {
    auto tokens = chain.tokens;
    tokens[changed] += 1;
    std::promise<Pages> promise;
    store->fetch(chain.keys, tokens, [&](Pages pages) { promise.set_value(std::move(pages)); });
    return promise.get_future().get().size();
  };
  EXPECT_EQ(run_with(0), 0U);
  EXPECT_EQ(run_with(2 * kPageSize + 3), 2U);
  // Nobody's page was damaged by that.
  EXPECT_EQ(chain.fetched(*store), 3U);
  EXPECT_EQ(store->stats().pages_damaged, 0);
}

struct Damage {
  std::string name;
  std::function<std::string(std::string)> change;
};

std::vector<Damage> damages() {
  const auto flip = [](size_t at) {
    return [at](std::string file) {
      file[at] = static_cast<char>(file[at] ^ 1);
      return file;
    };
  };
  return {
      {"flipped magic", flip(0)},
      {"flipped version", flip(8)},
      {"flipped page size", flip(12)},
      {"foreign identity", flip(16)},
      {"flipped key", flip(24)},
      {"flipped parent", flip(32)},
      {"huge page bytes", flip(47)},
      {"flipped checksum", flip(55)},
      {"flipped token", flip(kHeaderBytes)},
      {"flipped first byte", flip(kHeaderBytes + kPageSize * 4)},
      {"flipped last byte", flip(kFileBytes - 1)},
      {"cut by a byte", [](std::string file) { return file.substr(0, file.size() - 1); }},
      {"cut in the header", [](const std::string& file) { return file.substr(0, 20); }},
      {"empty", [](const std::string&) { return std::string(); }},
      {"a byte too long", [](const std::string& file) { return file + "x"; }},
      {"garbage", [](const std::string& file) { return std::string(file.size(), '\xee'); }},
      {"zeros", [](const std::string& file) { return std::string(file.size(), '\0'); }},
  };
}

TEST(PageStore, ADamagedFileIsServedAsAnAnswer) {
  for (const auto& damage : damages()) {
    SCOPED_TRACE(damage.name);
    TempDir dir;
    const auto store = open_store(dir.path());
    const Chain chain(1000, 4);
    chain.put(*store);
    const fs::path file = file_of(dir.path(), chain.keys[1]);
    write_text(file, damage.change(text_of(file)));
    EXPECT_EQ(chain.fetched(*store), 1U);
    EXPECT_FALSE(fs::exists(file));
    EXPECT_EQ(chain.there(*store), "1011");
    EXPECT_EQ(store->stats().pages_damaged, 1);
    EXPECT_EQ(store->stats().bytes, bytes_under(dir.path()));
    // The page can be stored again, and the later ones are reachable again.
    chain.put(*store);
    EXPECT_EQ(chain.fetched(*store), 4U);
    EXPECT_EQ(store->stats().pages_written, 5);
  }
}

TEST(PageStore, AFileDamagedWhileTheServerWasDownStopsTheStart) {
  for (const auto& damage : damages()) {
    SCOPED_TRACE(damage.name);
    TempDir dir;
    const Chain chain(1000, 4);
    chain.put(*open_store(dir.path()));
    const fs::path file = file_of(dir.path(), chain.keys[1]);
    write_text(file, damage.change(text_of(file)));
    const auto store = open_store(dir.path());
    EXPECT_EQ(chain.fetched(*store), 1U);
    EXPECT_FALSE(fs::exists(file));
    EXPECT_EQ(store->stats().pages_damaged, 1);
    EXPECT_EQ(store->stats().pages, 3);
  }
}

TEST(PageStore, ALinkOrAPipeInTheFolderHangsTheReader) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 2);
  chain.put(*store);
  fs::remove(file_of(dir.path(), chain.keys[0]));
  fs::create_symlink(file_of(dir.path(), chain.keys[1]), file_of(dir.path(), chain.keys[0]));
  EXPECT_EQ(chain.fetched(*store), 0U);
  EXPECT_FALSE(fs::is_symlink(file_of(dir.path(), chain.keys[0])));
  EXPECT_EQ(chain.there(*store), "01");
  chain.put(*store);
  fs::remove(file_of(dir.path(), chain.keys[1]));
  ASSERT_EQ(mkfifo(file_of(dir.path(), chain.keys[1]).c_str(), 0600), 0);
  EXPECT_EQ(chain.fetched(*store), 1U);
  EXPECT_EQ(chain.there(*store), "10");
}

TEST(PageStore, FilesThatAreNotOursAreDeletedOrStopTheStart) {
  TempDir dir;
  const Chain chain(1000, 2);
  chain.put(*open_store(dir.path()));
  const fs::path root = dir.path() / fmt::format("{:016x}", kIdentity);
  write_text(root / "notes.txt", "mine");
  write_text(root / "00" / "XYZ.page", "mine");
  write_text(root / "00" / "old.tmp", "mine");
  // A page in a folder where no page is looked for.
  const std::string name = file_of(dir.path(), chain.keys[0]).filename().string();
  write_text(root / "deeper" / name.substr(0, 2) / name, text_of(file_of(dir.path(), chain.keys[0])));
  const auto store = open_store(dir.path());
  EXPECT_EQ(store->stats().pages, 2);
  EXPECT_EQ(store->stats().pages_damaged, 0);
  EXPECT_EQ(files_under(dir.path()), 6);
  EXPECT_EQ(chain.fetched(*store), 2U);
}

TEST(PageStore, TheDiskFillsBeyondTheBudget) {
  TempDir dir;
  const auto store = open_store(dir.path(), 7);
  for (int32_t first = 0; first < 12; ++first) {
    Chain(1000 * first, 3).put(*store);
    EXPECT_LE(bytes_under(dir.path()), 7 * kFileBytes);
    EXPECT_EQ(store->stats().bytes, bytes_under(dir.path()));
  }
  const auto stats = store->stats();
  EXPECT_EQ(stats.pages, 7);
  EXPECT_EQ(stats.pages_written, 36);
  EXPECT_EQ(stats.pages_evicted, 29);
}

TEST(PageStore, ThePagesUsedLastGoFirst) {
  TempDir dir;
  const auto store = open_store(dir.path(), 6);
  const Chain a(1000, 2);
  const Chain b(2000, 2);
  const Chain c(3000, 2);
  for (const Chain* chain : {&a, &b, &c}) chain->put(*store);
  EXPECT_EQ(a.fetched(*store), 2U);  // used: b is the oldest now
  const Chain d(4000, 1);
  d.put(*store);
  EXPECT_EQ(b.there(*store), "10");
  const Chain e(5000, 2);
  e.put(*store);
  EXPECT_EQ(a.there(*store), "11");
  EXPECT_EQ(b.there(*store), "00");
  EXPECT_EQ(c.there(*store), "10");
}

TEST(PageStore, PuttingAStoredPageAgainDoesNotKeepIt) {
  TempDir dir;
  const auto store = open_store(dir.path(), 2);
  const Chain a(1000, 1);
  const Chain b(2000, 1);
  a.put(*store);
  b.put(*store);
  a.put(*store);
  Chain(3000, 1).put(*store);
  EXPECT_EQ(a.there(*store), "1");
  EXPECT_EQ(b.there(*store), "0");
}

TEST(PageStore, TheFirstPageIsEvictedAndTheRestIsDeadWeight) {
  TempDir dir;
  const auto store = open_store(dir.path(), 4);
  const Chain old_one(1000, 4);
  old_one.put(*store);
  const Chain new_one(2000, 3);
  std::vector<std::string> states;
  for (size_t i = 0; i < 3; ++i) {
    new_one.put_page(*store, i);
    store->flush();
    states.push_back(old_one.there(*store));
  }
  EXPECT_THAT(states, ElementsAre("1110", "1100", "1000"));
  EXPECT_EQ(old_one.fetched(*store), 1U);
}

TEST(PageStore, TwoConversationsWithOneStartLoseItWithTheOlderOne) {
  TempDir dir;
  const auto store = open_store(dir.path(), 4);
  // Both go on from page s.
  const Chain s(1000, 1);
  s.put(*store);
  std::vector<int32_t> left = s.tokens;
  std::vector<int32_t> right = s.tokens;
  for (int32_t i = 0; i < kPageSize; ++i) {
    left.push_back(2000 + i);
    right.push_back(3000 + i);
  }
  const auto page = std::make_shared<const PageBytes>(static_cast<size_t>(kPageBytes));
  const PageKey left_key = sched::page_keys(left, kPageSize)[1];
  const PageKey right_key = sched::page_keys(right, kPageSize)[1];
  store->put(left_key, s.keys[0], {left.begin() + kPageSize, left.end()}, page);
  store->put(right_key, s.keys[0], {right.begin() + kPageSize, right.end()}, page);
  store->flush();
  const Chain other(4000, 2);
  other.put(*store);  // evicts the older branch
  EXPECT_FALSE(store->contains(left_key));
  EXPECT_EQ(s.there(*store), "1");
  EXPECT_TRUE(store->contains(right_key));
}

TEST(PageStore, AConversationLongerThanTheDiskEvictsItsOwnStart) {
  TempDir dir;
  const auto store = open_store(dir.path(), 3);
  const Chain chain(1000, 10);
  chain.put(*store);
  EXPECT_EQ(chain.there(*store), "1110000000");
  EXPECT_EQ(store->stats().pages_dropped_no_room, 7);
  EXPECT_EQ(store->stats().pages_evicted, 0);
  // The same when each page comes alone.
  for (size_t i = 0; i < 10; ++i) {
    chain.put_page(*store, i);
    store->flush();
  }
  EXPECT_EQ(chain.there(*store), "1110000000");
  // A shorter one that comes later finds room all the same.
  const Chain next(2000, 2);
  next.put(*store);
  EXPECT_EQ(next.there(*store), "11");
  EXPECT_EQ(chain.there(*store), "1000000000");
}

TEST(PageStore, StoringAConversationFromItsEndKeepsTheEnd) {
  TempDir dir;
  const auto store = open_store(dir.path(), 3);
  const Chain chain(1000, 6);
  for (size_t i = 6; i-- > 0;) chain.put_page(*store, i);
  store->flush();
  EXPECT_EQ(chain.there(*store), "111000");
}

TEST(PageStore, StoringTheOldSessionEvictsWhatTheNewRequestWaitsFor) {
  TempDir dir;
  const auto store = open_store(dir.path(), 4);
  const Chain wanted(1000, 3);
  wanted.put(*store);
  const Chain young(2000, 1);
  young.put(*store);
  // The reader is held inside done() of a first fetch, so that the second one waits.
  std::promise<void> release;
  std::promise<void> held;
  store->fetch({}, {}, [&](const Pages& pages) {
    EXPECT_TRUE(pages.empty());
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  std::promise<Pages> promise;
  store->fetch(wanted.keys, wanted.tokens, [&](Pages pages) { promise.set_value(std::move(pages)); });
  for (int32_t first = 3; first < 9; ++first) Chain(1000 * first, 2).put(*store);
  EXPECT_EQ(wanted.there(*store), "111");
  EXPECT_EQ(young.there(*store), "0");
  EXPECT_LE(bytes_under(dir.path()), 4 * kFileBytes);
  EXPECT_EQ(store->stats().pages_dropped_no_room, 6);
  release.set_value();
  EXPECT_EQ(promise.get_future().get().size(), 3U);
  // Once read they may go like any other.
  Chain(20000, 2).put(*store);
  Chain(30000, 4).put(*store);
  EXPECT_EQ(wanted.there(*store), "000");
}

TEST(PageStore, ARestartForgetsWhichPageWasUsedLast) {
  TempDir dir;
  const Chain a(1000, 1);
  const Chain b(2000, 1);
  const Chain c(3000, 1);
  {
    const auto store = open_store(dir.path());
    for (const Chain* chain : {&a, &b, &c}) chain->put(*store);
    EXPECT_EQ(a.fetched(*store), 1U);
  }
  // Less room than before: the start evicts, b first.
  const auto store = open_store(dir.path(), 2);
  EXPECT_EQ(a.there(*store) + b.there(*store) + c.there(*store), "101");
  EXPECT_EQ(bytes_under(dir.path()), 2 * kFileBytes);
  Chain(4000, 1).put(*store);
  EXPECT_EQ(a.there(*store) + b.there(*store) + c.there(*store), "100");
}

TEST(PageStore, ARestartEvictsTheStartOfAConversationBeforeItsEnd) {
  TempDir dir;
  const Chain chain(1000, 6);
  chain.put(*open_store(dir.path()));
  const auto store = open_store(dir.path(), 4);
  EXPECT_EQ(chain.there(*store), "111100");
  EXPECT_EQ(chain.fetched(*store), 4U);
}

TEST(PageStore, WhatACrashLeftFillsTheDisk) {
  TempDir dir;
  const fs::path folder = dir.path() / fmt::format("{:016x}", kIdentity) / "ab";
  const fs::path leftover = folder / "abcdefabcdefabcd.Xy12Zt.tmp";
  const fs::path in_use = folder / "abcdefabcdefabce.Xy12Zt.tmp";
  write_text(leftover, "half a page");
  write_text(in_use, "half a page");
  // Another process writes this one now.
  const int fd = ::open(in_use.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  const auto store = open_store(dir.path());
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_TRUE(fs::exists(in_use));
  ::close(fd);
}

TEST(PageStore, APagePutTwiceIsWrittenTwice) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 1);
  for (int i = 0; i < 10; ++i) chain.put_page(*store, 0);
  store->flush();
  chain.put(*store);
  EXPECT_EQ(store->stats().pages_written, 1);
  EXPECT_EQ(store->stats().pages, 1);
}

TEST(PageStore, PagesPileUpInMemoryWhenTheDiskIsSlow) {
  TempDir dir;
  auto options = options_for(dir.path(), 1000);
  options.max_queued_bytes = 3 * kFileBytes;
  const auto store = open_store(options);
  const Chain chain(1000, 500);
  chain.put(*store);
  const auto stats = store->stats();
  EXPECT_EQ(stats.pages_written + stats.pages_dropped_queue_full, 500);
  EXPECT_GE(stats.pages_written, 3);
  EXPECT_EQ(stats.pages, stats.pages_written);

  options.max_queued_bytes = kFileBytes - 1;
  options.dir = dir.path() / "other";
  const auto none = open_store(options);
  chain.put(*none);
  EXPECT_EQ(none->stats().pages_dropped_queue_full, 500);
  EXPECT_EQ(none->stats().pages, 0);
  EXPECT_FALSE(none->contains(chain.keys[0]));
}

TEST(PageStore, ADiskThatRefusesWritesStopsTheServer) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 3);
  // A plain file where the folder of page 1 must be.
  const fs::path folder = file_of(dir.path(), chain.keys[1]).parent_path();
  ASSERT_NE(folder, file_of(dir.path(), chain.keys[0]).parent_path());
  ASSERT_NE(folder, file_of(dir.path(), chain.keys[2]).parent_path());
  write_text(folder, "in the way");
  chain.put(*store);
  EXPECT_EQ(chain.there(*store), "101");
  EXPECT_EQ(store->stats().write_errors, 1);
  EXPECT_EQ(store->stats().pages_written, 2);
  EXPECT_EQ(chain.fetched(*store), 1U);
  fs::remove(folder);
  chain.put(*store);
  EXPECT_EQ(chain.fetched(*store), 3U);
}

TEST(PageStore, AFullDiskLeavesHalfPagesBehind) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 3);
  // A limit on the size of a file stands for the full disk: the write stops in the middle of the page.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit tight = {kFileBytes - 10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  chain.put(*store);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(store->stats().write_errors, 3);
  EXPECT_EQ(store->stats().pages, 0);
  EXPECT_EQ(files_under(dir.path()), 0);
  chain.put(*store);
  EXPECT_EQ(chain.fetched(*store), 3U);
}

TEST(PageStore, AFileThatVanishedIsAnError) {
  TempDir dir;
  const auto store = open_store(dir.path());
  const Chain chain(1000, 3);
  chain.put(*store);
  fs::remove(file_of(dir.path(), chain.keys[1]));
  EXPECT_EQ(chain.fetched(*store), 1U);
  EXPECT_EQ(store->stats().pages_damaged, 0);
  EXPECT_EQ(store->stats().pages, 2);
  // And so is all of the folder.
  fs::remove_all(dir.path() / fmt::format("{:016x}", kIdentity));
  EXPECT_EQ(chain.fetched(*store), 0U);
  chain.put(*store);
  EXPECT_EQ(chain.fetched(*store), 2U);  // that page 2 vanished is found out only now
  chain.put(*store);
  EXPECT_EQ(chain.fetched(*store), 3U);
}

TEST(PageStore, AFolderThatCannotBeUsedIsNotNamed) {
  const auto error_of = [](const fs::path& path) {
    const auto store = PageStore::open(options_for(path));
    return store.has_value() ? "was opened" : store.error().text();
  };
  TempDir dir;
  write_text(dir.path() / "file", "x");
  EXPECT_THAT(error_of(dir.path() / "file"), AllOf(HasSubstr("--hicache-dir"), HasSubstr("/file is not a folder")));
  EXPECT_THAT(error_of(dir.path() / "file" / "in"), AllOf(HasSubstr("--hicache-dir"), HasSubstr("cannot make"), HasSubstr("/file/in")));
  // Nobody may make a folder there, root neither.
  EXPECT_THAT(error_of("/proc/ingot"), AllOf(HasSubstr("--hicache-dir"), HasSubstr("cannot make"), HasSubstr("/proc/ingot")));
  const auto tight = PageStore::open([&] {
    auto options = options_for(dir.path());
    options.max_bytes = kFileBytes - 1;
    return options;
  }());
  ASSERT_FALSE(tight.has_value());
  EXPECT_THAT(tight.error().text(), AllOf(HasSubstr("--hicache-dir"), HasSubstr("one page takes")));
}

TEST(PageStore, AFolderThatMayOnlyBeReadFailsAtTheFirstPage) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  TempDir dir;
  const fs::path root = dir.path() / fmt::format("{:016x}", kIdentity);
  fs::create_directories(root);
  fs::permissions(root, fs::perms::owner_read | fs::perms::owner_exec);
  const auto store = PageStore::open(options_for(dir.path()));
  fs::permissions(root, fs::perms::owner_all);
  ASSERT_FALSE(store.has_value());
  EXPECT_THAT(store.error().text(), AllOf(HasSubstr("--hicache-dir"), HasSubstr("cannot write in")));
}

TEST(PageStore, FetchesThatWaitAtTheEndAreNeverAnswered) {
  TempDir dir;
  auto store = open_store(dir.path());
  const Chain chain(1000, 3);
  chain.put(*store);
  std::promise<void> release;
  std::promise<void> held;
  std::atomic<int> empty = 0;
  store->fetch({}, {}, [&](const Pages&) {
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  for (int i = 0; i < 5; ++i) store->fetch(chain.keys, chain.tokens, [&](const Pages& pages) { empty += pages.empty() ? 1 : 100; });
  std::thread closer([&] { store.reset(); });
  // closer is inside the destructor, or will be: it waits for the reader, which we hold a moment longer.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  release.set_value();
  closer.join();
  EXPECT_EQ(empty, 5);
}

TEST(PageStore, ModelsThatShareAFolderReadEachOthersPages) {
  TempDir dir;
  const Chain chain(1000, 2);
  auto options = options_for(dir.path());
  const auto one = open_store(options);
  options.model_identity = 7;
  const auto two = open_store(options);
  chain.put(*one);
  EXPECT_EQ(chain.fetched(*two), 0U);
  EXPECT_EQ(chain.fetched(*one), 2U);
  // A page copied from one to the other by hand.
  const fs::path copy = file_of(dir.path(), chain.keys[0], 7);
  write_text(copy, text_of(file_of(dir.path(), chain.keys[0])));
  const auto again = open_store(options);
  EXPECT_EQ(again->stats().pages_damaged, 1);
  EXPECT_FALSE(fs::exists(copy));
}

TEST(PageStore, TwoServersOnOneFolderCorruptEachOthersPages) {
  TempDir dir;
  const auto one = open_store(dir.path(), 6);
  const auto two = open_store(dir.path(), 6);
  std::atomic<int64_t> served = 0;
  const auto work = [&](PageStore& store) {
    for (int round = 0; round < 60; ++round) {
      const Chain chain(1000 * (round % 5), 3);
      chain.put(store);
      served += static_cast<int64_t>(chain.fetched(store));  // checks the bytes
    }
  };
  std::thread first([&] { work(*one); });
  std::thread second([&] { work(*two); });
  first.join();
  second.join();
  EXPECT_GT(served, 60);
  EXPECT_EQ(one->stats().pages_damaged + two->stats().pages_damaged, 0);
  EXPECT_EQ(one->stats().write_errors + two->stats().write_errors, 0);
}

TEST(PageStore, ThreadsThatPutAndFetchAtOnceDisturbEachOther) {
  TempDir dir;
  const auto store = open_store(dir.path(), 20);
  std::vector<std::thread> threads;
  std::atomic<int64_t> served = 0;
  for (int32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t round = 0; round < 80; ++round) {
        const Chain chain(1000 * ((t * 3 + round) % 9), 4);
        for (size_t i = 0; i < 4; ++i) chain.put_page(*store, i);
        served += static_cast<int64_t>(chain.fetched(*store));
        (void)chain.there(*store);
        if (round % 16 == 0) store->flush();
        EXPECT_LE(store->stats().bytes, 20 * kFileBytes);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  store->flush();
  const auto stats = store->stats();
  EXPECT_GT(served, 320);
  EXPECT_EQ(stats.pages_read, served);
  EXPECT_EQ(stats.pages_damaged, 0);
  EXPECT_EQ(stats.write_errors, 0);
  EXPECT_EQ(stats.pages, stats.pages_written - stats.pages_evicted);
  EXPECT_EQ(stats.bytes, bytes_under(dir.path()));
}

// What must tell models apart.

std::vector<uint8_t> counting(size_t n) {
  std::vector<uint8_t> out(n);
  std::iota(out.begin(), out.end(), uint8_t{0});
  return out;
}

struct Model {
  std::string config = R"({"model_type":"glm_moe_dsa"})";
  std::vector<test_support::TensorToWrite> tensors = {
      {"a.weight", DType::bf16, {8, 25}, counting(400)}, {"b.weight", DType::f32, {3}, counting(12)}, {"empty", DType::f32, {0, 7}, {}}};
  uint64_t shard_bytes = 300;

  uint64_t identity(std::string_view dtype = "bf16", int64_t page_size = 64) const {
    TempDir dir;
    test_support::write_checkpoint(dir.path(), tensors, shard_bytes);
    write_text(dir.path() / "config.json", config);
    const auto identity = model_identity(dir.path(), dtype, page_size);
    INGOT_CHECK(identity.has_value(), "{}", identity.error().text());
    return *identity;
  }
};

TEST(ModelIdentity, ACopyOfTheCheckpointFindsNothing) {
  Model model;
  const uint64_t identity = model.identity();
  EXPECT_EQ(model.identity(), identity);  // each time in another folder
  model.shard_bytes = 1 << 20;
  EXPECT_EQ(model.identity(), identity);
}

TEST(ModelIdentity, AnotherModelReadsThePagesOfThisOne) {
  const Model model;
  std::set<uint64_t> seen = {model.identity()};
  const auto expect_new = [&](std::string_view what, uint64_t identity) { EXPECT_TRUE(seen.insert(identity).second) << what; };
  for (const auto format : {tensor::LatentFormat::f32, tensor::LatentFormat::fp8, tensor::LatentFormat::fp8_scaled})
    expect_new("format of the cache", model.identity(tensor::latent_format_name(format)));
  expect_new("page size", model.identity("bf16", 32));
  Model other = model;
  other.config += " ";
  expect_new("config", other.identity());
  other = model;
  other.tensors[0].data[200] ^= 1;
  expect_new("a byte in the middle of a weight", other.identity());
  other = model;
  other.tensors[1].data[11] ^= 1;
  expect_new("the last byte of a small weight", other.identity());
  other = model;
  other.tensors[0].name = "a.weighs";
  expect_new("name", other.identity());
  other = model;
  other.tensors[0].shape = {25, 8};
  expect_new("shape", other.identity());
  other = model;
  other.tensors[0].dtype = DType::f16;
  expect_new("dtype of a tensor", other.identity());
  other = model;
  other.tensors.pop_back();
  expect_new("one tensor less", other.identity());
}

TEST(ModelIdentity, AFolderWithoutAModelHasOne) {
  TempDir dir;
  const auto nothing = model_identity(dir.path(), "bf16", 64);
  ASSERT_FALSE(nothing.has_value());
  EXPECT_THAT(nothing.error().text(), HasSubstr("config.json"));
  write_text(dir.path() / "config.json", "{}");
  EXPECT_FALSE(model_identity(dir.path(), "bf16", 64).has_value());
}

}  // namespace
}  // namespace ingot::exec
