#include "host/compat/model_repository.h"

#include "tests/host/compat/compat_rig.h"

namespace specd::host {
namespace {

class ModelRepository : public testing::Test {
 protected:
  // FILE, name and version; or the error.
  std::string found(const std::string& wanted = "") const {
    const auto model = find_model(folder_.repository(), wanted);
    std::string text =
        model.ok() ? model.value().file + " " + model.value().name + " " + model.value().version
                   : model.status().message();
    for (const std::string dir = folder_.path().string();;) {
      const size_t at = text.find(dir);
      if (at == std::string::npos) return text;
      text.replace(at, dir.size(), "DIR");
    }
  }
  CompatFolder folder_;
};

TEST_F(ModelRepository, the_only_model_is_served_under_the_name_of_its_folder) {
  folder_.write("repository/tensorrt_llm/1/model.yaml", "");
  folder_.write("repository/tensorrt_llm/config.pbtxt", "");
  folder_.write("repository/.git/config", "");
  folder_.write("repository/README.md", "");
  EXPECT_EQ(found(), "DIR/repository/tensorrt_llm/1/model.yaml tensorrt_llm 1");
  EXPECT_EQ(find_model(folder_.repository(), "").value().backend,
            RepositoryModel::Backend::kLlmApi);
  folder_.write("repository/vllm_model/7/model.json", "");
  EXPECT_EQ(found("vllm_model"), "DIR/repository/vllm_model/7/model.json vllm_model 7");
  EXPECT_EQ(find_model(folder_.repository(), "vllm_model").value().backend,
            RepositoryModel::Backend::kVllm);
}

TEST_F(ModelRepository, of_several_models_one_has_to_be_chosen) {
  for (const char* name : {"b", "a"})
    folder_.write(std::string("repository/") + name + "/1/model.yaml", "");
  EXPECT_EQ(
      found(),
      "'DIR/repository': expected one model, found 2: a, b. Triton serves them all, specd serves one: "
      "choose it with --load-model NAME");
  EXPECT_EQ(found("b"), "DIR/repository/b/1/model.yaml b 1");
  EXPECT_EQ(found("other"),
            "'DIR/repository': expected the model 'other' of --load-model; there are: a, b");
  for (const char* name : {"..", "../repository/a", "/", "a/..", "a/../b", "a/01"})
    EXPECT_TRUE(found(name).starts_with("'DIR/repository")) << name << ": " << found(name);
}

TEST_F(ModelRepository, of_several_versions_the_highest_is_served_unless_one_is_named) {
  for (const char* version : {"2", "10", "9", "latest", "011", "99999999999999999999"})
    folder_.write(std::string("repository/m/") + version + "/model.yaml", "");
  EXPECT_EQ(found(), "DIR/repository/m/10/model.yaml m 10");
  EXPECT_NE(find_model(folder_.repository(), "")
                .value()
                .notice.find("has the versions 2, 9, 10. specd serves one"),
            std::string::npos);
  EXPECT_EQ(found("m/2"), "DIR/repository/m/2/model.yaml m 2");
  EXPECT_EQ(find_model(folder_.repository(), "m/2").value().notice, "");
  EXPECT_EQ(found("m/3"),
            "'DIR/repository/m': expected the version '3' of --load-model; there are: 2, 9, 10");
  EXPECT_EQ(found("m/"),
            "'DIR/repository/m': expected --load-model NAME or NAME/VERSION, found 'm/'");
}

TEST_F(ModelRepository, what_is_no_repository_is_told_what_is_missing) {
  EXPECT_EQ(
      found(),
      "'DIR/repository': expected a model: a folder NAME/VERSION with model.yaml or model.json, "
      "found none");
  EXPECT_EQ(find_model(folder_.repository() + "/none", "").status().message(),
            "'" + folder_.repository() +
                "/none': expected the folder of a model repository, found nothing");
  folder_.write("file", "");
  EXPECT_EQ(find_model((folder_.path() / "file").string(), "").status().message(),
            "'" + folder_.path().string() +
                "/file': expected the folder of a model repository, found something else");
  fs::create_directories(folder_.path() / "repository/m/one");
  EXPECT_EQ(found(),
            "'DIR/repository/m': expected a folder for a version, named by its number, such as "
            "DIR/repository/m/1; the folders there: one");
  fs::create_directories(folder_.path() / "repository/m/1");
  EXPECT_EQ(
      found(),
      "'DIR/repository/m/1': expected model.yaml, of TensorRT-LLM's LLM API, or model.json, of the "
      "vLLM backend, found neither");
  folder_.write("repository/m/1/model.yaml", "");
  folder_.write("repository/m/1/model.json", "");
  EXPECT_EQ(
      found(),
      "'DIR/repository/m/1': expected model.yaml, of TensorRT-LLM's LLM API, or model.json, of the "
      "vLLM backend, found both");
  EXPECT_EQ(find_model((folder_.path() / "repository/m").string(), "").status().message(),
            "'" + folder_.path().string() +
                "/repository/m': expected a folder of models, found versions of one "
                "(1): name the folder above");
}

TEST_F(ModelRepository, a_link_that_leads_out_of_the_repository_is_refused) {
  folder_.write("outside/1/model.yaml", "");
  fs::create_directory_symlink(folder_.path() / "outside", folder_.path() / "repository/m");
  EXPECT_EQ(found(),
            "'DIR/repository/m/1/model.yaml': a link that leads out of the repository, to "
            "'DIR/outside/1/model.yaml'; put the file there");
  fs::remove(folder_.path() / "repository/m");
  fs::create_directories(folder_.path() / "repository/m/1");
  fs::create_symlink("nothing", folder_.path() / "repository/m/1/model.yaml");
  EXPECT_EQ(found(), "'DIR/repository/m/1/model.yaml': a link to nothing");
  // One that stays inside is fine.
  folder_.write("repository/m/1/real.yaml", "");
  fs::remove(folder_.path() / "repository/m/1/model.yaml");
  fs::create_symlink("real.yaml", folder_.path() / "repository/m/1/model.yaml");
  EXPECT_EQ(found(), "DIR/repository/m/1/model.yaml m 1");
}

}  // namespace
}  // namespace specd::host
