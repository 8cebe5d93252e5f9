"""Files of profiles: what is read is what was written, and the API takes what is pasted."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from argosy_law.estimate.capacity import PRESETS, Machine
from argosy_law.goals import Profile
from argosy_law.sim.world.machine import Replica
from argosy_measure.profiles import PodProfile, ProfileError, parse, read, write
from argosy_operator.api.v1alpha1.roles import GpuType

LEAST = """
gpuTypes:
- name: h100
  profile: {prefillBaseMs: 4, perPromptTokenMs: 0.1, decodeBaseMs: 29, perSequenceMs: "0.2",
            perContextTokenMs: 0.0001, kvTokens: 480000}
"""

constants = st.integers(1, 10**12).map(lambda picoseconds: picoseconds / 10**12)
profiles = st.builds(
    Profile, constants, constants, constants, constants, constants, constants | st.just(0.0),
    st.integers(1, 10**9).map(float),
)  # fmt: skip
replicas = st.builds(
    Replica,
    profiles,
    st.builds(
        Machine, st.integers(1, 64), st.integers(1, 10**7), st.integers(1, 10**12).map(float)
    ),
    st.integers(1, 4096),
    st.integers(1, 65536),
)
pods = st.builds(
    PodProfile,
    st.just(""),
    replicas,
    st.none() | st.integers(1, 10**9).map(lambda cents: cents / 10**4),
    st.dictionaries(
        st.sampled_from(["prefill", "decode"]), st.integers(0, 9999).map(lambda n: n / 10**4)
    ),
)
files = st.lists(pods, min_size=1, max_size=3).map(
    lambda found: [
        PodProfile(f"t{at}", pod.replica, pod.price, pod.errors) for at, pod in enumerate(found)
    ]
)


@given(files)
def test_what_is_read_is_what_was_written(found: list[PodProfile]) -> None:
    again = parse("f", yaml.safe_load(write(found)))
    assert [pod.name for pod in again] == [pod.name for pod in found]
    for pod, other in zip(found, again, strict=True):
        assert other.price == pytest.approx(pod.price, abs=1e-4)
        assert other.errors == pytest.approx(pod.errors)
        assert other.replica.machine == pod.replica.machine
        assert other.replica.max_num_seqs == pod.replica.max_num_seqs
        assert other.replica.max_num_batched_tokens == pod.replica.max_num_batched_tokens
        for name in Profile.__dataclass_fields__:
            wanted, got = getattr(pod.replica.profile, name), getattr(other.replica.profile, name)
            assert got == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@example([PodProfile("h100", Replica.preset("opt-13b-a100"), 0.55)])
@example([PodProfile("h100", Replica.preset("opt-13b-a100"), 100.0)])
@given(files)
def test_the_api_takes_the_gpu_types_of_a_file(found: list[PodProfile]) -> None:
    for entry in yaml.safe_load(write(found))["gpuTypes"]:
        pasted = GpuType.model_validate({"costPerHour": "1.00", **entry})
        assert pasted.profile is not None
        assert pasted.profile.kv_tokens is not None


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_own_file(preset: str, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(write(read(preset)))
    assert [pod.replica for pod in read(str(file))] == [Replica.preset(preset)]
    assert read(f"sim://{preset}") == read(preset)


def test_a_file_of_the_api_alone_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(LEAST)
    (pod,) = read(str(file))
    assert (pod.name, pod.gpus, pod.price) == ("h100", 1, None)
    assert pod.replica.profile.decode_base_s == pytest.approx(0.029)
    assert pod.replica.max_num_seqs == 256


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("gpuTypes:", "types:", "gpuTypes"),
        ("name: h100", "name: 5", "gpuTypes[0].name"),
        ("kvTokens: 480000", "kvTokens: 0", "gpuTypes[0].profile.kvTokens"),
        (", kvTokens: 480000", "", "gpuTypes[0].profile.kvTokens"),
        ("decodeBaseMs: 29", "decodeBaseMs: -1", "gpuTypes[0].profile.decodeBaseMs"),
        ("decodeBaseMs: 29", "decodeBaseMs: true", "gpuTypes[0].profile.decodeBaseMs"),
        ("decodeBaseMs: 29", "decodeBaseMs: 0", "gpuTypes[0].profile.decodeBaseMs"),
        ("decodeBaseMs: 29", "decodeBaseMs: .nan", "gpuTypes[0].profile.decodeBaseMs"),
        ("decodeBaseMs", "decodeMs", "gpuTypes[0].profile.decodeMs"),
        ("perSequenceMs", "decodeBaseMs", "gpuTypes[0].profile.perSequenceMs"),
        ("  profile:", "  gpu: 1.5\n  profile:", "gpuTypes[0].gpu"),
        ("  profile:", "  model:", "gpuTypes[0].profile"),
        ("gpuTypes:", "pods:\n- gpuType: a100\ngpuTypes:", "pods[0].gpuType"),
        ("gpuTypes:", "pods:\n- gpuType: h100\n  tokens: 1\ngpuTypes:", "pods[0].tokens"),
        ("gpuTypes:", "pods: 5\ngpuTypes:", "pods"),
        ("gpuTypes:", "}", "YAML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_field(
    before: str, after: str, names: str, tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(LEAST.replace(before, after, 1))
    with pytest.raises(ProfileError) as refused:
        read(str(file))
    assert str(file) in str(refused.value)
    assert names in str(refused.value)


def test_a_name_that_is_neither_file_nor_preset_is_told_both() -> None:
    with pytest.raises(ProfileError, match=r"argosy profile.*llama-70b-h100-tp4"):
        read("h200")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["gpuTypes", "pods", "name", "gpuType", "profile", "gpu", "fitErrors"]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_any_document_is_read_or_refused(document: object) -> None:
    try:
        parse("f", document)
    except ProfileError as refused:
        assert str(refused).startswith("f: ")  # noqa: PT017 (either outcome is right)
