// The emulator's fibers, scheduler and barriers. In a ThreadSanitizer build this file alone is compiled without the sanitizer
// (src/gpu/CMakeLists.txt), so that only what kernels read and write is judged, and it tells the sanitizer of each switch.
#include "gpu/emu.h"

#include <sys/mman.h>

#include <cstdlib>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(INGOT_EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// void ingot_emu_switch(void** save, void* load): pushes the registers a call must preserve, leaves the stack pointer in *save and
// takes `load` instead. swapcontext does the same with two system calls, which made the emulator 25 times slower.
asm(R"(
.text
.globl ingot_emu_switch
.hidden ingot_emu_switch
.type ingot_emu_switch,@function
ingot_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ingot_emu_switch,.-ingot_emu_switch
)");
extern "C" void ingot_emu_switch(void** save, void* load);

namespace ingot::gpu::emu {
namespace {

// What each sanitizer has to know, as nothing at all without it.
#if defined(INGOT_EMU_TSAN)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
void* tsan_create() { return __tsan_create_fiber(0); }
void tsan_destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
void* tsan_current() { return __tsan_get_current_fiber(); }
void tsan_switch(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }
void tsan_acquire(void* tag) { __tsan_acquire(tag); }
void tsan_release(void* tag) { __tsan_release(tag); }
#else
void* tsan_create() { return nullptr; }
void tsan_destroy(void*) {}
void* tsan_current() { return nullptr; }
void tsan_switch(void*) {}
void tsan_acquire(void*) {}
void tsan_release(void*) {}
#endif

#if defined(__SANITIZE_ADDRESS__)
void asan_start_switch(void** save, const void* bottom, size_t bytes) { __sanitizer_start_switch_fiber(save, bottom, bytes); }
void asan_finish_switch(void* saved, const void** bottom, size_t* bytes) { __sanitizer_finish_switch_fiber(saved, bottom, bytes); }
void asan_clean(void* begin, size_t bytes) { __asan_unpoison_memory_region(begin, bytes); }
void asan_forbid(void* begin, size_t bytes) { __asan_poison_memory_region(begin, bytes); }
#else
void asan_start_switch(void**, const void*, size_t) {}
void asan_finish_switch(void*, const void**, size_t*) {}
void asan_clean(void*, size_t) {}
void asan_forbid(void*, size_t) {}
#endif

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 64 << 10;  // a kernel's frame is some kilobytes, with AddressSanitizer's red zones perhaps ten
constexpr size_t kGuardBytes = 256;       // behind shared memory
constexpr uint8_t kPoison = 0xff;         // four of them are a NaN

enum class State : uint8_t { ready, at_sync, at_shuffle, finished };

struct Fiber {
  void* stack_pointer = nullptr;
  uint8_t* stack = nullptr;
  void* tsan = nullptr;
  void* asan = nullptr;  // AddressSanitizer's own stack for this fiber, while it is switched out
  State state = State::finished;
};

// The fibers' stacks, kept from launch to launch: mapping them anew took half of the tests' time. Each has a page below it that no one
// may touch, so that an overflow stops at once.
class Stacks {
 public:
  ~Stacks() { drop(); }
  uint8_t* get(int thread) { return memory_ + kEach * static_cast<size_t>(thread) + kPage; }

  void reserve(int threads) {
    if (threads <= count_) return;
    drop();
    count_ = threads;
    void* memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    INGOT_CHECK(memory != MAP_FAILED, "no memory for {} fiber stacks", threads);
    memory_ = static_cast<uint8_t*>(memory);
    for (int t = 0; t < threads; ++t) INGOT_CHECK(mprotect(get(t) - kPage, kPage, PROT_NONE) == 0, "mprotect of a guard page failed");
  }

 private:
  static constexpr size_t kEach = kStackBytes + kPage;
  size_t bytes() const { return kEach * static_cast<size_t>(count_); }
  void drop() {
    if (memory_ == nullptr) return;
    asan_clean(memory_, bytes());
    munmap(memory_, bytes());
    memory_ = nullptr;
  }

  uint8_t* memory_ = nullptr;
  int count_ = 0;
};
thread_local Stacks stacks;
thread_local bool stacks_taken = false;  // by the one Block that may live on this OS thread

// One warp's exchange. Two sets of slots are used in turn: a lane may enter the next shuffle while others still read the last one,
// but not the one after that.
struct Warp {
  int arrived = 0;
  uint32_t turn = 0;
};

}  // namespace

struct Block::Impl {
  Impl(int thread_count, int lane_count, Schedule s)
      : threads(thread_count),
        lanes(lane_count),
        schedule(s),
        fibers(static_cast<size_t>(thread_count)),
        warps(static_cast<size_t>(thread_count / lane_count)),
        sequence(static_cast<size_t>(thread_count)),
        place(static_cast<size_t>(thread_count)) {
    for (auto& set : slots) set.resize(static_cast<size_t>(threads));
    INGOT_CHECK(!stacks_taken, "one emulated block at a time on an OS thread");
    stacks_taken = true;
    stacks.reserve(threads);
    for (int t = 0; t < threads; ++t) {
      Fiber& fiber = fibers[static_cast<size_t>(t)];
      fiber.stack = stacks.get(t);
      fiber.tsan = tsan_create();
    }
    home.tsan = tsan_current();
  }

