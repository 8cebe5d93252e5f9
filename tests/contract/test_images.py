"""The Dockerfile, what its context lets through, and the images that a release has."""

import re
from pathlib import Path

from local.release.images import IMAGES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def test_the_context_has_what_the_dockerfile_copies_and_nothing_else():
    copied = {
        word.replace("${VERSION}", "*")
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert "*" in IGNORED
    assert {line[1:] for line in IGNORED if line.startswith("!")} == copied


def test_a_release_has_each_image_of_the_dockerfile():
    stages = set(re.findall(r"^FROM \S+ AS ([\w-]+)$", DOCKERFILE, re.MULTILINE))
    assert stages - {"base", "build", "engine-packages", "triton"} == set(IMAGES)


def test_each_image_installs_what_is_pinned_for_it():
    for image in IMAGES:
        assert f"install.sh {image}.txt" in DOCKERFILE
        assert "--hash=sha256:" in (ROOT / "requirements" / f"{image}.txt").read_text()
