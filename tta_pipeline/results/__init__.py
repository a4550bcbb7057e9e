"""Results as files, the plans that list the required results, and the declaration of their fields.

The database, the report and the checks are made from these files.
"""
