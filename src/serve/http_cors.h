// Which pages of other origins may ask from a browser (the CORS protocol of the Fetch standard). No cookies are used here, so credentials
// are never allowed: a key goes into the Authorization header.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/http.h"

namespace ingot::serve {

// A list of origins as --cors-allow-origins has it: "*", "https://a.example,https://b.example", or a JSON list of those. Errors name the
// flag, and the origin that is none.
Result<std::vector<std::string>> parse_cors_origins(const std::string& flag);

// The answer to a preflight: what a browser asks before a request that a form could not make. Nothing when this is none, or `origins` is
// empty. An origin that is not allowed is told so (403).
std::optional<HttpResponse> answer_preflight(const HttpRequest& request, const std::vector<std::string>& origins);

// What an answer to the request needs beside its own headers.
HttpHeaders cors_headers(const HttpRequest& request, const std::vector<std::string>& origins);

}  // namespace ingot::serve
