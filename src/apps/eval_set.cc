#include "apps/eval_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>

#include "base/file_map.h"
#include "base/log.h"
#include "base/queue.h"
#include "eval/report.h"
#include "quant/statistics.h"
#include "serve/model_service.h"

namespace ingot::apps {
namespace {

using eval::text_of;

constexpr size_t kMaxFile = size_t{1} << 30;
constexpr int64_t kPageSize = 64;

struct Task {
  std::string id, kind;
  Json fields;
  Json tools = Json::array();
  std::vector<int32_t> prompt;
  bool starts_in_reasoning = false;
  int64_t max_tokens = 0;
};

Result<Task> make_task(const Json& line, size_t number, const EvalSetOptions& options, const serve::ServedModel& model) {
  Task task;
  task.fields = line;
  task.id = text_of(line, "id");
  if (task.id.empty()) task.id = fmt::format("line {}", number + 1);
  task.kind = text_of(line, "kind");
  const auto request = chat_request_of(line, model);
  if (!request) return fail("{} {}: {}", options.data.string(), task.id, request.error().message);
  auto prompt = serve::make_chat_prompt(model, *request);
  if (!prompt) return fail("{} {}: {}", options.data.string(), task.id, prompt.error().message);
  task.tools = request->tools;
  task.prompt = std::move(prompt->tokens);
  task.starts_in_reasoning = prompt->starts_in_reasoning;
  task.max_tokens = options.max_tokens > 0 ? options.max_tokens : eval::demo_answer_limit(task.kind);
  // A task that cannot be scored is refused before an hour of answers, not after.
  INGOT_TRY(eval::score_demo_answer(line, {}));
  return task;
}

// The real scheduler and engine around the model; the cache is made for `batch` of the longest task.
Result<serve::ModelService> make_service(const EvalSetOptions& options, std::shared_ptr<serve::ServedModel> served,
                                         const spec::ModelConfig& config, int64_t longest, size_t num_tasks) {
  INGOT_ASSIGN(const tensor::LatentFormat format, serve::parse_cache_format(options.kv_cache_dtype));
  INGOT_ASSIGN(const tensor::ActivationFormat activations, parse_activations(options.activations));
  serve::ServiceOptions service;
  service.model = options.model;
  service.page_size = kPageSize;
  service.max_running_requests = options.batch;
  service.max_queued_requests = static_cast<int64_t>(num_tasks);
  service.speculation = options.speculation;
  // Rounded activations are emulated on the CPU alone.
  service.device = options.device == "auto" && options.activations != "f32" ? "cpu" : options.device;
  serve::CacheShape cache;
  cache.num_pages = options.batch * ((longest + kPageSize - 1) / kPageSize);
  cache.page_bytes = kPageSize * model::KvCache::bytes_per_token(config, format);
  cache.context_length = served->defaults.context_length;
  cache.dtype = tensor::latent_format_name(format);
  return serve::assemble_service(service, std::move(served), cache, [&](int) -> Result<serve::MadeRunner> {
    model::GlmOptions glm_options;
    glm_options.activations = activations;
    INGOT_ASSIGN(glm_options.device_matmul, serve::parse_device_matmul(options.device_matmul));
    INGOT_ASSIGN(auto device, serve::open_device(service));
    INGOT_ASSIGN(auto glm, model::Glm::load(options.model, glm_options, device));
    INGOT_ASSIGN(auto kv, model::KvCache::create(config, {.format = format, .num_pages = cache.num_pages, .page_size = kPageSize}, device));
    return serve::make_glm_runner(service, std::move(glm), std::move(kv), std::make_shared<ThreadPool>(options.threads));
  });
}

// One answer as it comes: filled on the engine thread, read here once its number was in the queue.
struct Incoming {
  std::vector<int32_t> ids;
  serve::SpeculationCounts speculation;
  sched::FinishReason finish = sched::FinishReason::none;
  std::string error;
};

eval::DemoAnswer parse_answer(const Task& task, const serve::ServedModel& model, const Incoming& incoming) {
  eval::DemoAnswer answer;
  answer.ended = incoming.finish == sched::FinishReason::stop_token;
  std::span<const int32_t> ids = incoming.ids;
  if (answer.ended && !ids.empty()) {
    const auto observation = model.tokenizer->token_to_id("<|observation|>");
    answer.ended_in_call = !observation || ids.back() == *observation;
    ids = ids.first(ids.size() - 1);
  }
  text::OutputParserOptions options;
  options.starts_in_reasoning = task.starts_in_reasoning;
  options.parse_tool_calls = !task.tools.empty();
  options.tools = task.tools;
  text::OutputParser parser(std::move(options));
  std::vector<std::string> arguments;
  const auto take = [&](const text::OutputDelta& delta) {
    answer.content += delta.content;
    for (const auto& call : delta.tool_calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index >= answer.calls.size()) answer.calls.resize(index + 1), arguments.resize(index + 1);
      answer.calls[index].name += call.name;
      arguments[index] += call.arguments;
    }
  };
  take(parser.push(model.tokenizer->decode(ids, true)));
  take(parser.finish());
  for (size_t i = 0; i < arguments.size(); ++i)
    if (auto parsed = parse_json(arguments[i], "arguments")) answer.calls[i].arguments = std::move(*parsed);
  return answer;
}

Result<TaskResult> make_result(const Task& task, const serve::ServedModel& model, const Incoming& incoming) {
  TaskResult result;
  result.id = task.id;
  result.kind = task.kind;
  const eval::DemoAnswer answer = parse_answer(task, model, incoming);
  INGOT_ASSIGN(result.ok, eval::score_demo_answer(task.fields, answer));
  result.finish = answer.ended ? "stop" : "length";
  result.num_prompt_tokens = static_cast<int64_t>(task.prompt.size());
  result.num_completion_tokens = static_cast<int64_t>(incoming.ids.size());
  result.output = model.tokenizer->decode(incoming.ids, false);
  result.groups = eval::demo_groups(task.fields);
  result.speculation = incoming.speculation;
  if (const auto it = task.fields.find("bf16_ok"); it != task.fields.end() && it->is_boolean()) result.recorded_ok = it->get<bool>();
  if (task.fields.contains("bf16_output")) result.same_output = result.output == text_of(task.fields, "bf16_output");
  return result;
}

Result<std::vector<TaskResult>> answer_all(const std::vector<Task>& tasks, const serve::ModelService& service) {
  const auto started = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<Incoming>> incoming;
  auto done = std::make_shared<BoundedQueue<size_t>>(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    auto slot = incoming.emplace_back(std::make_shared<Incoming>());
    sched::Request request;
    request.name = tasks[i].id;
    request.prompt = tasks[i].prompt;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int32_t>(tasks[i].max_tokens);
    request.sampling.stop_token_ids = service.model->defaults.eos_token_ids;
    request.sink = [slot, done, i](sched::TokenEvent event) {
      slot->ids.insert(slot->ids.end(), event.token_ids.begin(), event.token_ids.end());
      slot->speculation.add(static_cast<int64_t>(event.token_ids.size()), event.num_drafted, event.num_accepted);
      if (event.finish == sched::FinishReason::none) return;
      slot->finish = event.finish;
      slot->error = std::move(event.error);
      size_t number = i;
      done->try_push(number);  // there is a place for each task
    };
    if (const auto ticket = service.dispatcher->submit(std::move(request)); !ticket)
      return fail("{}: {}", tasks[i].id, ticket.error().message);
  }
  std::vector<TaskResult> results(tasks.size());
  int64_t tokens = 0;
  for (size_t finished = 0; finished < tasks.size();) {
    const auto number = done->wait_pop(std::chrono::milliseconds(200));
    if (!number) continue;
    const Incoming& in = *incoming[*number];
    if (in.finish == sched::FinishReason::error) return fail("{}: {}", tasks[*number].id, in.error);
    INGOT_ASSIGN(results[*number], make_result(tasks[*number], *service.model, in));
    tokens += static_cast<int64_t>(in.ids.size());
    if (++finished % 50 == 0 || finished == tasks.size()) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
      log_info("{} of {} answered in {:.1f} s, {:.0f} tokens a second", finished, tasks.size(), seconds,
               static_cast<double>(tokens) / seconds);
    }
  }
  return results;
}

