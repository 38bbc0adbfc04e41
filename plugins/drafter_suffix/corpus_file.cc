#include "corpus_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "suffix_automaton.h"

namespace specd::suffix {
namespace {

// A token takes at most 10 digits and a comma; the rest allows for spaces and brackets.
constexpr uint64_t kBytesPerTokenMax = 16;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw sdk::Error(SPECD_E_CONFIG, "corpus " + path + ": " + why);
}

class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    if (path.find('\0') != std::string::npos) refuse("(path)", "contains a zero byte");
    // With O_NONBLOCK, opening a pipe cannot block the daemon.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) refuse(path, std::string("cannot open: ") + std::strerror(errno));
    struct stat info;
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      refuse(path, "expected a regular file");
    }
    size_ = static_cast<uint64_t>(info.st_size);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const { return size_; }

  // Returns 0 at the end of the file.
  std::size_t read(char* out, std::size_t n) {
    for (;;) {
      const ssize_t got = ::read(fd_, out, n);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) refuse(path_, std::string("cannot read: ") + std::strerror(errno));
    }
  }

 private:
  const std::string& path_;
  int fd_;
  uint64_t size_;
};

void check_size(const std::string& path, uint64_t size, uint64_t max_tokens) {
  const uint64_t limit = max_tokens * kBytesPerTokenMax + 4096;
  if (size > limit) {
    refuse(path, "has " + std::to_string(size) + " bytes, expected at most " +
                     std::to_string(limit) + " for max_corpus_tokens " +
                     std::to_string(max_tokens) + "; shorten it or raise max_corpus_tokens");
  }
}

class Parser {
 public:
  Parser(const std::string& path, uint64_t max_tokens, uint32_t vocab_size,
         HostVector<int32_t>& out)
      : path_(path), max_tokens_(max_tokens), vocab_size_(vocab_size), out_(out) {}

  void take(char c) {
    const bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    switch (state_) {
      case kOutside:
        if (c == '[') {
          state_ = kFirst;
        } else if (!space) {
          fail(c, "'[' (a line is a list of token ids, like [1, 15, 7])");
        }
        break;
      case kFirst:
      case kValue:
        if (c >= '0' && c <= '9') {
          value_ = static_cast<uint64_t>(c - '0');
          state_ = kDigits;
        } else if (c == ']' && state_ == kFirst) {
          state_ = kOutside;
        } else if (!space) {
          fail(c, "a token id");
        }
        break;
      case kDigits:
        if (c >= '0' && c <= '9') {
          value_ = std::min<uint64_t>(value_ * 10 + static_cast<uint64_t>(c - '0'), UINT32_MAX);
          break;
        }
        emit();
        state_ = kAfter;
        [[fallthrough]];
      case kAfter:
        if (c == ',') {
          state_ = kValue;
        } else if (c == ']') {
          push(SuffixAutomaton::kSeparator);
          state_ = kOutside;
        } else if (!space) {
          fail(c, "',' or ']'");
        }
        break;
    }
    ++offset_;
  }

  void finish() const {
    if (state_ != kOutside) {
      refuse(path_, "ends at byte " + std::to_string(offset_) + " inside a list; expected ']'");
    }
    if (out_.empty()) refuse(path_, "holds no token");
  }

 private:
  enum State { kOutside, kFirst, kValue, kDigits, kAfter };

  void emit() {
    if (value_ >= vocab_size_) {
      refuse(path_, "the token id that ends at byte " + std::to_string(offset_) +
                        " is not below the model's vocabulary of " + std::to_string(vocab_size_) +
                        "; make the file with the model's own tokenizer");
    }
    push(static_cast<int32_t>(value_));
  }

  void push(int32_t token) {
    if (out_.size() == max_tokens_) {
      refuse(path_, "holds more than max_corpus_tokens (" + std::to_string(max_tokens_) +
                        ") tokens and ends of documents, at byte " + std::to_string(offset_) +
                        "; shorten it or raise max_corpus_tokens");
    }
    out_.push_back(token);
  }

  [[noreturn]] void fail(char found, const char* expected) const {
    const unsigned byte = static_cast<unsigned char>(found);
    const std::string shown =
        byte > 32 && byte < 127 ? std::string("'") + found + "'" : "byte " + std::to_string(byte);
    refuse(path_,
           "at byte " + std::to_string(offset_) + ": expected " + expected + ", found " + shown);
  }

  const std::string& path_;
  const uint64_t max_tokens_;
  const uint32_t vocab_size_;
  HostVector<int32_t>& out_;
  State state_ = kOutside;
  uint64_t value_ = 0, offset_ = 0;
};

}  // namespace

uint64_t corpus_tokens_max(const std::string& path, uint64_t max_tokens) {
  const File file(path);
  check_size(path, file.size(), max_tokens);
  // "[1]" is a token and an end in three bytes; each further token takes two.
  return std::min(max_tokens, file.size() / 3 * 2 + 2);
}

HostVector<int32_t> read_corpus(const std::string& path, uint64_t max_tokens, uint32_t vocab_size,
                                const HostAllocator& memory) {
  File file(path);
  check_size(path, file.size(), max_tokens);
  HostVector<int32_t> tokens(memory);
  Parser parser(path, max_tokens, vocab_size, tokens);
  HostVector<char> buffer(memory);
  buffer.resize(1 << 16);
  uint64_t left = file.size();  // bytes appended meanwhile are not read
  while (left > 0) {
    const std::size_t n = file.read(buffer.data(), std::min<uint64_t>(left, buffer.size()));
    if (n == 0) break;
    for (std::size_t i = 0; i < n; ++i) parser.take(buffer[i]);
    left -= n;
  }
  parser.finish();
  return tokens;
}

}  // namespace specd::suffix
