# Finds or builds Drogon (HTTP). Sourced by setup.sh.
#
# No released Drogon is fit for an open port as it is: an exception in a connection's callback ends the process, and a stream
# asked for with `Connection: close` has an empty body. So it is built here once, with the changes of scripts/drogon/edit.py,
# from
#   1. Debian's source packages of the unstable suite (its binaries would pull in a newer libc)
#   2. the upstream git tag
# An installed one (CMAKE_PREFIX_PATH, Drogon_ROOT, /usr/local, /usr) is used only if it carries these changes.
# shellcheck shell=bash

DROGON_MIN_VERSION=1.9.2
DROGON_PIN=1.9.13
TRANTOR_PIN=1.5.28
DROGON_GIT=${BAM_DROGON_GIT:-https://github.com/drogonframework/drogon.git}
DROGON_EDITS=$REPO_ROOT/scripts/drogon/edit.py
# Part of the cached folder's name: raise the number when the way of building changes.
DROGON_RECIPE=3-$(sha256sum "$DROGON_EDITS" | cut -c 1-8)

# The thread sanitizer must see what the event loops do: BAM_DROGON_SANITIZE=thread builds and finds a Drogon of its own.
DROGON_SANITIZE=${BAM_DROGON_SANITIZE:-}

# What a static library depends on besides its version: the distribution, the CPU and the C++ runtime. (clang links
# the same libstdc++, so a clang build of bam uses the same one.)
drogon_key() {
  local os
  # shellcheck disable=SC1091
  os=$(. /etc/os-release 2>/dev/null && printf '%s%s' "${ID:-linux}" "${VERSION_ID:-}") || os=linux
  printf '%s-%s-gcc%s-r%s\n' "$os" "$(uname -m)" "$(g++ -dumpversion 2>/dev/null | cut -d. -f1)" "$DROGON_RECIPE${DROGON_SANITIZE:+-$DROGON_SANITIZE}"
}

# drogon_version_in PREFIX: the version that PREFIX's CMake package announces, or nothing.
drogon_version_in() {
  local file
  for file in "$1"/lib/cmake/Drogon/DrogonConfigVersion.cmake "$1"/lib/*/cmake/Drogon/DrogonConfigVersion.cmake \
              "$1"/lib64/cmake/Drogon/DrogonConfigVersion.cmake; do
    [[ -f $file ]] || continue
    sed -nE 's/^[[:space:]]*set\(PACKAGE_VERSION "([0-9.]+)"\).*/\1/p' "$file" | head -n 1
    return 0
  done
}

# has_edits PREFIX: this trantor has our last line of defence, the mark of all edits.
has_edits() { grep -qs 'exceptionHook()' "$1"/include/trantor/net/EventLoop.h; }

# Prints the prefix of a Drogon that is new enough and has our changes, status 1 if there is none. Prefixes that the user
# names win.
find_drogon() {
  local prefix version
  local -a named cached
  IFS=':;' read -r -a named <<<"${Drogon_ROOT:-}:${CMAKE_PREFIX_PATH:-}"
  mapfile -t cached < <(printf '%s\n' "$(cache_dir)"/drogon-*-"$(drogon_key)" | sort -rV)
  for prefix in "${named[@]}" "${cached[@]}" /usr/local /usr; do
    [[ -n $prefix && -d $prefix ]] || continue
    [[ -z $DROGON_SANITIZE || $prefix == *-"$DROGON_SANITIZE" ]] || continue
    version=$(drogon_version_in "$prefix")
    if [[ -n $version ]] && version_ge "$version" "$DROGON_MIN_VERSION" && has_edits "$prefix"; then
      printf '%s\n' "$prefix"
      return 0
    fi
  done
  return 1
}

# The URI of the archive that this machine itself installs from, whatever the format of its sources.
debian_archive_uri() {
  local codename
  # shellcheck disable=SC1091
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  # shellcheck disable=SC2016
  apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)' 2>/dev/null |
    awk -v suite="$codename" '$3 == "main" && $4 == "Packages" {
        if ($2 == suite) { print $1; found = 1; exit }
        if (first == "" && $2 !~ /security|updates|backports/) first = $1 }
      END { if (!found && first != "") print first }'
}

# private_apt DIR TOOL ARG…: apt with the sources, lists and caches of DIR only: nothing of the unstable suite ever
# reaches the machine's own lists. Archives that stand still (snapshots, mirrors of a site) have lists past their date, signed all the same.
private_apt() {
  local dir=$1 tool=$2
  shift 2
  "$tool" -q -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=- -o Dir::Etc::Preferences=/dev/null \
    -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User="$(id -un)" \
    -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::Check-Valid-Until=false "$@"
}

# source_version DIR PACKAGE PIN: PIN's Debian version if the suite has it, else the newest one.
source_version() {
  local versions
  versions=$(private_apt "$1" apt-cache showsrc "$2" | sed -n 's/^Version: //p' | sort -rV)
  grep -m 1 -E "^([0-9]+:)?${3//./\\.}([+~-]|$)" <<<"$versions" || head -n 1 <<<"$versions"
}

