# shellcheck shell=bash
# What the scripts beside this file share. Sourced, never run.

set -euo pipefail

# Scripts work from any folder and never wait for someone to type.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Can this run install Debian packages by itself?
can_apt() { have apt-get && [ "$(id -u)" = 0 ]; }

apt_install() {
  # Debian's lists may be absent on a new machine, and an old list may name a version that is gone.
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 && return
  apt-get update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >/dev/null
}

# need COMMAND PACKAGE WHY: makes sure that COMMAND exists, by apt where that is possible.
need() {
  have "$1" && return
  if can_apt; then
    say "installing $2 ($3)"
    apt_install "$2" || die "apt-get could not install $2, needed for $3"
  fi
  have "$1" || die "'$1' is missing, needed for $3: install it (Debian: apt-get install $2) and try again"
}

# The oldest Rust that builds the workspace, from the one place that says so.
rust_version() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }

# Rust is not installed from here: Debian's own is too old and a toolchain is the user's choice.
need_rust() {
  local wanted found
  wanted=$(rust_version)
  have cargo || die "'cargo' is missing: install Rust $wanted or newer from https://rustup.rs and try again"
  found=$(rustc --version | cut -d' ' -f2)
  [ "$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
    die "rustc $found is too old: install Rust $wanted or newer (rustup update stable) and try again"
}

# need_component COMMAND COMPONENT: a part of the toolchain that cargo runs.
need_component() {
  cargo "$1" --version >/dev/null 2>&1 ||
    die "'cargo $1' is missing: run 'rustup component add $2' and try again"
}

# SQLite, the TLS primitives and the allocator are compiled from C.
need_cc() { need cc gcc "compiling SQLite and TLS"; need make make "compiling the allocator"; [ -e /usr/include/stdlib.h ] || ! can_apt || apt_install libc6-dev; }

# Python 3.9 or newer, with venv, which Debian packages apart.
need_python() {
  need python3 python3 "the Python package"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || die "python3 is too old: install Python 3.9 or newer"
  python3 -c 'import ensurepip' 2>/dev/null || ! can_apt || apt_install python3-venv
  python3 -c 'import ensurepip' 2>/dev/null || die "python3 has no venv: install it (Debian: apt-get install python3-venv)"
}

# python_environment NAME REQUIREMENT…: the folder of a virtual environment that holds them, kept
# in the cache; made with $PYTHON (python3).
python_environment() {
  local folder="${XDG_CACHE_HOME:-$HOME/.cache}/ticketing/python/$1" python=${PYTHON:-python3} holds
  shift
  holds="$("$python" -V) $* $(for list in "$@"; do [ ! -f "$list" ] || cat "$list"; done)"
  if [ "$(cat "$folder/holds" 2>/dev/null)" != "$holds" ]; then
    rm -rf "$folder"
    "$python" -m venv "$folder" >&2
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
    echo "$holds" >"$folder/holds"
  fi
  echo "$folder"
}

# built PROFILE: the folder that cargo builds into.
built() {
  local target
  target=$(cargo metadata --format-version=1 --no-deps --locked | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
  case $1 in dev) echo "$target/debug" ;; *) echo "$target/$1" ;; esac
}
