# Images without a Docker daemon: buildah and podman with a storage of their own in the cache. Sourced by test.sh.
# shellcheck shell=bash disable=SC2154

# Sets `storage` (flags that buildah and podman share) and exports BAM_PODMAN for the Python tests. The runroot, which podman
# wants to be shorter than 50 characters, is named after the root.
init_storage() {
  local root=$1/storage driver=vfs run
  run=/run/bam-images-$(cksum <<<"$root" | cut -d ' ' -f 1)
  mkdir -p "$root"
  # vfs copies every layer, but works everywhere; overlay cannot lie on an overlay.
  if grep -qw overlay /proc/filesystems && [[ $(stat -f -c %T "$root") != overlayfs ]]; then driver=overlay; fi
  storage=(--storage-driver "$driver" --root "$root/$driver" --runroot "$run")
  export BAM_PODMAN="podman ${storage[*]} --cgroup-manager cgroupfs --runtime runc"
}

# What killed runs left, and layers older than a week that no image stands on.
tidy_storage() {
  podman "${storage[@]}" rm --all --force >/dev/null
  buildah "${storage[@]}" rm --all >/dev/null
  podman "${storage[@]}" image prune --force --filter until=168h >/dev/null
}

have_image() { podman "${storage[@]}" image exists "$1"; }

# commit_folder FOLDER NAME: an image whose only layer is FOLDER.
commit_folder() {
  local container
  container=$(buildah "${storage[@]}" from scratch) || return 1
  buildah "${storage[@]}" add -q "$container" "$1" / &&
    buildah "${storage[@]}" config --cmd /bin/bash \
      --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container" &&
    buildah "${storage[@]}" commit -q "$container" "$2" || return 1
  buildah "${storage[@]}" rm "$container"
}

# Like the slim images: neither documents nor translations, now and when packages are added.
slim_down() {
  local root=$1
  printf 'path-exclude /usr/share/%s/*\n' doc man info locale >"$root/etc/dpkg/dpkg.cfg.d/slim"
  printf 'path-include /usr/share/doc/*/copyright\n' >>"$root/etc/dpkg/dpkg.cfg.d/slim"
  # An interrupted installation is thrown away with its layer: no need to wait for the disk after every file.
  echo force-unsafe-io >>"$root/etc/dpkg/dpkg.cfg.d/slim"
  printf 'Apt::AutoRemove::SuggestsImportant "false";\nDir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n' \
    >"$root/etc/apt/apt.conf.d/slim"
  find "$root/usr/share/doc" -type f ! -name copyright -delete
  rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*
}

# How this machine reaches its archive (a proxy, a frozen mirror) holds for the images that are built on it as well.
inherit_apt() {
  apt-config dump | grep -E '^Acquire::(Check-Valid-Until|https?::Proxy) ' >"$1/etc/apt/apt.conf.d/machine" || true
}

# make_base SUITE NAME: a stand-in for the registry's image of a Debian suite, from this machine's own archive.
make_base() {
  local suite=$1 name=$2 folder=$cache/rootfs-$1 uri
  uri=$(debian_archive_uri)
  [[ -n $uri ]] || { echo "no Debian archive in this machine's apt sources"; return 1; }
  if [[ ! -e $folder.complete ]]; then
    rm -rf "$folder"
    debootstrap --variant=minbase "$suite" "$folder" "$uri" && touch "$folder.complete" || return 1
  fi
  slim_down "$folder" && inherit_apt "$folder" && commit_folder "$folder" "$name" || return 1
  rm -rf "$folder" "$folder.complete"
}

# make_toolkit_image TOOLKIT NAME: a stand-in for NVIDIA's image, of which the Dockerfile takes this folder only.
make_toolkit_image() {
  local folder=$cache/toolkit
  rm -rf "$folder"
  mkdir -p "$folder/usr/local"
  cp -a --reflink=auto "$(realpath "$1")" "$folder/usr/local/cuda-13.0" && commit_folder "$folder" "$2" || return 1
  rm -rf "$folder"
}

# build_image FILE NAME [OPTION…]: the Dockerfile as it is, on this checkout; layers that did not change come from the last run.
build_image() {
  local file=$1 name=$2
  shift 2
  buildah "${storage[@]}" bud --isolation chroot --pull-never --layers --format docker -f "$file" -t "$name" "$@" .
}
