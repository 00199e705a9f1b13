# Sourced by the scripts in this folder, which run in the root of the project.
# shellcheck shell=bash

say() { printf '%s: %s\n' "${0##*/}" "$*"; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# fingerprint FILE... : one word that changes when any of the files does.
fingerprint() { cat -- "$@" | sha256sum | cut -d ' ' -f 1; }

# install_debian PACKAGE : installs it if possible, else exits with an error.
install_debian() {
  local root=()
  command -v apt-get >/dev/null || die "$1 is not installed: install it and run this again"
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || die "$1 is not installed: run 'sudo apt-get install $1' and run this again"
    root=(sudo -n)
  fi
  say "installing the Debian package $1"
  # A fresh machine has no package lists; an old machine has stale ones.
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

# ensure_debian COMMAND PACKAGE
ensure_debian() { command -v "$1" >/dev/null || install_debian "$2"; }

policy=/usr/sbin/policy-rc.d

# Debian starts a service unless this program refuses. A file that exists already stays.
refuse_services() {
  local root=()
  [ ! -e "$policy" ] || return 0
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
  "${root[@]}" chmod 755 "$policy"
  # shellcheck disable=SC2064
  trap "${root[*]} rm -f $policy" EXIT
}

# A package enables its service for the next boot: undo that for what a script has installed.
disable_service() {
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  if [ -d /run/systemd/system ]; then
    "${root[@]}" systemctl disable --now --quiet "$1.service" || true
  elif command -v update-rc.d >/dev/null; then
    "${root[@]}" update-rc.d "$1" disable >/dev/null 2>&1 || true
  fi
}
