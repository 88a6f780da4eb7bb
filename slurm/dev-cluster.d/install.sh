# shellcheck shell=bash
# The programs that dev-cluster runs: this machine's own packages, or the Slurm of another Debian. Sourced by it.
# shellcheck disable=SC2153 # DEBIAN and the others are set there
#
# The other Debian is a folder in the cache, made by debootstrap. No host has it as its root: jobs are to see this
# machine's files, its Python too. So copies of its Slurm programs are given its loader and its libraries by absolute path
# (patchelf). They run like any program here, and what they start runs with this machine's own libraries.

PACKAGES=(slurmctld slurmd slurm-client slurmdbd munge mariadb-server-core mariadb-client-core iproute2 procps util-linux)
DAEMONS=(slurmctld slurmd slurmstepd slurmdbd)

cache() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/orchestrate/debian-$DEBIAN"; }
libraries() { echo "$(cache)/root/usr/lib/$(uname -m)-linux-gnu"; }
plugin_dir() { echo "$(libraries)/slurm-wlm"; }

tool() { # NAME of a daemon or client: prints its path
  if [[ $DEBIAN ]]; then echo "$(cache)/bin/$1"; else type -P "$1"; fi
}

require_tools() {
  local name
  for name in unshare nsenter flock ip munged mariadbd "${DAEMONS[@]}" "${CLIENTS[@]}"; do
    type -P "$name" >/dev/null || die "no $name here; run: $HERE/dev-cluster install"
  done
  for name in "${DAEMONS[@]}" "${CLIENTS[@]}"; do
    [[ -x $(tool "$name") ]] || die "no $name of Debian $DEBIAN here; run: $HERE/dev-cluster --debian $DEBIAN install"
  done
  unshare --net --uts --mount --pid --fork true 2>/dev/null ||
    die "root may not make namespaces here; a container needs --privileged for that"
}

install_tools() {
  local packages=("${PACKAGES[@]}")
  [[ -z $DEBIAN ]] || packages+=(debootstrap debian-archive-keyring patchelf)
  install_packages "${packages[@]}"
  if [[ $DEBIAN ]]; then
    [[ -d $(cache)/root ]] || make_root
    patch_programs
  fi
  echo "installed: Slurm $(slurm_version)"
}

install_packages() { # those that are missing; apt is not even asked if none is
  local package missing=()
  for package; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
}

# The mirror of this machine's own apt sources; none on other systems, and so debootstrap's own choice.
own_mirror() {
  # shellcheck disable=SC2016 # $(SITE) is apt's
  apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1
}

make_root() {
  local cache mirror
  cache=$(cache)
  rm -rf "$cache" # what an interrupted try has left
  mkdir -p "$cache"
  mirror=${DEV_CLUSTER_MIRROR:-$(own_mirror)}
  echo "making $cache, about 300 MB"
  debootstrap --variant=minbase --include=slurmctld,slurmd,slurm-client,slurmdbd \
    trixie "$cache/root.new" ${mirror:+"$mirror"} >"$cache/debootstrap.log" 2>&1 ||
    die "debootstrap failed: $(tail -n 1 "$cache/debootstrap.log"). It takes Debian 13 from ${mirror:-its own mirror}:" \
      "is that in reach? DEV_CLUSTER_MIRROR=URL names another one. Its log: $cache/debootstrap.log"
  mv "$cache/root.new" "$cache/root"
}

patch_programs() {
  local name source copy loader
  mkdir -p "$(cache)/bin"
  # Found in one of the two on amd64, in the other on arm64.
  loader=$(find "$(cache)"/root/usr/lib64 "$(libraries)" -name 'ld-linux-*.so.*' -print -quit 2>/dev/null || true)
  for name in "${DAEMONS[@]}" "${CLIENTS[@]}"; do
    for source in "$(cache)"/root/usr/{sbin,bin}/"$name"{-wlm,}; do # Debian's alternatives end in -wlm
      [[ -f $source && ! -L $source ]] && break
    done
    copy=$(cache)/bin/$name.new # a program that runs can't be written, but replaced
    cp "$source" "$copy"
    # rpath and not runpath: it counts for the libraries of libraries and for plugins too.
    patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$(plugin_dir):$(libraries)" "$copy"
    mv "$copy" "$(cache)/bin/$name"
  done
}
