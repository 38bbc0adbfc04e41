// The bytes of a GenerateRequest, treated as in the daemon: parsed, checked, submitted to an engine
// and cancelled. Refusals name a field; every admitted request ends.
#include <filesystem>
#include <future>

#include "core/engine.h"
#include "core/base/utf8.h"
#include "host/rpc/wire.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

// The model's folder, for as long as the process lives.
class ModelFolder {
 public:
  ModelFolder() {
    if (mkdtemp(path_.data()) == nullptr) specd::fuzz::fail("mkdtemp");
    const std::string reference = SPECD_TEST_REFERENCE;
    for (const auto& entry : fs::directory_iterator(reference + "/models/llama31"))
      fs::copy(entry.path(), fs::path(path_) / entry.path().filename());
    fs::copy(reference + "/models/tokenizer.json", path_ + "/tokenizer.json");
    fs::copy(reference + "/chat_templates/chatml.jinja", path_ + "/chat_template.jinja");
  }
  ~ModelFolder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/specd-fuzz-XXXXXX";
};

const std::string& model_folder() {
  static const ModelFolder made;
  return made.path();
}

specd::Engine& engine() {
  static const std::unique_ptr<specd::Engine> made = [] {
    specd::EngineOptions options;
    options.model.name = "m";
    options.model.path = model_folder();
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
  const bool asks_for_the_folder =
      fuzz::text_of(data, size).find(model_folder()) != std::string::npos;
  const auto named = [&](const Status& status) {
    const Status told = host::with_wire_field(status);
    if (told.text().empty()) fuzz::fail("a refusal without words");
    if (utf8_error_offset(told.text()) != std::string::npos)
      fuzz::fail("words not in UTF-8: " + told.text());
    if (!asks_for_the_folder && told.text().find(model_folder()) != std::string::npos)
      fuzz::fail("a path: " + told.text());
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
