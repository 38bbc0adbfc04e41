#include "host/openai/generation.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <new>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/to_size.h"
#include "host/base/out_of_memory.h"
#include "host/openai/error_answer.h"
#include "host/openai/generation_reply.h"

namespace specd::host {
namespace {

// What the texts, ids and log-probabilities of answers in one piece take, nearly, while they become JSON: of one answer, and
// of all.
constexpr size_t kAnswerBytesMax = size_t{256} << 20, kAnswersBytesMax = size_t{1} << 30;
constexpr size_t kEntryBytes = 256;  // of a token with its log-probability
std::atomic<size_t> answers_bytes{0};

constexpr char kPing[] = ": ping\n\n";
constexpr char kDone[] = "data: [DONE]\n\n";

// Keeps itself alive until every session has ended. The outputs come on the thread of Sessions.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Engine& engine, GenerationCall call, std::shared_ptr<HttpReply> reply)
      : engine_(engine),
        call_(std::move(call)),
        format_(engine, call_.request,
                (call_.request.kind == GenerationKind::kChat ? "chatcmpl-" : "cmpl-") + call_.id,
                call_.model),
        reply_(std::move(reply)),
        texts_(call_.request.requests.size()) {}
  ~Generation() { answers_bytes -= n_bytes_; }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  void start(Sessions& sessions) {
    std::vector<Request> asked = take_prompts();
    const SessionOptions options{.return_prompt_tokens = call_.request.returns_token_ids ||
                                                         call_.request.echo ||
                                                         call_.request.prompt_logprobs.has_value()};
    reply_->when_gone([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->leave();
    });
    const auto self = shared_from_this();
    if (!open(sessions, asked.size())) return;
    // Each may end at any time from here on.
    for (size_t i = 0; i < asked.size(); ++i)
      readers_[i].session->start(std::move(asked[i]), options);
  }

 private:
  class Reader final : public SessionReader {
   public:
    Reader(Generation& generation, size_t prompt) : generation_(generation), prompt_(prompt) {}
    void write(SessionOutput output) override { generation_.take(*this, prompt_, output); }
    void end(const Status& status) override { generation_.end(*this, status); }

    std::shared_ptr<Session> session;
    bool is_held = false;  // until all prompts are accepted

   private:
    Generation& generation_;
    const size_t prompt_;
  };

  bool is_stream() const { return call_.request.is_stream; }

  // What the sessions get. The requests that stay here have no prompts.
  std::vector<Request> take_prompts() {
    std::vector<Request>& requests = call_.request.requests;
    std::vector<Request> asked;
    asked.reserve(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      Request& one = requests[i];
      std::string prompt = std::move(one.prompt);
      auto tokens = std::exchange(one.prompt_tokens, std::nullopt);
      auto chat = std::exchange(one.chat, std::nullopt);
      Request& copy = asked.emplace_back(one);
      copy.prompt = std::move(prompt);
      copy.prompt_tokens = std::move(tokens);
      copy.chat = std::move(chat);
      copy.id = requests.size() == 1 ? call_.id : call_.id + "-" + std::to_string(i);
    }
    return asked;
  }

  // Without memory for all sessions, those that are open end at once.
  bool open(Sessions& sessions, size_t n) {
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < n; ++i) {
      texts_[i].choices.resize(to_size(call_.request.requests[i].n));
      readers_.emplace_back(*this, i);
    }
    try {
      for (Reader& each : readers_) {
        each.session = sessions.open(each);
        ++n_open_;
      }
    } catch (const std::bad_alloc&) {
      if (n_open_ == 0) throw;
      failure_ = std::move(no_memory_);
      leave_locked();
    }
    self_ = shared_from_this();
    if (has_left_) leave_locked();  // now that there is something to leave
    return failure_.ok();
  }

