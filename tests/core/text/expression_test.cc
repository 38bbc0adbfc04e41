// Expressions against other readings of them (the scanners, PCRE2), and what they refuse.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <chrono>
#include <random>

#include "core/text/expression.h"
#include "core/text/split_scanner.h"
#include "tests/core/text/kinds.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

using Ranges = std::vector<std::pair<size_t, size_t>>;

Expression compile(std::string_view expression) {
  return Expression::compile(expression, "file").value();
}

Ranges find_all(const Expression& expression, std::string_view text) {
  std::vector<Expression::Match> matches;
  StepBudget budget(text.size());
  const Status status = expression.find_all(text, budget, matches);
  EXPECT_TRUE(status.ok()) << status.to_string();
  Ranges ranges;
  for (const Expression::Match& match : matches) ranges.emplace_back(match.begin, match.end);
  return ranges;
}

TEST(Expression, agrees_with_the_scanners_on_every_golden) {
  std::vector<std::string> texts = kind_texts();
  const Json goldens =
      parse_json_file(std::string(SPECD_TEST_REFERENCE) + "/tokenizer_goldens.json", 1 << 20)
          .value();
  for (const char* key : {"split", "encode"}) {
    for (const Json& golden : goldens[key]) texts.push_back(golden[0]);
  }
  ASSERT_GE(texts.size(), 4900u);
  for (const std::string_view known : {kLlama3Expression, kQwen2Expression, kGpt2Expression}) {
    const Expression expression = compile(known);
    const PieceEnd piece_end = find_scanner(known);
    ASSERT_NE(piece_end, nullptr);
    for (const std::string& text : texts) {
      Ranges pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t end = piece_end(text, at);
        pieces.emplace_back(at, end);
        at = end;
      }
      EXPECT_EQ(find_all(expression, text), pieces) << known << Json(text);
    }
  }
}

// PCRE2 with the rule of the reference for matches of nothing.
Ranges pcre2_find_all(const std::string& expression, const std::string& text) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, context);
  EXPECT_NE(code, nullptr) << expression;
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  Ranges ranges;
  size_t last_end = SIZE_MAX;
  for (size_t at = 0; code != nullptr && at <= text.size();) {
    // Never an empty range: the tests' texts are ASCII, so a step is a byte.
    const int count = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  0, data, nullptr);
    if (count < 0) break;
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data);
    if (found[0] == found[1] && found[1] == last_end) {
      ++at;
      continue;
    }
    ranges.emplace_back(found[0], found[1]);
    at = last_end = found[1];
  }
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  pcre2_compile_context_free(context);
  return ranges;
}

// Expressions of everything that is supported, over a few characters.
class RandomExpression {
 public:
  explicit RandomExpression(uint32_t seed) : random_(seed) {}

  std::string choice(int depth) {
    std::string text = sequence(depth);
    while (below(3) == 0) text += "|" + (below(9) == 0 ? "" : sequence(depth));
    return text;
  }
  std::string text() {
    std::string text;
    for (uint32_t i = below(24); i > 0; --i) text += "abcAB1 \n."[below(9)];
    return text;
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_()) % n; }
  std::string one_of(const std::vector<std::string>& all) {
    return all[below(static_cast<uint32_t>(all.size()))];
  }
  std::string sequence(int depth) {
    std::string text;
    for (uint32_t i = 1 + below(3); i > 0; --i) {
      text += atom(depth);
      if (below(2) == 0) {
        text += one_of({"?", "*", "+", "??", "*?", "+?", "?+", "*+", "++", "{2}", "{1,2}", "{0,2}",
                        "{2,}", "{1,3}?"});
      }
    }
    return text;
  }
  std::string atom(int depth) {
    const uint32_t kind = below(depth > 0 ? 10 : 5);
    if (kind < 3) return one_of({"a", "b", "c", "A", "1", " ", "\\n", "\\.", "."});
    if (kind == 3) return one_of({"\\s", "\\S", "\\d", "\\D", "\\p{L}", "\\p{Lu}", "\\P{N}"});
    if (kind == 4) {
      return one_of({"[ab]", "[^ab]", "[a-c1]", "[\\s\\d]", "[^\\p{L}]", "[\\S]", "[b-]"});
    }
    return one_of({"(", "(?:", "(?:", "(?>", "(?=", "(?!"}) + choice(depth - 1) + ")";
  }

  std::mt19937 random_;
};

