"""The notebook goes from the database to three figures."""

import base64
import io
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tta_pipeline_tests.conftest import Project

NOTEBOOK = Path(__file__).parents[1] / "examples" / "analysis.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own packages
def test_the_notebook_draws_three_figures(sweep: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every cell runs, in a kernel of its own; three pictures are shown, and three PDF files are written."""
    monkeypatch.setenv("TTA_DATA_ROOT", str(sweep.locations.root))
    monkeypatch.setenv("BENCHMARK", "small")
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    for number, picture in enumerate(pictures):
        with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
            image.save(tmp_path / f"{number}.png")
            assert len(image.convert("RGB").getcolors(2**20)) > 8
    assert ["error_by_corruption.pdf", "error_by_severity.pdf", "error_over_cost.pdf"] == sorted(
        path.name for path in tmp_path.glob("*.pdf")
    )


def test_the_notebook_is_kept_without_outputs():
    """They would be somebody's numbers, and a difference at every run."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
