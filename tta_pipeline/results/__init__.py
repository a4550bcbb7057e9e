"""Results as files: the fields of an evaluation's record, declared once, and the small JSON files that hold records.

This package writes and reads records; the database, the report and the checks are made from them.
"""