Result<std::vector<TaskResult>> evaluate(const EvalSetOptions& options) {
  if (options.batch < 1) return fail("--batch {} is out of range: expected 1 or more", options.batch);
  if (options.limit < 0 || options.max_tokens < 0) return fail("--limit and --max-tokens can't be negative");
  INGOT_ASSIGN(const std::vector<Json> lines, read_json_lines(options.data, options.limit));
  if (lines.empty()) return fail("{} has no tasks", options.data.string());
  serve::ServiceOptions service_options;
  service_options.model = options.model;
  service_options.speculation = options.speculation;
  INGOT_ASSIGN(const std::shared_ptr<serve::ServedModel> served, serve::load_served_model(service_options));
  INGOT_ASSIGN(const spec::ModelConfig config, spec::load_model_config(options.model));
  served->defaults.context_length = config.max_position_embeddings;
  std::vector<Task> tasks;
  int64_t longest = 0, other_prompts = 0;
  for (const Json& line : lines) {
    INGOT_ASSIGN(Task task, make_task(line, tasks.size(), options, *served));
    const auto prompt = static_cast<int64_t>(task.prompt.size());
    if (prompt + task.max_tokens > config.max_position_embeddings)
      return fail("{}: {} tokens and {} of the answer are more than max_position_embeddings {}", task.id, prompt, task.max_tokens,
                  config.max_position_embeddings);
    longest = std::max(longest, prompt + task.max_tokens);
    if (const std::string written = text_of(line, "prompt"); !written.empty()) {
      const auto ids = served->tokenizer->encode(written);
      other_prompts += !ids || *ids != task.prompt;
    }
    tasks.push_back(std::move(task));
  }
  if (other_prompts > 0)
    log_warn("{} of {} prompts differ from the file's own `prompt`: its chat template is another one", other_prompts, tasks.size());
  INGOT_ASSIGN(const serve::ModelService service, make_service(options, served, config, longest, tasks.size()));
  return answer_all(tasks, service);
}

