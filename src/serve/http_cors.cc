#include "serve/http_cors.h"

#include <algorithm>

#include "base/json.h"

namespace ingot::serve {

namespace {
constexpr const char* kMethods = "GET, POST, DELETE, OPTIONS";
constexpr const char* kMaxAge = "600";  // seconds a browser may keep a preflight's answer
constexpr const char* kExposed = "X-Request-Id, Retry-After";

bool allows_all(const std::vector<std::string>& origins) { return std::find(origins.begin(), origins.end(), "*") != origins.end(); }

bool allowed(std::string_view origin, const std::vector<std::string>& origins) {
  return allows_all(origins) || std::find(origins.begin(), origins.end(), origin) != origins.end();
}

bool is_origin(const std::string& text) {
  const size_t at = text.find("://");
  return text == "*" || text == "null" ||
         (at != std::string::npos && at > 0 && at + 3 < text.size() && text.find('/', at + 3) == std::string::npos &&
          text.find_first_of(" \t\r\n*") == std::string::npos);
}
}  // namespace

Result<std::vector<std::string>> parse_cors_origins(const std::string& flag) {
  std::vector<std::string> origins;
  if (flag.starts_with('[')) {
    INGOT_ASSIGN(const Json list, parse_json(flag, "--cors-allow-origins"));
    for (const Json& item : list) {
      if (!item.is_string()) return fail("--cors-allow-origins: expected a list of strings, got {}", item.dump());
      origins.push_back(item.get<std::string>());
    }
  } else {
    for (size_t begin = 0; begin < flag.size();) {
      const size_t end = std::min(flag.find(',', begin), flag.size());
      origins.push_back(flag.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (const std::string& origin : origins) {
    if (!is_origin(origin)) {
      return fail(R"(--cors-allow-origins: "{}" is no origin: expected "*" or a scheme and a host, like https://chat.example:8443)",
                  origin);
    }
  }
  return origins;
}

HttpHeaders cors_headers(const HttpRequest& request, const std::vector<std::string>& origins) {
  if (origins.empty()) return {};
  const std::string_view origin = request.header("origin");
  const bool all = allows_all(origins);
  HttpHeaders headers;
  // A cache between us must not give one origin's answer to another.
  if (!all) headers.emplace_back("Vary", "Origin");
  if (origin.empty() || !allowed(origin, origins)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", all ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", kExposed);
  return headers;
}

std::optional<HttpResponse> answer_preflight(const HttpRequest& request, const std::vector<std::string>& origins) {
  const std::string_view origin = request.header("origin");
  if (origins.empty() || request.method != "OPTIONS" || origin.empty() || request.header("access-control-request-method").empty())
    return std::nullopt;
  HttpResponse response{204, {}, "text/plain", {}};
  if (!allowed(origin, origins)) {
    response.status = 403;
    response.content_type = "application/json";
    response.body = error_body("this server does not answer pages of that origin (--cors-allow-origins)", "invalid_request_error", {},
                               "origin_not_allowed");
    return response;
  }
  response.headers = {{"Access-Control-Allow-Methods", kMethods}, {"Access-Control-Max-Age", kMaxAge}};
  const std::string_view asked = request.header("access-control-request-headers");
  if (!asked.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  return response;
}

}  // namespace ingot::serve
