#include "core/plugin/bundle/elf_file.h"

#include <elf.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace specd {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "add the ELF machine number of this architecture"
#endif
// Limits of what is reported about exports.
constexpr size_t kNamesMax = 9, kNameBytesMax = 256;
constexpr uint8_t kByteOrder =
    std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_386:
      return "x86 (32 bits)";
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "AArch64";
    case EM_ARM:
      return "ARM (32 bits)";
    case EM_RISCV:
      return "RISC-V";
    case EM_PPC64:
      return "POWER";
    default:
      return "machine " + std::to_string(machine);
  }
}

// Copies a T out of the file, which may hold it at any alignment. False when it does not fit.
template <typename T>
bool read_at(std::span<const std::byte> file, uint64_t offset, T* out) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) return false;
  std::memcpy(out, file.data() + offset, sizeof(T));
  return true;
}

// A function of a runtime that must be in the process from its start.
bool is_of_sanitizer(std::string_view name) {
  return name == "__asan_init" || name == "__hwasan_init" || name == "__tsan_init" ||
         name == "__msan_init" || name == "__memprof_init";
}

// Reads the tables that the dynamic segment names by virtual address.
class DynamicTables {
 public:
  explicit DynamicTables(std::span<const std::byte> file) : file_(file) {}

  // Each returns what is wrong, empty when nothing is.
  std::string open();
  std::string read(ElfLibrary& library);

 private:
  // Offset in the file of a virtual address that lies in a loadable segment's file part.
  bool offset_of(uint64_t address, uint64_t* offset) const;
  bool symbol_count(uint64_t* count, std::string* fault) const;
  bool gnu_hash_count(uint64_t address, uint64_t* count) const;

  std::span<const std::byte> file_;
  std::vector<Elf64_Phdr> loads_;
  std::vector<uint64_t> needed_;  // offsets of the names of libraries in the string table
  bool executable_stack_ = true;  // what a library without the segment gets
  uint64_t symtab_ = 0, strtab_ = 0, strsz_ = 0, hash_ = 0, gnu_hash_ = 0;
};

std::string DynamicTables::open() {
  Elf64_Ehdr header;
  if (!read_at(file_, 0, &header)) return "the ELF header is cut off";
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return "the program header has a strange size";
  Elf64_Phdr dynamic{};
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (header.e_phoff > file_.size() ||
        !read_at(file_, header.e_phoff + i * sizeof(segment), &segment)) {
      return "truncated: a program header lies beyond the end";
    }
    if (segment.p_type == PT_GNU_STACK) executable_stack_ = (segment.p_flags & PF_X) != 0;
    if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC) continue;
    if (segment.p_offset > file_.size() || file_.size() - segment.p_offset < segment.p_filesz) {
      return "truncated: a segment needs " + std::to_string(segment.p_filesz) +
             " bytes from offset " + std::to_string(segment.p_offset) + ", the file has " +
             std::to_string(file_.size());
    }
    if (segment.p_type == PT_LOAD) {
      loads_.push_back(segment);
    } else {
      dynamic = segment;
    }
  }
  if (dynamic.p_type != PT_DYNAMIC) return "it has no dynamic segment";
  for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic.p_filesz; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    if (!read_at(file_, dynamic.p_offset + at, &entry) || entry.d_tag == DT_NULL) break;
    switch (entry.d_tag) {
      case DT_SYMTAB:
        symtab_ = entry.d_un.d_ptr;
        break;
      case DT_STRTAB:
        strtab_ = entry.d_un.d_ptr;
        break;
      case DT_NEEDED:
        needed_.push_back(entry.d_un.d_val);
        break;
      case DT_STRSZ:
        strsz_ = entry.d_un.d_val;
        break;
      case DT_HASH:
        hash_ = entry.d_un.d_ptr;
        break;
      case DT_GNU_HASH:
        gnu_hash_ = entry.d_un.d_ptr;
        break;
      default:
        break;
    }
  }
  return std::string();
}

bool DynamicTables::offset_of(uint64_t address, uint64_t* offset) const {
  for (const Elf64_Phdr& load : loads_) {
    if (address >= load.p_vaddr && address - load.p_vaddr < load.p_filesz) {
      *offset = load.p_offset + (address - load.p_vaddr);
      return true;
    }
  }
  return false;
}

bool DynamicTables::gnu_hash_count(uint64_t address, uint64_t* count) const {
  struct Head {
    uint32_t n_buckets, first, n_bloom, shift;
  } head;
  uint64_t offset = 0;
  if (!offset_of(address, &offset) || !read_at(file_, offset, &head)) return false;
  const uint64_t buckets = offset + sizeof(head) + uint64_t{head.n_bloom} * 8;
  const uint64_t chains = buckets + uint64_t{head.n_buckets} * 4;
  *count = head.first;
  uint32_t last = 0;
  for (uint64_t i = 0; i < head.n_buckets; ++i) {
    uint32_t symbol = 0;
    if (!read_at(file_, buckets + i * 4, &symbol)) return false;
    if (symbol == 0) continue;
    if (symbol < head.first) return false;
    last = std::max(last, symbol);
  }
  if (last == 0) return true;
  // The chain of the bucket that begins last ends last, at the word with its lowest bit set.
  for (uint64_t at = last;; ++at) {
    uint32_t word = 0;
    if (!read_at(file_, chains + (at - head.first) * 4, &word)) return false;
    *count = at + 1;
    if ((word & 1) != 0) return true;
  }
}

