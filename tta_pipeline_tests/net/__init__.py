"""The net: records what a user sees of every verb, option and asset, for comparison after a change.

::

    python -m tta_pipeline_tests.net record BEFORE     # in a clean checkout of the commit before
    python -m tta_pipeline_tests.net record AFTER      # and of the commit after
    python -m tta_pipeline_tests.net compare BEFORE AFTER

The tour is data, in `tour.py`. Its commands are real processes of the installed programs. PYTHONPATH selects the code
that they run, so the same net can record two commits. No module here imports the package.
"""
