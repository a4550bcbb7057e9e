"""Results as files: what an evaluation's record says, declared once, and the small JSON files that hold records.

Evaluations are written here and read back; the database, the report and the checks are made from what lies here.
"""