bool DynamicTables::symbol_count(uint64_t* count, std::string* fault) const {
  *count = 0;
  if (hash_ != 0) {
    struct Head {
      uint32_t n_buckets, n_chains;
    } head;
    uint64_t offset = 0;
    if (!offset_of(hash_, &offset) || !read_at(file_, offset, &head)) {
      *fault = "its symbol hash table lies outside the file";
      return false;
    }
    *count = head.n_chains;
  }
  uint64_t by_gnu_hash = 0;
  if (gnu_hash_ != 0 && !gnu_hash_count(gnu_hash_, &by_gnu_hash)) {
    *fault = "its GNU symbol hash table is damaged";
    return false;
  }
  // The larger count: the linker may use either table.
  if (by_gnu_hash > *count) *count = by_gnu_hash;
  return true;
}

std::string DynamicTables::read(ElfLibrary& library) {
  library.wants_executable_stack = executable_stack_;
  uint64_t symbols = 0, strings = 0, count = 0;
  std::string fault;
  if (!symbol_count(&count, &fault)) return fault;
  if (count == 0) return std::string();
  if (!offset_of(symtab_, &symbols) || !offset_of(strtab_, &strings)) {
    return "its symbol table lies outside the file";
  }
  if (file_.size() - strings < strsz_) return "its string table reaches beyond the end";
  const std::string_view text(reinterpret_cast<const char*>(file_.data()) + strings, strsz_);
  if (count > file_.size() / sizeof(Elf64_Sym)) return "its symbol table reaches beyond the end";
  // So every name that begins in it ends in it.
  if (text.empty() || text.back() != '\0') return "its string table has no end";
  for (const uint64_t offset : needed_) {
    if (offset >= text.size()) return "the name of a needed library lies outside the string table";
    std::string_view name = text.substr(offset, kNameBytesMax);
    name = name.substr(0, name.find('\0'));
    for (const char* runtime : {"libasan.so", "libhwasan.so", "libtsan.so", "libmsan.so"})
      if (name.starts_with(runtime)) library.sanitizer = name;
  }
  for (uint64_t i = 1; i < count; ++i) {
    Elf64_Sym symbol;
    if (!read_at(file_, symbols + i * sizeof(symbol), &symbol)) {
      return "its symbol table reaches beyond the end";
    }
    const unsigned binding = ELF64_ST_BIND(symbol.st_info);
    const unsigned visibility = ELF64_ST_VISIBILITY(symbol.st_other);
    const bool is_undefined = symbol.st_shndx == SHN_UNDEF;
    if (binding == STB_LOCAL || visibility == STV_HIDDEN || visibility == STV_INTERNAL) continue;
    if (symbol.st_name >= text.size()) return "a symbol's name lies outside the string table";
    std::string_view name = text.substr(symbol.st_name, kNameBytesMax);
    name = name.substr(0, name.find('\0'));
    if (!is_undefined) {
      const unsigned type = ELF64_ST_TYPE(symbol.st_info);
      if (library.exports.size() < kNamesMax)
        library.exports.push_back({.name = std::string(name), .is_function = type == STT_FUNC});
    } else if (binding == STB_GLOBAL && library.sanitizer.empty() && is_of_sanitizer(name)) {
      library.sanitizer = name;
    }
  }
  return std::string();
}

}  // namespace

Status check_elf_header(std::span<const std::byte> head, const std::string& where) {
  const auto damaged = [&where](const std::string& text) {
    return Status(Code::kDataLoss, where + ": " + text);
  };
  if (head.size() < SELFMAG || std::memcmp(head.data(), ELFMAG, SELFMAG) != 0) {
    return damaged("not an ELF file; expected a shared object built by specd_add_plugin()");
  }
  Elf64_Ehdr header;
  if (!read_at(head, 0, &header)) {
    return damaged("truncated ELF file: " + std::to_string(head.size()) +
                   " bytes, its header alone has " + std::to_string(sizeof(header)));
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64) {
    return damaged(
        "wrong ELF class: expected 64 bits, found " +
        std::string(header.e_ident[EI_CLASS] == ELFCLASS32 ? "32 bits" : "an unknown class") +
        "; build it for this machine");
  }
  if (header.e_ident[EI_DATA] != kByteOrder) {
    return damaged("wrong byte order for this machine");
  }
  if (header.e_machine != kMachine) {
    return damaged("wrong architecture: expected " + machine_name(kMachine) + ", found " +
                   machine_name(header.e_machine) + "; build it for this machine");
  }
  if (header.e_type != ET_DYN) {
    return damaged("not a shared object (ELF type " + std::to_string(header.e_type) +
                   ", expected 3); build it with specd_add_plugin()");
  }
  return Status();
}

Result<ElfLibrary> read_elf_library(std::span<const std::byte> file, const std::string& where) {
  SPECD_OK_OR_RETURN(check_elf_header(file.first(std::min<size_t>(file.size(), 64)), where));
  DynamicTables tables(file);
  ElfLibrary library;
  std::string fault = tables.open();
  if (fault.empty()) fault = tables.read(library);
  if (!fault.empty()) return Status(Code::kDataLoss, where + ": damaged ELF file: " + fault);
  return library;
}

}  // namespace specd
