"""Puts the layers of an artifact into one folder. What leads out of the folder is refused, but for
links of a root filesystem, which are followed only by what has the folder for its root.

A layer is a tar, plain or gzip, whose whiteouts remove what earlier layers brought; or, with a
title and without a request to unpack it, one file, as `oras push` makes them.
"""

import contextlib
import os
import shutil
import stat
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from local.cluster.cri.oci.reference import PullError
from local.cluster.cri.oci.registry import Layer

_TITLE = "org.opencontainers.image.title"
_UNPACK = "io.deis.oras.content.unpack"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def add_layer(layer: Layer, blob: Path, folder: Path, *, as_root: bool = False) -> None:
    """Add the layer that `blob` has the bytes of. PullError, and then `folder` is of no use.

    `as_root` makes the root filesystem of containers: links may be absolute, devices are left out.
    """
    title = layer.annotations.get(_TITLE)
    kind = layer.media_type.rpartition("/")[2]
    if title is not None and layer.annotations.get(_UNPACK) != "true":
        _add_file(title, blob, folder)
    elif "tar" in kind.replace("+", ".").split("."):
        _add_tar(blob, folder, as_root)
    else:
        raise PullError(
            f"a layer has the media type {layer.media_type!r} and no {_TITLE}: push files as tar, "
            "tar+gzip, or with their names"
        )


def _add_file(title: str, blob: Path, folder: Path) -> None:
    target = _place(folder, title)
    _clear(target)
    shutil.copyfile(blob, target)
    target.chmod(0o644)


def _add_tar(blob: Path, folder: Path, as_root: bool) -> None:
    with blob.open("rb") as file:
        start = file.read(4)
    if start == _ZSTD:
        raise PullError("a layer is compressed with zstd: push it as tar or tar+gzip")
    mode = "r:gz" if start[:2] == _GZIP else "r:"
    try:
        # Whiteouts are about earlier layers alone, wherever they stand in this one.
        with tarfile.open(blob, mode) as tar:  # type: ignore[call-overload]
            for member in tar:
                _white_out(member, folder)
        with tarfile.open(blob, mode) as tar:  # type: ignore[call-overload]
            for member in tar:
                if as_root and (member.isdev() or member.name.startswith(("dev/", "./dev/"))):
                    continue  # a runtime makes them
                if not _name(member).startswith(_WHITEOUT):
                    _extract(tar, member, folder, as_root)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise PullError(f"a layer cannot be unpacked: {error}") from error


def _name(member: tarfile.TarInfo) -> str:
    return PurePosixPath(member.name).name


def _white_out(member: tarfile.TarInfo, folder: Path) -> None:
    """Remove what the member says that this layer removes."""
    name = _name(member)
    if not name.startswith(_WHITEOUT):
        return
    beside = _place(folder, str(PurePosixPath(member.name).parent / "beside")).parent
    if name == _OPAQUE:
        for entry in list(beside.iterdir()):
            _clear(entry)
        return
    removed = name.removeprefix(_WHITEOUT)
    if removed in ("", ".", ".."):
        raise PullError(f"a layer has the whiteout {member.name!r}, which names nothing")
    _clear(beside / removed)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, as_root: bool) -> None:
    if member.isdir() and not _parts(member.name):
        return  # the folder itself
    target = _place(folder, member.name)
    if member.isdir():
        if target.is_symlink() or not target.is_dir():
            _clear(target)
            target.mkdir()
    elif member.issym():
        if not as_root:
            _refuse_way_out(member)
        _clear(target)
        target.symlink_to(member.linkname)
    elif member.islnk():
        source = _place(folder, member.linkname)
        if source.is_symlink() or not source.is_file():
            raise PullError(f"{member.name!r} of a layer links to {member.linkname!r}: no file")
        if source == target:
            return
        _clear(target)
        os.link(source, target)
    elif member.isreg():
        _clear(target)
        content = tar.extractfile(member)
        assert content is not None  # of a regular file it never is
        with target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
    else:
        raise PullError(f"{member.name!r} of a layer is a device or a pipe: push files alone")
    _own(target, member)


def _own(target: Path, member: tarfile.TarInfo) -> None:
    """Mode without setuid, and the owner where this machine has it: rootless, it does not."""
    if target.is_symlink():
        return
    with contextlib.suppress(OSError, OverflowError):
        os.chown(target, member.uid, member.gid)
    extra = stat.S_IRWXU if member.isdir() else 0
    target.chmod((member.mode & 0o777) | extra)


def _parts(name: str) -> tuple[str, ...]:
    """Of a path in the folder. PullError for one that leads out."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise PullError(
            f"a layer has the path {name!r}: push paths that are relative and without '..'"
        )
    return path.parts


def _place(folder: Path, name: str) -> Path:
    """Where `name` goes; its folders are made. No link is followed on the way."""
    parts = _parts(name)
    if not parts:
        raise PullError(f"a layer has the path {name!r}, which names no file")
    place = folder
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise PullError(f"{name!r} of a layer goes through {part!r}, which is no folder")
        place.mkdir(mode=0o755, exist_ok=True)
    return place / parts[-1]


def _refuse_way_out(member: tarfile.TarInfo) -> None:
    """A link may lead to what is in the folder. Its `..` come first: after a name, that name may
    be a link itself, and the count of `..` says nothing."""
    depth = len(_parts(member.name)) - 1
    target = PurePosixPath(member.linkname)
    names = list(target.parts)
    while names and names[0] == ".." and depth > 0:
        names.pop(0)
        depth -= 1
    if target.is_absolute() or ".." in names:
        raise PullError(
            f"{member.name!r} of a layer links to {member.linkname!r}, out of the artifact: push "
            "links that stay in it, or files"
        )


def _clear(target: Path) -> None:
    """Remove what stands there, of whatever kind."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
