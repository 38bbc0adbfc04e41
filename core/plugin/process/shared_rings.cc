#include "core/plugin/process/shared_rings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "core/base/failpoint.h"

namespace specd {
namespace {

Status no_memory(const char* what) {
  return Status(Code::kExhausted,
                std::string("there is no shared memory for the drafter's calls: ") + what + ": " +
                    strerror(errno));
}

}  // namespace

Status SharedRings::map_file() {
  void* const memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) return no_memory("mmap");
  memory_ = static_cast<std::byte*>(memory);
  return Status();
}

Result<std::unique_ptr<SharedRings>> SharedRings::make(size_t request_capacity,
                                                       size_t reply_capacity) {
  std::unique_ptr<SharedRings> made(new SharedRings(request_capacity, reply_capacity));
  made->file_ = FileDescriptor(memfd_create("specd-drafter", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (SPECD_FAILS(kProcessRings, ENFILE) || made->file_.get() < 0) return no_memory("memfd_create");
  if (ftruncate(made->file_.get(), static_cast<off_t>(made->bytes())) != 0)
    return no_memory("ftruncate");
  if (fcntl(made->file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return no_memory("F_ADD_SEALS");
  SPECD_OK_OR_RETURN(made->map_file());
  new (&made->requests()) RingHeader();
  new (&made->replies()) RingHeader();
  return made;
}

Result<std::unique_ptr<SharedRings>> SharedRings::map(FileDescriptor file, size_t request_capacity,
                                                      size_t reply_capacity) {
  std::unique_ptr<SharedRings> made(new SharedRings(request_capacity, reply_capacity));
  made->file_ = std::move(file);
  struct stat its {};
  if (fstat(made->file_.get(), &its) != 0 || its.st_size != static_cast<off_t>(made->bytes()))
    return Status(Code::kDataLoss, "the shared memory has another size than was said");
  SPECD_OK_OR_RETURN(made->map_file());
  return made;
}

SharedRings::~SharedRings() {
  if (memory_ != nullptr) munmap(memory_, bytes());
}

}  // namespace specd
