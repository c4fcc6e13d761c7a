#include "quant/pipeline.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/file_map.h"
#include "base/log.h"
#include "quant/convert.h"
#include "quant/journal.h"
#include "quant/shard_writer.h"
#include "tensor/linear.h"

namespace ingot::quant {
namespace {

namespace fs = std::filesystem;
using tensor::WeightFormat;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr size_t kMaxConfigBytes = 16 << 20;
// A tokenizer takes some 20 MB; what is larger is no small file.
constexpr uintmax_t kMaxSmallFile = 256 << 20;

// Files of weights in other forms, which would contradict the new ones.
bool is_weight_file(const fs::path& path) {
  static const std::set<std::string> kEndings{".safetensors", ".bin",     ".pt",   ".pth", ".ckpt", ".gguf",
                                              ".h5",          ".msgpack", ".onnx", ".npz", ".npy"};
  return kEndings.contains(path.extension().string()) || path.filename().string().ends_with(".index.json");
}

Result<> list_small_files(Job& job) {
  std::error_code ec;
  std::vector<fs::path> paths;
  for (auto it = fs::directory_iterator(job.options.source, ec); !ec && it != fs::directory_iterator(); it.increment(ec))
    paths.push_back(it->path());
  if (ec) return fail("cannot list {}: {}", job.options.source.string(), ec.message());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string();
    if (name == "config.json" || name == kIndexName || path.extension() == ".safetensors") continue;
    if (name.starts_with(".")) {
      job.left_out.push_back(name + ": hidden");
    } else if (fs::is_directory(path, ec)) {
      job.left_out.push_back(name + ": a folder");
    } else if (!fs::is_regular_file(path, ec)) {
      job.left_out.push_back(name + ": not a regular file");
    } else if (is_weight_file(path)) {
      job.left_out.push_back(name + ": weights in another form");
    } else if (fs::file_size(path, ec) > kMaxSmallFile) {
      job.left_out.push_back(name + ": too large for a file beside the weights");
    } else {
      job.small_files.push_back(name);
    }
  }
  return {};
}

Result<> check_folders(const QuantizeOptions& options) {
  std::error_code ec;
  const fs::path source = fs::weakly_canonical(options.source, ec), target = fs::weakly_canonical(options.target, ec);
  if (options.target.empty()) return fail("the target folder has no name");
  if (source == target) return fail_hint("give another target folder", "source and target are the same folder: {}", source.string());
  const auto inside = [](const fs::path& inner, const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
  };
  if (inside(target, source))
    return fail_hint("give a target outside it", "the target {} lies in the source folder {}", target.string(), source.string());
  if (fs::exists(target, ec) && !fs::is_directory(target, ec)) return fail("the target {} is not a folder", target.string());
  return {};
}

Json file_identity(const fs::path& path, std::string_view header) {
  struct stat st {};
  const bool found = ::stat(path.c_str(), &st) == 0;
  const auto* data = reinterpret_cast<const uint8_t*>(header.data());
  return {{"file", path.filename().string()},
          {"bytes", found ? static_cast<int64_t>(st.st_size) : -1},
          {"digest", fmt::format("{:016x}", digest_bytes({data, header.size()}))},
          {"modified_ns", found ? static_cast<int64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec : -1}};
}

// What is being made of what: a run with --resume must agree in all of it.
Result<Json> identity(const Job& job) {
  std::string formats;
  for (const Module& m : job.modules) formats += fmt::format("{}={}\n", m.name, tensor::weight_format_name(output_format(job.recipe, m)));
  const auto* data = reinterpret_cast<const uint8_t*>(formats.data());
  const QuantizeOptions& o = job.options;
  Json options = {{"--scheme", o.recipe.scheme},
                  {"--preset", job.recipe.name},
                  {"--exclude", o.recipe.excludes},
                  {"--scale-mode", std::string(scale_mode_name(job.recipe.scale_mode))},
                  {"--calibrate", o.calibration},
                  {"--shard-size", o.shard_bytes},
                  {"the recipe's formats", fmt::format("{:016x}", digest_bytes({data, formats.size()}))}};
  Json source = Json::array();
  INGOT_ASSIGN(const std::string config, read_file(o.source / "config.json", kMaxConfigBytes));
  source.push_back(file_identity(o.source / "config.json", config));
  for (const tensor::Shard& shard : job.checkpoint.shards()) {
    INGOT_ASSIGN(const FileMap map, FileMap::open(shard.path));
    source.push_back(file_identity(shard.path, {reinterpret_cast<const char*>(map.bytes().data()), 8 + shard.header_bytes}));
  }
  return Json{{"options", options}, {"source", source}};
}

// The converters of all threads; a band borrows one.
class ConverterPool {
 public:
  std::unique_ptr<BandConverter> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<BandConverter>();
    auto out = std::move(free_.back());
    free_.pop_back();
    return out;
  }
  void give_back(std::unique_ptr<BandConverter> converter) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(converter));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BandConverter>> free_;
};