std::string percent(const quant::Interval& i) {
  return fmt::format("{:5.1f} %  [{:.1f}, {:.1f}]", 100 * i.value, 100 * i.low, 100 * i.high);
}

Result<> write_json(const std::filesystem::path& path, const Json& json) {
  std::ofstream file(path);
  file << json.dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) return fail("cannot write {}", path.string());
  return {};
}

Result<> run(const EvalSetOptions& options) {
  std::optional<Json> earlier;
  if (!options.compare.empty()) {
    INGOT_ASSIGN(const std::string text, read_file(options.compare, kMaxFile));
    INGOT_ASSIGN(earlier, parse_json(text, options.compare.string()));
  }
  INGOT_ASSIGN(const std::vector<TaskResult> results, evaluate(options));
  std::fputs(results_text(results).c_str(), stdout);
  if (options.speculation.force_acceptance)
    fmt::print("acceptance was forced to {}: the answers mean nothing\n", *options.speculation.force_acceptance);
  if (!options.out.empty()) INGOT_TRY(write_json(options.out, results_json(options, results)));
  if (earlier) {
    INGOT_ASSIGN(const eval::PairedDifference d, compare_results(results, *earlier));
    fmt::print("against {}: {} paired, b {} (right then, wrong now), c {} (wrong then, right now), {} p {:.4g}\n", options.compare.string(),
               d.pairs, d.lost.size(), d.won.size(), d.test(), d.p);
    fmt::print("  lost: {}\n  won: {}\n", fmt::join(d.lost, " "), fmt::join(d.won, " "));
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail("cannot write to standard output");
  const auto cut = std::count_if(results.begin(), results.end(), [](const TaskResult& r) { return r.finish == "length"; });
  if (cut > 0)
    log_warn("{} of {} answers were cut off at their longest length: they may be wrong for that alone; give more --max-tokens", cut,
             results.size());
  return {};
}

}  // namespace

Result<tensor::ActivationFormat> parse_activations(std::string_view name) {
  if (name == "f32") return tensor::ActivationFormat::f32;
  if (name == "fp8") return tensor::ActivationFormat::fp8;
  if (name == "mxfp4") return tensor::ActivationFormat::mxfp4;
  return fail_hint("use f32, fp8 or mxfp4", "--activations {} is unknown", name);
}

Result<serve::ChatRequest> chat_request_of(const Json& line, const serve::ServedModel& model) {
  Json body = Json::object();
  body["messages"] = line.value("messages", Json());
  if (line.contains("tools") && !line["tools"].is_null()) body["tools"] = line["tools"];
  Json kwargs = Json::object();
  for (const char* name : {"enable_thinking", "reasoning_effort"})
    if (line.contains(name) && !line[name].is_null()) kwargs[name] = line[name];
  if (!kwargs.empty()) body["chat_template_kwargs"] = kwargs;
  auto request = serve::parse_chat_request(body, model.defaults);
  if (!request) return fail("{}: {}", request.error().param, request.error().message);
  return std::move(*request);
}