  ~Impl() {
    for (Fiber& fiber : fibers) tsan_destroy(fiber.tsan);
    stacks_taken = false;
  }

  // ---- schedule

  void shuffle(int* items, int count) {
    for (int i = count - 1; i > 0; --i) {
      const auto j = static_cast<int>(random_bits(schedule.seed, draws++) % static_cast<uint64_t>(i + 1));
      const int held = items[i];
      items[i] = items[j];
      items[j] = held;
    }
  }

  void arrange() {
    for (int t = 0; t < threads; ++t) sequence[static_cast<size_t>(t)] = schedule.order == Order::descending ? threads - 1 - t : t;
    if (schedule.order == Order::run_ahead) {
      std::vector<int> ranks(warps.size());
      for (size_t w = 0; w < ranks.size(); ++w) ranks[w] = static_cast<int>(w);
      shuffle(ranks.data(), static_cast<int>(ranks.size()));
      for (int t = 0; t < threads; ++t) sequence[static_cast<size_t>(t)] = ranks[static_cast<size_t>(t / lanes)] * lanes + t % lanes;
    }
    if (schedule.order == Order::shuffled) shuffle(sequence.data(), threads);
    for (int i = 0; i < threads; ++i) place[static_cast<size_t>(sequence[static_cast<size_t>(i)])] = i;
    at = 0;
  }

  // The fiber to run next; null when none can.
  Fiber* next() {
    if (ready == 0) return nullptr;
    for (;;) {
      if (at == threads) {
        at = 0;
        if (schedule.order == Order::shuffled) shuffle(sequence.data(), threads);
      }
      const int t = sequence[static_cast<size_t>(at++)];
      Fiber& fiber = fibers[static_cast<size_t>(t)];
      if (fiber.state == State::ready) {
        running = t;
        return &fiber;
      }
    }
  }

  // ---- switching

  // From `from` (a fiber or home) to the next fiber, or home when none is ready.
  void leave(Fiber& from) {
    Fiber* to = next();
    if (to == nullptr) to = &home;
    if (to == &from) return;
    const bool for_good = from.state == State::finished && &from != &home;
    asan_start_switch(for_good ? nullptr : &from.asan, to == &home ? home_bottom : to->stack, to == &home ? home_bytes : kStackBytes);
    tsan_switch(to->tsan);
    ingot_emu_switch(&from.stack_pointer, to->stack_pointer);
    asan_finish_switch(from.asan, nullptr, nullptr);
  }

  static void fiber_main() {
    Impl& self = *current;
    // The first fiber of a block comes from home, whose stack AddressSanitizer tells us here; it is asked for each time and kept once.
    const void* bottom = nullptr;
    size_t bytes = 0;
    asan_finish_switch(nullptr, &bottom, &bytes);
    if (self.home_bottom == nullptr) {
      self.home_bottom = bottom;
      self.home_bytes = bytes;
    }
    const int thread = self.running;
    tsan_acquire(&self.launch_tag);
    self.body(self.context, thread);
    tsan_release(&self.end_tag);
    Fiber& me = self.fibers[static_cast<size_t>(thread)];
    me.state = State::finished;
    --self.ready;
    self.leave(me);
    std::abort();  // a finished fiber is never resumed
  }

  Result<> run(int64_t index) {
    arrange();
    for (int t = 0; t < threads; ++t) {
      Fiber& fiber = fibers[static_cast<size_t>(t)];
      asan_clean(fiber.stack, kStackBytes);  // the last block's frames never returned
      // Stack tops are staggered, or all fibers would fight for the same lines of the first-level cache.
      auto** top = reinterpret_cast<void**>(fiber.stack + kStackBytes - static_cast<size_t>(t) * 320 % kPage / 16 * 16);
      *--top = nullptr;  // where fiber_main would return to; also keeps its stack aligned as after a call
      *--top = reinterpret_cast<void*>(&fiber_main);
      for (int i = 0; i < 6; ++i) *--top = nullptr;
      fiber.stack_pointer = top;
      fiber.asan = nullptr;
      fiber.state = State::ready;
    }
    ready = threads;
    sync_arrived = 0;
    for (Warp& warp : warps) warp.arrived = 0;
    current = this;
    tsan_release(&launch_tag);
    leave(home);
    for (Fiber& fiber : fibers) {
      if (fiber.state == State::finished) continue;
      tsan_switch(fiber.tsan);  // it will not come to say it itself: what it did was before the end
      tsan_release(&end_tag);
      tsan_switch(home.tsan);
    }
    tsan_acquire(&end_tag);

    int count[4] = {};
    for (const Fiber& fiber : fibers) ++count[static_cast<int>(fiber.state)];
    const int finished = count[static_cast<int>(State::finished)];
    if (finished == threads) return {};
    return fail("block {}: diverged: of {} threads {} wait at sync(), {} at a shuffle, {} have finished", index, threads,
                count[static_cast<int>(State::at_sync)], count[static_cast<int>(State::at_shuffle)], finished);
  }

