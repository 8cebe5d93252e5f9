"""Runs a command as a user without privileges, for tests of rootless clusters that run as root.

`python -m tests.local.ordinary UID HOME COMMAND …`. The user needs no account. A virtual
environment, a Python or the binaries may lie below a directory that only root enters, such as
/root: in a mount namespace of the command's own, such a directory is covered by an empty one, in
which nothing but these places appear. The machine itself stays as it is.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from local.cluster.build import bin_dir, find_go
from local.cluster.fetch import cache_root, place, search_path
from local.cluster.layout import SOURCE

USER = 65531


def reason_not() -> str | None:
    """Why an ordinary user can have no cluster here; None when it should work."""
    if os.geteuid() != 0:
        return "this test becomes another user, which only root may do"
    become = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
    spaces = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    tried = subprocess.run(["setpriv", *become, *spaces], capture_output=True, text=True)
    return tried.stderr.strip() or "refused" if tried.returncode else None


def needed() -> list[Path]:
    """Places that the user must read: this environment, its Python, the binaries, the source."""
    places = [sys.prefix, sys.base_prefix, SOURCE, bin_dir().parent]
    if go := find_go():
        places.append(Path(go).resolve().parents[1])
    if place().exists():
        places.append(place())
    return [Path(place).resolve() for place in places]


def closed_above(place: Path) -> Path | None:
    """The topmost directory on the way to `place` that others may not enter."""
    for above in reversed(place.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return None


def open_places(places: list[Path]) -> None:
    """Covers closed directories of the mount namespace that we are in, leaving `places` to see."""
    closed = {above for place in places if (above := closed_above(place))}
    for above in sorted(closed):
        inside = [place for place in places if place.is_relative_to(above)]
        with tempfile.TemporaryDirectory() as kept:
            _mount("--rbind", str(above), kept)
            _mount("-t", "tmpfs", "-o", "mode=755", "opened", str(above))
            for place in inside:
                place.mkdir(parents=True, exist_ok=True)
                _mount("--rbind", str(Path(kept) / place.relative_to(above)), str(place))
            subprocess.run(["umount", "--recursive", "--lazy", kept], check=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def command(home: Path, words: list[str], user: int = USER) -> list[str]:
    """The whole command line, to be run by root. `home` is the user's."""
    module = [sys.executable, "-m", "tests.local.ordinary", str(user), str(home)]
    return ["unshare", "--mount", "--propagation=private", *module, *words]


def environment(home: Path) -> dict[str, str]:
    """Nothing of root's own but where programs are."""
    return {
        "PATH": search_path(),
        "HOME": str(home),
        "ARGOSY_CACHE": str(cache_root()),
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def main() -> None:
    user, home, *words = sys.argv[1:]
    os.chown(home, int(user), int(user))
    env = environment(Path(home))
    program = shutil.which(words[0], path=env["PATH"]) or words[0]
    open_places(needed())
    os.chdir(home)
    become = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    # No capabilities are left after the change of user, and none can come back.
    os.execvpe("setpriv", ["setpriv", *become, "--", program, *words[1:]], env)


if __name__ == "__main__":
    main()
