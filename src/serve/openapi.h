// The OpenAPI document of this server, as GET /openapi.json gives it. docs/api.md says the same in words; tests/e2e/test_openapi.py holds
// both against the running server.
#pragma once

#include "base/json.h"

namespace ingot::serve {

// OpenAPI 3.1. Fields that are refused whatever their value are not in it.
Json openapi_document();

}  // namespace ingot::serve
