#include "apps/quantize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>

#include "base/file_map.h"
#include "quant/calibrate.h"
#include "quant/pipeline.h"
#include "quant/shard_writer.h"
#include "text/tokenizer.h"

namespace ingot::apps {
namespace {

using std::chrono::steady_clock;

// Enough to see each conversion's speed, little enough to wait for.
constexpr uint64_t kSampleBytes = 128 << 20;
// The bar is drawn at most so often.
constexpr double kDrawSeconds = 0.1;

std::string bytes_text(uint64_t bytes) {
  const auto n = static_cast<double>(bytes);
  if (n < 1e6) return fmt::format("{:.1f} kB", n / 1e3);
  if (n < 1e9) return fmt::format("{:.1f} MB", n / 1e6);
  return fmt::format("{:.1f} GB", n / 1e9);
}

std::string time_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

// A bar that is drawn anew on a terminal; on anything else one line a shard.
class ProgressLines final : public quant::Progress {
 public:
  void begin(uint64_t bytes, size_t shards, uint64_t bytes_done, size_t shards_done) override {
    total_ = bytes;
    done_ = before_ = bytes_done;
    shards_ = shards;
    shards_done_ = shards_done;
    start_ = last_ = steady_clock::now();
    if (shards_done > 0)
      fmt::print(stderr, "{} of {} shards are finished and intact: {} left\n", shards_done, shards, shards - shards_done);
  }

  void advance(uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    const auto now = steady_clock::now();
    if (!terminal_ || std::chrono::duration<double>(now - last_).count() < kDrawSeconds) return;
    last_ = now;
    draw();
  }

  void shard_done(const quant::PlannedShard& shard, uint64_t bytes_in) override {
    const std::lock_guard lock(mutex_);
    ++shards_done_;
    if (terminal_)
      draw();
    else
      fmt::print(stderr, "{}: {} from {}; {} of {} shards, {}/s, {} left\n", shard.file, bytes_text(shard.bytes), bytes_text(bytes_in),
                 shards_done_, shards_, bytes_text(static_cast<uint64_t>(rate())), left());
  }

  // Leaves the bar's line.
  void end() {
    if (terminal_ && drawn_) fmt::print(stderr, "\n");
  }

