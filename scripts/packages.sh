# Debian packages by group, and how to install what is missing. Sourced by setup.sh.
# shellcheck shell=bash disable=SC2034

# What building and serving need. docs/dependencies.md says why each library is there.
PACKAGES_BUILD=(
  g++ make cmake ninja-build ccache pkg-config dpkg-dev ca-certificates
  # Drogon and trantor
  libjsoncpp-dev uuid-dev zlib1g-dev libssl-dev libc-ares-dev libbrotli-dev
  # bam itself
  nlohmann-json3-dev libspdlog-dev libfmt-dev libxxhash-dev libsentencepiece-dev libhwy-dev libcli11-dev
  libcurl4-openssl-dev libedit-dev libyaml-dev
  # the package looks at its files with it
  file
  # tests and micro-benchmarks are part of every build
  libgtest-dev libbenchmark-dev python3
)
# Transports between machines, each a plugin that is built when its library is there.
PACKAGES_CLUSTER=(libgloo-dev libopenmpi-dev openmpi-bin libhiredis-dev libzmq3-dev)
PACKAGES_TESTS=("${PACKAGES_CLUSTER[@]}" redis-server iproute2 curl haproxy openssl python3-numpy python3-yaml)
# numpy makes the random checkpoints; oneDNN is there to be compared with.
PACKAGES_BENCH=(python3-numpy libdnnl-dev)
PACKAGES_FUZZ=(clang libclang-rt-dev llvm)
PACKAGES_LINT=(clang-format clang-tidy shellcheck)
PACKAGES_BROWSER=(chromium chromium-driver)
PACKAGES_DOCKER=(buildah podman runc debootstrap python3-yaml python3-venv)

# missing_packages NAME…: prints the names that are not installed, one per line.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Abbrev}:${Package}\n' "$@" 2>/dev/null | sed -n 's/^[ih]i[ ]*://p' || true)
  comm -13 <(sort -u <<<"$installed") <(printf '%s\n' "$@" | sort -u)
}

as_root() {
  if ((EUID == 0)); then "$@"
  elif [[ -t 2 ]]; then sudo "$@"
  else sudo -n "$@"; fi
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@"
}

# A first try with the package lists that are there; when that fails (no lists, stale lists) with fresh ones.
apt_install() {
  apt_get install --no-install-recommends "$@" && return 0
  apt_get update && apt_get install --no-install-recommends "$@"
}

# install_packages LOG NAME…: installs what is missing of NAME…; silent when nothing is.
install_packages() {
  local log=$1 missing
  shift
  command -v dpkg-query >/dev/null 2>&1 ||
    die "this script installs Debian packages, and there is no dpkg here. Install the equivalents of: $*"
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) && return 0
  if ((EUID != 0)) && ! command -v sudo >/dev/null 2>&1; then
    die "packages are missing, and neither root nor sudo is available. As root: apt-get install ${missing[*]}"
  fi
  # Asks for the password here, where a person sees it, and not inside a logged step.
  if ((EUID != 0)) && [[ -t 2 ]]; then sudo -v || die "sudo refused. As root: apt-get install ${missing[*]}"; fi
  run_step "$log" "installing ${#missing[@]} Debian packages: ${missing[*]}" apt_install "${missing[@]}"
}
