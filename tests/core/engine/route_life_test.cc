// Every state with every event: what must hold whatever the table says.
#include "core/engine/routes/life.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace specd {
namespace {

std::vector<RouteState> states() {
  std::vector<RouteState> all;
  for (int i = 0; i <= static_cast<int>(kLastRouteState); ++i) {
    all.push_back(static_cast<RouteState>(i));
  }
  return all;
}
std::vector<RouteEvent> events() {
  std::vector<RouteEvent> all;
  for (int i = 0; i <= static_cast<int>(kLastRouteEvent); ++i) {
    all.push_back(static_cast<RouteEvent>(i));
  }
  return all;
}
// Those that can happen.
template <typename Fn>
void for_each_step(Fn&& fn) {
  for (const RouteState state : states()) {
    for (const RouteEvent event : events()) {
      const Result<RouteStep> step = route_step(state, event);
      if (!step.ok()) continue;
      SCOPED_TRACE(std::string(route_state_name(state)) + ", event " +
                   std::to_string(static_cast<int>(event)));
      fn(state, event, step.value());
    }
  }
}
std::set<RouteState> reached_from(RouteState start) {
  std::set<RouteState> reached{start};
  for (size_t n = 0; n != reached.size();) {
    n = reached.size();
    for_each_step([&](RouteState from, RouteEvent, const RouteStep& step) {
      if (reached.contains(from)) reached.insert(step.next);
    });
  }
  return reached;
}
bool has(const RouteStep& step, RouteAction action) { return (step.actions & action) != 0; }

TEST(RouteLife, publishes_whenever_it_changes_who_gets_requests) {
  for_each_step([](RouteState from, RouteEvent, const RouteStep& step) {
    if (takes_requests(from) != takes_requests(step.next)) {
      EXPECT_TRUE(has(step, kPublish));
    }
  });
}

TEST(RouteLife, starts_and_stops_a_shadow_with_its_state) {
  for_each_step([](RouteState from, RouteEvent, const RouteStep& step) {
    const bool was = from == RouteState::kShadow, is = step.next == RouteState::kShadow;
    EXPECT_EQ(has(step, kStartShadow), !was && is);
    EXPECT_EQ(has(step, kStopShadow), was && !is);
  });
}

TEST(RouteLife, destroys_once_and_never_what_requests_may_have) {
  for_each_step([](RouteState from, RouteEvent event, const RouteStep& step) {
    EXPECT_EQ(has(step, kDestroy), step.next == RouteState::kRetired);
    if (!has(step, kDestroy)) return;
    const bool was_served = from != RouteState::kDiscovered && from != RouteState::kLoaded;
    EXPECT_EQ(event == RouteEvent::kRelease, was_served);
    EXPECT_FALSE(takes_requests(from));
  });
  for (const RouteEvent event : events()) {
    EXPECT_FALSE(route_step(RouteState::kRetired, event).ok());
    EXPECT_FALSE(route_step(RouteState::kRefused, event).ok());
    EXPECT_FALSE(route_step(RouteState::kStopped, event).ok());
  }
}

TEST(RouteLife, ends_in_every_state_and_is_condemned_from_every_state_that_calls_a_plugin) {
  for (const RouteState state : states()) {
    if (!has_pair(state)) continue;
    EXPECT_TRUE(reached_from(state).contains(RouteState::kRetired)) << route_state_name(state);
    if (state == RouteState::kRetired || state == RouteState::kQuarantined) continue;
    const Result<RouteStep> step = route_step(state, RouteEvent::kCondemn);
    ASSERT_TRUE(step.ok()) << route_state_name(state);
    EXPECT_EQ(step.value().next, RouteState::kQuarantined);
    EXPECT_TRUE(has(step.value(), kSetAside));
    EXPECT_EQ(has(step.value(), kFlipBack), state == RouteState::kLive);
  }
  for (const RouteState state : reached_from(RouteState::kQuarantined)) {
    EXPECT_FALSE(takes_requests(state));
  }
}

TEST(RouteLife, gets_requests_only_once_it_has_been_activated) {
  // Without kActivated nothing behind it is reached.
  std::set<RouteState> reached{RouteState::kDiscovered};
  for (size_t n = 0; n != reached.size();) {
    n = reached.size();
    for_each_step([&](RouteState from, RouteEvent event, const RouteStep& step) {
      if (event != RouteEvent::kActivated && reached.contains(from)) reached.insert(step.next);
    });
  }
  for (const RouteState state : reached) EXPECT_FALSE(takes_requests(state));
  EXPECT_TRUE(reached_from(RouteState::kDiscovered).contains(RouteState::kLive));
}

TEST(RouteLife, flips_back_only_what_was_live) {
  for_each_step([](RouteState from, RouteEvent, const RouteStep& step) {
    if (has(step, kFlipBack)) {
      EXPECT_EQ(from, RouteState::kLive);
      EXPECT_FALSE(takes_requests(step.next));
    }
  });
  const Result<RouteStep> back = route_step(RouteState::kDraining, RouteEvent::kRollBack);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().next, RouteState::kLive);
}

TEST(RouteLife, says_what_a_version_cannot_do) {
  EXPECT_EQ(route_step(RouteState::kDraining, RouteEvent::kPromote).status().to_string(),
            "FAILED_PRECONDITION: a version that is draining cannot be promoted");
  std::set<std::string> said;
  size_t n = 0;
  for (const RouteState state : states()) {
    for (const RouteEvent event : events()) {
      const Result<RouteStep> step = route_step(state, event);
      if (step.ok()) continue;
      ++n;
      said.insert(step.status().message());
    }
  }
  EXPECT_EQ(said.size(), n) << "two pairs with the same words";
}

}  // namespace
}  // namespace specd
