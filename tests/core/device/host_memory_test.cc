#include "core/device/host_memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace specd {
namespace {

namespace fs = std::filesystem;

// A folder with the files of /proc and /sys that say what control groups allow.
class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "specd-memory-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    struct sysinfo info {};
    ASSERT_EQ(sysinfo(&info), 0);
    machine_ = uint64_t{info.totalram} * info.mem_unit;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HostMemory memory() const { return host_memory(root_.string()); }
  void expect_limit(uint64_t bytes, const std::string& path) const {
    EXPECT_EQ(memory().bytes, bytes);
    EXPECT_EQ(memory().limit, "the control group (" + (root_ / path).string() + ") allows");
  }

  fs::path root_;
  uint64_t machine_ = 0;
};

TEST_F(HostMemoryTest, without_control_groups_it_is_the_machines) {
  EXPECT_EQ(memory().bytes, machine_);
  EXPECT_EQ(memory().limit, "the machine has");
}

TEST_F(HostMemoryTest, group_of_version_2_limits_it) {
  write("proc/self/cgroup", "0::/system.slice/specd.service\n");
  write("sys/fs/cgroup/system.slice/specd.service/memory.max", "1000000\n");
  expect_limit(1000000, "sys/fs/cgroup/system.slice/specd.service/memory.max");
}

TEST_F(HostMemoryTest, least_limit_of_the_group_and_those_above_it_counts) {
  write("proc/self/cgroup", "0::/a/b/c\n");
  write("sys/fs/cgroup/a/b/c/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.max", "3000000\n");
  write("sys/fs/cgroup/a/memory.max", "2000000\n");
  expect_limit(2000000, "sys/fs/cgroup/a/memory.max");
}

TEST_F(HostMemoryTest, group_at_the_top_of_a_containers_mount_is_found) {
  for (const char* line : {"0::/\n", "0::/docker/1234\n"}) {
    write("proc/self/cgroup", line);
    write("sys/fs/cgroup/memory.max", "4000000\n");
    expect_limit(4000000, "sys/fs/cgroup/memory.max");
  }
}

TEST_F(HostMemoryTest, group_of_version_1_limits_it) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/x\n1:memoryless:/y\n0::/\n");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000000\n");
  write("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "1\n");
  expect_limit(5000000, "sys/fs/cgroup/memory/x/memory.limit_in_bytes");
}

TEST_F(HostMemoryTest, files_that_say_nothing_are_no_limit) {
  for (const char* groups : {"", "\n", "0", "0:", "0::", "0::x/y\n", "4:memory:\n"}) {
    write("proc/self/cgroup", groups);
    for (const char* limit : {"", "max", "x", "-1", "9223372036854771712", "1e9"}) {
      write("sys/fs/cgroup/memory.max", limit);
      write("sys/fs/cgroup/memory/memory.limit_in_bytes", limit);
      EXPECT_EQ(memory().bytes, machine_) << groups << " with " << limit;
    }
  }
}

}  // namespace
}  // namespace specd
