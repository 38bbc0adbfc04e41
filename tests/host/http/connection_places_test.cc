#include "host/http/connection_places.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace specd::host {
namespace {

using std::chrono::milliseconds;

class Seated final : public SeatedConnection {
 public:
  Seated(ConnectionPlaces& places, std::string origin = "")
      : SeatedConnection(std::move(origin), places) {}
  void close() override { is_closed = true; }
  void retire() override {}

  bool is_closed = false;
};

std::shared_ptr<Seated> seated(ConnectionPlaces& places, const std::string& origin = "") {
  return std::make_shared<Seated>(places, origin);
}

TEST(ConnectionPlaces, the_one_that_has_waited_longest_gives_its_place_up) {
  ConnectionPlaces places(3, 3);
  const auto a = seated(places), b = seated(places), c = seated(places), d = seated(places);
  for (const auto& each : {a, b, c}) ASSERT_TRUE(places.take(*each));
  for (const auto& each : {a, b, c}) EXPECT_TRUE(places.wait(*each));
  places.stop_waiting(*a);       // a handler runs for it
  EXPECT_TRUE(places.wait(*b));  // again: it has waited since before
  EXPECT_TRUE(places.take(*d));
  EXPECT_FALSE(a->is_closed);
  EXPECT_TRUE(b->is_closed);
  EXPECT_FALSE(c->is_closed);
  EXPECT_FALSE(places.wait(*b));
  EXPECT_TRUE(places.wait(*a));
}

TEST(ConnectionPlaces, none_is_free_while_handlers_run_for_all_others) {
  ConnectionPlaces places(1, 1);
  auto first = seated(places);
  const auto second = seated(places);
  ASSERT_TRUE(places.take(*first));
  EXPECT_FALSE(places.take(*second));
  EXPECT_FALSE(first->is_closed);
  first.reset();
  EXPECT_TRUE(places.take(*second));
}

TEST(ConnectionPlaces, a_connection_that_lost_its_place_counts_for_its_origin_until_it_is_gone) {
  ConnectionPlaces places(2, 1);
  auto first = seated(places, "192.0.2.1");
  const auto same = seated(places, "192.0.2.1"), other = seated(places, "192.0.2.2"),
             any = seated(places);
  ASSERT_TRUE(places.take(*first));
  EXPECT_FALSE(places.take(*same));
  ASSERT_TRUE(places.take(*other));
  places.wait(*first);
  ASSERT_TRUE(places.take(*any));
  EXPECT_TRUE(first->is_closed);
  places.wait(*other);
  EXPECT_FALSE(places.take(*same));
  first.reset();
  EXPECT_TRUE(places.take(*same));
  EXPECT_TRUE(other->is_closed);
}

TEST(ConnectionPlaces, they_are_empty_once_all_connections_are_gone) {
  ConnectionPlaces places(2, 2);
  EXPECT_TRUE(places.wait_empty(milliseconds(0)));
  auto one = seated(places);
  ASSERT_TRUE(places.take(*one));
  EXPECT_EQ(places.all(), std::vector<std::shared_ptr<SeatedConnection>>{one});
  EXPECT_FALSE(places.wait_empty(milliseconds(1)));
  one.reset();
  EXPECT_TRUE(places.wait_empty(milliseconds(0)));
  EXPECT_TRUE(places.all().empty());
}

}  // namespace
}  // namespace specd::host
