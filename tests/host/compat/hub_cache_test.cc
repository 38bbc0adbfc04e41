#include "host/compat/hub_cache.h"

#include <map>

#include "core/base/quote.h"
#include "tests/host/compat/compat_rig.h"

namespace specd::host {
namespace {

const std::string kName = "meta-llama/Llama-3.1-8B-Instruct";
const std::string kFolder = "hub/models--meta-llama--Llama-3.1-8B-Instruct";

class HubCache : public testing::Test {
 protected:
  std::string found(const std::string& revision = "main") const {
    const auto result = find_in_hub_cache(folder_.hub(), kName, revision);
    std::string text = result.ok() ? result.value() : result.status().message();
    for (const std::string dir = folder_.path().string();;) {
      const size_t at = text.find(dir);
      if (at == std::string::npos) return text;
      text.replace(at, dir.size(), "DIR");
    }
  }
  const std::string missing_ =
      "expected the model 'meta-llama/Llama-3.1-8B-Instruct' in the Hugging Face "
      "cache 'DIR/hub', found ";
  const std::string command_ =
      "; specd downloads nothing: run `hf download meta-llama/Llama-3.1-8B-Instruct`; a folder of this "
      "machine is written as an absolute path or begins with ./";
  const std::string damaged_ =
      "the Hugging Face cache 'DIR/hub' has for "
      "'meta-llama/Llama-3.1-8B-Instruct' ";
  const std::string again_ = "; remove that model from it, and download it again";
  CompatFolder folder_;
};

TEST(HubCacheFolder, follows_the_variables_in_the_order_of_hugging_face) {
  std::map<std::string, const char*> set = {{"HOME", "/home/u"}};
  const auto folder = [&] {
    return hub_cache_folder([&](const char* name) -> const char* {
      const auto found = set.find(name);
      return found == set.end() ? nullptr : found->second;
    });
  };
  EXPECT_EQ(folder(), "/home/u/.cache/huggingface/hub");
  set["XDG_CACHE_HOME"] = "/x";
  EXPECT_EQ(folder(), "/x/huggingface/hub");
  set["HF_HOME"] = "/hf";
  EXPECT_EQ(folder(), "/hf/hub");
  set["HUGGINGFACE_HUB_CACHE"] = "/older";
  EXPECT_EQ(folder(), "/older");
  set.erase("HUGGINGFACE_HUB_CACHE");
  set["HF_HUB_CACHE"] = "/c";
  EXPECT_EQ(folder(), "/c");
  set["HF_HUB_CACHE"] = "";
  EXPECT_EQ(folder(), "/hf/hub");
  set.clear();
  EXPECT_EQ(folder(), "");
}

TEST(HubCacheFolder, has_home_and_variables_written_as_in_a_shell) {
  std::map<std::string, const char*> set = {{"HOME", "/home/u"}, {"D", "/d"}, {"LOOP", "$LOOP"}};
  const std::pair<const char*, const char*> table[] = {
      {"~", "/home/u"}, {"~/hub", "/home/u/hub"}, {"/a/~", "/a/~"},           {"$D/hub", "/d/hub"},
      {"${D}x", "/dx"}, {"/a$Dx", "/a$Dx"},       {"/$NONE/x", "/$NONE/x"},   {"/${D", "/${D"},
      {"/a$", "/a$"},   {"/${}", "/${}"},         {"/${a b}$D", "/${a b}/d"}, {"/$LOOP", "/$LOOP"},
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
    for (const auto& [text, expected] : table) {
      auto one = set;
      one[name] = text;
      const std::string below = std::string(name) == "HF_HOME"          ? "/hub"
                                : std::string(name) == "XDG_CACHE_HOME" ? "/huggingface/hub"
                                                                        : "";
      EXPECT_EQ(hub_cache_folder([&](const char* asked) -> const char* {
                  const auto found = one.find(asked);
                  return found == one.end() ? nullptr : found->second;
                }),
                fs::path(expected + below).lexically_normal().string())
          << name << "=" << text;
    }
}

TEST(HubNames, are_those_that_the_hub_allows) {
  for (const char* name : {"gpt2", "meta-llama/Llama-3.1-8B-Instruct", "a/b", "_x/y_", "o.r/n.m"})
    EXPECT_TRUE(is_hub_name(name)) << name;
  for (const std::string& name :
       {std::string(""), std::string("/a"), std::string("a/"), std::string("a//b"),
        std::string("a/b/c"), std::string("../a"), std::string("a/.."), std::string("a..b"),
        std::string("a--b/c"), std::string("-a/b"), std::string("a/b-"), std::string(".a"),
        std::string("a b"), std::string("a\n"), std::string("a\0b", 3), std::string("ä/b"),
        std::string(97, 'a')})
    EXPECT_FALSE(is_hub_name(name)) << name;
}

TEST_F(HubCache, a_name_leads_to_the_snapshot_of_its_reference) {
  const fs::path snapshot = folder_.download(kName);
  EXPECT_EQ(snapshot, find_in_hub_cache(folder_.hub(), kName).value());
  EXPECT_EQ(found(kCommit), "DIR/" + kFolder + "/snapshots/" + kCommit);
  folder_.write(kFolder + "/refs/pr/1", std::string(kCommit) + "\n");
  EXPECT_EQ(found("pr/1"), "DIR/" + kFolder + "/snapshots/" + kCommit);
  const fs::path other = folder_.download("gpt2");
  EXPECT_EQ(other, find_in_hub_cache(folder_.hub(), "gpt2").value());
}

TEST_F(HubCache, what_is_not_there_is_told_with_the_command_that_downloads_it) {
  EXPECT_EQ(found(), missing_ + "nothing" + command_);
  EXPECT_EQ(find_in_hub_cache("", kName).status().code(), Code::kNotFound);
  folder_.download(kName);
  EXPECT_EQ(found("v2"),
            missing_ + "no revision 'v2'; specd downloads nothing: run `hf download " + kName +
                " --revision v2`; a folder of this machine is written as an absolute path or "
                "begins with ./");
  fs::rename(folder_.path() / kFolder / "blobs", folder_.path() / "gone");
  const std::string text = found();
  EXPECT_TRUE(text.starts_with(missing_ + "a link to nothing in place of '")) << text;
  fs::remove_all(folder_.path() / kFolder / "snapshots" / kCommit);
  EXPECT_EQ(found(), missing_ + "no snapshot " + kCommit + command_);
}

TEST_F(HubCache, a_model_of_which_only_the_tokenizer_was_downloaded_is_missing) {
  fs::remove(folder_.download(kName) / "model.safetensors");
  EXPECT_EQ(found(), missing_ + "no weights there, only a part of its files" + command_);
}

TEST_F(HubCache, what_a_training_program_leaves_is_no_weights) {
  const fs::path snapshot = folder_.download(kName);
  fs::remove(snapshot / "model.safetensors");
  for (const char* file : {"training_args.bin", "optimizer.bin", "scheduler.bin", "optimizer.pt",
                           "scheduler.pt", "rng_state_0.pth"})
    std::ofstream(snapshot / file) << "";
  EXPECT_EQ(found(), missing_ + "no weights there, only a part of its files" + command_);
  for (const char* file : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin",
                           "medusa_lm_head.pt", "consolidated.00.pth"}) {
    std::ofstream(snapshot / file) << "";
    EXPECT_EQ(found(), "DIR/" + kFolder + "/snapshots/" + kCommit) << file;
    fs::remove(snapshot / file);
  }
}

TEST_F(HubCache, a_model_may_be_a_link_to_a_folder_on_another_disk) {
  const fs::path snapshot = folder_.download(kName), disk = folder_.path() / "disk";
  fs::rename(folder_.path() / kFolder, disk);
  fs::create_directory_symlink(disk, folder_.path() / kFolder);
  EXPECT_EQ(found(), std::string("DIR/disk/snapshots/") + kCommit);
  // Its files stay in that folder.
  folder_.write("outside/config.json", "{}");
  fs::remove(snapshot / "config.json");
  fs::create_symlink(folder_.path() / "outside/config.json", snapshot / "config.json");
  EXPECT_TRUE(found().starts_with(damaged_ + "the file 'config.json', a link that leads out of it"))
      << found();
  fs::remove_all(disk);
  EXPECT_EQ(found(), missing_ + "a link to nothing" + command_);
}

TEST_F(HubCache, a_reference_that_is_no_commit_is_refused) {
  folder_.download(kName);
  const std::pair<std::string, std::string> table[] = {
      {"../../../../etc", "'../../../../etc'"},
      {"", "''"},
      {std::string("0123\0", 5), "'0123\\x00'"},
      {std::string(kCommit) + "0", quote(std::string(kCommit) + "0")},
      {"0123456789ABCDEF0123456789abcdef01234567", "'0123456789ABCDEF0123456789abcdef01234567'"},
  };
  for (const auto& [text, shown] : table) {
    folder_.write(kFolder + "/refs/main", text);
    EXPECT_EQ(found(),
              damaged_ + "in refs/main no commit of 40 hexadecimal digits, but " + shown + again_);
  }
  folder_.write(kFolder + "/refs/main", std::string(1000, 'a'));
  EXPECT_TRUE(found().starts_with(damaged_ + "a reference that cannot be read (")) << found();
  fs::remove(folder_.path() / kFolder / "refs/main");
  fs::create_directory(folder_.path() / kFolder / "refs/main");
  EXPECT_TRUE(found().starts_with(damaged_ + "a reference that cannot be read (")) << found();
}

TEST_F(HubCache, a_revision_that_leaves_the_folder_is_refused) {
  folder_.download(kName);
  for (const char* revision : {"../x", "a/../b", "/etc/passwd", "", "a\n", "x/"})
    EXPECT_EQ(find_in_hub_cache(folder_.hub(), kName, revision).status().code(),
              Code::kInvalidArgument)
        << revision;
}

TEST_F(HubCache, a_link_that_leads_out_of_the_cache_is_refused) {
  const fs::path snapshot = folder_.download(kName);
  folder_.write("outside/config.json", "{}");
  fs::remove(snapshot / "config.json");
  fs::create_symlink(folder_.path() / "outside/config.json", snapshot / "config.json");
  EXPECT_EQ(found(), damaged_ +
                         "the file 'config.json', a link that leads out of it, to "
                         "'DIR/outside/config.json'" +
                         again_);
  fs::remove_all(snapshot);
  fs::create_directory_symlink(folder_.path() / "outside", snapshot);
  EXPECT_EQ(found(), damaged_ + "the snapshot " + kCommit +
                         ", a link that leads out of it, to 'DIR/outside'" + again_);
}

}  // namespace
}  // namespace specd::host
