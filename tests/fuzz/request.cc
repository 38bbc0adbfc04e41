// A GenerateRequest as bytes, as far as the daemon takes it: parsed, checked, given to an engine
// and cancelled. Refusals name a field; whatever is taken ends.
#include <filesystem>
#include <future>

#include "core/engine.h"
#include "core/base/utf8.h"
#include "host/wire.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::string make_folder() {
  namespace fs = std::filesystem;
  char folder[] = "/tmp/specd-fuzz-XXXXXX";
  if (mkdtemp(folder) == nullptr) specd::fuzz::fail("mkdtemp");
  const std::string models = std::string(SPECD_TEST_REFERENCE) + "/models/";
  for (const auto& entry : fs::directory_iterator(models + "llama31"))
    fs::copy(entry.path(), folder / entry.path().filename());
  fs::copy(models + "tokenizer.json", std::string(folder) + "/tokenizer.json");
  fs::copy(std::string(SPECD_TEST_REFERENCE) + "/chat_templates/chatml.jinja",
           std::string(folder) + "/chat_template.jinja");
  static const std::string made = folder;
  std::atexit([] { fs::remove_all(made); });
  return made;
}

specd::Engine& engine() {
  static const std::unique_ptr<specd::Engine> made = [] {
    specd::EngineOptions options;
    options.model.name = "m";
    options.model.path = make_folder();
    options.threads = 1;
    return std::move(specd::Engine::create(options, {})).value();
  }();
  return *made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  v1::GenerateRequest wire;
  if (!wire.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto named = [](const Status& status) {
    const Status told = host::named_as_on_wire(status);
    if (told.message().empty()) fuzz::fail("a refusal without words");
    if (utf8_error_offset(told.message()) != std::string::npos)
      fuzz::fail("words not in UTF-8: " + told.message());
    if (told.message().find("/tmp/") != std::string::npos) fuzz::fail("a path: " + told.message());
  };
  auto request = host::request_from_wire(wire);
  if (!request.ok()) return named(request.status()), 0;
  std::promise<FinishReason> end;
  const auto ticket = engine().submit(request.value(), [&end](const Event& event) {
    if (event.done) end.set_value(event.finish);
  });
  if (!ticket.ok()) return named(ticket.status()), 0;
  engine().cancel(ticket.value().number);
  end.get_future().wait();
  return 0;
}