 private:
  double rate() const {
    const double seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
    return seconds > 0 ? static_cast<double>(done_ - before_) / seconds : 0;
  }
  std::string left() const { return rate() > 0 ? time_text(static_cast<double>(total_ - done_) / rate()) : "?"; }
  void draw() {
    constexpr size_t kWidth = 30;
    const double part = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1;
    const auto filled = static_cast<size_t>(part * kWidth);
    // \033[K clears what a longer line before left.
    fmt::print(stderr, "\r[{}{}] {:.1f} %  shard {}/{}  {}/s  {} left\033[K", std::string(filled, '#'), std::string(kWidth - filled, '.'),
               100 * part, shards_done_, shards_, bytes_text(static_cast<uint64_t>(rate())), left());
    std::fflush(stderr);
    drawn_ = true;
  }

  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::mutex mutex_;
  uint64_t total_ = 0, done_ = 0, before_ = 0;
  size_t shards_ = 0, shards_done_ = 0;
  steady_clock::time_point start_, last_;
};

void print_plan(const quant::Job& job, int threads) {
  fmt::print("{} -> {}\nrecipe {}, scale mode {}\n\n", job.options.source.string(), job.options.target.string(), job.recipe.name,
             quant::scale_mode_name(job.recipe.scale_mode));
  fmt::print("{:<24} {:<10} {:<10} {:>9} {:>12} {:>12}\n", "kind", "before", "after", "tensors", "bytes", "bytes after");
  for (const quant::PlanLine& line : quant::plan_lines(job))
    fmt::print("{:<24} {:<10} {:<10} {:>9} {:>12} {:>12}\n", line.kind, line.from, line.to, line.tensors, bytes_text(line.bytes_before),
               bytes_text(line.bytes_after));
  fmt::print("{:<24} {:<10} {:<10} {:>9} {:>12} {:>12}\n\n", "all", "", "", job.checkpoint.tensors().size(), bytes_text(job.plan.bytes_in),
             bytes_text(job.plan.bytes_out));
  uint64_t bytes = 0;
  for (const auto& shard : job.plan.shards) bytes += shard.bytes;
  fmt::print("output: {} modules packed; {} shards, {}; {} other files\n", job.recipe.formats.size(), job.plan.shards.size(),
             bytes_text(bytes), job.small_files.size());
  fmt::print("memory: at most about {} with {} threads\n", bytes_text(quant::memory_estimate(job, threads)), threads);
}

void print_notes(std::FILE* to, const quant::Job& job) {
  for (const std::string& note : job.recipe.notes) fmt::print(to, "note: {}\n", note);
  for (const std::string& left : job.left_out) fmt::print(to, "note: not copied: {}\n", left);
}

// What --resume compares: the texts and how much of them counts.
Result<std::string> calibration_identity(const QuantizeFlags& flags) {
  INGOT_ASSIGN(const FileMap data, FileMap::open(flags.calibrate));
  const auto* bytes = reinterpret_cast<const uint8_t*>(data.bytes().data());
  return fmt::format("{} ({} bytes, digest {:016x}), {} tokens", std::filesystem::path(flags.calibrate).filename().string(), data.size(),
                     quant::digest_bytes({bytes, data.size()}), flags.calibrate_tokens);
}

Result<std::unique_ptr<quant::Corrections>> calibrate(const QuantizeFlags& flags, const quant::Job& job) {
  quant::CalibrationOptions options;
  options.data = flags.calibrate;
  options.max_tokens = flags.calibrate_tokens;
  options.work_folder = quant::work_folder(job);
  options.threads = flags.threads;
  // Texts alone need the tokenizer: data may be given as ids.
  std::shared_ptr<const text::Tokenizer> tokenizer;
  options.tokenize = [&](std::string_view text) -> Result<std::vector<int32_t>> {
    if (tokenizer == nullptr) {
      INGOT_ASSIGN(tokenizer, text::Tokenizer::load(job.options.source / "tokenizer.json"));
    }
    return tokenizer->encode(text);
  };
  const bool terminal = isatty(STDERR_FILENO) == 1;
  options.progress = [&](const quant::CalibrationProgress& p) {
    if (p.stage == "done")
      fmt::print(stderr, "{}calibration: layer {} of {}, {} modules decided, residual stream off by {:.2f} %{}\n", terminal ? "\r" : "",
                 p.layer + 1, p.layers, p.modules, 100 * p.stream_error, terminal ? "\033[K" : "");
    else if (terminal)
      fmt::print(stderr, "\rcalibration: layer {} of {}, {}\033[K", p.layer + 1, p.layers, p.stage);
    std::fflush(stderr);
  };
  return quant::calibrate(flags.source, job.recipe, options);
}

Result<> quantize(const QuantizeFlags& flags) {
  if (!flags.report.empty()) INGOT_TRY(quant::check_report_path(flags.report));
  if (flags.threads < 0) return fail("--threads must not be negative, found {}", flags.threads);
  if (!(flags.shard_gb >= 1e-9 && flags.shard_gb <= 1e6))
    return fail("--shard-size must be from 1e-9 to 1e6 (GB), found {}", flags.shard_gb);
  quant::QuantizeOptions options;
  options.source = flags.source;
  options.target = flags.target;
  options.resume = flags.resume;
  options.shard_bytes = static_cast<uint64_t>(flags.shard_gb * 1e9);
  options.recipe = {flags.scheme, flags.preset, flags.excludes, flags.allow_unmatched_excludes, tensor::ScaleMode::even};
  INGOT_ASSIGN(options.recipe.scale_mode, quant::parse_scale_mode(flags.scale_mode));
  if (!flags.calibrate.empty()) {
    INGOT_ASSIGN(options.calibration, calibration_identity(flags));
  }
  INGOT_ASSIGN(const quant::Job job, quant::prepare(options));
  const auto& formats = job.recipe.formats;
  const bool any_mxfp4 = std::any_of(formats.begin(), formats.end(), [](const auto& f) { return f.second == tensor::WeightFormat::mxfp4; });
  if (options.recipe.scale_mode != tensor::ScaleMode::even && !any_mxfp4)
    return fail("--scale-mode {} has no effect: no module becomes MXFP4", flags.scale_mode);
  if (!flags.calibrate.empty() && !any_mxfp4) return fail("--calibrate has no effect: no module becomes MXFP4");

  ThreadPool pool(flags.threads);
  if (flags.dry_run) {
    print_plan(job, pool.num_threads());
    INGOT_ASSIGN(const double rate, quant::measure_rate(job, pool, kSampleBytes));
    if (rate > 0)
      fmt::print("time:   about {} at {}/s of input, measured on a sample without writing{}; a slower disk decides\n",
                 time_text(static_cast<double>(job.plan.bytes_in) / rate), bytes_text(static_cast<uint64_t>(rate)),
                 flags.calibrate.empty() ? "" : " and without calibration");
    print_notes(stdout, job);
    return {};
  }
  print_notes(stderr, job);
  ProgressLines progress;
  quant::MakeCorrections corrections;
  if (!flags.calibrate.empty()) corrections = [&] { return calibrate(flags, job); };
  auto result = quant::quantize(job, corrections, pool, &progress);
  progress.end();
  INGOT_TRY(result);
  if (!flags.report.empty()) INGOT_TRY(quant::write_report(flags.report, quant::report_header(job), result->tensors));
  fmt::print("{}: {} modules packed, {} -> {}; {} shards written, {} kept; {}\n", flags.target, result->tensors.size(),
             bytes_text(job.plan.bytes_in), bytes_text(job.plan.bytes_out), result->shards_written, result->shards_kept,
             time_text(result->seconds));
  return {};
}

}  // namespace

int run_quantize(const QuantizeFlags& flags) {
  // A file over `ulimit -f` is an error of write(), not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const auto done = quantize(flags);
  if (done) return 0;
  fmt::print(stderr, "ingot quantize: {}\n", done.error().text());
  return 1;
}

}  // namespace ingot::apps