// A module's correction, held from its first band to its last, so that no more of them are in memory than threads work on.
class CorrectionSlot {
 public:
  // Asks once; every band gets the same answer. Null: none.
  Result<const tensor::PackedWeight*> get(const Corrections& corrections, const Module& module, WeightFormat format) {
    const std::lock_guard lock(mutex_);
    if (!asked_) {
      asked_ = true;
      auto found = corrections.find(module.name);
      if (!found)
        error_ = found.error();
      else if (*found && ((*found)->format != format || (*found)->rows != module.rows || (*found)->cols != module.cols))
        error_ = Error{fmt::format("calibration gives {} as {} ({}, {}), but {} ({}, {}) is to be written", module.name,
                                   tensor::weight_format_name((*found)->format), (*found)->rows, (*found)->cols,
                                   tensor::weight_format_name(format), module.rows, module.cols),
                       {}};
      else
        weight_ = std::move(*found);
      used_ = weight_.has_value();
    }
    if (error_) return forward_error(*error_);
    return weight_ ? &*weight_ : nullptr;
  }
  void band_done(size_t bands_of_unit) {
    const std::lock_guard lock(mutex_);
    if (++done_ == bands_of_unit) weight_.reset();
  }
  bool used() const { return used_; }

 private:
  std::mutex mutex_;
  bool asked_ = false, used_ = false;
  size_t done_ = 0;
  std::optional<Error> error_;
  std::optional<tensor::PackedWeight> weight_;
};

// Does the bands of one shard (or of a sample) on all threads.
class ShardRun {
 public:
  ShardRun(const Job& job, const SourceFiles& files, const Corrections* corrections, ConverterPool& converters, std::vector<Band> bands)
      : job_(job), files_(files), corrections_(corrections), converters_(converters), bands_(std::move(bands)) {
    errors_.resize(bands_.size());
    digests_.resize(bands_.size());
    if (bands_.empty()) return;
    first_unit_ = bands_.front().unit;
    bands_of_unit_.resize(bands_.back().unit - first_unit_ + 1);
    for (const Band& band : bands_) ++bands_of_unit_[band.unit - first_unit_];
    if (corrections != nullptr) slots_ = std::vector<CorrectionSlot>(bands_of_unit_.size());
  }

