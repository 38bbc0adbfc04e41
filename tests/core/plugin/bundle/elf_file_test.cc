// Libraries that no linker made: what the inspector costs. What it says of real ones is in
// registry_test.cc.
#include "core/plugin/bundle/elf_file.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/cpu_clock.h"

namespace specd {
namespace {

// One loadable segment that maps the file at its own offsets, and a dynamic segment.
class Library {
 public:
  Library() {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_DYN;
#if defined(__aarch64__)
    header.e_machine = EM_AARCH64;
#else
    header.e_machine = EM_X86_64;
#endif
    header.e_phoff = sizeof(header);
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 2;
    put(&header, sizeof(header));
    bytes_.resize(bytes_.size() + 2 * sizeof(Elf64_Phdr));
  }
  uint64_t put(const void* data, size_t bytes) {
    const uint64_t at = bytes_.size();
    bytes_.resize(at + bytes);
    std::memcpy(bytes_.data() + at, data, bytes);
    return at;
  }
  template <class T>
  uint64_t put(const std::vector<T>& items) {
    return put(items.data(), items.size() * sizeof(T));
  }
  const std::vector<std::byte>& with_dynamic(const std::vector<Elf64_Dyn>& entries) {
    const uint64_t at = put(entries);
    Elf64_Phdr segments[2]{};
    segments[0].p_type = PT_LOAD;
    segments[0].p_filesz = segments[0].p_memsz = bytes_.size();
    segments[1].p_type = PT_DYNAMIC;
    segments[1].p_offset = at;
    segments[1].p_filesz = entries.size() * sizeof(Elf64_Dyn);
    std::memcpy(bytes_.data() + sizeof(Elf64_Ehdr), segments, sizeof(segments));
    return bytes_;
  }

 private:
  std::vector<std::byte> bytes_;
};

Elf64_Dyn entry(int64_t tag, uint64_t value) {
  Elf64_Dyn made{};
  made.d_tag = tag;
  made.d_un.d_val = value;
  return made;
}

TEST(ElfFile, buckets_that_share_one_long_chain_are_read_once) {
  constexpr uint32_t kBuckets = 250'000, kWords = 250'000;
  Library library;
  std::vector<uint32_t> table = {kBuckets, 1, 0, 0};
  table.resize(4 + kBuckets, 1);           // every bucket begins with symbol 1
  table.resize(4 + kBuckets + kWords, 2);  // a chain without an end
  table.back() = 3;
  const uint64_t hash = library.put(table);
  const std::vector<std::byte>& file =
      library.with_dynamic({entry(DT_GNU_HASH, hash), entry(DT_NULL, 0)});
  const auto start = CpuClock::now();
  const auto exports = read_elf_library(file, "library.so");
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  ASSERT_FALSE(exports.ok());
  EXPECT_NE(exports.status().text().find("symbol table"), std::string::npos)
      << exports.status().text();
  EXPECT_LT(seconds.count(), 1.0 * kSlowdown);
}

TEST(ElfFile, of_very_many_long_names_a_few_are_told) {
  Library library;
  std::string strings(100'000, 'x');
  strings += '\0';
  const uint64_t names = library.put(strings.data(), strings.size());
  std::vector<Elf64_Sym> symbols(20'000);
  for (Elf64_Sym& symbol : symbols) {
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_shndx = 1;
  }
  const uint64_t table = library.put(symbols);
  const std::vector<uint32_t> hash = {1, static_cast<uint32_t>(symbols.size())};
  const uint64_t counts = library.put(hash);
  const std::vector<std::byte>& file = library.with_dynamic(
      {entry(DT_SYMTAB, table), entry(DT_STRTAB, names), entry(DT_STRSZ, strings.size()),
       entry(DT_HASH, counts), entry(DT_NULL, 0)});
  const auto read = read_elf_library(file, "library.so");
  ASSERT_TRUE(read.ok()) << read.status().text();
  ASSERT_EQ(read.value().exports.size(), 9u);
  for (const ElfExport& each : read.value().exports) {
    EXPECT_EQ(each.name, std::string(256, 'x'));
    EXPECT_TRUE(each.is_function);
  }
  EXPECT_TRUE(read.value().wants_executable_stack) << "what a library that says nothing gets";
}

}  // namespace
}  // namespace specd
