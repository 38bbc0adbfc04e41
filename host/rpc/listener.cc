#include "host/rpc/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/failpoint.h"
#include "core/base/log.h"
#include "core/base/quote.h"
#include "core/base/thread.h"
#include "host/base/parent_only.h"

namespace specd::host {
namespace {

constexpr int kRetryMs = 100, kHeldMs = 10;
constexpr int kFull = -1;
constexpr int kGreetingsPerTurn = 4;
constexpr uint64_t kWake = 0, kDoor = 1;  // data of events; the others are relays
constexpr uint32_t kEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
constexpr std::chrono::seconds kWarnAgain{10};

Status no_descriptor(const ListenSocket& socket) {
  return {Code::kFailedPrecondition,
          "cannot listen on " + socket.name() + ": no descriptor: " + std::strerror(errno)};
}

// Who is at the other end: a process of this machine, or an address.
std::string origin_of(int client, std::optional<uid_t>& user) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(client, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (address.ss_family == AF_UNIX) {
    ucred peer{};
    size = sizeof(peer);
    if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "";
    user = peer.uid;
    return "process " + std::to_string(peer.pid);
  }
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto shown = [&text](int family, const void* bytes) {
    const char* const made = inet_ntop(family, bytes, text.data(), text.size());
    return made == nullptr ? "" : "address " + std::string(made);
  };
  if (address.ss_family == AF_INET)
    return shown(AF_INET, &reinterpret_cast<const sockaddr_in*>(any)->sin_addr);
  in6_addr v6 = reinterpret_cast<const sockaddr_in6*>(any)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6) != 0) return shown(AF_INET, &v6.s6_addr[12]);
  // One machine may take any address of its network.
  constexpr size_t kNetworkBytes = 8;
  std::fill(std::begin(v6.s6_addr) + kNetworkBytes, std::end(v6.s6_addr), uint8_t{0});
  return shown(AF_INET6, &v6) + "/64";
}

// As a log line may say it: the names are the client's own.
std::string shown_names(const std::vector<std::string>& names) {
  constexpr size_t kShownMax = 4;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShownMax; ++i)
    text += (i == 0 ? "" : ", ") + quote(names[i], 100);
  if (names.size() > kShownMax) text += " and others";
  return names.empty() ? "no name" : text;
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int ms_until(int64_t end_ms) { return static_cast<int>(std::max<int64_t>(0, end_ms - now_ms())); }

bool watch(int epoll, int fd, uint32_t events, uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

void add_once(std::vector<uint64_t>& ids, uint64_t id) {
  if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start(ListenSocket socket, Limits limits, Admit admit,
                                                  const TlsKeys* tls) {
  std::unique_ptr<Listener> made(new Listener(std::move(socket)));
  made->limits_ = limits;
  made->admit_ = std::move(admit);
  made->tls_ = tls;
  made->wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  made->epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (made->wake_.get() < 0 || made->epoll_.get() < 0) return no_descriptor(made->socket_);
  if (!watch(made->epoll_.get(), made->wake_.get(), EPOLLIN, kWake) ||
      !watch(made->epoll_.get(), made->socket_.get(), EPOLLIN, kDoor))
    return no_descriptor(made->socket_);
  keep_from_children(made->socket_.get());
  made->thread_ = start_thread("specd-accept", [self = made.get()] { self->run(); });
  return made;
}

Status Listener::status() const {
  SPECD_OK_OR_RETURN(socket_.status());
  const int problem = problem_;
  return problem == 0 ? Status() : Status(Code::kUnavailable, problem_text(problem));
}

std::string Listener::problem_text(int problem) const {
  if (problem == kFull)
    return std::to_string(limits_.connections) + " clients are connected, which is the limit";
  return std::string("connections cannot be accepted: ") + std::strerror(problem);
}

void Listener::run() {
  std::array<epoll_event, 64> events{};
  while (true) {
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms());
    SPECD_CHECK(n >= 0 || errno == EINTR, "epoll_wait() was given a wrong descriptor");
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWake) {
        uint64_t value = 0;
        (void)!read(wake_.get(), &value, sizeof(value));
      } else if (guests_.contains(id)) {
        add_once(greeting_, id);
      } else if (id != kDoor) {
        pump(id, events[i].events);
      } else if (phase_ == Phase::kAccepting) {
        accept_one();
      }
    }
    for (const uint64_t id : std::exchange(busy_, {})) pump(id);
    for (const uint64_t id : std::exchange(held_, {})) pump(id);
    for (; !last_bytes_.empty() && now_ms() >= last_bytes_.front().end_ms; last_bytes_.pop_front())
      end_relay(last_bytes_.front().id);
    // Handshakes compute: in between those who are connected have their turn.
    for (int i = 0; i < kGreetingsPerTurn && !greeting_.empty(); ++i) {
      const uint64_t id = greeting_.front();
      greeting_.erase(greeting_.begin());
      greet(id);
    }
    while (!guests_.empty() && now_ms() >= guests_.begin()->second.end_ms) dismiss(guests_.begin());
    if (phase_ == Phase::kClosing) close_door();
    if (phase_ == Phase::kEnding && (relays_.empty() || now_ms() >= end_ms_))
      return relays_.clear();
    if (problem_ > 0 && phase_ == Phase::kAccepting) accept_one();
    if (problem_ == kFull && relays_.size() < limits_.connections) set_problem(0);
  }
}

