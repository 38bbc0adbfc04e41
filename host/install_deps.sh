# Debian packages that specd is built from, in one place; sourced by host/quickstart.sh and
# tests/run.sh. Installs only what is missing, with apt-get, as root or through sudo.

# What is built must not be writable by others, or the daemon refuses the plugins.
umask 022

specd_build_packages=(
  g++ cmake ninja-build make pkg-config
  libboost-dev libboost-filesystem-dev libboost-system-dev libboost-program-options-dev
  libyaml-cpp-dev nlohmann-json3-dev libspdlog-dev libssl-dev libutf8proc-dev
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  prometheus-cpp-dev
)
specd_test_packages=(
  clang clang-format clang-tidy libclang-rt-14-dev python3 libgtest-dev libbenchmark-dev libpcre2-dev
  libboost-context-dev ccache fish zsh python3-matplotlib libopenmpi-dev openmpi-bin
)

specd_install() {
  local missing=() package as_root=()
  for package in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      missing+=("$package")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "These Debian packages are missing, and there is neither root nor sudo to install them:" >&2
      echo "  ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update >/dev/null || return 1
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Run by root in another user's tree (sudo in a checkout): continues as that user, because the daemon
# trusts only plugins in directories of root or of its own user. $@: the command to start again.
specd_continue_as_owner() {
  local owner home
  owner=$(stat -c %u .)
  if [ "$(id -u)" -ne 0 ] || [ "$owner" -eq 0 ]; then return 0; fi
  home=$(getent passwd "$owner" | cut -d: -f6)
  echo "Continuing as the owner of this tree, user $owner"
  exec setpriv --reuid="$owner" --regid="$(stat -c %g .)" --clear-groups \
    env -u XDG_CACHE_HOME HOME="${home:-$PWD/build}" CCACHE_DIR="$PWD/build/ccache" "$@"
}
