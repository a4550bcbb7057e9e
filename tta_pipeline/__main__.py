"""The command `tta-pipeline`, and `python -m tta_pipeline`."""

from tta_pipeline.util.interrupts import ends_on_interrupt


def main() -> None:
    """Run the verb that the command line names."""
    with ends_on_interrupt():
        from tta_pipeline.cli import main as verbs  # takes a moment, in which Ctrl-C counts too

        verbs(prog_name="tta-pipeline")


if __name__ == "__main__":
    main()
