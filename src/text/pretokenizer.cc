#include "text/pretokenizer.h"

#include <algorithm>

#include "text/utf8_text.h"

namespace ingot::text {
namespace {

std::string type_of(const Json& config) {
  if (!config.is_object() || !config.contains("type") || !config["type"].is_string()) return "(none)";
  return config["type"].get<std::string>();
}

Result<bool> flag(const Json& config, const char* name, bool otherwise, std::string_view what) {
  if (!config.contains(name)) return otherwise;
  if (!config[name].is_boolean()) return fail("{}: pre_tokenizer: {} is not true or false", what, name);
  return config[name].get<bool>();
}

struct Span {
  size_t begin;
  size_t end;
  bool match;
};

}  // namespace

Result<Pretokenizer> Pretokenizer::parse(const Json& config, std::string_view what) {
  Pretokenizer self;
  INGOT_ASSIGN(self.classes_, UnicodeClasses::get());
  INGOT_TRY(self.add(config, what, 0));
  const auto splitting = [](const Step& s) { return s.splits; };
  if (std::none_of(self.steps_.begin(), self.steps_.end(), [](const Step& s) { return s.prefix_space; }) &&
      std::count_if(self.steps_.begin(), self.steps_.end(), splitting) == 1) {
    const Step& step = *std::find_if(self.steps_.begin(), self.steps_.end(), splitting);
    if (step.behavior == Behavior::kIsolated) self.whole_pattern_ = step.known;
  }
  return self;
}

Result<> Pretokenizer::add(const Json& config, std::string_view what, int depth) {
  const std::string type = type_of(config);
  if (type == "Sequence" && depth < 4) {
    if (!config.contains("pretokenizers") || !config["pretokenizers"].is_array())
      return fail("{}: pre_tokenizer: Sequence without a list \"pretokenizers\"", what);
    for (const Json& part : config["pretokenizers"]) INGOT_TRY(add(part, what, depth + 1));
    // Bytes are only spelled by ByteLevel; without it the vocabulary would hold characters.
    if (depth == 0 && (config["pretokenizers"].empty() || type_of(config["pretokenizers"].back()) != "ByteLevel")) {
      return fail("{}: pre_tokenizer: a Sequence must end in ByteLevel", what);
    }
    return {};
  }
  if (type == "Split") {
    if (depth == 0) return fail("{}: pre_tokenizer: Split alone is unsupported; it must be followed by ByteLevel", what);
    return add_split(config, what);
  }
  if (type == "ByteLevel") {
    Step step;
    INGOT_ASSIGN(step.prefix_space, flag(config, "add_prefix_space", true, what));
    INGOT_ASSIGN(step.splits, flag(config, "use_regex", true, what));
    if (step.splits) INGOT_TRY(set_regex(step, kGpt2Pattern, what));
    steps_.push_back(std::move(step));
    return {};
  }
  return fail_hint("supported: ByteLevel, Split, and a Sequence of these that ends in ByteLevel",
                   "{}: pre_tokenizer: type {} is unsupported", what, type);
}

Result<> Pretokenizer::add_split(const Json& config, std::string_view what) {
  Step step;
  step.splits = true;
  INGOT_ASSIGN(step.invert, flag(config, "invert", false, what));
  const std::string behavior = config.contains("behavior") && config["behavior"].is_string() ? config["behavior"].get<std::string>() : "";
  constexpr std::pair<const char*, Behavior> kBehaviors[] = {{"Isolated", Behavior::kIsolated},
                                                             {"Removed", Behavior::kRemoved},
                                                             {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                             {"MergedWithNext", Behavior::kMergedWithNext},
                                                             {"Contiguous", Behavior::kContiguous}};
  const auto* found = std::find_if(std::begin(kBehaviors), std::end(kBehaviors), [&](const auto& b) { return behavior == b.first; });
  if (found == std::end(kBehaviors)) return fail("{}: pre_tokenizer: Split has unknown behavior \"{}\"", what, behavior);
  step.behavior = found->second;
  const Json pattern = config.contains("pattern") ? config["pattern"] : Json();
  if (pattern.is_object() && pattern.contains("Regex") && pattern["Regex"].is_string()) {
    INGOT_TRY(set_regex(step, pattern["Regex"].get_ref<const std::string&>(), what));
  } else if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) {
    std::string escaped;
    for (const char c : pattern["String"].get_ref<const std::string&>()) {
      if (std::string_view("\\^$.|?*+()[]{}#-&~/").find(c) != std::string_view::npos) escaped.push_back('\\');
      escaped.push_back(c);
    }
    INGOT_TRY(set_regex(step, escaped, what));
  } else {
    return fail("{}: pre_tokenizer: Split needs a pattern {{\"Regex\": ..}} or {{\"String\": ..}}", what);
  }
  steps_.push_back(std::move(step));
  return {};
}

Result<> Pretokenizer::set_regex(Step& step, std::string_view pattern, std::string_view what) const {
  step.known = known_pattern(pattern);
  if (step.known != KnownPattern::kNone) return {};
  auto regex = PretokenizerRegex::compile(pattern);
  if (!regex) return fail_hint(regex.error().hint, "{}: pre_tokenizer: {}", what, regex.error().message);
  step.regex = std::move(*regex);
  return {};
}

Result<> Pretokenizer::apply(const Step& step, std::string_view text, std::vector<std::string_view>& pieces) const {
  // Spans that cover the text; those that matched the pattern are marked.
  std::vector<Span> spans;
  if (step.known != KnownPattern::kNone) {
    PretokenizerScan(*classes_, text).run(step.known, [&](std::string_view piece) {
      const auto begin = static_cast<size_t>(piece.data() - text.data());
      spans.push_back({begin, begin + piece.size(), !step.invert});
      return true;
    });
  } else {
    PretokenizerRegex::Walk walk(*step.regex, text);
    PretokenizerRegex::Match match;
    size_t done = 0;
    for (;;) {
      INGOT_ASSIGN(const bool found, walk.next(match));
      if (!found) break;
      if (match.begin > done) spans.push_back({done, match.begin, step.invert});
      spans.push_back({match.begin, match.end, !step.invert});
      done = match.end;
    }
    if (done < text.size()) spans.push_back({done, text.size(), step.invert});
  }

  std::vector<Span> merged;
  const size_t count = spans.size();
  bool previous = false;
  for (size_t n = 0; n < count; ++n) {
    // MergedWithNext is MergedWithPrevious seen from the end.
    const bool backwards = step.behavior == Behavior::kMergedWithNext;
    const Span& span = spans[backwards ? count - 1 - n : n];
    const bool joins = step.behavior == Behavior::kContiguous ? n > 0 && span.match == previous : span.match && !previous && n > 0;
    const bool merging = step.behavior == Behavior::kContiguous || step.behavior == Behavior::kMergedWithPrevious || backwards;
    if (merging && joins) {
      if (backwards) {
        merged.back().begin = span.begin;
      } else {
        merged.back().end = span.end;
      }
    } else if (step.behavior != Behavior::kRemoved || !span.match) {
      merged.push_back(span);
    }
    previous = span.match;
  }
  if (step.behavior == Behavior::kMergedWithNext) std::reverse(merged.begin(), merged.end());
  for (const Span& span : merged) {
    if (span.end > span.begin) pieces.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return {};
}

Result<> Pretokenizer::split(std::string_view text, std::vector<std::string_view>& pieces, std::vector<std::string>& storage) const {
  std::vector<std::string_view> now{text}, next;
  for (const Step& step : steps_) {
    if (step.prefix_space) {
      // Pieces point into `all`: it has its room from the start, and more than a string object holds inside, so that a move keeps them.
      size_t bytes = 0;
      for (const std::string_view piece : now) bytes += piece.size() + 1;
      std::string all;
      all.reserve(std::max<size_t>(bytes, 64));
      for (std::string_view& piece : now) {
        if (piece.starts_with(' ')) continue;
        const size_t begin = all.size();
        all.push_back(' ');
        all.append(piece);
        piece = std::string_view(all.data() + begin, all.size() - begin);
      }
      storage.push_back(std::move(all));
    }
    if (!step.splits) continue;
    next.clear();
    for (const std::string_view piece : now) INGOT_TRY(apply(step, piece, next));
    now.swap(next);
  }
  pieces.insert(pieces.end(), now.begin(), now.end());
  return {};
}

}  // namespace ingot::text
