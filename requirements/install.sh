#!/bin/sh
# Installs argosy with its pinned dependencies into /opt/argosy of an image: install.sh FILE [options
# of `uv venv`]. The Dockerfile mounts the stage that has uv, this folder and the wheels.
set -eu
here=$(dirname "$0") file=$1
shift
export UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
export VIRTUAL_ENV=/opt/argosy PATH="$here/../usr/local/bin:$PATH"
uv venv --quiet "$@" "$VIRTUAL_ENV"
uv pip install --quiet --require-hashes -r "$here/$file"
uv pip install --quiet --no-deps --no-index --find-links "$here/../wheels" argosy