fetch_debian_sources() {
  local dir=$1 uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed='' trantor drogon
  uri=$(debian_archive_uri)
  [[ -n $uri ]] || { echo "no Debian archive found in this machine's apt sources"; return 1; }
  [[ -r $keyring ]] && signed="[signed-by=$keyring] "
  mkdir -p "$dir"/{lists/partial,cache/archives/partial,src}
  printf 'deb-src %s%s sid main\n' "$signed" "$uri" >"$dir/sources.list"
  private_apt "$dir" apt-get update || return 1
  trantor=$(source_version "$dir" trantor "$TRANTOR_PIN")
  drogon=$(source_version "$dir" drogon "$DROGON_PIN")
  [[ -n $trantor && -n $drogon ]] || { echo "the archive has no source package of trantor and drogon"; return 1; }
  echo "trantor $trantor, drogon $drogon"
  (cd "$dir/src" && private_apt "$dir" apt-get source --download-only "trantor=$trantor" "drogon=$drogon") || return 1
  # apt has checked the hashes against the signed release already.
  dpkg-source --no-check -x "$dir"/src/trantor_*.dsc "$dir/trantor" &&
    dpkg-source --no-check -x "$dir"/src/drogon_*.dsc "$dir/drogon"
}

fetch_git_sources() {
  local dir=$1
  rm -rf "$dir/drogon" "$dir/trantor"
  git clone -q --depth 1 --branch "v$DROGON_PIN" --recurse-submodules --shallow-submodules "$DROGON_GIT" "$dir/drogon" &&
    mv "$dir/drogon/trantor" "$dir/trantor"
}

# cmake_install DIR NAME PREFIX OPTION…: builds DIR/NAME for PREFIX and installs it below DIR/stage.
cmake_install() {
  local dir=$1 name=$2 prefix=$3 flags='-O2 -DNDEBUG'
  shift 3
  [[ -z $DROGON_SANITIZE ]] || flags="-O1 -g1 -DNDEBUG -fsanitize=$DROGON_SANITIZE -fno-omit-frame-pointer"
  cmake -S "$dir/$name" -B "$dir/build-$name" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=$flags" \
    -DCMAKE_CXX_STANDARD=20 -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib "$@" &&
    cmake --build "$dir/build-$name" -j "$(compile_jobs)" &&
    DESTDIR="$dir/stage" cmake --install "$dir/build-$name"
}

compile_drogon() {
  local dir=$1 prefix=$2
  cmake_install "$dir" trantor "$prefix" -DTRANTOR_USE_TLS=openssl &&
    cmake_install "$dir" drogon "$prefix" -DCMAKE_PREFIX_PATH="$dir/stage$prefix" -DUSE_SUBMODULE=OFF -DBUILD_EXAMPLES=OFF \
      -DBUILD_CTL=OFF -DBUILD_ORM=OFF -DBUILD_YAML_CONFIG=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Hiredis=ON \
      -DCMAKE_DISABLE_FIND_PACKAGE_coz-profiler=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16
}

# The version that a Drogon source tree is going to install as.
drogon_source_version() {
  local part
  for part in MAJOR MINOR PATCH; do
    sed -nE "s/^set\(DROGON_${part}_VERSION ([0-9]+)\).*/\1/p" "$1/CMakeLists.txt" | head -n 1
  done | paste -sd .
}

# build_drogon LOG: source build into the cache. The prefix appears there by one rename, complete or not at all.
build_drogon() {
  local log=$1 cache dir version prefix
  cache=$(cache_dir)
  # Left by a run that was killed: nobody else can own it while we hold the lock.
  rm -rf "$cache"/tmp.drogon.*
  dir=$cache/tmp.drogon.$$
  mkdir "$dir"
  if ! run_step "$log" "Drogon $DROGON_PIN: fetching Debian's source packages" fetch_debian_sources "$dir"; then
    say "trying the upstream tag instead"
    command -v git >/dev/null 2>&1 || install_packages "$log" git || return 1
    run_step "$log" "Drogon $DROGON_PIN: cloning the upstream tag" fetch_git_sources "$dir" || return 1
  fi
  version=$(drogon_source_version "$dir/drogon")
  version_ge "${version:-0}" "$DROGON_MIN_VERSION" || { say "Drogon '$version' is older than $DROGON_MIN_VERSION"; return 1; }
  run_step "$log" "Drogon $version: applying scripts/drogon/edit.py" python3 "$DROGON_EDITS" "$dir" || return 1
  prefix=$cache/drogon-$version-$(drogon_key)
  run_step "$log" "Drogon $version: building trantor and Drogon, once per machine (2-5 minutes)" compile_drogon "$dir" "$prefix" || return 1
  rm -rf "$prefix"
  mv -T "$dir/stage$prefix" "$prefix"
  rm -rf "$dir"
}

# ensure_drogon LOG: makes find_drogon succeed.
ensure_drogon() {
  local log=$1
  find_drogon >/dev/null && return 0
  mkdir -p "$(cache_dir)"
  # Two checkouts may set up at once: the second waits for the first and then finds its result.
  exec 9>"$(cache_dir)/drogon.lock"
  flock -n 9 || { say "another set-up is building Drogon: waiting for it …"; flock 9; }
  if ! find_drogon >/dev/null; then
    build_drogon "$log" || { exec 9>&-; return 1; }
  fi
  exec 9>&-
  find_drogon >/dev/null || { say "Drogon was installed but is not found"; return 1; }
}