  // writer: null measures speed alone. The error of the first band that failed, in the plan's order.
  Result<> run(ThreadPool& pool, ShardWriter* writer, Progress* progress) {
    const auto count = static_cast<int64_t>(bands_.size());
    std::atomic<int64_t> failed{count};
    std::mutex error_mutex;
    std::optional<Error> error;
    pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i > failed.load()) continue;
        auto done = band(static_cast<size_t>(i), writer);
        if (!done) {
          const std::lock_guard lock(error_mutex);
          if (i < failed.load()) {
            failed.store(i);
            error = done.error();
          }
        } else if (progress != nullptr) {
          progress->advance(*done);
        }
      }
    });
    if (error) return forward_error(*error);
    return {};
  }

  std::vector<ModuleNumbers> modules() const {
    std::vector<ModuleNumbers> out;
    // In the plan's order, so that sums do not depend on who did which band.
    for (size_t i = 0; i < bands_.size(); ++i) {
      const Unit& unit = job_.plan.units[bands_[i].unit];
      if (!unit.packed()) continue;
      if (bands_[i].begin == 0) out.push_back({unit.module, !slots_.empty() && slots_[bands_[i].unit - first_unit_].used(), {}});
      out.back().error.add(errors_[i]);
    }
    return out;
  }
  const std::vector<BandDigest>& digests() const { return digests_; }

 private:
  // Input bytes.
  Result<uint64_t> band(size_t index, ShardWriter* writer) {
    const Band& b = bands_[index];
    const Unit& unit = job_.plan.units[b.unit];
    const tensor::PackedWeight* correction = nullptr;
    CorrectionSlot* slot = unit.packed() && !slots_.empty() ? &slots_[b.unit - first_unit_] : nullptr;
    if (slot != nullptr) {
      INGOT_ASSIGN(correction, slot->get(*corrections_, job_.modules[static_cast<size_t>(unit.module)], unit.to));
    }
    auto converter = converters_.take();
    auto done = write_band(*converter, index, unit, correction, writer);
    converters_.give_back(std::move(converter));
    if (slot != nullptr) slot->band_done(bands_of_unit_[b.unit - first_unit_]);
    INGOT_TRY(done);
    if (!unit.packed()) return static_cast<uint64_t>(b.count);
    return unit.bytes_in() * static_cast<uint64_t>(b.begin + b.count) / static_cast<uint64_t>(unit.rows) -
           unit.bytes_in() * static_cast<uint64_t>(b.begin) / static_cast<uint64_t>(unit.rows);
  }

  Result<> write_band(BandConverter& converter, size_t index, const Unit& unit, const tensor::PackedWeight* correction,
                      ShardWriter* writer) {
    INGOT_ASSIGN(const BandOutput out, converter.convert(files_, unit, bands_[index], job_.recipe.scale_mode, correction));
    errors_[index] = out.error;
    digests_[index] = {digest_bytes(out.weight), digest_bytes(out.scale)};
    if (writer == nullptr) return {};
    const BandPlace place = place_of(unit, bands_[index]);
    INGOT_TRY(writer->write(unit.weight.offset + place.weight_begin, out.weight));
    if (!out.scale.empty()) INGOT_TRY(writer->write(unit.scale.offset + place.scale_begin, out.scale));
    return {};
  }

  const Job& job_;
  const SourceFiles& files_;
  const Corrections* corrections_;
  ConverterPool& converters_;
  std::vector<Band> bands_;
  std::vector<tensor::QuantError> errors_;
  std::vector<BandDigest> digests_;
  size_t first_unit_ = 0;
  std::vector<size_t> bands_of_unit_;
  std::vector<CorrectionSlot> slots_;
};

uint64_t shard_bytes_in(const Plan& plan, const PlannedShard& shard) {
  uint64_t bytes = 0;
  for (size_t i = shard.first_unit; i < shard.end_unit; ++i) bytes += plan.units[i].bytes_in();
  return bytes;
}

// What an earlier run left under temporary names.
void remove_leftovers(const Job& job) {
  std::vector<std::string> files = job.small_files;
  for (const PlannedShard& shard : job.plan.shards) files.push_back(shard.file);
  files.insert(files.end(), {"config.json", kIndexName});
  std::error_code ec;
  for (const std::string& file : files) fs::remove(job.options.target / temporary_name(file), ec);
  fs::remove_all(work_folder(job), ec);
}

// The journal of a target that is empty, new, or (with --resume) this job's.
Result<Journal> open_target(const Job& job) {
  const fs::path& target = job.options.target;
  INGOT_ASSIGN(const Json id, identity(job));
  std::error_code ec;
  if (!fs::exists(target, ec)) {
    fs::create_directories(target, ec);
    if (ec) return write_failure(target, "create", ec.value());
    INGOT_TRY(sync_folder(fs::absolute(target).parent_path()));
  }
  const bool empty = fs::is_empty(target, ec);
  if (ec) return write_failure(target, "list", ec.value());
  if (empty) return Journal::create(target, id);
  const bool has_journal = fs::exists(target / kJournalName, ec);
  if (!has_journal)
    return fail_hint("give an empty or new folder", "the target {} is not empty, and not a run that could be resumed", target.string());
  if (!job.options.resume)
    return fail_hint("--resume continues it; or give an empty or new folder", "the target {} holds an earlier run of ingot quantize",
                     target.string());
  return Journal::resume(target, id);
}

