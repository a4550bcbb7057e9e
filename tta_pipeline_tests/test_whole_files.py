"""A file of tests is run by one process, so that what its tests share is made once."""

from pathlib import Path

import pytest

from tta_pipeline.util.files import locked


@pytest.mark.parametrize("number", range(6))
def test_one_process_runs_all_tests_of_a_file(tmp_path_factory: pytest.TempPathFactory, worker_id: str, number: int):
    """Each test notes its process where the others do, and finds no other process there."""
    base = tmp_path_factory.getbasetemp()
    notes = (base if worker_id == "master" else base.parent) / Path(__file__).stem
    with locked(notes.with_suffix(".lock")):
        with notes.open("a") as file:
            file.write(f"{worker_id}\n")
        found = set(notes.read_text().split())

    assert {worker_id} == found
