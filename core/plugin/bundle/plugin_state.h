#pragma once

namespace specd {

// What the host has done with a bundle: read its manifest, loaded its library, or refused it.
enum class PluginState { kDiscovered, kLoaded, kRefused };

}  // namespace specd
