// SPDX-License-Identifier: Apache-2.0
// Hello with a random number, challenge with another, proof over both with rank and size, welcome
// with the door's own proof. The client proves itself first: whoever connects learns nothing that
// depends on the secret.
#include "tessera/core/error.h"
#include "tessera/dist/rendezvous/door_impl.h"
#include "tessera/dist/rendezvous/wire_impl.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iostream>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kLargestOfStranger = 256;      // bytes of a hello or a proof
constexpr size_t kLargestBeforeWelcome = 4096;  // bytes of a challenge or a refusal
constexpr auto kPause = std::chrono::milliseconds(200);
constexpr uint64_t kEveryOne = 8;  // dropped connections with a line each

Digest proof_of(std::string_view side, const std::string& secret, const std::string& name,
                const Digest& client, const Digest& server, int32_t rank, int32_t size) {
  PackedWriter text;
  text.text(side).text(name).put(client).put(server).put(rank).put(size);
  return hmac_sha256(secret, text.bytes());
}

// For terminals and logs: what a stranger sends may hold anything.
std::string printable(std::string text) {
  text.resize(std::min<size_t>(text.size(), 400));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c == '\x7f'; }, '?');
  return text;
}

}  // namespace

Door::Door(Listening listening, Options options)
    : listening_(std::move(listening)), options_(std::move(options)) {
  (void)random_bytes();  // a system without random numbers shows here, not on a serving thread
}

void Door::say(const std::string& text) const {
  std::cerr << concat(options_.name, " at ",
                      listening_.address.empty() ? "all interfaces" : listening_.address, ", port ",
                      listening_.port, ": ", text, '\n');
}

void Door::drop(const FrameStream& stream, const std::string& why) {
  ++dropped_;
  if (dropped_ > kEveryOne && !std::has_single_bit(dropped_)) return;  // a flood fills no log
  say(concat("dropped a connection from ", address_of_peer(stream.fd()), ": ", why,
             dropped_ > kEveryOne ? concat(" (", dropped_, " dropped so far)") : ""));
}

