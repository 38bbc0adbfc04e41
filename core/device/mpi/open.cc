#include <cstdlib>
#include <string>

#include "core/base/library_file.h"
#include "core/device/messages.h"

namespace specd {

bool is_under_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

Result<std::unique_ptr<Messages>> open_mpi() {
  SPECD_TRY(const LoadedLibrary loaded, load_library({.what = "MPI library",
                                                      .name = "libspecd_mpi.so",
                                                      .variable = "SPECD_MPI_LIBRARY",
                                                      .symbol = kMpiSymbol,
                                                      .option = "-DSPECD_MPI=ON"}));
  const MpiLibrary* library = reinterpret_cast<MpiLibraryFn>(loaded.symbol)();
  if (const std::string build = library->build; build != kMpiBuild) {
    return Status(Code::kUnsupported, loaded.path + " has build '" + build + "', expected '" +
                                          kMpiBuild +
                                          "'; install the library that came with this program");
  }
  char why[256] = {};
  std::unique_ptr<Messages> messages(library->open(why, sizeof(why)));
  if (messages == nullptr) return Status(Code::kUnsupported, why);
  return messages;
}

}  // namespace specd
