"""Results as files: small JSON records, and the declaration of their fields.

This package reads and writes records, from which the database, the report and the checks are made.
"""
