#include "serve/responses_api.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/responses_answer.h"
#include "serve/responses_request.h"

namespace ingot::serve {

namespace {
constexpr size_t kMaxHistory = 10'000;  // responses that follow on each other
constexpr int kDefaultPage = 20;
constexpr int kMaxPage = 100;

// The parts of a path below /v1/responses/: the id, and what of it.
std::pair<std::string, std::string_view> split_path(std::string_view below) {
  const size_t slash = below.find('/');
  if (slash == std::string_view::npos) return {std::string(below), {}};
  return {std::string(below.substr(0, slash)), below.substr(slash)};
}

// name=value pairs, as sent.
std::vector<std::pair<std::string_view, std::string_view>> parse_query(std::string_view query) {
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = pair.find('=');
    if (!pair.empty()) pairs.emplace_back(pair.substr(0, equals), equals == std::string_view::npos ? "" : pair.substr(equals + 1));
  }
  return pairs;
}

// 0.95f as 0.95, not as 0.949999988.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

// So that items can be listed.
void give_ids(Json& items) {
  for (Json& item : items) {
    if (const auto id = item.find("id"); id != item.end() && id->is_string() && !id->get_ref<const std::string&>().empty()) continue;
    const Json& type = item["type"];
    item["id"] = make_id(type == "function_call" ? "fc_" : type == "function_call_output" ? "fco_" : type == "reasoning" ? "rs_" : "msg_");
  }
}

// `include` asks for more than is left out; nothing is.
bool is_include(std::string_view name) { return name == "include" || name == "include[]" || name == "include%5B%5D"; }
}  // namespace

std::string_view ResponsesApi::methods(std::string_view path) {
  if (!path.starts_with(kPrefix)) return {};
  const auto [id, rest] = split_path(path.substr(kPrefix.size()));
  if (id.empty()) return {};
  if (rest.empty()) return "GET, DELETE";
  if (rest == "/input_items") return "GET";
  return rest == "/cancel" ? "POST" : "";
}

ApiResult<StoredResponse> ResponsesApi::find(const std::string& id, const char* param) const {
  const ApiError missing{404, fmt::format("there is no response \"{}\"{}", id, store_ == nullptr ? ": this server keeps none" : ""), param,
                         "response_not_found"};
  if (store_ == nullptr) return tl::unexpected(missing);
  auto found = store_->get(id);
  if (!found) {
    log_warn("{}", found.error().text());
    return tl::unexpected(ApiError{500, "the stored responses cannot be read", {}, "response_store_failed", "server_error"});
  }
  if (!*found) return tl::unexpected(missing);
  return std::move(**found);
}

ApiResult<Json> ResponsesApi::history(const std::string& id) const {
  std::vector<StoredResponse> chain;
  for (std::string next = id; !next.empty(); next = chain.back().previous) {
    if (chain.size() == kMaxHistory)
      return bad_field("previous_response_id", "previous_response_id: too many responses follow on each other");
    auto found = find(next, "previous_response_id");
    if (!found && !chain.empty() && found.error().status == 404)
      return bad_field(
          "previous_response_id",
          fmt::format("previous_response_id: the conversation before it is not kept any more (response \"{}\" is gone)", next));
    if (!found) return tl::unexpected(found.error());
    chain.push_back(std::move(*found));
  }
  Json items = Json::array();
  for (auto response = chain.rbegin(); response != chain.rend(); ++response) {
    for (Json& item : response->input) items.push_back(std::move(item));
    for (Json& item : response->response["output"]) items.push_back(std::move(item));
  }
  return items;
}