  // ---- barriers

  void wait(int thread, State state) {
    Fiber& me = fibers[static_cast<size_t>(thread)];
    me.state = state;
    --ready;
  }

  void release(int first, int count) {
    for (int t = first; t < first + count; ++t) fibers[static_cast<size_t>(t)].state = State::ready;
    ready += count;
    if (count == threads)
      at = 0;  // a new phase begins in order
    else if (schedule.order == Order::run_ahead && place[static_cast<size_t>(first)] < at)
      at = place[static_cast<size_t>(first)];  // the warp that moved goes on
  }

  void sync(int thread) {
    const uint32_t turn = sync_turn & 1u;
    // Two tags in turn: a thread that has run ahead to the next barrier must not pass its newer clock to one that is leaving this one.
    tsan_release(&sync_tag[turn]);
    wait(thread, State::at_sync);
    if (++sync_arrived == threads) {
      sync_arrived = 0;
      ++sync_turn;
      release(0, threads);
    }
    leave(fibers[static_cast<size_t>(thread)]);
    tsan_acquire(&sync_tag[turn]);
  }

  uint64_t exchange(int thread, uint64_t value, int lane) {
    Warp& warp = warps[static_cast<size_t>(thread / lanes)];
    const int first = thread / lanes * lanes;
    uint64_t* set = slots[warp.turn & 1u].data();
    set[thread] = value;
    wait(thread, State::at_shuffle);
    if (++warp.arrived == lanes) {
      warp.arrived = 0;
      ++warp.turn;
      release(first, lanes);
    }
    leave(fibers[static_cast<size_t>(thread)]);
    return set[first + lane];
  }

  int threads;
  int lanes;
  Schedule schedule;
  uint64_t draws = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<int> sequence;  // the order of turns
  std::vector<int> place;     // place[sequence[i]] = i
  std::vector<uint64_t> slots[2];
  int at = 0;       // next place in `sequence`
  int ready = 0;    // fibers in State::ready, the running one included
  int running = 0;  // the thread that next() chose last
  int sync_arrived = 0;
  uint32_t sync_turn = 0;
  void (*body)(void*, int) = nullptr;
  void* context = nullptr;
  Fiber home;  // the caller of run()
  const void* home_bottom = nullptr;
  size_t home_bytes = 0;
  char sync_tag[2] = {};
  char launch_tag = 0;
  char end_tag = 0;
  static thread_local Impl* current;
};
thread_local Block::Impl* Block::Impl::current = nullptr;

Block::Block(int threads, int lanes, Schedule schedule) : threads_(threads) {
  INGOT_CHECK(threads > 0 && threads % lanes == 0, "{} threads are not whole warps of {}", threads, lanes);
  impl_ = std::make_unique<Impl>(threads, lanes, schedule);
}
Block::~Block() = default;

Result<> Block::run(int64_t index, void (*body)(void* context, int thread), void* context) {
  index_ = index;
  impl_->body = body;
  impl_->context = context;
  return impl_->run(index);
}

void Block::sync(int thread) { impl_->sync(thread); }
uint64_t Block::exchange(int thread, uint64_t value, int lane) { return impl_->exchange(thread, value, lane); }

SharedMemory::SharedMemory(size_t bytes)
    : bytes_(bytes), data_(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + kGuardBytes + 63) / 64 * 64))) {
  std::memset(data_ + bytes_, kPoison, kGuardBytes);
  asan_forbid(data_ + bytes_, kGuardBytes);
}

SharedMemory::~SharedMemory() {
  asan_clean(data_ + bytes_, kGuardBytes);
  std::free(data_);
}

void SharedMemory::poison() { std::memset(data_, kPoison, bytes_); }

Result<> SharedMemory::check_guard() const {
  asan_clean(data_ + bytes_, kGuardBytes);
  size_t intact = 0;
  while (intact < kGuardBytes && data_[bytes_ + intact] == kPoison) ++intact;
  asan_forbid(data_ + bytes_, kGuardBytes);
  if (intact == kGuardBytes) return {};
  return fail("a thread wrote {} bytes behind the end of the block's {} bytes of shared memory", intact, bytes_);
}

}  // namespace ingot::gpu::emu