TEST(Expression, agrees_with_pcre2_on_random_expressions) {
  RandomExpression random(17);
  size_t compared = 0;
  for (int i = 0; i < 8000; ++i) {
    const std::string expression = random.choice(3);
    const auto compiled = Expression::compile(expression, "file");
    if (!compiled.ok()) {
      EXPECT_EQ(compiled.status().code(), Code::kUnsupported) << compiled.status().message();
      continue;
    }
    for (int n = 0; n < 8; ++n) {
      const std::string text = random.text();
      ++compared;
      ASSERT_EQ(find_all(compiled.value(), text), pcre2_find_all(expression, text))
          << expression << " on " << Json(text);
    }
  }
  EXPECT_GE(compared, 20000u);
}

TEST(Expression, takes_characters_from_the_tables_of_the_reference) {
  // U+1E030, a letter since Unicode 15; U+FB06 and U+00DF fold to two characters.
  EXPECT_EQ(find_all(compile("\\p{Lm}+"), "a\U0001E030\u02B0"), (Ranges{{1, 7}}));
  EXPECT_EQ(find_all(compile("(?i:'s|k)"), "'\u017F \u212A K '\u00DF"),
            (Ranges{{0, 3}, {4, 7}, {8, 9}}));
  EXPECT_EQ(find_all(compile("[\u4e00-\u9fff]+|\\u00e9"), "x\u4e2d\u6587\u00e9y"),
            (Ranges{{1, 7}, {7, 9}}));
}

TEST(Expression, empty_matches_follow_the_rule_of_the_reference) {
  EXPECT_EQ(find_all(compile("b*"), "abba"), (Ranges{{0, 0}, {1, 3}, {4, 4}}));
  EXPECT_EQ(find_all(compile("(?=b)"), "abb"), (Ranges{{1, 1}, {2, 2}}));
  EXPECT_EQ(find_all(compile("a|"), ""), (Ranges{{0, 0}}));
}

struct Refusal {
  const char* expression;
  const char* message;  // a part of it
};

TEST(Expression, refuses_what_engines_read_differently_with_the_byte) {
  const std::vector<Refusal> refusals = {
      {"", "the expression is empty"},
      {"a(b", "byte 3: a group without ')'"},
      {"a)b", "byte 1: ')' without '('"},
      {"[ab", "byte 3: '[' without ']'"},
      {"a\\", "byte 1: '\\' at the end"},
      {"+a", "byte 0: nothing to repeat"},
      {"^a", "byte 0: the anchor '^'"},
      {"a$", "byte 1: the anchor '$'"},
      {"a\\z", "byte 1: this escape"},
      {"\\Aa", "byte 0: this escape"},
      {"\\bab", "byte 0: this escape"},
      {"\\w+", "byte 0: this escape"},
      {"x\\h", "byte 1: this escape"},
      {"\\R", "byte 0: this escape"},
      {"\\X", "byte 0: this escape"},
      {"(a)\\1", "byte 3: this escape"},
      {"\\x41", "byte 0: this escape"},
      {"\\u12", "byte 0: expected \\u and four"},
      {"\\ud800", "byte 0: expected \\u and four"},
      {"\\pL", "byte 0: expected \\p{name}"},
      {"\\p{L", "byte 0: expected \\p{name}"},
      {"\\p{Greek}", "unknown property 'Greek'"},
      {"(?m)a", "byte 0: only (?: )"},
      {"(?<n>a)", "byte 0: only (?: )"},
      {"(?<=a)b", "byte 0: only (?: )"},
      {"(?#a)", "byte 0: only (?: )"},
      {"(?i)a", "byte 0: only (?: )"},
      {"(?i:a\\s)", "byte 5: only plain ASCII"},
      {"(?i:\xC3\xA9)", "byte 4: only plain ASCII"},
      {"(?i:'ST)", "the pair 'st'"},
      {"[a&&b]", "byte 2: '&&'"},
      {"[[:alpha:]]", "byte 1: '[' inside a set"},
      {"[]a]", "byte 1: an empty set"},
      {"[a-b-c]", "byte 4: '-' in the middle"},
      {"[\\s-a]", "a range between sets"},
      {"[b-a]", "a range that runs backwards"},
      {"a]", "byte 1: write ']' as '\\]'"},
      {"a{", "byte 1: expected {n}, {n,} or {n,m}"},
      {"a{,3}", "byte 1: expected {n}, {n,} or {n,m}"},
      {"a{3,2}", "byte 1: expected counts in order"},
      {"a{0}", "byte 1: expected counts in order"},
      {"a{1,5000}", "byte 1: expected counts in order"},
      {"a{99999999999999999999}", "byte 1: expected counts in order"},
      {"a{2}?", "byte 4: a sign after braces"},
      {"\\p{N}{1,3}+", "byte 10: a sign after braces"},
      {"a**", "byte 2: a repetition of a repetition"},
      {"(?:a*)*", "byte 6: what is repeated may match nothing"},
      {"(?:a|)+", "byte 6: what is repeated may match nothing"},
      {"(?:a+?)?", "byte 7: repetitions of repetitions must be greedy"},
      {"(?=a)+", "byte 5: a lookahead cannot be repeated"},
      {"(?:(?:a{100}){100}){100}", "too large"},
      {"((((a?b){9}){9}){9}){9}", "too large"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.expression);
    const auto result = Expression::compile(refusal.expression, "file");
    ASSERT_FALSE(result.ok());
    const std::string& message = result.status().message();
    EXPECT_NE(message.find(refusal.message), std::string::npos) << message;
    EXPECT_EQ(message.rfind("file: ", 0), 0u) << message;
  }
}

