"""The versions that are installed are those that were tested."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tta_pipeline_tests.oldest import oldest_constraints

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def pins() -> Iterator[tuple[str, str]]:
    """Yield name and version of each line of constraints.txt."""
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            yield canonicalize_name(name), version


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(extra: str):
    """Else pip looks for one that fits all the others, which may take it minutes."""
    pinned = dict(pins())
    wanted = [each for each in map(Requirement, EXTRAS[extra]) if each.name != PROJECT["name"]]
    versions = {each: pinned.get(canonicalize_name(each.name)) for each in wanted}

    assert {} == {
        str(each): version
        for each, version in versions.items()
        if version is None or not each.specifier.contains(version)
    }


def test_every_package_is_pinned_once():
    """Two pins of one package cannot both hold."""
    names = [name for name, _ in pins()]

    assert sorted(set(names)) == sorted(names)


def test_one_version_of_the_hub_fits_every_extra():
    """Transformers 4 refuses huggingface_hub 1."""
    pinned = dict(pins())

    assert Requirement("huggingface_hub<1").specifier.contains(pinned["huggingface-hub"])
    assert Requirement("transformers<5").specifier.contains(pinned["transformers"])


def test_the_oldest_version_of_everything_that_users_install_can_be_asked_for():
    """Each requirement has one, allows it, and is there once; `make test-oldest` installs them."""
    oldest = [line.split("==") for line in oldest_constraints()]
    wanted = [Requirement(each) for extra in ("", "clip", "postgres", "remote", "timm") for each in EXTRAS[extra]]

    assert len(oldest) == len({name for name, _ in oldest})
    assert {} == {
        str(each): dict(oldest).get(canonicalize_name(each.name))
        for each in wanted
        if not each.specifier.contains(dict(oldest).get(canonicalize_name(each.name), "0"))
    }
