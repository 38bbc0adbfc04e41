#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base/utf8.h"
#include "core/chat/jinja/python_text.h"
#include "core/chat/jinja/template.h"
#include "tests/cpu_clock.h"

namespace specd::jinja {
namespace {

using OrderedJson = nlohmann::ordered_json;

// As the goldens have it: 2026-07-26, a Sunday, 09:05:07.
std::tm golden_time() {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_sec = 7;
  now.tm_yday = 206;
  return now;
}

const OrderedJson& goldens() {
  static const OrderedJson json = [] {
    std::ifstream file(std::string(SPECD_TEST_REFERENCE) + "/jinja_goldens.json");
    return OrderedJson::parse(file);
  }();
  return json;
}

Variables variables_of(const OrderedJson& object) {
  Variables variables;
  Budget budget = json_budget();
  for (const auto& [name, value] : object.items()) {
    variables.emplace_back(name, value_from_json(value.dump(), name, budget).value());
  }
  return variables;
}

Result<MarkedText> render(const std::string& text, const Variables& variables = {},
                          const Limits& limits = {}) {
  SPECD_TRY(const auto made, Template::parse(text, "t"));
  return made->render(variables, {.now = golden_time(), .limits = limits});
}
Result<MarkedText> render_json(const std::string& text, const std::string& json) {
  return render(text, variables_of(OrderedJson::parse(json)));
}
std::string error_of(const std::string& text, const std::string& json = "{}") {
  const auto result = render_json(text, json);
  return result.ok() ? "no error: " + result.value().bytes() : result.status().to_string();
}

TEST(Jinja, prints_what_jinja2_prints_and_fails_where_it_fails) {
  const Variables variables = variables_of(goldens()["variables"]);
  // What jinja2 renders and we refuse: integers beyond 64 bits.
  const std::vector<std::string> refused{"{{ 10 ** 20 }}", "{{ 9223372036854775807 + 1 }}"};
  ASSERT_GE(goldens()["cases"].size(), 800u);
  for (const OrderedJson& golden : goldens()["cases"]) {
    const auto text = golden[0].get<std::string>();
    SCOPED_TRACE(text);
    const auto result = render(text, variables);
    if (std::find(refused.begin(), refused.end(), text) != refused.end()) {
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().code(), Code::kUnsupported);
    } else if (golden[1].is_null()) {
      EXPECT_FALSE(result.ok()) << result.value().bytes();
    } else {
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      EXPECT_EQ(result.value().bytes(), golden[1].get<std::string>());
    }
  }
}

TEST(Jinja, names_line_and_column_of_what_it_refuses) {
  const std::pair<const char*, const char*> table[] = {
      {"a\n{{ x | nope }}", "UNSUPPORTED: t:2:8: the filter 'nope' is not supported"},
      {"{{ x is nope }}", "UNSUPPORTED: t:1:9: the test 'nope' is not supported"},
      {"{{ x.swapcase() }}", "UNSUPPORTED: t:1:5: the method 'swapcase' is not supported"},
      {"\n\n  {% include 'x' %}", "UNSUPPORTED: t:3:6: the statement 'include' is not supported"},
      {"{% call f() %}{% endcall %}", "UNSUPPORTED: t:1:4: the statement 'call' is not supported"},
      {"{{ cycler(1) }}", "UNSUPPORTED: t:1:4: the name 'cycler' is not supported"},
      {"{{ f(*x) }}", "UNSUPPORTED: t:1:6: arguments from a list"},
      {"{% for x in y recursive %}{% endfor %}", "UNSUPPORTED: t:1:15: 'recursive'"},
      {"{{ x.__class__ }}", "UNSUPPORTED: t:1:5: the attribute '__class__'"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "UNSUPPORTED: t:1:19: the name 'varargs'"},
      {"{{ x | map(y) }}", "UNSUPPORTED: t:1:12: a filter or test whose name is computed"},
      {"{{ '\\N{BULLET}' }}", "UNSUPPORTED: t:1:5: this escape is not supported"},
      {"{{ 99999999999999999999 }}", "UNSUPPORTED: t:1:4: the number '99999999999999999999'"},
      {"{% if x %}\n{% else", "DATA_LOSS: t:2:1: the tag does not end: expected '%}'"},
      {"{% if x %}",
       "DATA_LOSS: t:1:11: the template ends; expected one of 'elif', 'else', 'endif'"},
      {"{{ (1 }}", "DATA_LOSS: t:1:7: unexpected '}', expected ')'"},
      {"{{ 1 ! 2 }}", "DATA_LOSS: t:1:6: unexpected character '!'"},
      {"{{ 'abc }}", "DATA_LOSS: t:1:4: the string does not end"},
      {"{# x", "DATA_LOSS: t:1:1: the comment does not end"},
      {"{% break %}", "DATA_LOSS: t:1:4: 'break' outside of a loop"},
      {"{{ x | trim(y=1) }}", "the filter 'trim' has no argument 'y'"},
      {"\xff{{ x }}", "DATA_LOSS: t: not UTF-8 at byte 0"},
  };
  for (const auto& [text, expected] : table) {
    EXPECT_NE(error_of(text).find(expected), std::string::npos) << text << " -> " << error_of(text);
  }
}

TEST(Jinja, names_the_place_of_what_fails_while_rendering) {
  EXPECT_EQ(error_of("a\n {{ x.y.z }}"), "INVALID_ARGUMENT: t:2:6: 'x' is undefined");
  EXPECT_EQ(error_of("{{ raise_exception('no ' ~ x) }}", R"({"x": "way"})"),
            "INVALID_ARGUMENT: t:1:19: the template refuses: 'no way'");
  EXPECT_EQ(error_of("{% macro f(a) %}{{ a + 1 }}{% endmacro %}\n{{ f('x') }}"),
            "INVALID_ARGUMENT: t:1:22: wrong type: '+' between 'str' and 'int'");
  EXPECT_EQ(error_of("{{ 'É' | lower }}"),
            "UNSUPPORTED: t:1:11: lower of text beyond ASCII is not supported");
  EXPECT_EQ(error_of("{{ x | map('upper') }}", R"({"x": ["a"]})"),
            "UNSUPPORTED: t:1:1: printing a generator is not supported: it has no text of its own");
}

// ---- limits -------------------------------------------------------------------------------------

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

// "p0, p1, p2"
std::string numbered(int n, const std::string& name, const std::string& between) {
  std::string out;
  for (int i = 0; i < n; ++i) out += (i > 0 ? between : "") + name + std::to_string(i);
  return out;
}

TEST(Jinja, hostile_templates_end_soon_with_an_error) {
  const std::string open = repeated("(", 100'000);
  const std::string texts[] = {
      "{{ " + open + " }}",
      "{{ " + repeated("[", 100'000) + " }}",
      "{{ " + repeated("not ", 100'000) + "x }}",
      "{{ " + repeated("-", 100'000) + "x }}",
      "{{ 1" + repeated(" + 1", 100'000) + " }}",
      "{{ x" + repeated(".a", 100'000) + " }}",
      "{{ x" + repeated(" | trim", 100'000) + " }}",
      "{{ x" + repeated(" and x", 100'000) + " }}",
      repeated("{% if 1 %}", 50'000),
      repeated("{% for x in y %}", 50'000),
      "{% set " + repeated("(", 100'000) + "a = 1 %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{{ range(100001) }}",
      "{{ 'x' * 9000000000000000000 }}",
      "{{ [1] * 9000000000000000000 }}",
      "{{ 'x' * 300000000 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor "
      "%}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor "
      "%}{{ ns.l | tojson | length }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
      "{% set s = 'ab' * 1000000 %}{% for i in range(100000) %}{{ s.split('c') | length }}{% endfor %}",
      "{% set s = 'é' * 1000000 %}{% for i in range(100000) %}{{ s[i] }}{% endfor %}",
      "{% set s = 'a' * 1000000 %}{{ s.replace('', s) }}",
      "{% set s = 'ab' * 10000000 %}{{ s | list | length }}",
      "{{ 7 ** 7 ** 7 ** 7 }}",
      "{{ 'x' | indent(900000000000) }}",
      "{{ range(2000) | list | tojson(separators=(('x' * 1000) * 1000, ':')) }}",
      "{% set s = 'é' * 1000000 %}{% for i in range(100000) %}{{ s | length }}{% endfor %}",
      "{% for a in [1] %}{{ [loop] }}{% endfor %}",
      "{% for a in [1] %}{{ {'l': loop} }}{% endfor %}",
      "{% macro m(" + numbered(20'000, "p", ", ") + ") %}{% endmacro %}",
      "{{ range(" + numbered(20'000, "p", "=1, ") + "p=1) }}",
      repeated("{% raw ", 100'000),
      repeated("{% raw %}{% endraw ", 50'000),
      repeated("{#", 200'000),
      repeated("{{", 200'000),
  };
  for (const std::string& text : texts) {
    const auto begin = CpuClock::now();
    const auto result = render(text);
    const auto spent = CpuClock::now() - begin;
    EXPECT_FALSE(result.ok()) << text.substr(0, 80);
    EXPECT_LT(spent, std::chrono::seconds(1) * kSlowdown) << text.substr(0, 80);
  }
}

// The body again and again, behind what comes once.
std::string endless(const std::string& once, const std::string& body) {
  return once + "{% for i in range(100000) %}{% for j in range(100000) %}" + body +
         "{% endfor %}{% endfor %}";
}

// Each does as much as it can for what it is charged, with texts, keys and names as long as they
// may be.
TEST(Jinja, no_work_that_a_template_asks_for_is_free) {
  const std::string long_text = "{% set s = 'x' * 1000000 %}";
  const std::string long_key = long_text + "{% set d = {s: 1} %}{% set e = {s: 1} %}";
  const std::string many_keys = "{% set d = {" + numbered(20'000, "'k", "': 1, ") + "': 1} %}";
  const std::string long_name = repeated("n", 1'000'000);
  const std::string names = repeated("n", 1'500);
  const std::string numbers = "{% set l = range(100000) | list %}";
  const std::string dicts = long_text + "{% set l = [{}] * 100000 %}";
  const std::string needle = "{% set s = 'a' * 1000000 %}{% set n = 'a' * 120 ~ 'b' ~ 'a' * 120 %}";
  const std::string scopes =
      repeated("{% for q in [1] %}" + numbered(13, "{% set v", " = 1 %}") + " = 1 %}", 150);
  const std::string texts[] = {
      // Keys are hashed, copied and compared.
      endless(long_text, "{% set d = {s: 1} %}"),
      endless(long_key, "{{ d[s] }}"),
      endless(long_key, "{{ d.get(s) }}"),
      endless(long_key, "{{ s in d }}"),
      endless(long_key, "{{ d == e }}"),
      endless(long_key, "{{ namespace(d) is defined }}"),
      endless(long_key, "{{ [s, s] | unique(true) | list | length }}"),
      endless(numbers, "{{ l | unique | first }}"),
      endless(many_keys, "{{ d == d }}"),
      endless(many_keys, "{{ d | tojson(sort_keys=true) | length }}"),
      endless(many_keys, "{{ namespace(d) is defined }}"),
      // Names of attributes and arguments.
      endless("{% set ns = namespace() %}", "{% set ns." + long_name + " = 1 %}"),
      endless("{% set ns = namespace() %}", "{{ ns." + long_name + " }}"),
      endless("{% set d = {} %}", "{{ d." + long_name + " }}"),
      endless("", "{{ namespace(" + long_name + "=1) is defined }}"),
      endless("", "{{ ''.format(" + long_name + "=1) }}"),
      endless(long_text + "{% set ns = namespace() %}", "{{ ns[s] }}"),
      // Arguments find their parameters, and what is left out is undefined.
      endless("{% macro m(" + numbered(256, names, ", ") + ") %}{% endmacro %}",
              "{{ m(" + numbered(256, names, "=1, ") + "=1) }}"),
      endless("{% macro m(" + numbered(15, "p", ", ") + ") %}{% endmacro %}", "{{ m() }}"),
      endless("{% set s = '{" + names + "}' * 40 %}",
              "{{ s.format(" + numbered(255, names, "='', ") + "='', " + names + "='') }}"),
      endless("{% set s = '{a}' * 300000 %}",
              "{{ s.format(" + numbered(255, "p", "='', ") + "='', a='') }}"),
      endless("{% set s = '{{' * 500000 %}", "{{ s.format() | length }}"),
      endless("{% set s = '{' ~ '0' * 1000000 ~ '}' %}", "{{ s.format(1) }}"),
      // Names in scopes inside of each other.
      scopes + endless("", "{{ nope }}{{ nope }}{{ nope }}{{ nope }}") +
          repeated("{% endfor %}", 150),
      // Paths to attributes.
      dicts + "{{ l | map(attribute=s) | list | length }}",
      dicts + "{{ l | selectattr(s) | list | length }}",
      dicts + "{{ l | sort(attribute=s) | length }}",
      endless(long_text, "{{ [] | sort(attribute=s) | length }}"),
      "{% set s = '0' * 1000000 %}{% set l = [[1]] * 100000 %}"
      "{{ l | map(attribute=s) | list | length }}",
      dicts + "{{ l | map(attribute='a.' * 500000, default={}) | list | length }}",
      // Numbers in texts.
      endless(long_text, "{{ s | int }}"),
      endless("{% set s = '1' * 1000000 %}", "{{ s | float }}"),
      endless("{% set s = ' ' * 1000000 %}", "{{ s | int }}"),
      // Searches.
      endless(long_text + "{% set t = (s[1:] ~ 'y',) * 100 %}", "{{ s.startswith(t) }}"),
      endless(needle, "{{ n in s }}"),
      endless(needle, "{{ s.find(n) }}"),
      endless(needle, "{{ s.split(n) | length }}"),
      endless(needle, "{{ s.replace(n, '') | length }}"),
      // Errors that nobody meets: what filters like map give is not walked.
      endless(long_text + "{% set t = s ~ '\u00e9' %}", "{{ [t] | unique is defined }}"),
      endless(long_text, "{{ [1.5] | map('round', 0, s) is defined }}"),
      // Texts, character by character.
      endless("{% set s = 'xyzab' * 200000 %}", "{{ s.strip('abxyz') }}"),
      endless("{% set s = 'xyzab' * 200000 %}", "{{ 'x'.strip(s) }}"),
      endless("{% set s = '\u00e9' * 500000 %}", "{{ s.strip(s) }}"),
      endless("{% set s = ' ' * 1000000 %}", "{{ s | trim }}"),
      endless(long_text, "{{ s.split() | length }}"),
      endless("{% set s = '\u00e9' * 500000 %}", "{{ s[-2:-1] }}"),
      endless("{% set s = '\u00e9' * 500000 %}", "{{ s[-1] }}"),
      endless("{% set s = '\n' * 1000000 %}", "{{ s | indent(0, blank=true) | length }}"),
      endless(long_text, "{{ '' | indent(s) }}"),
      endless(long_text, "{{ '' | indent(s, first=true) | length }}"),
      endless("{% set s = '\\x00\u00e9' * 300000 %}", "{{ [s] | string | length }}"),
      endless("{% set s = '\\x00' * 300000 %}", "{{ s | tojson(ensure_ascii=true) | length }}"),
      // Styles of JSON.
      endless(long_text, "{{ 1 | tojson(indent=s) }}"),
      endless(long_text, "{{ 1 | tojson(separators=(s, s)) }}"),
      endless("{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l] %}"
              "{% endfor %}",
              "{{ ns.l | tojson(indent=0) | length }}"),
  };
  for (const std::string& text : texts) {
    const auto begin = CpuClock::now();
    const auto result = render(text);
    const auto spent = CpuClock::now() - begin;
    const std::string shown = text.substr(0, 60) + " ... " + text.substr(text.size() - 90);
    ASSERT_FALSE(result.ok()) << shown;
    EXPECT_NE(result.status().text().find("rendering "), std::string::npos)
        << shown << ": " << result.status().text();
    EXPECT_LT(spent, std::chrono::seconds(1) * kSlowdown) << shown;
  }
}

TEST(Jinja, many_variables_of_a_request_find_their_names_among_many_of_a_template) {
  const std::string text =
      "{% if 0 %}{{ [" + numbered(40'000, "shared_name_", ", ") + "] }}{% endif %}";
  Variables variables;
  for (int i = 0; i < 100'000; ++i) {
    variables.emplace_back("shared_mane_" + std::to_string(i), Value::integer(i));
  }
  const auto begin = CpuClock::now();
  EXPECT_TRUE(render(text, variables).ok());
  EXPECT_LT(CpuClock::now() - begin, std::chrono::seconds(1) * kSlowdown);
}

TEST(Jinja, a_template_has_so_many_words_and_signs) {
  // "{{", "[", "0,0,...,0", "]", "}}" and the end of the template
  const auto of = [](int numbers) {
    return "{{ [0" + repeated(",0", numbers - 1) + "] | length }}";
  };
  EXPECT_TRUE(render(of(60'000)).ok());
  EXPECT_EQ(error_of(of(70'000)),
            "UNSUPPORTED: t:1:131075: a template of more than 131072 words and signs");
}

TEST(Jinja, what_namespaces_hold_of_each_other_is_freed) {
  // Leaks show under a sanitizer; a chain that is freed link by link would overflow the stack.
  EXPECT_TRUE(render("{% set a = namespace() %}{% set a.self = a %}{% set a.l = [a] %}").ok());
  EXPECT_TRUE(
      render("{% for i in [1] %}{% set n = namespace(l=loop) %}{% set n.n = n %}{% endfor %}")
          .ok());
  EXPECT_TRUE(render("{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% set "
                     "ns.p = namespace(p=ns.p) %}{% endfor %}x")
                  .ok());
  // Refused or rendered, but freed.
  (void)render(
      "{% set ns = namespace(l=0) %}{% for j in range(36) %}{% for i in range(10000) %}{% for x in "
      "[ns] | map(attribute='l') %}{% set ns.l = loop %}{% endfor %}{% endfor %}{% endfor %}x");
}

TEST(Jinja, a_needle_in_a_hay_stack_of_its_own_kind_is_found_in_linear_time) {
  const std::string text =
      "{% set s = 'a' * 1000000 %}{% set n = 'a' * 500000 ~ 'b' %}{{ n in s }}{{ s.split(n) | length }}";
  const auto begin = CpuClock::now();
  EXPECT_EQ(render(text).value().bytes(), "False1");
  EXPECT_LT(CpuClock::now() - begin, std::chrono::seconds(1) * kSlowdown);
}

TEST(Jinja, limits_are_those_of_the_caller) {
  Limits limits;
  limits.steps_max = 100;
  EXPECT_NE(render("{% for i in range(200) %}{% endfor %}", {}, limits)
                .status()
                .text()
                .find("more than 100 steps"),
            std::string::npos);
  limits = {};
  limits.output_bytes_max = 10;
  EXPECT_TRUE(render("{{ 'x' * 10 }}", {}, limits).ok());
  EXPECT_NE(render("{{ 'x' * 11 }}", {}, limits).status().text().find("exceeds 10 bytes"),
            std::string::npos);
  for (const char* text :
       {"{{ 'x' * 300000000 }}", "{{ [1] * 300000000 }}", "{{ 'xy' * 9000000000000000000 }}",
        "{{ [1, 2] * 9000000000000000000 }}"}) {
    const Status refused = render(text).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << text;
    EXPECT_NE(refused.text().find("rendering copies more than 201326592 bytes"), std::string::npos)
        << text << ": " << refused.text();
  }
}

TEST(Jinja, a_spent_budget_is_an_error_and_never_another_text) {
  const std::string text =
      "{% set s = 'x' * 1000 %}{% set d = {s: s} %}{{ d[s] is defined }}{{ d.get(s) == s }}"
      "{{ s in d }}{{ s.startswith(s) }}{{ [s, s] | unique(true) | list | length }}"
      "{{ d == d }}{{ (d | tojson | length) > 2000 }}{{ '%s' in s }}";
  const std::string expected = render(text).value().bytes();
  EXPECT_EQ(expected, "TrueTrueTrueTrue1TrueTrueFalse");
  int refused = 0;
  Limits limits;
  for (limits.bytes_max = 0; limits.bytes_max < 60'000; limits.bytes_max += 97) {
    const auto result = render(text, {}, limits);
    refused += result.ok() ? 0 : 1;
    if (!result.ok()) continue;
    EXPECT_EQ(result.value().bytes(), expected) << limits.bytes_max;
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 600);
}

TEST(Jinja, damaged_templates_never_crash) {
  std::mt19937 random(20260726);
  const OrderedJson& cases = goldens()["cases"];
  const Variables variables = variables_of(goldens()["variables"]);
  Limits limits;
  limits.steps_max = 20'000;
  limits.bytes_max = 1 << 20;
  const std::string letters = "{}%#-+|.()[]'\"\\~ \n=:,*/<>!abcif01_\xc3\xa9";
  int rendered = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto text = cases[random() % cases.size()][0].get<std::string>();
    text += cases[random() % cases.size()][0].get<std::string>();
    for (int i = static_cast<int>(random() % 4); i >= 0 && !text.empty(); --i) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 3);
      } else {
        text.insert(at, 1, letters[random() % letters.size()]);
      }
    }
    const auto result = render(text, variables, limits);
    rendered += result.ok() ? 1 : 0;
    if (!result.ok()) continue;
    EXPECT_EQ(utf8_error_offset(result.value().bytes()), std::string_view::npos) << text;
  }
  EXPECT_GT(rendered, 500);
}

// ---- marks --------------------------------------------------------------------------------------

// The text with what came from the request in brackets.
std::string bracketed(const MarkedText& text) {
  std::string out;
  text.each_run([&](std::string_view run, bool from_request) {
    out += from_request ? "<" + std::string(run) + ">" : std::string(run);
  });
  return out;
}

TEST(Marks, follow_the_bytes_of_the_request_through_every_operation) {
  const std::string json =
      R"j({"s": "ab,cd", "t": " xy ", "n": 5, "f": 1.5, "b": true, "z": null, "l": ["p", 7], "d": {"k": "v"}, "u": "äö"})j";
  const std::pair<const char*, const char*> table[] = {
      {"{{ s }}", "<ab,cd>"},
      {"{{ 'x' + s + 'y' }}", "x<ab,cd>y"},
      {"{{ 'x' ~ s ~ 'y' ~ t }}", "x<ab,cd>y< xy >"},
      {"{{ ('x' + s + 'y')[1:4] }}", "<ab,>"},
      {"{{ ('x' + s + 'y')[::-1] }}", "y<dc,ba>x"},
      {"{{ ('x' + s + 'y')[0] }}{{ ('x' + s)[1] }}", "x<a>"},
      {"{{ (u + 'x')[1:] }}", "<ö>x"},
      {"{{ t | trim }}|{{ (' ' ~ t) | trim }}|{{ t.strip() }}", "<xy>|<xy>|<xy>"},
      {"{{ s | upper }}|{{ ('q' ~ s) | title }}", "<AB,CD>|Q<ab,cd>"},
      {"{{ s | replace(',', '--') }}", "<ab>--<cd>"},
      {"{{ 'a,b' | replace(',', s) }}", "a<ab,cd>b"},
      {"{{ 'a-b'.replace('-', t) }}", "a< xy >b"},
      {"{{ s.split(',')[1] ~ 'x' }}", "<cd>x"},
      {"{{ ('l' ~ s).split(',') | join('+') }}", "l<ab>+<cd>"},
      {"{{ l | join(s) }}", "<pab,cd7>"},
      {"{{ ['a', 'b'] | join(s) }}", "a<ab,cd>b"},
      {"{{ d | tojson }}", R"(<{"k": "v"}>)"},
      {"{{ {'a': s, 'b': 1} | tojson }}", R"({"a": <"ab,cd">, "b": 1})"},
      {"{{ ('x' ~ s) | tojson }}", R"(<">x<ab,cd">)"},
      {"{{ d }}", "<{'k': 'v'}>"},
      {"{{ ['a', s] }}", "['a', <'ab,cd'>]"},
      {"{{ n }}|{{ n + 1 }}|{{ f }}|{{ b }}|{{ z }}|{{ n | string }}|{{ '3' | int }}",
       "<5>|<6>|<1.5>|<True>|<None>|<5>|3"},
      {"{{ s | int(9) }}|{{ (n ~ '') | int }}", "9|<5>"},
      {"{{ s | first }}{{ s | last }}{{ s | list | join('.') }}", "<ada>.<b>.<,>.<c>.<d>"},
      {"{{ s | length }}{{ l | length }}{{ s == 'q' }}", "52False"},
      {"{% set x %}[{{ s }}]{% endset %}{{ x | lower }}", "[<ab,cd>]"},
      {"{% macro f(a) %}({{ a }}){% endmacro %}{{ f(s) }}", "(<ab,cd>)"},
      {"{% filter upper %}k{{ s }}{% endfilter %}", "K<AB,CD>"},
      {"{% set ns = namespace(x='') %}{% for c in s.split(',') %}{% set ns.x = ns.x ~ c ~ ';' %}{% "
       "endfor %}{{ ns.x }}",
       "<ab>;<cd>;"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "<k>=<v>"},
      {"{{ l | map('string') | join(',') }}", "<p>,<7>"},
      {"{{ s | indent(2, true) }}", "  <ab,cd>"},
      {"{{ '{}:{}'.format(s, 1) }}", "<ab,cd>:1"},
      {"{{ '-'.join([s, 'x']) }}", "<ab,cd>-x"},
      {"{{ s if true else 'x' }}{{ zz or s }}{{ zz | default(s) }}", "<ab,cdab,cdab,cd>"},
      {"{{ s * 2 }}{{ 'x' * n }}", "<ab,cdab,cd>xxxxx"},
      {"{{ '<' + (s | safe) }}", "&lt;<ab,cd>"},
      {"{{ s.removeprefix('a') }}{{ ('a' ~ s).removesuffix('cd') }}", "<b,cd>a<ab,>"},
      {"{{ [s, 'zz'] | sort | last }}{{ [s, 'aa'] | sort | last }}", "zz<ab,cd>"},
      {"{{ l | reverse | list }}", "[<7>, <'p'>]"},
      {"{{ [1, 2] | tojson(separators=(s, ':')) }}", "[1<ab,cd>2]"},
      {"{{ {'a': 1} | tojson(separators=(',', s)) }}", "{\"a\"<ab,cd>1}"},
      {"{{ [1] | tojson(indent=s) }}", "[\n<ab,cd>1\n]"},
      {"{{ [1] | tojson(indent=n) }}", "[\n<     >1\n]"},
  };
  for (const auto& [text, expected] : table) {
    const auto result = render_json(text, json);
    ASSERT_TRUE(result.ok()) << text << ": " << result.status().to_string();
    EXPECT_EQ(bracketed(result.value()), expected) << text;
  }
}

TEST(Marks, are_sorted_disjoint_and_inside_the_text) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    // The oracle keeps one origin a byte.
    MarkedText text;
    std::string bytes;
    std::string origins;
    for (int i = 0; i < 30; ++i) {
      const bool from_request = random() % 2 == 0;
      const std::string part(random() % 4, static_cast<char>('a' + random() % 26));
      if (random() % 3 != 0 || bytes.empty()) {
        text.append(part, from_request);
        bytes += part;
        origins += std::string(part.size(), from_request ? '1' : '0');
      } else {
        const size_t begin = random() % bytes.size();
        const size_t end = begin + random() % (bytes.size() - begin + 1);
        const MarkedText copy = text.part(begin, end);
        text.append(copy);
        const std::string more = bytes.substr(begin, end - begin);
        const std::string more_origins = origins.substr(begin, end - begin);
        bytes += more;
        origins += more_origins;
      }
    }
    ASSERT_EQ(text.bytes(), bytes);
    std::string found(bytes.size(), '0');
    size_t last = 0;
    for (const TextRange& mark : text.marks()) {
      ASSERT_LT(mark.begin, mark.end);
      ASSERT_TRUE(mark.begin > last || (last == 0 && mark.begin == 0));
      ASSERT_LE(mark.end, bytes.size());
      for (size_t i = mark.begin; i < mark.end; ++i) found[i] = '1';
      last = mark.end;
    }
    EXPECT_EQ(found, origins);
  }
}

TEST(JinjaJson, refuses_what_cannot_become_an_exact_value) {
  const auto error = [](const std::string& text) {
    Budget budget(Limits{.steps_max = 1000});
    const auto result = value_from_json(text, "x", budget);
    return result.ok() ? "no error" : result.status().text();
  };
  EXPECT_NE(error("{").find("x: byte 1: malformed JSON"), std::string::npos) << error("{");
  EXPECT_EQ(error(R"({"a": 1, "a": 2})"), "x: byte 11: the key 'a' occurs twice");
  EXPECT_EQ(error("18446744073709551615"),
            "x: byte 19: the integer '18446744073709551615' exceeds 64 bits");
  EXPECT_EQ(error("99999999999999999999999"),
            "x: byte 22: the integer '99999999999999999999999' exceeds 64 bits");
  EXPECT_EQ(error(repeated("[", 100)), "x: byte 64: malformed JSON: nested deeper than 64 levels");
  EXPECT_EQ(
      error("[" + repeated("0,", 2000) + "0]"),
      "x: byte 2002: more than 1000 values and keys, or than 201326592 bytes as values, in all JSON of the "
      "request");
  EXPECT_EQ(error("[1, 2.5, -0.0, 9223372036854775807, -9223372036854775808]"), "no error");
  EXPECT_NE(error("\"\\ud800\"").find("malformed JSON"), std::string::npos);
  EXPECT_EQ(error(std::string("{}\0 {", 5)), "x: byte 2: malformed JSON: a zero byte");
  EXPECT_EQ(error("1e999").find("json.exception"), std::string::npos) << error("1e999");
}

// What the values of one request take, whatever their shape: no more than the limit and the text
// that they come from.
TEST(JinjaJson, takes_no_more_memory_than_its_limit) {
  const auto list_of = [](const std::string& item, int times) {
    return "[" + repeated(item + ",", times) + item + "]";
  };
  std::string keys = "{\"k\": 0";
  for (int i = 0; i < 250'000; ++i) keys += ", \"" + std::to_string(i) + "\": 0";
  const std::string nested = repeated("{\"\":", 60) + "0" + repeated("}", 60);
  for (const std::string& text :
       {list_of("0", 240'000), list_of("\"\"", 240'000), list_of("{}", 240'000),
        list_of("[]", 240'000), list_of(nested, 2'000), list_of("{\"\":\"\"}", 80'000),
        list_of("\"" + repeated("x", 100) + "\"", 20'000), keys + "}"}) {
    Budget budget = json_budget();
    const size_t before = mallinfo2().uordblks;
    const auto result = value_from_json(text, "x", budget);
    const size_t taken = mallinfo2().uordblks - before;
    EXPECT_LT(taken, Limits::kJsonBytes * 5 / 4) << text.substr(0, 60);
    ASSERT_TRUE(result.ok() || result.status().code() == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace specd::jinja