TEST(Expression, huge_expressions_are_refused_at_once) {
  std::string nested;
  for (int i = 0; i < 2000; ++i) nested = "(" + nested;
  std::string sets;
  for (int i = 0; i < 600; ++i)
    sets += "\\u" + std::string("4") + "0123456789abcdef"[i / 256] +
            "0123456789abcdef"[i / 16 % 16] + "0123456789abcdef"[i % 16];
  std::string classes = "[";
  while (classes.size() < 4090) classes += "\\P{L}";
  const auto start = CpuClock::now();
  for (const std::string& expression :
       {nested, sets, std::string(100'000, 'a'), classes, std::string(300, '|') + "a"}) {
    const auto result = Expression::compile(expression, "file");
    EXPECT_FALSE(result.ok()) << expression.substr(0, 40);
    if (result.ok()) continue;
    EXPECT_LT(result.status().message().size(), 500u);
  }
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  EXPECT_LT(seconds.count(), 5.0);
}

// Backtracking engines need years for some of these. A wide margin: sanitizers and a busy machine.
TEST(Expression, hostile_expressions_take_linear_time_or_end_with_the_place) {
  const std::string letters(300'000, 'a');
  const std::string spaces(300'000, ' ');
  for (const char* expression :
       {"(?:a+)+b", "(?:a|aa)+b", "(?:a|a?a)+b", "a+a+a+a+a+b", "(?:a+b|a+c|a+d)", "\\s++x",
        "\\s+(?=x)", "(?:\\s(?!\\s*+x))*+y", "(?:a{1,90}b|a)", "(?>a+b|a)", "\\p{L}+?\\p{L}+?b"}) {
    SCOPED_TRACE(expression);
    const Expression compiled = compile(expression);
    for (const std::string& text : {letters, spaces}) {
      const auto start = CpuClock::now();
      std::vector<Expression::Match> matches;
      StepBudget budget(text.size());
      const Status status = compiled.find_all(text, budget, matches);
      const std::chrono::duration<double> seconds = CpuClock::now() - start;
      EXPECT_LT(seconds.count(), 20.0);
      RecordProperty(expression, static_cast<int>(seconds.count() * 1000));
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::kUnsupported);
      EXPECT_NE(status.message().find("takes too many steps"), std::string::npos);
      EXPECT_NE(status.message().find(expression), std::string::npos) << status.message();
    }
  }
}

TEST(Expression, what_would_take_forever_names_the_expression_and_the_byte) {
  std::vector<Expression::Match> matches;
  StepBudget budget(200'001);
  const Status status =
      compile("\\s(?=\\s*x)").find_all(std::string(200'000, ' ') + "x", budget, matches);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("expression '\\s(?=\\s*x)': matching at byte "),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("of a text of 200001 bytes"), std::string::npos);
}

}  // namespace
}  // namespace specd
