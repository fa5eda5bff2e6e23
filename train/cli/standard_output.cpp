// SPDX-License-Identifier: Apache-2.0
// The writer takes all that is queued at once and writes without the lock, so a flush waits for no
// reader. After a closed pipe everything is discarded; after other errors, such as a full disk,
// later lines are tried again. std::cerr is untied meanwhile: an error line must not flush, and so
// not throw.
#include "tessera/train/cli/standard_output.h"

#include "tessera/core/message.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <limits>
#include <poll.h>
#include <unistd.h>
#include <utility>

namespace tessera::train {
namespace {

constexpr size_t kBlock = size_t{1} << 16;  // bytes that are kept until a flush

std::string cannot_write(int error) {
  return concat("cannot write to the standard output: ", std::strerror(error));
}

}  // namespace

StandardOutput::StandardOutput(int fd)
    : fd_(fd), before_(std::cout.rdbuf(this)), tied_(std::cerr.tie(nullptr)) {
  std::cout.clear();
  std::cout.exceptions(std::ios::badbit);
}

StandardOutput::~StandardOutput() {
  std::cout.exceptions(std::ios::goodbit);
  std::cout.rdbuf(before_);
  std::cerr.tie(tied_);
  (void)finish();
}

void StandardOutput::write_in_background(size_t most) {
  if (writer_.joinable()) return;
  most_ = most;
  finishing_ = false;
  writer_ = std::thread([this] { write_queued(); });
}

void StandardOutput::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(1),
                    [this] { return queued_.empty() && writing_ == 0; });
}

bool StandardOutput::finish() {
  const std::string rest = std::exchange(pending_, {});
  if (writer_.joinable()) {
    queue(rest, std::numeric_limits<size_t>::max());
    {
      const std::lock_guard lock(mutex_);
      finishing_ = true;
    }
    changed_.notify_all();
    writer_.join();
  } else if (const int error = write_all(rest); error != 0) {
    error_ = error;
  }
  return error_ == 0 || error_ == EPIPE;
}

StandardOutput::int_type StandardOutput::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  xsputn(&byte, 1);
  return c;
}

std::streamsize StandardOutput::xsputn(const char* bytes, std::streamsize count) {
  pending_.append(bytes, static_cast<size_t>(count));
  if (pending_.size() >= kBlock) (void)sync();
  return count;
}

int StandardOutput::sync() {
  const std::string bytes = std::exchange(pending_, {});
  if (writer_.joinable()) {
    queue(bytes, most_);
  } else if (const int error = write_all(bytes); error != 0) {
    error_ = error;
    if (error == EPIPE) fail<ClosedPipe>("output", cannot_write(error));
    fail<IoError>("output", cannot_write(error));
  }
  return 0;
}

void StandardOutput::queue(const std::string& bytes, size_t most) {
  {
    const std::lock_guard lock(mutex_);
    if (error_ == EPIPE) return;
    if (bytes.size() + queued_.size() + writing_ > most) {
      ++dropped_;
      return;
    }
    if (const int64_t lines = std::exchange(dropped_, 0); lines > 0)
      queued_ += concat("[dropped ", counted(lines, "line"), " here, because nobody read]\n");
    queued_ += bytes;
  }
  changed_.notify_all();
}

void StandardOutput::write_queued() {
  bool noted = false;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return finishing_ || !queued_.empty(); });
    const std::string bytes = std::exchange(queued_, {});
    if (bytes.empty()) return;
    writing_ = bytes.size();
    lock.unlock();
    const int error = write_all(bytes);
    if (error != 0 && !std::exchange(noted, true))
      std::cerr << concat("error: [output] ", cannot_write(error), "; training goes on\n");
    lock.lock();
    writing_ = 0;
    if (error_ == 0) error_ = error;
    changed_.notify_all();
  }
}

// The errno of a failed write; 0 if all was written.
int StandardOutput::write_all(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {  // a parent made the pipe non-blocking
      pollfd ready{fd_, POLLOUT, 0};
      (void)::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace tessera::train
