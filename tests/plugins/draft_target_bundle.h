// The shipped bundle of drafter_draft_target.
#pragma once

#include <specd/sdk/fake_host.h>

namespace specd {

inline const specd_factory& chain_factory() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES
                                      "/drafter_draft_target/drafter_draft_target.so");
  return loaded.factory("chain");
}

}  // namespace specd
