#include "load/answer.h"

namespace ingot::load {

std::string error_message(const Json& answer, const std::string& body) {
  const Json* at = answer.is_object() && answer.contains("error") ? &answer["error"] : &answer;
  if (at != &answer && at->is_string()) return at->get<std::string>();
  for (const Json* in : {at, &answer})
    for (const char* name : {"message", "detail"})
      if (in->is_object() && in->contains(name) && (*in)[name].is_string()) return (*in)[name].get<std::string>();
  return body.substr(0, 200);
}

std::string first_model(const Json& models) {
  const Json data = models.is_object() ? models.value("data", Json()) : Json();
  if (!data.is_array() || data.empty() || !data[0].is_object()) return "";
  const Json id = data[0].value("id", Json());
  return id.is_string() ? id.get<std::string>() : "";
}

}  // namespace ingot::load
