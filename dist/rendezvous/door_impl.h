// SPDX-License-Identifier: Apache-2.0
// Who may connect. A Door accepts the connections of a listening socket and lets in processes that
// prove that they know the job's secret; a Knock is the other end. All others are strangers: few of
// them are kept at once, each has a small buffer and little time, and then is dropped with a line
// on stderr. Neither waits: their owner calls them when something can be read.
#pragma once

#include "tessera/dist/rendezvous/secret_impl.h"
#include "tessera/dist/rendezvous/socket_impl.h"

#include <poll.h>

namespace tessera {

/// Strangers that a door keeps beyond those that it waits for.
inline constexpr size_t kMoreStrangers = 16;

class Door {
 public:
  struct Options {
    std::string secret;
    std::string name;              ///< what is behind it, equal at both ends and part of the proof
    size_t most = kMoreStrangers;  ///< strangers kept at once; with more, the oldest is dropped
    std::chrono::milliseconds patience{5000};  ///< how long a stranger is kept
  };
  /// A process that knows the secret. The owner of the door answers by welcome() or refuse().
  struct Guest {
    FrameStream stream;
    int rank, size;  ///< as it says
    Digest proof;    ///< that this process knows the secret too
  };

  Door(Listening listening, Options options);

  /// Adds the sockets to wait for.
  void watch(std::vector<pollfd>& sockets) const;
  /// Accepts and reads what is there, and drops strangers whose time is over.
  std::vector<Guest> admit();
  static void welcome(Guest& guest);
  static void refuse(FrameStream& stream, const std::string& why);

  /// Whether admit() must be called soon even if nothing comes.
  [[nodiscard]] bool busy() const { return starved_ || !strangers_.empty(); }
  [[nodiscard]] const Listening& listening() const { return listening_; }
  /// The last process of Tessera that did not know the secret, for errors; empty: there was none.
  [[nodiscard]] const std::string& stray() const { return stray_; }

 private:
  struct Stranger {
    FrameStream stream;
    Deadline deadline;
    bool greeted = false;
    Digest theirs{}, ours{};  // random numbers, once it has said hello
  };
  void accept_waiting();
  // Why the stranger must go; empty: it may stay, or is a guest.
  [[nodiscard]] std::string hear(Stranger& stranger, std::vector<Guest>& guests);
  [[nodiscard]] std::string greet(Stranger& stranger, const Frame& hello);
  [[nodiscard]] std::string judge(Stranger& stranger, const Frame& proof,
                                  std::vector<Guest>& guests);
  void drop(const FrameStream& stream, const std::string& why);
  void say(const std::string& text) const;

  Listening listening_;
  Options options_;
  std::vector<Stranger> strangers_;  // oldest first
  Deadline closed_until_{};          // nothing is accepted before: there were no file descriptors
  bool starved_ = false;
  uint64_t dropped_ = 0;
  std::string stray_;
};

/// The connecting end.
class Knock {
 public:
  enum class State : uint8_t { waits, welcome, refused, broken };
  /// `socket` is connected, `secret` and `name` are those of the door.
  Knock(Descriptor socket, std::string secret, std::string name, int rank, int size);
  /// Reads what has come.
  State advance();
  [[nodiscard]] int fd() const { return stream_.fd(); }
  /// Why it was refused.
  [[nodiscard]] const std::string& why() const { return why_; }
  /// The connection, once it is welcome.
  [[nodiscard]] FrameStream take() { return std::move(stream_); }

 private:
  void hear(const Frame& frame);

  FrameStream stream_;
  std::string secret_, name_, why_;
  int32_t rank_, size_;
  Digest ours_, theirs_{};
  State state_ = State::waits;
};

}  // namespace tessera