void Door::watch(std::vector<pollfd>& sockets) const {
  if (Clock::now() >= closed_until_) sockets.push_back({listening_.socket.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) sockets.push_back({stranger.stream.fd(), POLLIN, 0});
}

std::vector<Door::Guest> Door::admit() {
  std::vector<Guest> guests;
  std::vector<Stranger> rest;
  for (Stranger& stranger : strangers_) {
    const std::string why = hear(stranger, guests);
    if (!stranger.stream.open()) continue;  // it is a guest now
    if (why.empty()) rest.push_back(std::move(stranger));
    else drop(stranger.stream, why);
  }
  strangers_ = std::move(rest);
  accept_waiting();
  return guests;
}

std::string Door::hear(Stranger& stranger, std::vector<Guest>& guests) {
  FrameStream& stream = stranger.stream;
  while (stream.open()) {
    const bool here = stream.fill();
    const auto frame = stream.next();
    if (stream.garbled()) return "it speaks another protocol";
    if (!frame && !here) return "it hung up before it proved that it belongs to this job";
    if (!frame) break;
    if (std::string why =
            stranger.greeted ? judge(stranger, *frame, guests) : greet(stranger, *frame);
        !why.empty())
      return why;
  }
  if (Clock::now() < stranger.deadline) return {};
  return concat("it did not prove within ", options_.patience.count(),
                " ms that it belongs to this job");
}

void Door::accept_waiting() {
  const auto now = Clock::now();
  if (now < closed_until_) return;
  for (size_t i = 0; i < options_.most; ++i) {  // a flood must not hold up those inside
    int error = 0;
    Descriptor socket = accept_from(listening_.socket, error);
    if (error == ECONNABORTED || error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) break;
    if (error != 0) {  // no file descriptors or memory: the queue of the system keeps who waits
      closed_until_ = now + kPause;
      if (!std::exchange(starved_, true)) {
        say(concat("accepts no connections for now: ", std::strerror(error),
                   "; raise the limit of open files (ulimit -n)"));
      }
      return;
    }
    if (strangers_.size() >= options_.most) {
      drop(strangers_.front().stream,
           "too many connections that have not proved that they belong "
           "to this job");
      strangers_.erase(strangers_.begin());
    }
    strangers_.push_back(
        {FrameStream(std::move(socket), kLargestOfStranger), now + options_.patience});
  }
  starved_ = false;
}

std::string Door::greet(Stranger& stranger, const Frame& frame) {
  PackedReader in(frame.payload);
  const auto magic = in.get<uint64_t>();
  const auto version = in.get<uint32_t>();
  if (frame.type != wire::kHello || magic != wire::kMagic) return "it is another program";
  if (version != wire::kVersion) {
    refuse(stranger.stream,
           concat("the other end is of another build of Tessera (protocol ", wire::kVersion,
                  ", here ", version, "): start all ranks from one build"));
    stray_ = concat("a process of another build (protocol ", version, ") tried to join");
    return stray_;
  }
  stranger.theirs = in.get<Digest>();
  if (!in.ok()) return "its hello is too short";
  stranger.ours = random_bytes();
  stranger.greeted = true;
  stranger.stream.send(wire::kChallenge, PackedWriter().put(stranger.ours).bytes());
  return {};
}

std::string Door::judge(Stranger& stranger, const Frame& frame, std::vector<Guest>& guests) {
  PackedReader in(frame.payload);
  const auto rank = in.get<int32_t>(), size = in.get<int32_t>();
  const auto theirs = in.get<Digest>();
  const auto expected = [&](std::string_view side) {
    return proof_of(side, options_.secret, options_.name, stranger.theirs, stranger.ours, rank,
                    size);
  };
  if (frame.type != wire::kProof || !in.ok() || !same_digest(theirs, expected("client"))) {
    refuse(stranger.stream,
           concat("another job listens at port ", listening_.port,
                  ", or TESSERA_JOB_TOKEN is not the same on all ranks: give each job its own "
                  "MASTER_PORT, and all of its ranks one TESSERA_JOB_TOKEN"));
    stray_ = "a process of another job, or with another TESSERA_JOB_TOKEN, tried to join";
    return "it does not know the secret of this job";
  }
  stranger.stream.allow(FrameStream::kMaxFrame);
  guests.push_back({std::move(stranger.stream), rank, size, expected("server")});
  return {};
}

void Door::welcome(Guest& guest) {
  guest.stream.send(wire::kWelcome, PackedWriter().put(guest.proof).bytes());
}

void Door::refuse(FrameStream& stream, const std::string& why) { stream.send(wire::kRefused, why); }

Knock::Knock(Descriptor socket, std::string secret, std::string name, int rank, int size)
    : stream_(std::move(socket), kLargestBeforeWelcome),
      secret_(std::move(secret)),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      ours_(random_bytes()) {
  stream_.send(wire::kHello,
               PackedWriter().put(wire::kMagic).put(wire::kVersion).put(ours_).bytes());
}

Knock::State Knock::advance() {
  while (state_ == State::waits) {
    const bool here = stream_.fill();
    if (const auto frame = stream_.next()) {
      hear(*frame);
    } else {
      if (!here || stream_.garbled() || !stream_.flush()) state_ = State::broken;
      break;
    }
  }
  return state_;
}

void Knock::hear(const Frame& frame) {
  PackedReader in(frame.payload);
  const auto digest = in.get<Digest>();
  const auto proof = [&](std::string_view side) {
    return proof_of(side, secret_, name_, ours_, theirs_, rank_, size_);
  };
  if (frame.type == wire::kRefused) {
    state_ = State::refused;
    why_ = printable(frame.payload);
  } else if (frame.type == wire::kChallenge && in.ok()) {
    theirs_ = digest;
    stream_.send(wire::kProof, PackedWriter().put(rank_).put(size_).put(proof("client")).bytes());
  } else if (frame.type == wire::kWelcome && in.ok() && same_digest(digest, proof("server"))) {
    state_ = State::welcome;
    stream_.allow(FrameStream::kMaxFrame);
  } else {
    state_ = State::broken;  // another program, or one that does not know the secret
  }
}

}  // namespace tessera