Result<std::vector<Json>> read_json_lines(const std::filesystem::path& path, int64_t limit) {
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxFile));
  std::vector<Json> lines;
  INGOT_TRY(for_each_json_line(text, path.string(), [&](Json line, const std::string& where) -> Result<bool> {
    if (!line.is_object()) return fail("{}: expected a JSON object", where);
    lines.push_back(std::move(line));
    return limit == 0 || static_cast<int64_t>(lines.size()) < limit;
  }));
  return lines;
}

Result<eval::PairedDifference> compare_results(const std::vector<TaskResult>& now, const Json& earlier) {
  std::vector<eval::Item> items;
  for (const TaskResult& result : now) {
    eval::Item& item = items.emplace_back();
    item.id = result.id;
    item.score.ok = result.ok;
  }
  return eval::difference_from(earlier, "--compare", items);
}

namespace {

struct Count {
  int64_t right = 0, all = 0;
  void add(bool ok) { right += ok, ++all; }
};
// What drafts earned, by kind of task; kinds without drafts are not there.
std::map<std::string, serve::SpeculationCounts> count_speculation(const std::vector<TaskResult>& results) {
  std::map<std::string, serve::SpeculationCounts> counts;
  for (const TaskResult& r : results)
    if (r.speculation.any()) counts[r.kind].add(r.speculation);
  return counts;
}

// ("word", "steps 2") -> counts; ("word", "") is all of a kind.
std::map<std::pair<std::string, std::string>, Count> count_groups(const std::vector<TaskResult>& results) {
  std::map<std::pair<std::string, std::string>, Count> counts;
  for (const TaskResult& r : results) {
    counts[{r.kind, ""}].add(r.ok);
    for (const auto& [name, value] : r.groups) counts[{r.kind, name + " " + value}].add(r.ok);
  }
  return counts;
}

}  // namespace

Json results_json(const EvalSetOptions& options, const std::vector<TaskResult>& results) {
  Json json = {{"model", options.model.string()},          {"data", options.data.string()}, {"activations", options.activations},
               {"kv_cache_dtype", options.kv_cache_dtype}, {"groups", Json::array()},       {"items", Json::array()}};
  for (const auto& [group, count] : count_groups(results)) {
    const quant::Interval share = quant::wilson(count.right, count.all);
    json["groups"].push_back({{"kind", group.first},
                              {"group", group.second},
                              {"right", count.right},
                              {"tasks", count.all},
                              {"accuracy", share.value},
                              {"low", share.low},
                              {"high", share.high}});
  }
  if (options.speculation.force_acceptance) json["forced_acceptance"] = *options.speculation.force_acceptance;
  for (const auto& [kind, counts] : count_speculation(results)) json["speculative"][kind] = counts.json();
  for (const TaskResult& r : results)
    json["items"].push_back({{"id", r.id},
                             {"kind", r.kind},
                             {"ok", r.ok},
                             {"finish_reason", r.finish},
                             {"prompt_tokens", r.num_prompt_tokens},
                             {"completion_tokens", r.num_completion_tokens},
                             {"output", r.output}});
  return json;
}

std::string results_text(const std::vector<TaskResult>& results) {
  std::string text;
  for (const auto& [group, count] : count_groups(results)) {
    const std::string name = group.second.empty() ? group.first : "  " + group.second;
    text += fmt::format("{:<24} {:>4} of {:>4}  {}\n", name, count.right, count.all, percent(quant::wilson(count.right, count.all)));
  }
  for (const auto& [kind, counts] : count_speculation(results)) text += fmt::format("speculation, {}: {}\n", kind, counts.text());
  int64_t recorded = 0, same_text = 0, texts = 0;
  std::vector<std::string> unlike;
  for (const TaskResult& r : results) {
    if (r.same_output) ++texts, same_text += *r.same_output;
    if (!r.recorded_ok) continue;
    ++recorded;
    if (*r.recorded_ok != r.ok) unlike.push_back(fmt::format("{} ({})", r.id, r.ok ? "right, recorded wrong" : "wrong, recorded right"));
  }
  if (texts > 0) text += fmt::format("recorded answers: {} of {} the same to the letter\n", same_text, texts);
  if (recorded > 0)
    text += fmt::format("recorded scores: {} of {} the same{}{}\n", recorded - static_cast<int64_t>(unlike.size()), recorded,
                        unlike.empty() ? "" : "; not ", fmt::join(unlike, ", "));
  return text;
}

int run_eval_set(const EvalSetOptions& options) {
  if (auto done = run(options); !done) {
    std::fprintf(stderr, "ingot eval set: %s\n", done.error().text().c_str());
    return 1;
  }
  return 0;
}

}  // namespace ingot::apps
