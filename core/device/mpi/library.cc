// libspecd_mpi: Messages over Open MPI. The only file that includes mpi.h, and loaded only under mpirun.
#define OMPI_SKIP_MPICXX  // its C++ bindings do not compile without warnings
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/device/messages.h"

namespace specd {
namespace {

class MpiMessages final : public Messages {
 public:
  MpiMessages() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks_);
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &n_here_);
    MPI_Comm_free(&here);
    for (MPI_Comm& channel : channels_) {
      MPI_Comm_dup(MPI_COMM_WORLD, &channel);
      MPI_Comm_set_errhandler(channel, MPI_ERRORS_RETURN);
    }
  }
  ~MpiMessages() override { MPI_Finalize(); }

  int32_t rank() const override { return rank_; }
  int32_t n_ranks() const override { return n_ranks_; }
  int32_t n_here() const override { return n_here_; }
  uint64_t bytes_max() const override { return uint64_t{1} << 30; }  // MPI counts with int

  int32_t send(const void* data, uint64_t bytes, int32_t to, Channel channel,
               int32_t tag) override {
    const int32_t number = new_transfer();
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, of(channel), &at(number)));
    return number;
  }
  int32_t receive(void* data, uint64_t bytes, int32_t from, Channel channel) override {
    const int32_t number = new_transfer();
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, MPI_ANY_TAG, of(channel),
                    &at(number)));
    return number;
  }
  bool is_done(int32_t transfer) override {
    int done = 0;
    check(MPI_Test(&at(transfer), &done, MPI_STATUS_IGNORE));
    if (done != 0) free_.push_back(transfer);
    return done != 0;
  }
  std::optional<Arrived> arrived(int32_t from, Channel channel) override {
    int has = 0, bytes = 0;
    MPI_Status what;
    check(MPI_Iprobe(from, MPI_ANY_TAG, of(channel), &has, &what));
    if (has == 0) return std::nullopt;
    check(MPI_Get_count(&what, MPI_BYTE, &bytes));
    return Arrived{.tag = what.MPI_TAG, .bytes = static_cast<uint64_t>(bytes)};
  }
  Status status() const override { return status_; }
  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::abort();
  }

 private:
  MPI_Comm of(Channel channel) const { return channels_[static_cast<size_t>(channel)]; }
  MPI_Request& at(int32_t transfer) { return transfers_[static_cast<size_t>(transfer)]; }
  int32_t new_transfer() {
    if (free_.empty()) {
      transfers_.push_back(MPI_REQUEST_NULL);
      free_.reserve(transfers_.size());
      return static_cast<int32_t>(transfers_.size()) - 1;
    }
    const int32_t number = free_.back();
    free_.pop_back();
    return number;
  }
  // A request that has failed is done.
  void check(int error) {
    if (error == MPI_SUCCESS || !status_.ok()) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int size = 0;
    MPI_Error_string(error, text, &size);
    status_ = Status(Code::kUnavailable, std::string("MPI: ") + text);
  }

  int rank_ = 0, n_ranks_ = 1, n_here_ = 1;
  MPI_Comm channels_[3] = {};
  std::vector<MPI_Request> transfers_;
  std::vector<int32_t> free_;
  Status status_;
};

Messages* open(char* why, uint64_t size) {
  // What ranks of a machine exchange in a decoding step is larger than Open MPI's 4 KiB, beyond which it asks
  // the kernel to copy; two ranks of a model of 2 GB were 14 % slower with that. The environment and
  // mpirun's arguments win; Open MPI's own files do not.
  constexpr char kEager[] = "OMPI_MCA_btl_vader_eager_limit";
  constexpr char kSend[] = "OMPI_MCA_btl_vader_max_send_size";  // must be larger
  if (std::getenv(kEager) == nullptr && std::getenv(kSend) == nullptr) {
    setenv(kEager, "32768", 1);
    setenv(kSend, "65536", 1);
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  if (level >= MPI_THREAD_SERIALIZED) return new MpiMessages();
  std::snprintf(why, size, "this Open MPI was built without threads (MPI_THREAD_SERIALIZED)");
  return nullptr;
}

}  // namespace
}  // namespace specd

extern "C" __attribute__((visibility("default"))) const specd::MpiLibrary* specd_mpi_library() {
  static constexpr specd::MpiLibrary library{.build = specd::kMpiBuild, .open = specd::open};
  return &library;
}
