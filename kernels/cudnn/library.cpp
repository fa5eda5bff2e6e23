// SPDX-License-Identifier: Apache-2.0
#include "tessera/core/process.h"
#include "tessera/kernels/cudnn/library_impl.h"

#include <cstdlib>
#include <dlfcn.h>
#include <vector>

namespace tessera::cudnn {
namespace {

std::vector<std::string> candidates() {
  if (const char* given = std::getenv("TESSERA_CUDNN_LIBRARY"); given && *given) return {given};
  return library_paths("libcudnn.so.9");
}

std::string text_of(size_t version) {
  return concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace

struct Opened {
  Library library;
  std::string why_not;

  Opened() {
    const std::vector<std::string> paths = candidates();
    if (paths[0] == "none") {
      why_not = "TESSERA_CUDNN_LIBRARY is none";
      return;
    }
    void* opened = nullptr;
    for (size_t i = 0; i < paths.size() && !opened; ++i)
      opened = dlopen(paths[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
      why_not = dlerror();
      return;
    }
#define X(name, symbol, result, parameters)                                                 \
  library.functions_.name = reinterpret_cast<result(*) parameters>(dlsym(opened, #symbol)); \
  if (!library.functions_.name) why_not = "it has no function " #symbol;
    TESSERA_CUDNN_FUNCTIONS(X)
#undef X
    if (!why_not.empty()) return;
    const size_t version = library->version();
    if (version < Library::kOldest || version > Library::kNewest) {
      why_not = concat("it is of version ", text_of(version), ", expected ",
                       text_of(Library::kOldest), " or a later 9");
      return;
    }
    library.version_ = static_cast<int>(version);
  }
  static const Opened& get() {
    static const Opened opened;
    return opened;
  }
};

const Library* Library::get() {
  const Opened& opened = Opened::get();
  return opened.why_not.empty() ? &opened.library : nullptr;
}
const std::string& Library::why_not() { return Opened::get().why_not; }
std::string Library::version_text() const { return text_of(static_cast<size_t>(version_)); }

void Library::check(Status status, const char* call) const {
  if (status == Status::success) return;
  char message[1024] = "";
  functions_.last_error(message, sizeof(message));
  const std::string text = concat(call, " failed: ", functions_.error_name(status), '\n', message);
  if (static_cast<int>(status) / 1000 == static_cast<int>(Status::not_supported) / 1000)
    fail<NotSupported>("cudnn", text);
  fail<DeviceError>("cudnn", text);
}

}  // namespace tessera::cudnn
