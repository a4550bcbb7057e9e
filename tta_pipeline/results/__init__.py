"""Results as files, the plans that say what is asked for, and the declaration of their fields.

The database, the report and the checks are made from these files.
"""