int Listener::wait_ms() const {
  if (!busy_.empty() || !greeting_.empty()) return 0;
  if (phase_ == Phase::kEnding) return ms_until(end_ms_);
  if (!held_.empty()) return kHeldMs;
  if (problem_ > 0) return kRetryMs;
  int64_t end_ms = INT64_MAX;
  if (!last_bytes_.empty()) end_ms = last_bytes_.front().end_ms;
  if (!guests_.empty()) end_ms = std::min(end_ms, guests_.begin()->second.end_ms);
  return end_ms == INT64_MAX ? -1 : ms_until(end_ms);
}

void Listener::stop_accepting() {
  if (phase_ != Phase::kAccepting) return;
  phase_ = Phase::kClosing;
  wake();
  phase_.wait(Phase::kClosing);
}

void Listener::finish(std::chrono::milliseconds timeout) {
  end_ms_ = now_ms() + timeout.count();
  phase_ = Phase::kEnding;
  wake();
  thread_.join();
}

Listener::~Listener() {
  if (!thread_.joinable()) return;
  stop_accepting();
  finish(std::chrono::milliseconds(0));
}

void Listener::wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Listener::close_door() {
  forget_descriptor(socket_.get());
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
  socket_.close();
  guests_.clear();
  problem_ = 0;
  phase_ = Phase::kClosed;
  phase_.notify_all();
}

void Listener::accept_one() try {
  // The pair comes first: a client that cannot be served yet stays in the queue of the socket.
  std::array<int, 2> pair{-1, -1};
  const bool has_pair =
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) == 0;
  FileDescriptor ours(pair[0]), theirs(pair[1]), client;
  if (has_pair && !SPECD_FAILS(kSocketAccept, EMFILE)) client = socket_.accept();
  if (client.get() < 0) {
    const bool is_shortage =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    set_problem(is_shortage ? errno : 0);  // else that connection is gone already
  } else if (relays_.size() >= limits_.connections) {
    set_problem(kFull);
  } else {
    set_problem(0);
    receive(std::move(client), std::move(ours), std::move(theirs));
  }
} catch (const std::bad_alloc&) {
  // That client is turned away.
}

void Listener::set_problem(int problem) {
  const int before = problem_.exchange(problem);
  if (before == problem) return;
  // While descriptors are short the socket stays readable: it is looked at now and then only.
  epoll_event event{};
  event.events = problem > 0 ? 0U : EPOLLIN;
  event.data.u64 = kDoor;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_.get(), &event);
  if (problem == kFull) log(LogLevel::kWarn, problem_text(kFull) + "; more are turned away");
  if (problem > 0 && before <= 0)
    log(LogLevel::kWarn,
        problem_text(problem) + "; trying again (is the limit of descriptors too low?)");
}

void Listener::receive(FileDescriptor client, FileDescriptor ours, FileDescriptor theirs) {
  const uint64_t id = next_id_++;
  Credentials shown;
  const std::string origin = origin_of(client.get(), shown.user);
  if (origin.empty()) return;  // it is gone already
  if (tls_ == nullptr)
    return open_relay(id, std::make_unique<Stream>(std::move(client)), std::move(ours),
                      std::move(theirs), origin, shown);
  std::unique_ptr<TlsStream> stream = tls_->accept(std::move(client));
  if (stream == nullptr || !watch(epoll_.get(), stream->descriptor(), kEvents, id)) return;
  // Clients that say nothing keep nobody out.
  if (relays_.size() + guests_.size() >= limits_.connections) dismiss(most_numerous());
  guests_.emplace(id, Guest{std::move(stream), std::move(ours), std::move(theirs), origin,
                            now_ms() + limits_.greeting.count()});
}

// Of the guests of the address that has most of them, the one that is there longest.
Listener::Guests::iterator Listener::most_numerous() {
  std::unordered_map<std::string_view, size_t> counts;
  for (const auto& [id, guest] : guests_) ++counts[guest.origin];
  return std::ranges::max_element(
      guests_, {}, [&counts](const auto& each) { return counts[each.second.origin]; });
}