  void take(Reader& reader, size_t prompt, SessionOutput& output) {
    const MutexLock lock(mutex_);
    if (auto* const start = std::get_if<SessionStart>(&output)) {
      begin(reader, prompt, *start);
    } else if (auto* const scored = std::get_if<SessionPrompt>(&output)) {
      texts_[prompt].prompt_logprobs.append(scored->logprobs);
      keep(0, scored->logprobs, n_choices());  // each choice shows them
      reader.session->written();
    } else if (auto* const piece = std::get_if<SessionText>(&output)) {
      take_text(reader, prompt, *piece);
    } else if (auto* const finish = std::get_if<SessionFinish>(&output)) {
      texts_[prompt].usage = std::move(finish->usage);
      reader.session->written();
    }
  }

  void begin(Reader& reader, size_t prompt, SessionStart& start) SPECD_REQUIRES(mutex_) {
    if (n_started_ + 1 == readers_.size() && is_stream()) {
      HttpAnswer head{.content_type = "text/event-stream; charset=utf-8", .headers = call_.headers};
      reply_->start(std::move(head), kPing);
      has_head_ = true;
    }
    ++n_started_;
    keep(start.prompt_text.size() + start.prompt_tokens.size() * sizeof(int32_t), {}, n_choices());
    texts_[prompt].start = std::move(start);
    reader.is_held = true;
    if (!is_stream() || n_started_ == readers_.size() || has_left_) release();
  }

  void take_text(Reader& reader, size_t prompt, SessionText& piece) SPECD_REQUIRES(mutex_) {
    PromptTexts& texts = texts_[prompt];
    ChoiceText& choice = texts.choices[to_size(piece.index)];
    choice.finish = piece.finish;
    if (call_.request.is_prompt_only) {
      choice.finish = FinishReason::kLength;
    } else {
      choice.n_tokens += static_cast<int32_t>(piece.tokens.size());
      choice.text += piece.text;
      choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      choice.logprobs.append(piece.logprobs);
      choice.stop = piece.stop;
    }
    const bool says_something = choice.finish != FinishReason::kNone || !choice.text.empty() ||
                                call_.request.logprobs.has_value() ||
                                call_.request.returns_token_ids;
    if (!is_stream() || !says_something) {
      keep(piece.text.size() + piece.tokens.size() * sizeof(int32_t), piece.logprobs, 1);
      return reader.session->written();
    }
    const auto index =
        static_cast<int32_t>(prompt) * call_.request.requests[prompt].n + piece.index;
    reply_->write(format_.event(texts, choice, index), [session = reader.session](bool is_sent) {
      if (!is_sent) session->disconnect();
      session->written();
    });
    format_.sent(texts, choice);
  }

  size_t n_choices() const { return to_size(call_.request.requests.front().n); }

  // Counts what an answer in one piece has, so many times.
  void keep(size_t bytes, const Logprobs& logprobs, size_t times) SPECD_REQUIRES(mutex_) {
    if (is_stream()) return;
    const size_t more =
        times * (bytes + kEntryBytes * (logprobs.token.size() + logprobs.top.size()));
    n_bytes_ += more;
    const size_t all = answers_bytes += more;
    if (!failure_.ok() || (n_bytes_ <= kAnswerBytesMax && all <= kAnswersBytesMax)) return;
    failure_ = n_bytes_ > kAnswerBytesMax
                   ? Status(Code::kInvalidArgument, "stream",
                            "the answer would take more than " + std::to_string(kAnswerBytesMax) +
                                " bytes of memory; ask for less, or for a stream")
                   : Status(Code::kExhausted, "answers take more than " +
                                                  std::to_string(kAnswersBytesMax) +
                                                  " bytes of memory in all; ask for a stream");
    leave_locked();
  }

  // Goes on with the prompts that wait for all to be accepted.
  void release() SPECD_REQUIRES(mutex_) {
    for (Reader& each : readers_) {
      if (std::exchange(each.is_held, false)) each.session->written();
    }
  }

