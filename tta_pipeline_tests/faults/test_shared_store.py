"""What must hold when several people evaluate on one store of shards that belongs to somebody else."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import owner_of
from tta_pipeline.results.result_files import read_result
from tta_pipeline_tests.conftest import Project, launcher, new_project
from tta_pipeline_tests.result_paths import result_paths

REPOSITORY = Path(__file__).parents[2]
KEEPER, ADA, BEN = 61_001, 61_002, 61_003
"""Numbers of users who need no account: the one who keeps the store, and two who read it."""
STEPS = ("images", "tar_shards", "shard_manifest")
MATERIALIZES = """
import os, sys
from dagster._cli import cli
user = int(sys.argv[1])
os.setgroups([])
os.setgid(user)
os.setuid(user)
for select in sys.argv[2:]:
    try:
        cli(["asset", "materialize", "-m", "tta_pipeline.definitions", "--select", select, "--partition", "contrast|5"])
    except BaseException as error:
        sys.stderr.write(f"{error!r}\\n== refused\\n")
"""
"""Materializes one asset after the other as a user of this number."""
VERB = "from tta_pipeline.cli import main; main()"


def python_for(user: int) -> str:
    """Return an interpreter that *user* may start: ours can lie in a home folder."""
    for path in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            subprocess.run([path, "-c", "import ssl"], user=user, group=user, extra_groups=[], check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return path
    pytest.skip("needs a Python of this version that other users may start")


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user of the machine with a data root of their own, who reads the store."""

    user: int
    home: Path
    store: Path

    @property
    def data_root(self) -> Path:
        """Where the results go."""
        return self.home / "data"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of this user."""
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "USER": str(self.user),
            "DAGSTER_HOME": str(self.home / "dagster"),
            "PYTHONPATH": f"{REPOSITORY}:{sysconfig.get_path('purelib')}", "PYTHONWARNINGS": "ignore",
            "TTA_DATA_ROOT": str(self.data_root), "TTA_SHARDS_ROOT": str(self.store), "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python as this user."""
        return subprocess.Popen(
            [python_for(self.user), *arguments], env=self.environment, cwd=self.home, user=self.user, group=self.user,
            extra_groups=[], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def materialize(self, select: str) -> subprocess.Popen[str]:
        """Start to materialize the cell contrast 5."""
        command = ("-m", "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", select)
        return self.start(*command, "--partition", "contrast|5")


@pytest.fixture
def people(sweep: Project) -> Iterator[tuple[Person, Person]]:
    """Two users, and a store of a third, in which they cannot write."""
    if os.geteuid():
        pytest.skip("needs the right to start processes as other users")
    folder = Path(tempfile.mkdtemp())  # the folders of tests are closed to other users
    folder.chmod(0o755)
    try:
        made = shutil.copytree(sweep.locations.root, folder / "store", ignore=shutil.ignore_patterns("results"))
        for path in (made, *made.rglob("*")):
            os.chown(path, KEEPER, KEEPER)
            path.chmod(0o555 if path.is_dir() else 0o444)
        people = []
        for user in (ADA, BEN):
            home = folder / str(user)
            home.mkdir()
            new_project(home)
            for path in (home, *home.rglob("*")):
                os.chown(path, user, user)
            people.append(Person(user=user, home=home, store=made))
        yield people[0], people[1]
    finally:
        shutil.rmtree(folder)


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Return time and hash of everything in *folder*."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.slow
def test_two_users_evaluate_on_one_store_at_once(people: tuple[Person, Person]):
    """Both get the same predictions as files of their own, nothing of the store changes, and no verb touches it."""
    ada, ben = people
    before = state(ada.store)

    running = [person.materialize("small/evaluation/norm") for person in people]
    for process in running:
        _, errors = process.communicate()
        assert 0 == process.returncode, errors[-3000:]
    results = [read_result(path) for person in people for path in result_paths(person.data_root)]
    assert [ADA, BEN] == [stored.path.stat().st_uid for stored in results]
    first, second = (stored.result.evaluations[0] for stored in results)
    assert first.predicted.predictions_sha256 == second.predicted.predictions_sha256
    assert all((person.data_root / "metrics.duckdb").exists() for person in people)

    process = ben.start("-c", VERB, "doctor", "--json")
    findings = {each["subject"]: each for each in json.loads(process.communicate()[0])}
    assert str(ben.data_root) in findings["data root"]["found"]
    assert (
        f"{ben.store} (TTA_SHARDS_ROOT) of user {owner_of(ben.store)}, only read: shards of small"
        in findings["store"]["found"]
    )

    process = ben.start("-c", VERB, "prune", "--dry-run", "--json")
    assert [] == json.loads(process.communicate()[0])

    assert before == state(ada.store)


def test_what_would_write_into_the_store_is_refused(people: tuple[Person, Person]):
    """The error says whose store it is and what to do, and comes before anything is done."""
    ada, _ = people
    before = state(ada.store)

    command = ["python", "-c", MATERIALIZES, str(ada.user), *(f"small/{step}" for step in STEPS)]
    errors = launcher().run(command, ada.environment, timeout_s=300, folder=ada.home).stderr

    refused = errors.split("== refused\n")[:-1]
    assert len(STEPS) == len(refused), errors[-3000:]
    owner = owner_of(ada.store)
    for step, said in zip(STEPS, refused, strict=True):
        assert f"is in the store {ada.store} (TTA_SHARDS_ROOT) of user {owner}, which is only read" in said, step
        assert "unset TTA_SHARDS_ROOT to use your own shards" in said, step
    assert before == state(ada.store)
    assert not (ada.data_root / "small").exists()
