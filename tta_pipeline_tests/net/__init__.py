"""The net: what a user sees of every verb, every option and every asset, kept as files, to be compared after a change.

::

    python -m tta_pipeline_tests.net record BEFORE     # in a clean checkout of the commit before
    python -m tta_pipeline_tests.net record AFTER      # and of the commit after
    python -m tta_pipeline_tests.net compare BEFORE AFTER

The tour is data, in `tour.py`. Its commands are real processes of the installed programs; PYTHONPATH chooses the code
that they run, so one net can be laid over two commits. Nothing here imports a module of the package.
"""
