#!/bin/sh
# kubectl argosy, as krew unpacks it. The first call installs the plug-in from the wheel beside this
# file, with its pinned dependencies (requirements.txt, with hashes), into a folder of the user's
# cache; later calls start it. Python 3.11 or newer with its venv module, and a package index that
# pip knows, must be there at the first call.
set -eu
link="$0"
while [ -L "$link" ]; do # krew puts a link on the PATH
  target="$(readlink "$link")"
  case "$target" in /*) link="$target" ;; *) link="$(dirname "$link")/$target" ;; esac
done
here="$(cd "$(dirname "$link")" && pwd)"
wheel="$(ls "$here"/argosy-*.whl)"
version="$(basename "$wheel" .whl)"
home="${ARGOSY_PLUGIN_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/argosy}/$version"
if [ ! -e "$home/ready" ]; then
  python="${ARGOSY_PYTHON:-python3}"
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "kubectl argosy: $python is not Python 3.11 or newer: name one in ARGOSY_PYTHON" >&2
    exit 1
  fi
  echo "kubectl argosy: installing $version into $home, once" >&2
  rm -rf "$home"
  if ! { "$python" -m venv "$home" \
    && "$home/bin/pip" install -q --disable-pip-version-check --require-hashes \
      -r "$here/requirements.txt" \
    && "$home/bin/pip" install -q --disable-pip-version-check --no-deps "$wheel"; } >&2; then
    echo "kubectl argosy: it could not be installed; see above. The next call tries again" >&2
    exit 1
  fi
  : > "$home/ready"
fi
exec "$home/bin/kubectl-argosy" "$@"