Result<> check_space(const Job& job, const std::set<std::string>& kept) {
  uint64_t needed = 0;
  for (const PlannedShard& shard : job.plan.shards) needed += kept.contains(shard.file) ? 0 : shard.bytes;
  struct statvfs fs_info {};
  if (::statvfs(job.options.target.c_str(), &fs_info) != 0) return {};  // cannot tell: writing will
  const uint64_t free_bytes = static_cast<uint64_t>(fs_info.f_bavail) * fs_info.f_frsize;
  if (needed <= free_bytes) return {};
  return fail_hint("free some space and run again with --resume", "{} has {} bytes free, and {} are to be written",
                   job.options.target.string(), free_bytes, needed);
}

std::vector<std::string> tensor_names(const tensor::Checkpoint& checkpoint) {
  std::vector<std::string> out;
  for (const auto& t : checkpoint.tensors()) out.push_back(t.name);
  return out;
}

// Everything that is no shard. The index and config.json come last: a folder without them is not taken for a model.
Result<> write_small_files(const Job& job) {
  const fs::path& target = job.options.target;
  for (const std::string& file : job.small_files) INGOT_TRY(copy_file_durably(job.options.source / file, target, file));
  std::map<std::string, std::string> file_of;
  uint64_t total = 0;
  for (const PlannedShard& shard : job.plan.shards) {
    for (size_t i = shard.first_unit; i < shard.end_unit; ++i) {
      const Unit& u = job.plan.units[i];
      file_of[u.weight.name] = shard.file;
      if (!u.scale.name.empty()) file_of[u.scale.name] = shard.file;
      total += u.bytes_out();
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", file_of}};
  INGOT_TRY(write_file_durably(target, kIndexName, index.dump(2) + "\n"));
  Json config = job.config_json;
  config.erase("quantization_config");
  if (Json quant = quantization_config(job.recipe, job.modules, tensor_names(job.checkpoint)); !quant.is_null())
    config["quantization_config"] = std::move(quant);
  return write_file_durably(target, "config.json", config.dump(2) + "\n");
}

TensorReport report_of(const Job& job, const Unit& unit, const ModuleNumbers& numbers) {
  const Module& m = job.modules[static_cast<size_t>(unit.module)];
  return {m.name, m.kind, m.layer, unit.from, unit.to, numbers.calibrated, numbers.error, unit.bytes_in(), unit.bytes_out()};
}

Result<QuantizeResult> quantize_into(Journal& journal, const Job& job, const MakeCorrections& calibration, ThreadPool& pool,
                                     Progress* progress) {
  const auto start = std::chrono::steady_clock::now();
  const Plan& plan = job.plan;
  remove_leftovers(job);

  QuantizeResult result;
  std::unordered_map<int32_t, ModuleNumbers> numbers;
  const auto remember = [&](const ShardRecord& record) {
    for (const ModuleNumbers& m : record.modules) numbers[m.module] = m;
  };
  std::set<std::string> kept;
  uint64_t bytes_kept = 0;
  const std::vector<ShardRecord> earlier = journal.records();
  for (const PlannedShard& shard : plan.shards) {
    // The last record of a file counts: an earlier one may have been found damaged and made again.
    const auto record = std::find_if(earlier.rbegin(), earlier.rend(), [&](const ShardRecord& r) { return r.file == shard.file; });
    if (record == earlier.rend()) continue;
    const auto digest = digest_shard_file(job.options.target, plan, shard);
    if (!digest || *digest != record->digest) {
      log_warn("{} is not what the earlier run wrote: it is made again", shard.file);
      continue;
    }
    remember(*record);
    kept.insert(shard.file);
    bytes_kept += shard_bytes_in(plan, shard);
  }
  INGOT_TRY(check_space(job, kept));
  std::unique_ptr<Corrections> corrections;
  if (calibration && kept.size() < plan.shards.size()) {
    std::error_code ec;
    fs::create_directories(work_folder(job), ec);
    if (ec) return write_failure(work_folder(job), "create", ec.value());
    INGOT_ASSIGN(corrections, calibration());
  }
  if (progress != nullptr) progress->begin(plan.bytes_in, plan.shards.size(), bytes_kept, kept.size());

  INGOT_ASSIGN(const SourceFiles files, SourceFiles::open(job.checkpoint));
  ConverterPool converters;
  // The disk finishes one shard while the processors make the next. One at a time: the journal has one writer.
  std::future<Result<>> finishing;
  const auto wait_for_disk = [&]() -> Result<> { return finishing.valid() ? finishing.get() : Result<>(); };
  for (const PlannedShard& shard : plan.shards) {
    if (kept.contains(shard.file)) continue;
    ShardRun run(job, files, corrections.get(), converters, bands_of(plan, shard));
    auto writer = ShardWriter::create(job.options.target, shard);
    if (!writer) {
      INGOT_TRY(wait_for_disk());
      return forward_error(writer.error());
    }
    auto done = run.run(pool, &*writer, progress);
    INGOT_TRY(wait_for_disk());
    INGOT_TRY(done);
    ShardRecord record{shard.file, shard.bytes, digest_shard(shard.header, run.digests()), run.modules()};
    remember(record);
    ++result.shards_written;
    finishing = std::async(std::launch::async,
                           [&journal, &shard, &plan, progress, w = std::move(*writer), r = std::move(record)]() mutable -> Result<> {
                             INGOT_TRY(w.finish());
                             INGOT_TRY(journal.append(r));
                             if (progress != nullptr) progress->shard_done(shard, shard_bytes_in(plan, shard));
                             return {};
                           });
  }
  INGOT_TRY(wait_for_disk());
  corrections.reset();
  remove_leftovers(job);
  // A finished run is not written again: its files may be in use.
  if (!journal.finished() || result.shards_written > 0) INGOT_TRY(write_small_files(job));
  INGOT_TRY(journal.finish());

  result.shards_kept = kept.size();
  for (const Unit& unit : plan.units) {
    if (unit.packed()) result.tensors.push_back(report_of(job, unit, numbers[unit.module]));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace

Result<Job> prepare(const QuantizeOptions& options) {
  INGOT_TRY(check_folders(options));
  if (options.shard_bytes == 0) return fail("--shard-size must be more than 0");
  Job job;
  job.options = options;
  INGOT_ASSIGN(job.config, spec::load_model_config(options.source));
  INGOT_ASSIGN(const std::string config, read_file(options.source / "config.json", kMaxConfigBytes));
  INGOT_ASSIGN(job.config_json, parse_json(config, (options.source / "config.json").string()));
  INGOT_ASSIGN(job.checkpoint, tensor::Checkpoint::open(options.source));
  INGOT_ASSIGN(job.modules, find_modules(job.checkpoint, job.config));
  INGOT_ASSIGN(job.recipe, make_recipe(options.recipe, job.config, job.modules));
  INGOT_ASSIGN(job.plan, make_plan(job.checkpoint, job.modules, job.recipe, options.shard_bytes));
  INGOT_TRY(list_small_files(job));
  return job;
}

std::vector<PlanLine> plan_lines(const Job& job) {
  std::unordered_map<std::string, const Module*> module_of;
  for (const Module& m : job.modules) {
    module_of.emplace(m.name + ".weight", &m);
    if (const std::string scale = tensor::scale_tensor_name(m.name, m.source); !scale.empty()) module_of.emplace(scale, &m);
  }
  std::map<std::tuple<std::string, std::string, std::string>, PlanLine> lines;
  for (const Unit& u : job.plan.units) {
    const auto it = module_of.find(u.source->name);
    std::string kind = "other tensors", from(tensor::dtype_name(u.source->dtype)), to = from;
    if (it != module_of.end()) {
      const Module& m = *it->second;
      kind = spec::tensor_kind_name(m.kind);
      if (m.layer >= job.config.num_hidden_layers) kind = "MTP: " + kind;
      from = tensor::weight_format_name(m.source);
      to = tensor::weight_format_name(output_format(job.recipe, m));
    }
    PlanLine& line = lines[{kind, from, to}];
    line.kind = kind;
    line.from = from;
    line.to = to;
    line.tensors += 1;
    line.bytes_before += u.bytes_in();
    line.bytes_after += u.bytes_out();
  }
  std::vector<PlanLine> out;
  for (auto& [key, line] : lines) out.push_back(std::move(line));
  return out;
}

uint64_t memory_estimate(const Job& job, int threads) {
  // Names, shapes and offsets stand in the checkpoint, the inventory, the plan and the headers.
  constexpr uint64_t kProgram = 40 << 20, kPerTensor = 4096;
  const BandBytes band = largest_band(job.plan);
  uint64_t shard_tables = 0;
  for (const PlannedShard& shard : job.plan.shards)
    shard_tables =
        std::max(shard_tables, bands_of(job.plan, shard).size() * (sizeof(Band) + sizeof(BandDigest) + sizeof(tensor::QuantError)));
  return kProgram + kPerTensor * job.checkpoint.tensors().size() + 2 * shard_tables + static_cast<uint64_t>(threads) * (band.in + band.out);
}

Result<double> measure_rate(const Job& job, ThreadPool& pool, uint64_t sample_bytes) {
  INGOT_ASSIGN(const SourceFiles files, SourceFiles::open(job.checkpoint));
  ConverterPool converters;
  // By conversion: a copy, or a pair of formats.
  std::map<std::tuple<bool, WeightFormat, WeightFormat>, std::pair<uint64_t, std::vector<size_t>>> kinds;
  for (size_t i = 0; i < job.plan.units.size(); ++i) {
    const Unit& u = job.plan.units[i];
    auto& [bytes, sample] = kinds[{u.packed(), u.from, u.to}];
    if (bytes < sample_bytes) sample.push_back(i);
    bytes += u.bytes_in();
  }
  double seconds = 0;
  for (const auto& [key, value] : kinds) {
    const auto& [bytes, sample] = value;
    std::vector<Band> bands;
    uint64_t taken = 0;
    for (const size_t unit : sample) {
      std::vector<Band> all;
      append_bands(job.plan, unit, all);
      const Unit& u = job.plan.units[unit];
      const uint64_t total = u.packed() ? static_cast<uint64_t>(u.rows) : u.source->bytes;
      for (const Band& band : all) {
        if (taken >= sample_bytes) break;
        bands.push_back(band);
        taken += u.bytes_in() * static_cast<uint64_t>(band.count) / total;
      }
    }
    if (taken == 0) continue;
    ShardRun run(job, files, nullptr, converters, std::move(bands));
    const auto start = std::chrono::steady_clock::now();
    INGOT_TRY(run.run(pool, nullptr, nullptr));
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds += spent * static_cast<double>(bytes) / static_cast<double>(taken);
  }
  return seconds > 0 ? static_cast<double>(job.plan.bytes_in) / seconds : 0.0;
}

ReportHeader report_header(const Job& job) {
  return {job.options.source.string(), job.options.target.string(), job.recipe.name, std::string(scale_mode_name(job.recipe.scale_mode)),
          job.plan.bytes_in,           job.plan.bytes_out};
}

fs::path work_folder(const Job& job) { return job.options.target / ".ingot-calibration"; }

Result<QuantizeResult> quantize(const Job& job, const MakeCorrections& calibration, ThreadPool& pool, Progress* progress) {
  INGOT_ASSIGN(Journal journal, open_target(job));
  auto result = quantize_into(journal, job, calibration, pool, progress);
  if (!result) {
    remove_leftovers(job);
    journal.leave_if_empty();
  }
  return result;
}

}  // namespace ingot::quant
