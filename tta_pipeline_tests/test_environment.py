"""Environment variables that commands set for the libraries they load."""

import os

import pytest

from tta_pipeline.util.environment import let_idle_threads_sleep


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_idle_threads_sleep_unless_the_user_wants_them_to_spin(monkeypatch: pytest.MonkeyPatch, before, after):
    """OpenMP's own variable decides, as its documentation says."""
    monkeypatch.setattr(os, "environ", {"OMP_WAIT_POLICY": before} if before else {})

    let_idle_threads_sleep()

    assert after == os.environ["OMP_WAIT_POLICY"]