void Listener::dismiss(Guests::iterator guest) {
  // A child process may still hold the descriptor.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, guest->second.client->descriptor(), nullptr);
  guests_.erase(guest);
}

void Listener::greet(uint64_t id) try {
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;  // dismissed meanwhile
  const TlsStream::Greeting greeting = found->second.client->greet();
  if (greeting == TlsStream::Greeting::kWaiting) return;
  Guest guest = std::move(guests_.extract(found).mapped());
  // A child process may still hold the descriptor.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, guest.client->descriptor(), nullptr);
  if (greeting == TlsStream::Greeting::kFailed)
    return warn(Cause::kHandshake,
                guest.origin + " was turned away at " + name() + ": " + guest.client->problem());
  const Credentials shown{.user = {}, .names = guest.client->names()};
  open_relay(id, std::move(guest.client), std::move(guest.ours), std::move(guest.theirs),
             guest.origin, shown);
} catch (const std::bad_alloc&) {
  // That client is turned away, at the latest when its time is over.
}

void Listener::open_relay(uint64_t id, std::unique_ptr<Stream> client, FileDescriptor ours,
                          FileDescriptor theirs, const std::string& origin,
                          const Credentials& shown) {
  const Host host = admit_(shown);
  if (host.take == nullptr)
    return warn(Cause::kStranger,
                (shown.user.has_value()
                     ? "user " + std::to_string(*shown.user)
                     : origin + ", with a certificate of " + shown_names(shown.names) + ",") +
                    " may not use " + name() +
                    " (`users` in the configuration); its connections are closed");
  const Peer peer{.origin = origin, .user = host.user, .is_trusted = host.is_trusted};
  if (!has_place(peer)) return;
  auto relay = std::make_unique<Relay>(std::move(client), std::move(ours), peer, calls_);
  if (!watch(epoll_.get(), relay->client(), kEvents, id) ||
      !watch(epoll_.get(), relay->server(), kEvents, id))
    return;
  relays_.emplace(id, std::move(relay));
  add_once(busy_, id);  // TLS may have read more than its greeting
  (*host.take)(theirs.release());
}

void Listener::pump(uint64_t id, uint32_t events) {
  const auto found = relays_.find(id);
  if (found == relays_.end()) return;  // ended by an earlier event
  Relay& relay = *found->second;
  Relay::State state = Relay::State::kEnded;
  try {
    state = relay.pump();
    if (state == Relay::State::kBusy) add_once(busy_, id);
    if (state == Relay::State::kHeld) add_once(held_, id);
    // One side has closed. Without a limit the other keeps its place for as long as it takes nothing.
    const bool has_closed = (events & EPOLLHUP) != 0 || relay.is_closing();
    if (has_closed && state != Relay::State::kEnded && relay.starts_last_bytes())
      last_bytes_.push_back({id, now_ms() + limits_.last_bytes.count()});
    if (state == Relay::State::kAbusive)
      warn(
          Cause::kAbuse,
          relay.peer().origin +
              " opens calls and drops them faster than they can be cleared away; its connection was "
              "closed");
  } catch (const std::bad_alloc&) {
    state = Relay::State::kEnded;
  }
  if (state == Relay::State::kEnded || state == Relay::State::kAbusive) end_relay(id);
}

void Listener::end_relay(uint64_t id) {
  const auto found = relays_.find(id);
  if (found == relays_.end()) return;
  // A child process may still hold the descriptors, and then closing them ends no events.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->client(), nullptr);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->server(), nullptr);
  relays_.erase(found);
}

bool Listener::has_place(const Peer& peer) {
  size_t of_origin = 0, of_user = 0, of_users = 0;
  for (const auto& [id, relay] : relays_) {
    of_origin += relay->peer().origin == peer.origin ? 1 : 0;
    of_user += relay->peer().user == peer.user ? 1 : 0;
    of_users += relay->peer().is_trusted ? 0 : 1;
  }
  const auto is_full = [this](const std::string& of, const std::string& who, size_t limit) {
    warn(Cause::kPlaces, who + " has " + std::to_string(limit) + " connections, the limit of " +
                             of + "; more are turned away");
    return false;
  };
  if (of_origin >= limits_.of_origin)
    return is_full("one process or address", peer.origin, limits_.of_origin);
  if (peer.is_trusted) return true;
  if (of_user >= limits_.of_user) return is_full("one user", peer.user, limits_.of_user);
  return of_users < limits_.of_users ||
         is_full("all of them", "`users` together", limits_.of_users);
}

// A client may give cause for many warnings, and must not hide those of another kind.
void Listener::warn(Cause cause, const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  auto& warn_again = warn_again_[static_cast<size_t>(cause)];
  if (now < warn_again) return;
  warn_again = now + kWarnAgain;
  log(LogLevel::kWarn, text);
}

}  // namespace specd::host