void ResponsesApi::create(const Json& body, const std::shared_ptr<ResponseWriter>& writer) {
  const auto refuse = [&](const ApiError& error) { writer->respond(error_response(error)); };
  auto request = parse_responses_request(body, store_ != nullptr);
  if (!request) return refuse(request.error());
  Json before = Json::array();
  if (!request->previous_response_id.empty()) {
    auto items = history(request->previous_response_id);
    if (!items) return refuse(items.error());
    before = std::move(*items);
  }
  if (const auto error = finish_responses_request(*request, before, desk_.model().defaults)) return refuse(*error);
  ChatRequest& chat = request->chat;
  auto prompt = desk_.prepare(chat);
  if (!prompt) return refuse(request->names.rename(prompt.error()));

  ResponsesAnswerOptions options;
  options.logprobs = chat.options.sampling.top_logprobs >= 0;
  options.repeated = Json::object();
  for (const char* name :
       {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id", "prompt_cache_key", "reasoning",
        "safety_identifier", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "user"})
    options.repeated[name] = std::move(request->body[name]);
  // What the client left to the server.
  if (options.repeated["temperature"].is_null()) options.repeated["temperature"] = shortest(chat.options.sampling.temperature);
  if (options.repeated["top_p"].is_null()) options.repeated["top_p"] = shortest(chat.options.sampling.top_p);
  if (request->store) {
    give_ids(request->input);
    options.store = [store = store_, previous = request->previous_response_id,
                     input = std::move(request->input)](const Json& response) mutable {
      store->put({response["id"].get<std::string>(), std::move(previous), response, std::move(input)});
    };
  }
  const auto answer = std::make_shared<ResponsesAnswer>(desk_.answer_options(chat, *prompt), std::move(options), writer);
  desk_.submit(std::move(chat.options), std::move(prompt->tokens), answer, writer);
}

ApiResult<Json> ResponsesApi::list_input_items(const std::string& id, std::string_view query) const {
  int limit = kDefaultPage;
  bool ascending = false;
  std::string after;
  for (const auto& [name, value] : parse_query(query)) {
    if (name == "limit") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
      if (error != std::errc() || end != value.data() + value.size() || limit < 1 || limit > kMaxPage)
        return tl::unexpected(bad("limit", fmt::format("expected an integer from 1 to {}", kMaxPage)));
    } else if (name == "order") {
      if (value != "asc" && value != "desc") return tl::unexpected(bad("order", "expected asc or desc"));
      ascending = value == "asc";
    } else if (name == "after") {
      after = value;
    } else if (!is_include(name)) {
      return tl::unexpected(bad(std::string(name), "this parameter is not known here"));
    }
  }
  auto found = find(id, "response_id");
  if (!found) return tl::unexpected(found.error());
  std::vector<Json> items = found->input.get<std::vector<Json>>();
  if (!ascending) std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (!after.empty()) {
    first = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["id"] == after; });
    if (first == items.end()) return tl::unexpected(bad("after", "there is no such item"));
    ++first;
  }
  Json page = Json::array();
  for (; first != items.end() && std::cmp_less(page.size(), limit); ++first) page.push_back(std::move(*first));
  const bool has_more = first != items.end();
  Json list{{"object", "list"}, {"first_id", nullptr}, {"last_id", nullptr}, {"has_more", has_more}};
  if (!page.empty()) {
    list["first_id"] = page.front()["id"];
    list["last_id"] = page.back()["id"];
  }
  list["data"] = std::move(page);
  return list;
}

HttpResponse ResponsesApi::handle(const HttpRequest& request) {
  const auto ok = [](const Json& body) { return HttpResponse{200, dump_json(body), "application/json", {}}; };
  const auto [id, rest] = split_path(std::string_view(request.path).substr(kPrefix.size()));
  if (rest == "/cancel")
    return error_response({400, "only responses in the background can be cancelled, and this server makes none", "background", {}});
  if (rest == "/input_items") {
    const auto list = list_input_items(id, request.query);
    return list ? ok(*list) : error_response(list.error());
  }
  auto found = find(id, "response_id");
  if (!found) return error_response(found.error());
  if (request.method == "DELETE") {
    const auto erased = store_->erase(id);
    if (!erased) return error_response({500, "the response cannot be deleted: " + erased.error().text(), {}, {}, "server_error"});
    return ok({{"id", id}, {"object", "response"}, {"deleted", true}});
  }
  for (const auto& [name, value] : parse_query(request.query)) {
    if (name == "stream" && value != "true") continue;
    if (name == "stream") return error_response(bad("stream", "a response that is done is not streamed again"));
    if (!is_include(name)) return error_response(bad(std::string(name), "this parameter is not known here"));
  }
  return ok(found->response);
}

}  // namespace ingot::serve