  // [server threads] The client is gone.
  void leave() {
    const MutexLock lock(mutex_);
    leave_locked();
  }
  void leave_locked() SPECD_REQUIRES(mutex_) {
    has_left_ = true;
    for (Reader& each : readers_) {
      if (each.session != nullptr) each.session->disconnect();
    }
    release();
  }

  // May throw std::bad_alloc, and is then called again.
  void end(Reader& reader, const Status& status) {
    std::shared_ptr<Generation> last;  // let go after the lock
    const MutexLock lock(mutex_);
    if (!status.ok() && failure_.ok()) {
      failure_ = in_words_of_body(status, call_.request);
      leave_locked();
    }
    if (n_open_ == 1) finish();
    reader.session->close();
    if (--n_open_ == 0) last = std::move(self_);
  }

  void finish() SPECD_REQUIRES(mutex_) {
    if (!has_head_) {
      return reply_->answer_later([self = shared_from_this()] {
        const MutexLock lock(self->mutex_);
        return self->whole();
      });
    }
    // Each once, also when there was no memory for one.
    if (n_last_events_ == 0) {
      if (!failure_.ok()) {
        send("data: " + error_json(failure_) + "\n\n");
      } else if (format_.has_last_event()) {
        send(format_.last_event(texts_, drafts_max()));
      }
      ++n_last_events_;
    }
    if (n_last_events_ == 1) {
      send(kDone);
      ++n_last_events_;
    }
    reply_->finish();
  }

  // The texts may be too much for the memory that is left; an error is not.
  HttpAnswer whole() SPECD_REQUIRES(mutex_) {
    HttpAnswer answer{.content_type = "application/json", .headers = call_.headers};
    if (failure_.ok()) {
      try {
        answer.body = format_.body(texts_, drafts_max());
      } catch (const std::bad_alloc&) {
        failure_ = std::move(no_memory_);
      }
    }
    texts_.clear();
    if (failure_.ok()) return answer;
    HttpAnswer error = error_answer(failure_);
    error.headers.insert(error.headers.end(), answer.headers.begin(), answer.headers.end());
    return error;
  }

  void send(std::string event) {
    reply_->write(std::move(event), [](bool) {});
  }

  // The nodes that the request's route may draft in a step.
  int32_t drafts_max() const SPECD_REQUIRES(mutex_) {
    if (call_.request.metrics == RequestMetrics::kNone) return 0;
    int32_t most = 0;
    for (const RouteReport& each : engine_.routes()) {
      if (each.name() == texts_.front().start.route) most = std::max(most, each.draft_nodes_max);
    }
    return std::min(most, call_.request.requests.front().draft_nodes_max.value_or(most));
  }

  Engine& engine_;
  GenerationCall call_;  // does not change after start()
  const GenerationReply format_;
  const std::shared_ptr<HttpReply> reply_;
  Mutex mutex_;
  std::vector<PromptTexts> texts_ SPECD_GUARDED_BY(mutex_);
  std::deque<Reader> readers_;  // does not change after open(), but for what is_held guards
  size_t n_started_ SPECD_GUARDED_BY(mutex_) = 0;
  size_t n_open_ SPECD_GUARDED_BY(mutex_) = 0;
  size_t n_bytes_ SPECD_GUARDED_BY(mutex_) = 0;  // of answers_bytes
  bool has_head_ SPECD_GUARDED_BY(mutex_) = false;
  bool has_left_ SPECD_GUARDED_BY(mutex_) = false;  // every session was told to end
  int n_last_events_ SPECD_GUARDED_BY(mutex_) = 0;
  Status failure_ SPECD_GUARDED_BY(mutex_);
  Status no_memory_ SPECD_GUARDED_BY(mutex_) = no_memory();  // made while there is some
  std::shared_ptr<Generation> self_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace

void start_generation(Engine& engine, Sessions& sessions, GenerationCall call,
                      std::shared_ptr<HttpReply> reply) {
  std::make_shared<Generation>(engine, std::move(call), std::move(reply))->start(sessions);
}

}  // namespace specd::host
