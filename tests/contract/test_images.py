"""The Dockerfile, what its context lets through, and the images that the README builds."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def test_the_context_has_what_the_dockerfile_copies_and_nothing_else():
    copied = {
        word.split("/")[0]
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert "*" in IGNORED
    assert {line[1:] for line in IGNORED if line.startswith("!")} == copied


def test_what_a_build_left_in_the_checkout_stays_out_of_the_context():
    last_exception = max(at for at, line in enumerate(IGNORED) if line.startswith("!"))
    assert {"**/__pycache__", "**/*.so"} <= set(IGNORED[last_exception + 1 :])


def test_the_readme_builds_each_image_that_pods_run():
    targets = set(re.findall(r"^FROM base AS (\w+)$", DOCKERFILE, re.MULTILINE))
    loop = re.search(r"^for image in (.+); do$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert loop is not None
    assert set(loop[1].split()) == targets
