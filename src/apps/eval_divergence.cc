#include "apps/eval_divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "apps/eval_set.h"
#include "base/file_map.h"
#include "base/log.h"
#include "eval/task.h"
#include "serve/model_service.h"

namespace ingot::apps {
namespace {

using eval::text_of;
using quant::Document;
using quant::Interval;

constexpr size_t kMaxFile = size_t{1} << 30;

Result<std::string> render(const serve::ServedModel& model, const Json& line) {
  INGOT_ASSIGN(const serve::ChatRequest request, chat_request_of(line, model));
  // A conversation that ends with the answer is whole; any other waits for one.
  const bool waits = request.messages.empty() || text_of(request.messages.back(), "role") != "assistant";
  auto text = serve::render_chat(model, request, waits);
  if (!text) return fail("{}", text.error().message);
  return std::move(*text);
}

Result<std::string> document_text(const serve::ServedModel& model, const Json& line) {
  std::string text;
  if (line.contains("messages")) {
    INGOT_ASSIGN(text, render(model, line));
  } else if (text = text_of(line, "prompt"); text.empty()) {
    text = text_of(line, "text");
    if (text.empty()) return fail("expected `messages`, or `prompt` or `text` with a text");
  }
  const std::string completion = text_of(line, "completion");
  return text + (completion.empty() ? text_of(line, "bf16_output") : completion);
}

// The same ids must mean the same text, or comparing logits by id means nothing.
Result<> check_same_tokens(const text::Tokenizer& reference, const std::filesystem::path& candidate) {
  INGOT_ASSIGN(const auto other, text::Tokenizer::load(candidate / "tokenizer.json"));
  if (reference.vocab_size() != other->vocab_size())
    return fail("the models differ in their tokenizers: {} and {} tokens", reference.vocab_size(), other->vocab_size());
  for (int64_t id = 0; id < reference.vocab_size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (reference.token_bytes(token) != other->token_bytes(token))
      return fail("the models differ in their tokenizers: id {} is \"{}\" and \"{}\"", id, reference.token_bytes(token),
                  other->token_bytes(token));
  }
  return {};
}

Json interval_json(const Interval& i) {
  if (std::isnan(i.value)) return nullptr;
  return {{"value", i.value}, {"low", i.low}, {"high", i.high}};
}

Json layers_json(const std::vector<quant::LayerAgreement>& layers) {
  Json json = Json::array();
  for (const auto& layer : layers) {
    json.push_back(interval_json(layer.share));
    json.back()["layer"] = layer.layer;
  }
  return json;
}

Result<> run(const EvalDivergenceOptions& options) {
  if (options.max_tokens < 2 || options.limit < 0)
    return fail("--max-tokens {} and --limit {}: expected 2 or more, and 0 or more", options.max_tokens, options.limit);
  model::GlmOptions glm_options;
  INGOT_ASSIGN(glm_options.activations, parse_activations(options.activations));
  serve::ServiceOptions service;
  service.model = options.reference;
  INGOT_ASSIGN(const auto served, serve::load_served_model(service));
  // Before the weights are touched, which can take long.
  INGOT_ASSIGN(const spec::ModelConfig config, spec::load_model_config(options.reference));
  INGOT_ASSIGN(const spec::ModelConfig candidate_config, spec::load_model_config(options.candidate));
  INGOT_TRY(quant::check_comparable(config, candidate_config));
  INGOT_TRY(check_same_tokens(*served->tokenizer, options.candidate));
  const int64_t longest = std::min({options.max_tokens, config.max_position_embeddings, candidate_config.max_position_embeddings});
  INGOT_ASSIGN(const std::vector<Document> documents, load_documents(*served, options.data, longest, options.limit));
  INGOT_ASSIGN(const auto reference, model::Glm::load(options.reference, glm_options));
  INGOT_ASSIGN(const auto candidate, model::Glm::load(options.candidate, glm_options));

  quant::DivergenceOptions measure;
  measure.threads = options.threads;
  const auto started = std::chrono::steady_clock::now();
  auto told = started;
  size_t finished = 0;
  int64_t positions = 0;
  const auto done = [&](const quant::DocumentDivergence& d) {
    ++finished;
    positions += d.positions;
    const auto now = std::chrono::steady_clock::now();
    if (now - told < std::chrono::seconds(5) && finished < documents.size()) return;
    told = now;
    log_info("{} of {} documents, {} positions in {:.1f} s", finished, documents.size(), positions,
             std::chrono::duration<double>(now - started).count());
  };
  INGOT_ASSIGN(const auto divergences, quant::measure_divergence(*reference, *candidate, documents, measure, done));
  const quant::DivergenceReport report = quant::summarize(divergences, measure.bootstrap);
  std::fputs(divergence_text(report).c_str(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail("cannot write to standard output");
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << divergence_json(options, report).dump(1) << '\n';
    file.close();
    if (!file) return fail("cannot write {}", options.json.string());
  }
  return {};
}

}  // namespace

Result<std::vector<Document>> load_documents(const serve::ServedModel& model, const std::filesystem::path& path, int64_t max_tokens,
                                             int64_t limit) {
  std::vector<Document> documents;
  const auto longest = static_cast<size_t>(max_tokens);
  if (path.extension() == ".jsonl") {
    INGOT_ASSIGN(const std::vector<Json> lines, read_json_lines(path, limit));
    size_t cut = 0;
    for (const Json& line : lines) {
      std::string name = text_of(line, "id");
      if (name.empty()) name = fmt::format("document {}", documents.size() + 1);
      const auto text = document_text(model, line);
      if (!text) return fail("{}, {}: {}", path.string(), name, text.error().text());
      auto ids = model.tokenizer->encode(*text);
      if (!ids) return fail("{}, {}: {}", path.string(), name, ids.error().text());
      cut += ids->size() > longest;
      ids->resize(std::min(ids->size(), longest));
      documents.push_back({std::move(name), std::move(*ids)});
    }
    if (cut > 0) log_warn("{} of {} documents were cut at {} tokens", cut, documents.size(), longest);
  } else {
    INGOT_ASSIGN(const std::string text, read_file(path, kMaxFile));
    auto ids = model.tokenizer->encode(text);
    if (!ids) return fail("{}: {}", path.string(), ids.error().text());
    // A last piece of one token predicts nothing.
    for (size_t at = 0; at + 1 < ids->size() && (limit == 0 || static_cast<int64_t>(documents.size()) < limit); at += longest) {
      const auto begin = ids->begin() + static_cast<ptrdiff_t>(at);
      const auto count = static_cast<ptrdiff_t>(std::min(longest, ids->size() - at));
      documents.push_back({fmt::format("token {}", at), std::vector<int32_t>(begin, begin + count)});
    }
  }
  if (documents.empty()) return fail("{} has no documents of two tokens or more", path.string());
  return documents;
}

Json divergence_json(const EvalDivergenceOptions& options, const quant::DivergenceReport& r) {
  return {{"reference", options.reference.string()},
          {"candidate", options.candidate.string()},
          {"data", options.data.string()},
          {"activations", options.activations},
          {"documents", r.documents},
          {"positions", r.positions},
          {"mean_kl", interval_json(r.mean_kl)},
          {"p99_kl", interval_json(r.p99_kl)},
          {"top1_agreement", interval_json(r.top1_agreement)},
          {"reference_nll", interval_json(r.reference_nll)},
          {"candidate_nll", interval_json(r.candidate_nll)},
          {"nll_change", interval_json(r.nll_change)},
          {"median_first_divergence", interval_json(r.median_first_divergence)},
          {"documents_without_divergence", r.documents_without_divergence},
          {"expert_agreement", interval_json(r.expert_agreement)},
          {"expert_agreement_layers", layers_json(r.expert_layers)},
          {"indexer_overlap", interval_json(r.indexer_overlap)},
          {"indexer_overlap_layers", layers_json(r.indexer_layers)}};
}

std::string divergence_text(const quant::DivergenceReport& r) {
  std::string text = fmt::format("{} documents, {} positions; in brackets the 95 % interval over documents\n", r.documents, r.positions);
  const auto line = [&](std::string_view name, const Interval& i, std::string_view unit) {
    if (std::isnan(i.value))
      text += fmt::format("{:<28} none\n", name);
    else if (unit == "%")
      text += fmt::format("{:<28} {:.2f} %  [{:.2f}, {:.2f}]\n", name, 100 * i.value, 100 * i.low, 100 * i.high);
    else
      text += fmt::format("{:<28} {:.5g} {}  [{:.5g}, {:.5g}]\n", name, i.value, unit, i.low, i.high);
  };
  line("mean KL", r.mean_kl, "nats");
  line("99th percentile of KL", r.p99_kl, "nats");
  line("likeliest token the same", r.top1_agreement, "%");
  line("NLL of the reference", r.reference_nll, "nats");
  line("NLL of the candidate", r.candidate_nll, "nats");
  line("change of NLL", r.nll_change, "nats");
  line("first greedy divergence", r.median_first_divergence, "tokens, median");
  text += fmt::format("{:<28} {} of {} documents\n", "no divergence at all", r.documents_without_divergence, r.documents);
  line("same experts", r.expert_agreement, "%");
  for (const auto& layer : r.expert_layers) line(fmt::format("  layer {}", layer.layer), layer.share, "%");
  line("indexer overlap", r.indexer_overlap, "%");
  for (const auto& layer : r.indexer_layers) line(fmt::format("  layer {}", layer.layer), layer.share, "%");
  return text;
}

int run_eval_divergence(const EvalDivergenceOptions& options) {
  if (auto done = run(options); !done) {
    std::fprintf(stderr, "ingot eval divergence: %s\n", done.error().text().c_str());
    return 1;
  }
  return 0;
}

}  // namespace ingot::apps
